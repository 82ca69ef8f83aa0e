"""The Spark of a driver: stops it, knows when it is over, fences its Delta writes, warms it up for a standby."""
