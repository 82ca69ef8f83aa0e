"""What a user can set. Knows no store, no process and no fence."""
