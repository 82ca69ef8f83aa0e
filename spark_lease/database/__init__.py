"""What the stores and the fences both need of a database: its dialect, and connections on which every wait ends."""
