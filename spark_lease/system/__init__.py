"""The operating system: processes, signals, and what the kernel does for guarded work."""
