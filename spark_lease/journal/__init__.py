"""What is recorded beside a lease: run keys and standbys."""
