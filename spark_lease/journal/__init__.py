"""The notes beside a lease: its history, run keys and standbys."""
