"""Small compressed files of a huge line, or of nothing: a dead letter, in little memory."""

import bz2
import gzip
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.peak_memory import peak_memory

MIB = 1 << 20
# The file's size, and how much more memory it may take than a small one: 8 M blank lines are held.
LINE, BLANK = (160 * MIB, 80), (64 * MIB, 250)
COMPRESSIONS: dict[str, Callable[[Path], object]] = {
    "gzip": lambda path: gzip.open(path, "wb", 1),
    "bzip2": lambda path: bz2.open(path, "wb", 1),
    "zstd": lambda path: pa.CompressedOutputStream(str(path), "zstd"),
}
ROW = b"2026-01-01,192.0.2.1,192.0.2.2,1.5\n"
OBJECT = b'{"event_time":"2026-01-01","src_addr":"192.0.2.1","dst_addr":"192.0.2.2","rtt":1.5}\n'
# The beginning, what is repeated, and the reasons of dead letters.
BOMBS = {
    "csv": (b"event_time,src_addr,dst_addr,rtt\n" + ROW, b"a", "line_too_long"),
    "json": (OBJECT + b'{"a":"', b"a", "line_too_long"),
    "blank": (OBJECT, b"\n", ""),
}
READ = """
import sys
from pathlib import Path
from tests.support.forms import measured, options, read
for path in map(Path, sys.argv[2:]):
    batches = list(read(path, options()))
    assert len(measured(iter(batches))) == 1, path
    letters = [each.reason for batch in batches for each in batch.letters]
    assert letters == sys.argv[1].split(), letters
"""


def bombs(folder: Path, kind: str, num_bytes: int) -> Iterator[str]:
    head, filler, _ = BOMBS[kind]
    for name, opened in COMPRESSIONS.items():
        with opened(folder / f"{kind}.{name}") as file:  # type: ignore[attr-defined]
            file.write(head)
            for _ in range(num_bytes // MIB):
                file.write(filler * MIB)
        yield str(folder / f"{kind}.{name}")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "limits"), [("csv", LINE), ("json", LINE), ("blank", BLANK)])
def test_a_bomb_takes_little_memory(tmp_path: Path, kind: str, limits: tuple[int, int]) -> None:
    peaks = []
    for num_bytes in (2 * MIB, limits[0]):
        files = list(bombs(tmp_path, kind, num_bytes))
        files = files[:1] if kind == "blank" else files  # it takes seconds
        peaks.append(peak_memory([sys.executable, "-c", READ, BOMBS[kind][2], *files]))
    assert peaks[1] < peaks[0] + limits[1]
