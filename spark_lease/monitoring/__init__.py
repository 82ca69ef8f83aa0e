"""Looking at leases, counting, telling. Nothing here takes a lease."""
