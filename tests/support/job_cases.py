"""The jobs on small inputs, as the tests of the frame run them: each with several work units."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.main import main as make_rows
from tests.support.conversions import flags_of as conversion_flags
from tests.support.conversions import write_sources
from tests.support.helpers import measurements_table
from tests.support.job_runs import FLAGS
from tests.support.overlap_corpus import make_corpus
from tests.support.removal_corpus import find_in, write_corpus
from tests.support.repository import files_below


@dataclass(frozen=True)
class JobCase:
    """A job on a small input.

    Attributes:
      module: has `main`.
      success: the file that marks a finished output.
      prepare: writes the input to a folder and returns the flags, all but those of the output.
      output_flag: that of the output folder.
      begin: fills the output before the run, as a run that adds to it needs.
      again: flags of the run after a killed one, which may resume it.
      setup: statements before the run: sizes that make several work units.
      ignored: folders of the output whose files differ between runs.
    """

    module: str
    success: str
    prepare: Callable[[Path], list[str]]
    output_flag: str = "output"
    begin: Callable[[Path, Path], None] | None = None
    again: list[str] = field(default_factory=list)
    setup: str = ""
    ignored: tuple[str, ...] = ()

    def files(self, output: Path) -> dict[str, bytes]:
        """Returns all files of an output but those that may differ, without the output's path."""
        return {
            name: data.replace(str(output).encode(), b"OUTPUT")
            for name, data in files_below(output).items()
            if not name.startswith(self.ignored)
        }

    def finished_files(self, output: Path) -> dict[str, bytes] | None:
        """Returns the files that a reader of the output finds; None if it is not finished."""
        if self.begin:  # there is always a finished dataset, perhaps not moved to its place
            output = Path(open_dataset(str(output)).path)
        elif not (output / self.success).exists():
            return None
        return self.files(output)


def _measurements(folder: Path, first: int = 0) -> list[str]:
    """Writes three files of measurements, the first of them only for a run that adds to it."""
    table = measurements_table(1500, seed=1, num_probes=12)
    (folder / "in").mkdir(parents=True, exist_ok=True)
    for number in range(first, 3):
        path = folder / "in" / f"{number}.parquet"
        pq.write_table(table.slice(number * 500, 500), path)
    return [f"--input={folder}/in/*.parquet", "--inline_bytes=0", *FLAGS]


def _begin_rows(folder: Path, output: Path) -> None:
    """Writes the dataset of the first file, and copies it for each run."""
    first = folder / "first"
    if not first.exists():
        table = measurements_table(1500, seed=1, num_probes=12)
        pq.write_table(table.slice(0, 500), folder / "first.parquet")
        assert make_rows([f"--input={folder}/first.parquet", f"--output={first}", *FLAGS]) == 0
    shutil.copytree(first, output)


def _conversion(folder: Path) -> list[str]:
    write_sources(folder / "in")
    flags = conversion_flags(folder / "in", "")
    return [flag for flag in flags if not flag.startswith("--output=")]


def _overlap(folder: Path) -> list[str]:
    return [*make_corpus(folder, 21, num_files=3).flags, "--ngram_length=1,2", "--num_shards=2"]


def _removal(folder: Path) -> list[str]:
    write_corpus(folder)
    find_in(folder, "in", "result")
    return [f"--result_path={folder}/result", "--remove=split", "--margin_chars=20"]


_BUCKETS = "import beam_pipeline.probe_rows.bucket as bucket; bucket.BUCKET_ROWS = 100"
_SMALL_UNITS = """
from beam_pipeline.documents import files
from beam_pipeline.shards import staging
files.WORK_UNIT_BYTES, staging.BLOCK_BYTES = 5000, 2000
"""
JOBS = {
    "probe rows": JobCase("beam_pipeline.main", "_SUCCESS", _measurements, setup=_BUCKETS),
    "append": JobCase(
        "beam_pipeline.main",
        "_SUCCESS",
        lambda folder: [*_measurements(folder, first=1), "--append"],
        begin=_begin_rows,
        setup=_BUCKETS,
    ),
    "convert": JobCase(
        "beam_pipeline.convert.__main__", ".SUCCESS", _conversion, setup=_SMALL_UNITS
    ),
    "overlap": JobCase(
        "beam_pipeline.overlap.__main__",
        ".SUCCESS",
        _overlap,
        "output_path",
        again=["--skip_existing"],
        ignored=("progress/",),
    ),
    "attributes": JobCase(
        "beam_pipeline.overlap.attributes",
        "attributes/overlap/.SUCCESS",
        lambda folder: _removal(folder)[:1],
        "output_path",
        again=["--skip_existing"],
    ),
    "removal": JobCase(
        "beam_pipeline.overlap.remove",
        ".SUCCESS",
        _removal,
        "output_path",
        again=["--skip_existing"],
    ),
}
