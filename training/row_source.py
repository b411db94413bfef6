"""Alias of `training.rows.row_source`: rows by number."""

from training.rows.row_source import BadRow, BadRowError, ProbeDataSource, ProbeRowDataSource

__all__ = ["BadRow", "BadRowError", "ProbeDataSource", "ProbeRowDataSource"]
