"""The root of the repository, for tests that read or run its files."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
