"""Pages of mapped files are handed back, and read again where they are needed."""

import os
import re
from pathlib import Path

import numpy as np

from beam_pipeline.overlap.ngrams.mapped_files import hand_pages_back, map_file


def test_pages_are_handed_back_and_keep_their_contents(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(np.arange(1 << 20, dtype=np.int64).tobytes())
    numbers = np.frombuffer(map_file(str(path)), np.int64)
    total = int(numbers.sum())
    assert mapped_kib(path) == 8192
    hand_pages_back()
    assert mapped_kib(path) == 0
    assert int(numbers.sum()) == total == (1 << 20) * ((1 << 20) - 1) // 2


def mapped_kib(path: Path) -> int:
    """Returns how much of a file is in this process's memory."""
    with open(f"/proc/{os.getpid()}/smaps") as lines:
        of_file = re.search(rf"{re.escape(str(path))}\n(?:.+\n)*?Rss: +(\d+) kB", lines.read())
    assert of_file is not None
    return int(of_file[1])
