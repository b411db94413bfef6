"""The corpus of the overlap bench: training and evaluation files, by their sizes.

`overlap_texts` makes a file on first use, in a separate process, and keeps it. A file depends only
on the seed and its position, so a small corpus is the beginning of a large one.
"""

from pathlib import Path

from benchmarks.runner import appears_whole, call

FORMATS = ("jsonl.zst", "jsonl.gz", "jsonl", "parquet")
EVALUATION_ROWS = 9_000  # of 90 tokens on average: 700,000 n-grams of 13 tokens
BLOCK_MB, FILE_MB = 20, 100  # of text


class Corpus:
    """Training and evaluation files in a folder; the seed determines all words and texts."""

    def __init__(self, folder: Path, seed: int):
        self._folder = folder / f"overlap-{seed}"
        self._seed = seed

    def training(self, mb: int, file_format: str) -> list[Path]:
        """Returns files with `mb` MB of text, in blocks; 0 is one file of few documents."""
        files = []
        for first in range(0, mb, FILE_MB) or [0]:
            last = min(first + FILE_MB, mb)
            name = f"train-{first:06d}-{last:06d}.{file_format}"
            files.append(self._made(name, "write_training", first, last))
        return files

    def evaluation(self, num_rows: int) -> Path:
        """Returns the file of an evaluation set."""
        return self._made(f"evaluation-{num_rows}.jsonl", "write_evaluation", num_rows)

    def _made(self, name: str, function: str, *arguments: int) -> Path:
        path = self._folder / name
        if not path.exists():
            with appears_whole(path) as being_made:
                call(f"benchmarks.overlap_texts:{function}", being_made, *arguments, self._seed)
        return path
