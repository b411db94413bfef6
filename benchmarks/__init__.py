"""What the programs take, beside others: each bench writes a file into results/, tables show it."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
