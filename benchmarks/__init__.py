"""Benches of the programs and their peers; each writes a file into results/."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
