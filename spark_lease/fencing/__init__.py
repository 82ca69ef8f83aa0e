"""The guarded store refuses the writes of an old epoch."""
