"""The lease store in a SQL table."""
