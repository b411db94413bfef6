"""Measurements in: Parquet, RIPE Atlas JSON, BigQuery exports, and the checks on every row."""
