"""Probe rows in: the index as a table, rows by number, and their columns in place."""
