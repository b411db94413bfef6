"""Overlap runs that are killed: another run goes on with them, to the same bytes."""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.kills import KILLING
from tests.support.overlap_corpus import Corpus, make_corpus
from tests.support.overlap_runs import files_of
from tests.support.repository import ROOT
from tests.support.warm_python import warm_python

# Runs `main` in a process that kills itself when a function is called for the n-th time, and says
# which work units it reads.
SCRIPT = f"""
import os, signal, sys
from beam_pipeline.overlap.job import gathering, preparing, scanning
from beam_pipeline.storage import files
scanning.WORK_UNIT_BYTES = 150
owner, name, after = globals()[sys.argv[1]], sys.argv[2], int(sys.argv[3])
{KILLING}
read_texts = scanning.read_texts
def reading(unit, *args):
    print("read", unit.name, flush=True)
    return read_texts(unit, *args)
scanning.read_texts = reading
from beam_pipeline.overlap.__main__ import main
sys.exit(main(sys.argv[4:]))
"""

UNHARMED = ("files", "rename", "0")
# The kills of all jobs at any change of the output are in tests/beam_pipeline/jobs.
KILLS = [("scanning", "write_match_file", "6"), ("gathering", "expand_unit", "3")]


def in_a_process(corpus: Corpus, output: Path, kill: tuple[str, ...], *flags: str):
    return subprocess.run(
        [*warm_python(), "-c", SCRIPT, *kill, *corpus.flags, f"--output_path={output}", *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def units_read(done: subprocess.CompletedProcess) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith("read ")]


class Whole(NamedTuple):
    """A run that nobody disturbed."""

    corpus: Corpus
    flags: list[str]
    files: dict[str, bytes]
    units_read: list[str]


@pytest.fixture(scope="module")
def whole(folder: Path) -> Whole:
    corpus, flags = make_corpus(folder, 21, num_files=4), ["--ngram_length=1,2", "--num_shards=2"]
    done = in_a_process(corpus, folder / "out", UNHARMED, *flags)
    assert done.returncode == 0, done.stderr
    return Whole(corpus, flags, files_of(folder / "out"), units_read(done))


def match_files_in(output: Path) -> list[Path]:
    return [path for path in output.glob("tmp/work/*/*-pass-*") if ".letters." not in path.name]


@pytest.mark.slow
@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: f"{kill[0]}-{kill[1]}")
def test_resume_scans_only_what_is_missing(
    whole: Whole, tmp_path: Path, kill: tuple[str, ...]
) -> None:
    output = tmp_path / "out"
    killed = in_a_process(whole.corpus, output, kill, *whole.flags)
    assert killed.returncode == -9, killed.stderr
    match_files = match_files_in(output)
    flags = [*whole.flags, "--skip_existing", "--overwrite"]
    again = in_a_process(whole.corpus, output, UNHARMED, *flags)
    assert again.returncode == 0, again.stderr
    assert files_of(output) == whole.files
    assert len(units_read(again)) == len(whole.units_read) - len(match_files)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["--tokenizer=whitespace", "corpus", "none"])
def test_other_options_do_not_resume(tmp_path: Path, change: str) -> None:
    corpus = make_corpus(tmp_path / "in", 21, num_files=4)
    flags = ["--ngram_length=2", "--tokenizer=default"]
    killed = in_a_process(corpus, tmp_path / "out", ("gathering", "measure_unit", "1"), *flags)
    assert killed.returncode == -9
    if change == "corpus":
        path = next((tmp_path / "in" / "eval").rglob("0.*"))
        path.unlink()
        path.with_name("0.jsonl").write_text('{"text": "b a b a"}\n')
    elif change != "none":
        flags.append(change)
    in_a_process(corpus, tmp_path / "anew", UNHARMED, *flags)
    again = in_a_process(corpus, tmp_path / "out", UNHARMED, *flags, "--skip_existing")
    assert again.returncode == 0, again.stderr
    assert files_of(tmp_path / "out") == files_of(tmp_path / "anew")
    assert bool(units_read(again)) == (change != "none")
