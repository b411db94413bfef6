"""Export of a finished dataset as flat measurements, one per row of a Parquet or CSV file."""
