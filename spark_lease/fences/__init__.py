"""Fences: the guarded store keeps the highest epoch that it has seen, and refuses whoever carries an older one."""
