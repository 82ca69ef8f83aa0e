"""Guarded work: a block of Python, a decorated function, a command."""
