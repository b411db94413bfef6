"""Parquet files with damaged footers: an error that names the reason, never the end of the process.

PyArrow aborts the process if a column's metadata in the footer contradicts its schema.
"""

import errno
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from beam_pipeline.errors import ProbelineError
from beam_pipeline.storage import files
from beam_pipeline.storage.parquet import open_parquet
from tests.support.helpers import measurements_table
from tests.support.warm_python import warm_python

READ = """
import random, sys
from collections import Counter
from beam_pipeline.documents.files import WorkUnit, InputFile
from beam_pipeline.documents.reading import read_unit, DAMAGED
from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.removal.rewriting import _codecs
from beam_pipeline.sources.inputs import inspect, plan_units
from beam_pipeline.sources.options import ReadOptions, Sample
from beam_pipeline.sources.reading import UnreadableInputError, read_piece
from beam_pipeline.storage.matching import match
from beam_pipeline.storage.parquet import open_parquet

path, seed = sys.argv[1], int(sys.argv[2])
whole = open(path, "rb").read()
begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
draw, outcomes = random.Random(seed), Counter()
options = ReadOptions(sample=Sample(1.0, 1.0, 0, 2**60))

def read_measurements(file):
    for unit in plan_units([inspect(file, options)]):
        for piece in unit.pieces:
            list(read_piece(piece, options))

def read_documents(file):
    list(read_unit(WorkUnit(InputFile(file, "parquet"), 0, 1, 0, 1, (0,)), None))

def read_codecs(file):
    with open_parquet(path) as parquet:
        _codecs(parquet)

for at in range(begin, len(whole) - 8):
    data = bytearray(whole)
    data[at] ^= draw.randrange(1, 256)
    open(path, "wb").write(data)
    for read in (read_measurements, read_documents, read_codecs):
        try:
            read(match(path)[0])
            outcomes["read"] += 1
        except (UnreadableInputError, ProbelineError, UnicodeDecodeError, *DAMAGED):
            outcomes["error"] += 1
print(outcomes["read"], outcomes["error"])
"""


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4))])
def test_a_damaged_footer_is_an_error(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(measurements_table(50, seed=1).drop_columns(["ip_version"]), path)
    command = [*warm_python(), "-c", READ, str(path), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    num_read, num_errors = map(int, done.stdout.split())
    assert num_read > 100 and num_errors > 100


@pytest.mark.parametrize(
    ("owner", "name", "use"),
    [(files, "_NamedFile", files.open_file), (pq, "ParquetFile", open_parquet)],
)
def test_a_lack_of_file_handles_is_no_damage(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, use: Callable[[str], Any]
) -> None:
    """Damage, an OSError, may become a dead letter."""

    def refuse(path: str, *_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "reason", path)

    monkeypatch.setattr(owner, name, refuse, raising=False)
    with pytest.raises(ProbelineError, match=r"cannot use /x: Too many .* \(ulimit -n\)"):
        use("/x")
