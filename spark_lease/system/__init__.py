"""The operating system: what the kernel does for guarded work."""
