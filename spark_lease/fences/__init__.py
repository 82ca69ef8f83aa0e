"""Fences: the guarded store keeps the highest epoch that it has seen, and refuses writes under an older one."""
