"""Writes a DataFrame into a SQL table in one fenced transaction."""
