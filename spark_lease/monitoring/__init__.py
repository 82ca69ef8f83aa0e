"""Reads leases, counts and reports events. Nothing here takes a lease."""
