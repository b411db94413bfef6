"""What a result says of its making, and which runs it is the result of."""

import json
import shutil
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from beam_pipeline import __version__
from beam_pipeline.errors import UsageError
from beam_pipeline.jobs.frame import start_time
from beam_pipeline.overlap import DeconConfig, NGramConfig, run_train_test_overlap
from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import pipeline as overlap_pipeline
from beam_pipeline.overlap.job.config import flag_fields
from beam_pipeline.overlap.results.layout import INPUT_FILES, SUMMARY
from tests.support.overlap_jobs import flags, write_lines
from tests.support.repository import files_below


def test_a_result_names_its_files_options_and_versions(finished: Path) -> None:
    summary = json.loads((finished / "out" / SUMMARY).read_text())
    options = summary["options"]
    assert set(options) == {item.name for item in flag_fields()}
    assert options["input_path"] == [f"{finished}/in"]
    assert options["decontaminate_source"][1] == f"[x]={finished}/eval/other.jsonl"
    assert options["ngram_length"] == [5, 12]
    assert summary["versions"]["probeline"] == __version__
    assert summary["versions"]["apache_beam"] == beam.__version__
    assert summary["started_at"] == start_time()
    lines = (finished / "out" / INPUT_FILES).read_text().splitlines()
    paths = [
        ("decontaminate_source", "music", finished / "eval/music-1a2b3c/test.jsonl"),
        ("decontaminate_source", "[x]", finished / "eval/other.jsonl"),
        ("input_path", None, finished / "in/train.jsonl"),
    ]
    assert [json.loads(line) for line in lines] == [
        {
            "flag": flag,
            "eval_dataset": name,
            "path": str(path),
            "num_bytes": path.stat().st_size,
            "version": path.stat().st_mtime_ns,
        }
        for flag, name, path in paths
    ]


# --- a finished result, once more -----------------------------------------------------------------


@pytest.fixture
def no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap_pipeline, "build", lambda *_: pytest.fail("the job ran"))


def test_the_same_run_again_returns_the_result(
    finished: Path, capsys: pytest.CaptureFixture, no_run: None
) -> None:
    before = files_below(finished / "out")
    others = ["--processes=1", "--num_shards=3", "--index_memory_mb=7"]  # the same bytes
    assert main(flags(finished, "--skip_existing", *others)) == 0
    out, err = capsys.readouterr()
    assert "music" in out
    assert err == f"{finished}/out holds this result: nothing had to run\n"
    assert files_below(finished / "out") == before


def run(corpus: Path, **values: Any) -> str:
    given: dict[str, Any] = {
        "input_path": f"{corpus}/in",
        "decontaminate_source": [f"{corpus}/eval/music-1a2b3c", f"[x]={corpus}/eval/other.jsonl"],
        "output_path": f"{corpus}/out",
        "ngram": NGramConfig([5, 12]),
        "skip_existing": True,
        **values,
    }
    return run_train_test_overlap(DeconConfig(**given))


def test_what_another_run_has_otherwise_is_named(finished: Path, no_run: None) -> None:
    sources = [f"{finished}/eval/music-1a2b3c", f"[x]={finished}/eval/other.jsonl"]
    for values, difference in (
        ({"ngram": NGramConfig(7)}, "--ngram_length was 5,12 and is 7"),
        ({"max_details": 2}, "--max_details was -1 and is 2"),
        ({"text_field": "id"}, "--text_field was text and is id"),
        ({"decontaminate_source": sources[::-1]}, "--decontaminate_source had another order"),
        ({"decontaminate_source": sources[:1]}, "and is not among its files"),
        (
            {"input_path": [f"{finished}/in", f"{finished}/eval/other.jsonl"]},
            "was not among its files and is ",
        ),
    ):
        with pytest.raises(UsageError) as refusal:
            run(finished, **values)
        assert f"--output_path={finished}/out holds the result of another run: " in str(
            refusal.value
        )
        assert difference in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.fixture
def moved(finished: Path, tmp_path: Path) -> Path:
    """A copy of corpus and result, with the times of the files."""
    return shutil.copytree(finished, tmp_path / "moved")


def test_the_same_files_by_another_path(
    finished: Path, moved: Path, no_run: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative, by a link, or moved with the result; and changed."""
    monkeypatch.chdir(finished)
    relative = ["eval/music-1a2b3c", "[x]=eval/other.jsonl"]
    output = f"{finished}/out"
    assert run(finished, input_path="in", decontaminate_source=relative) == output
    link = moved.with_name("link")
    link.symlink_to(finished)
    assert run(link) == f"{link}/out"
    assert run(moved) == f"{moved}/out"
    train, listed = moved / "in/train.jsonl", moved / "out" / INPUT_FILES
    listed.write_text(listed.read_text().replace(str(finished), str(moved)))
    size = train.stat().st_size
    write_lines(train, {"text": "another"})
    with pytest.raises(UsageError, match=f"{train}, .* was {size} bytes of .* and is 20 bytes"):
        run(moved)


def shout(text: str) -> list[tuple[str, int, int]]:
    return [(text.upper(), 0, len(text))]


def test_a_result_of_another_version_or_without_a_list_is_not_taken(moved: Path) -> None:
    path, tokenizer = moved / "out" / SUMMARY, f"{__name__}:shout"
    summary = json.loads(path.read_text())
    summary["options"]["tokenizer"], summary["versions"]["tokenizer"] = tokenizer, "0"
    path.write_text(json.dumps(summary))
    with pytest.raises(UsageError, match=r"the code of --tokenizer, by its hash, was 0 and is "):
        run(moved, tokenizer=tokenizer)
    summary["versions"]["probeline"] = "0"
    path.write_text(json.dumps(summary))
    with pytest.raises(UsageError, match=rf"the version of Probeline was 0 and is {__version__};"):
        run(moved, tokenizer=tokenizer)
    (moved / "out" / INPUT_FILES).unlink()
    with pytest.raises(UsageError, match="it does not tell of which files it was made"):
        run(moved)
