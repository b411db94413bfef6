"""Reading measurements: Parquet, RIPE Atlas JSON, BigQuery exports, and checks on every row."""
