"""Fences in Delta tables: a claimed epoch in the table's own log."""
