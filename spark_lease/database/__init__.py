"""Databases, for stores and fences: dialects, and connections on which every wait ends."""
