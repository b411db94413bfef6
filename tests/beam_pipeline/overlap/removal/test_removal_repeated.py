"""A removal that is killed or repeated, and one in a run with the search."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.overlap.__main__ import main as find
from beam_pipeline.overlap.attributes import main as write_attributes
from beam_pipeline.overlap.removal import job
from beam_pipeline.overlap.removal.training_files import TrainingFile
from beam_pipeline.overlap.remove import main as remove
from beam_pipeline.overlap.results.layout import TRAIN_FILES
from tests.support.repository import files_below

SPLIT = ["--remove=split", "--margin_chars=20", "--min_piece_chars=20"]


def flags_of(result: Path | str, output: Path | str) -> list[str]:
    return [f"--result_path={result}", f"--output_path={output}", *SPLIT]


@pytest.fixture(scope="module")
def result(found: Path) -> Path:
    """A finished result, beside which lies the clean corpus that an undisturbed run writes."""
    assert remove([*flags_of(found / "out", found / "clean"), "--direct_num_workers=1"]) == 0
    assert len(files_below(found / "clean/documents")) == 6
    return found / "out"


def identity(path: Path) -> tuple[int, int]:
    """Returns what changes when a file is written again."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


@pytest.mark.slow
def test_a_corpus_that_has_moved(
    result: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its result it is found; without it the error says what to pass."""
    for name in ("in", "eval"):
        shutil.copytree(result.parent / name, tmp_path / "old" / name)
    monkeypatch.chdir(tmp_path / "old")
    sets = "--decontaminate_source=quiz=eval/quiz.jsonl"
    flags = ["--input_path=in", sets, "--output_path=out", "--direct_num_workers=1"]
    assert find([*flags, "--ngram_length=8"]) == 0
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.chdir(tmp_path)
    assert remove([*flags_of("new/out", "one"), "--direct_num_workers=1"]) == 0
    (tmp_path / "new/in").rename(tmp_path / "elsewhere")
    capsys.readouterr()
    assert remove(flags_of("new/out", "two")) == 2
    error = capsys.readouterr().err
    assert "the training files have moved from " in error and "a.jsonl is not there" in error
    assert "pass --input_path=FOLDER with a.jsonl in it" in error
    assert remove([*flags_of("new/out", "two"), "--input_path=elsewhere"]) == 0
    moved = ["--result_path=new/out", "--output_path=two", f"--input_path={tmp_path}/elsewhere"]
    assert write_attributes(moved) == 0
    for output in ("one", "two"):
        clean = files_below(tmp_path / output / "documents")
        assert clean == files_below(result.parent / "clean/documents")
    (tmp_path / "elsewhere/a.jsonl").touch()
    assert remove([*flags_of("new/out", "three"), "--input_path=elsewhere"]) == 2
    assert "elsewhere/a.jsonl has " in capsys.readouterr().err


def check(result: Path, output: Path) -> None:
    assert files_below(output) == files_below(result.parent / "clean")


def test_resumed_run_keeps_finished_files(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error; kills at any change are in tests/beam_pipeline/jobs."""
    write_file = job.write_file

    def failing(files: job.FileJob, file: TrainingFile, run: JobRun) -> job.WrittenFile:
        if file.number == 3:
            raise ProbelineError("the disk is full")
        return write_file(files, file, run)

    monkeypatch.setattr(job, "write_file", failing)
    flags = [*flags_of(result, tmp_path / "clean"), "--direct_num_workers=1"]
    assert remove(flags) == 1
    assert not (tmp_path / "clean/.SUCCESS").exists()
    records = (tmp_path / "clean/documents/.done").glob("*.json")
    done = [Path(json.loads(record.read_text())["file"][0]) for record in records]
    written = list(map(identity, done))
    monkeypatch.setattr(job, "write_file", write_file)
    assert remove([*flags, "--skip_existing"]) == 0
    check(result, tmp_path / "clean")
    assert written == list(map(identity, done)) and written


def test_finished_corpus_is_kept(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = flags_of(result, result.parent / "clean")
    before = identity(result.parent / "clean/documents/a.jsonl")
    for more, code, message in (
        ([], 2, "holds a finished clean corpus"),
        (["--skip_existing"], 0, ""),
        (
            ["--skip_existing", "--margin_chars=10", "--max_pieces=3"],
            2,
            "holds a different clean corpus: --margin_chars was 20 and is 10; choose another",
        ),
    ):
        assert remove([*flags, *more]) == code
        assert message in capsys.readouterr().err
    assert identity(result.parent / "clean/documents/a.jsonl") == before
    assert remove(flags_of(result, result)) == 2
    assert "is the folder of the result" in capsys.readouterr().err


def test_different_result(result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another one in the same folder, and one in a folder of its own."""
    for name in ("one", "other"):
        shutil.copytree(result, tmp_path / name)
    flags = [f"--output_path={tmp_path}/clean", *SPLIT, "--direct_num_workers=1"]
    assert remove([f"--result_path={tmp_path}/one", *flags, "--overwrite"]) == 0
    for name, message in (
        ("one", f"{tmp_path}/one has changed since;"),
        ("other", f"--result_path was {tmp_path}/one and is {tmp_path}/other;"),
    ):
        files = pq.read_table(tmp_path / name / TRAIN_FILES)
        pq.write_table(files, tmp_path / name / TRAIN_FILES, compression="none")
        capsys.readouterr()
        assert remove([f"--result_path={tmp_path}/{name}", *flags, "--skip_existing"]) == 2
        assert message in capsys.readouterr().err


def find_and_remove(folder: Path, output: Path, *flags: str) -> int:
    """Runs the search and the removal as one command."""
    search = [f"--input_path={folder}/in", f"--decontaminate_source=quiz={folder}/eval/quiz.jsonl"]
    paths = [f"--output_path={output}/result", f"--remove_output={output}/clean"]
    return find([*search, *paths, "--ngram_length=8", *SPLIT, *flags])


def test_one_run_finds_and_removes(
    result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_and_remove(result.parent, tmp_path, "--direct_num_workers=2") == 0
    documents = files_below(tmp_path / "clean/documents")
    assert documents == files_below(result.parent / "clean/documents")
    before = files_below(tmp_path)
    assert find_and_remove(result.parent, tmp_path, "--skip_existing") == 0
    assert files_below(tmp_path) == before
    capsys.readouterr()
    (tmp_path / "result/.SUCCESS").unlink()
    assert find_and_remove(result.parent, tmp_path) == 2  # before anything is searched
    assert f"--remove_output={tmp_path}/clean holds a finished" in capsys.readouterr().err
    assert find_and_remove(result.parent, tmp_path, "--skip_existing", "--max_pieces=3") == 2
    assert "corpus: --max_pieces was 10 and is 3; choose" in capsys.readouterr().err
    assert not (tmp_path / "result/.SUCCESS").exists()
    assert find_and_remove(result.parent, tmp_path, "--template_location=gs://b/t") == 2
    assert "which a template does not start" in capsys.readouterr().err


def test_repeated_steps_change_nothing(
    result: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def done_twice(step: Callable[..., None]) -> Callable[..., None]:
        def twice(*args):
            step(*args)
            return step(*args)

        return twice

    for name in ("write_file", "finish"):
        monkeypatch.setattr(job, name, done_twice(getattr(job, name)))
    flags = flags_of(result, tmp_path / "clean")
    assert remove([*flags, "--direct_num_workers=1"]) == 0
    check(result, tmp_path / "clean")
