"""A removal that is killed, whose steps are repeated, and that runs on other engines and on GCS."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from beam_pipeline.overlap.__main__ import main as find
from beam_pipeline.overlap.removal import job
from beam_pipeline.overlap.remove import main as remove
from tests.support.engines import Flink, Gcs, stored_objects
from tests.support.overlap_jobs import files_below
from tests.support.repository import ROOT
from tests.support.warm_python import warm_python

SHARED = "every good boy does fine when all of the notes are played in the right order"
MANIFEST = "removal_manifest.json"

# Runs `main` in a process that kills itself when a function of the job is called for the n-th time.
_SCRIPT = """
import os, signal, sys
from beam_pipeline.overlap.removal import job
name, after = sys.argv[1], int(sys.argv[2])
original, calls = getattr(job, name), []
def killing(*args, **kwargs):
    calls.append(0)
    if len(calls) == after:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(job, name, killing)
from beam_pipeline.overlap.remove import main
sys.exit(main(sys.argv[3:]))
"""


def write_corpus(folder: Path) -> list[str]:
    """Writes a corpus of four files, all contaminated, and returns the flags of the search."""
    (folder / "in").mkdir(parents=True)
    for number in range(4):
        texts = ["nothing to see", f"{'before ' * 50}{SHARED}{' after' * 50}", "the last one"]
        lines = [
            json.dumps({"id": f"{number}-{at}", "text": text}) for at, text in enumerate(texts)
        ]
        (folder / f"in/{number}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "quiz.jsonl").write_text(json.dumps({"id": "q", "text": SHARED}) + "\n")
    return [f"--input_path={folder}/in", f"--decontaminate_source={folder}/quiz.jsonl"]


def flags_of(result: Path | str, output: Path | str) -> list[str]:
    margins = ["--margin_chars=20", "--min_piece_chars=20"]
    return [f"--result_path={result}", f"--output_path={output}", "--remove=split", *margins]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished result, beside which lies the clean corpus that an undisturbed run writes."""
    folder = tmp_path_factory.mktemp("removal")
    flags = [*write_corpus(folder), f"--output_path={folder}/result", "--ngram_length=8"]
    assert find([*flags, "--direct_num_workers=1"]) == 0
    assert remove([*flags_of(folder / "result", folder / "clean"), "--direct_num_workers=1"]) == 0
    assert len(files_below(folder / "clean/documents")) == 4
    return folder / "result"


def check(result: Path, output: Path) -> None:
    assert files_below(output) == files_below(result.parent / "clean")


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("write_guarded", 2),
        *(
            pytest.param(*kill, marks=pytest.mark.slow)
            for kill in (
                ("clean_file", 1),
                ("clean_file", 3),
                ("check_counts", 2),
                ("write_guarded", 1),
            )
        ),
    ],
)
def test_a_killed_run_leaves_no_finished_corpus_and_the_next_writes_it(
    result: Path, tmp_path: Path, name: str, after: int
) -> None:
    flags = [*flags_of(result, tmp_path / "clean"), "--direct_num_workers=1"]
    killed = subprocess.run(
        [*warm_python(), "-c", _SCRIPT, name, str(after), *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -9, killed.stderr
    assert not (tmp_path / "clean/.SUCCESS").exists()
    assert remove(flags) == 0
    check(result, tmp_path / "clean")


@pytest.mark.parametrize("name", ["clean_file", "finish"])
def test_a_step_that_is_repeated_changes_nothing(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    original = getattr(job, name)

    def twice(*args):
        original(*args)
        return original(*args)

    monkeypatch.setattr(job, name, twice)
    flags = flags_of(result, tmp_path / "clean")
    assert remove([*flags, "--direct_num_workers=1"]) == 0
    check(result, tmp_path / "clean")


def test_several_workers_write_the_same_bytes(result: Path, tmp_path: Path) -> None:
    assert remove([*flags_of(result, tmp_path / "clean"), "--direct_num_workers=2"]) == 0
    check(result, tmp_path / "clean")


def test_prism_writes_the_same_bytes(result: Path, tmp_path: Path, prism: str) -> None:
    flags = [*flags_of(result, tmp_path / "clean"), "--runner=PrismRunner"]
    assert remove([*flags, f"--prism_location={prism}", "--environment_type=LOOPBACK"]) == 0
    check(result, tmp_path / "clean")


def test_flink_writes_the_same_bytes(result: Path, tmp_path: Path, flink: Flink) -> None:
    assert remove([*flags_of(result, tmp_path / "clean"), *flink.flags()]) == 0
    check(result, tmp_path / "clean")


def test_objects_are_read_and_written(result: Path, tmp_path: Path, gcs: Gcs) -> None:
    bucket = gcs.make_bucket()
    local = write_corpus(tmp_path)
    gcs.upload(tmp_path / "in", f"{bucket}/in")
    gcs.upload(tmp_path / "quiz.jsonl", f"{bucket}/quiz.jsonl")
    flags = [flag.replace(str(tmp_path), bucket) for flag in local]
    one = ["--direct_num_workers=1"]
    assert find([*flags, f"--output_path={bucket}/result", "--ngram_length=8", *one]) == 0
    assert remove([*flags_of(f"{bucket}/result", f"{bucket}/clean"), *one]) == 0
    written = stored_objects(f"{bucket}/clean")
    expected = files_below(result.parent / "clean")
    assert {name: written[name] for name in expected if name != MANIFEST} == {
        name: data for name, data in expected.items() if name != MANIFEST
    }
    assert set(written) == set(expected)
