"""Fences in SQL databases: a claimed epoch, transactions that check it, triggers."""
