"""Documents in: JSON lines, JSON arrays and Parquet, with row numbers and record ids."""
