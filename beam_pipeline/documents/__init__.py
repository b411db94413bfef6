"""Readers of documents: JSON lines, JSON arrays and Parquet, with row numbers."""
