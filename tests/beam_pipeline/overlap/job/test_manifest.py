"""What a result says of its making, and which runs it is the result of."""

import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from beam_pipeline import __version__
from beam_pipeline.errors import UsageError
from beam_pipeline.jobs.frame import start_time
from beam_pipeline.overlap import DeconConfig, NGramConfig, run_train_test_overlap
from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import manifest
from beam_pipeline.overlap.job import pipeline as overlap_pipeline
from beam_pipeline.overlap.job.config import flag_fields
from beam_pipeline.overlap.results.layout import INPUT_FILES, SUMMARY
from tests.support.engines import Gcs
from tests.support.overlap_jobs import corpus as corpus
from tests.support.overlap_jobs import flags, write_lines
from tests.support.repository import files_below


def test_a_result_names_its_files_options_and_versions(corpus: Path) -> None:
    assert main(flags(corpus, "--max_details=3", "--tokenizer=whitespace")) == 0
    summary = json.loads((corpus / "out" / SUMMARY).read_text())
    options = summary["options"]
    assert set(options) == {item.name for item in flag_fields()}
    assert options["input_path"] == [f"{corpus}/in"]
    assert options["decontaminate_source"][1] == f"[x]={corpus}/eval/other.jsonl"
    assert options["ngram_length"] == [5, 12]
    assert (options["max_details"], options["max_document_frequency"]) == (3, 0)
    assert summary["versions"]["probeline"] == __version__
    assert summary["versions"]["apache_beam"] == beam.__version__
    assert summary["started_at"] == start_time()
    lines = (corpus / "out" / INPUT_FILES).read_text().splitlines()
    paths = [
        ("decontaminate_source", "music", corpus / "eval/music-1a2b3c/test.jsonl"),
        ("decontaminate_source", "[x]", corpus / "eval/other.jsonl"),
        ("input_path", None, corpus / "in/train.jsonl"),
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


def no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap_pipeline, "build", lambda *_: pytest.fail("the job ran"))


def test_the_same_run_again_returns_the_result(
    corpus: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(flags(corpus)) == 0
    table = capsys.readouterr().out.splitlines()[:8]
    before = files_below(corpus / "out")
    no_run(monkeypatch)
    others = ["--processes=1", "--num_shards=3", "--index_memory_mb=7"]  # the same bytes
    assert main(flags(corpus, "--skip_existing", *others)) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[:8] == table and "music" in "".join(table)
    assert err == f"{corpus}/out holds this result: nothing had to run\n"
    assert files_below(corpus / "out") == before


def test_a_result_on_gs_is_returned(
    corpus: Path, gcs: Gcs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(corpus, bucket)
    assert main(flags(bucket)) == 0
    no_run(monkeypatch)
    assert main(flags(bucket, "--skip_existing")) == 0
    gcs.upload(corpus / "in", f"{bucket}/in")  # a new generation
    assert main(flags(bucket, "--skip_existing")) == 2
    assert f"{bucket}/in/train.jsonl, of --input_path, was " in capsys.readouterr().err


def shout(text: str) -> list[tuple[str, int, int]]:
    return [(text.upper(), 0, len(text))]


def run(corpus: Path, **values: Any) -> str:
    given: dict[str, Any] = {
        "input_path": f"{corpus}/in",
        "decontaminate_source": [f"{corpus}/eval/music-1a2b3c", f"x={corpus}/eval/other.jsonl"],
        "output_path": f"{corpus}/out",
        "ngram": NGramConfig([5, 12]),
        "skip_existing": True,
        **values,
    }
    return run_train_test_overlap(DeconConfig(**given))


def test_what_another_run_has_otherwise_is_named(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = run(corpus)  # there is nothing to resume from
    no_run(monkeypatch)
    assert run(corpus) == output
    sources = [f"{corpus}/eval/music-1a2b3c", f"x={corpus}/eval/other.jsonl"]
    train = corpus / "in/train.jsonl"
    for values, difference in (
        ({"ngram": NGramConfig(7)}, "--ngram_length was 5,12 and is 7"),
        ({"max_details": 2}, "--max_details was -1 and is 2"),
        ({"text_field": "id"}, "--text_field was text and is id"),
        ({"decontaminate_source": sources[::-1]}, "--decontaminate_source had another order"),
        ({"decontaminate_source": sources[:1]}, "and is not among its files"),
        (
            {"input_path": [f"{corpus}/in", f"{corpus}/eval/other.jsonl"]},
            "was not among its files and is ",
        ),
    ):
        with pytest.raises(UsageError) as refusal:
            run(corpus, **values)
        assert f"--output_path={output} holds the result of another run: " in str(refusal.value)
        assert difference in str(refusal.value) and "\n" not in str(refusal.value)
    size = train.stat().st_size
    write_lines(train, {"text": "another"})
    with pytest.raises(UsageError, match=f"{train}, .* was {size} bytes of .* and is 20 bytes"):
        run(corpus)


def test_the_same_files_by_another_path(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative, by a link, or moved with the result."""
    output = run(corpus)
    no_run(monkeypatch)
    monkeypatch.chdir(corpus)
    relative = ["eval/music-1a2b3c", "x=eval/other.jsonl"]
    assert run(corpus, input_path="in", decontaminate_source=relative) == output
    moved = corpus.parent / f"{corpus.name}-moved"
    moved.symlink_to(corpus)
    assert run(moved) == f"{moved}/out"
    moved.unlink()
    corpus.rename(moved)
    assert run(moved) == f"{moved}/out"


def test_a_function_that_was_changed_is_another_tokeniser(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = f"{__name__}:shout"
    run(corpus, tokenizer=tokenizer)
    monkeypatch.setattr(manifest, "source_of", lambda _: "def shout(): ...")
    with pytest.raises(UsageError, match=r"the code of --tokenizer, by its hash, was .* and is "):
        run(corpus, tokenizer=tokenizer)


def test_a_result_of_another_version_or_without_a_list_is_not_taken(corpus: Path) -> None:
    run(corpus)
    path = corpus / "out" / SUMMARY
    path.write_text(path.read_text().replace(f'"probeline": "{__version__}"', '"probeline": "0"'))
    with pytest.raises(UsageError, match=rf"the version of Probeline was 0 and is {__version__};"):
        run(corpus)
    (corpus / "out" / INPUT_FILES).unlink()
    with pytest.raises(UsageError, match="it does not tell of which files it was made"):
        run(corpus)
