"""Fixtures: datasets, made once for all tests of verify, and copies to damage."""

from tests.support.damaged_dataset import arrow_dataset, compact_copy, compact_dataset, copy

__all__ = ["arrow_dataset", "compact_copy", "compact_dataset", "copy"]
