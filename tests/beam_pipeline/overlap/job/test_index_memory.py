"""Index shards by the memory of a worker, and the limit of passes."""

import json
from pathlib import Path

import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import preparing
from tests.support.overlap_jobs import corpus, files_below, flags  # noqa: F401 (fixture)


@pytest.fixture
def small_machine(monkeypatch) -> None:
    """A third of the memory has room for 8 n-grams."""
    monkeypatch.setattr(preparing, "machine_memory_bytes", lambda: 3 * 8 * 48)


def test_the_index_is_cut_to_a_third_of_the_memory(
    corpus: Path,  # noqa: F811
    small_machine: None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(flags(corpus)) == 0
    summary = json.loads((corpus / "out/progress/progress_summary.json").read_text())
    num_ngrams = summary["counts"]["eval_ngrams"]
    assert summary["num_shards"] == -(-num_ngrams // 8) > 1
    assert f"the training data is read {summary['num_shards']} times" in capfd.readouterr().err
    several = files_below(corpus / "out/stats")
    assert main([*flags(corpus), "--overwrite", "--index_memory_mb=1"]) == 0
    summary = json.loads((corpus / "out/progress/progress_summary.json").read_text())
    assert summary["num_shards"] == 1
    assert files_below(corpus / "out/stats") == several


def test_more_than_a_few_passes_are_made_only_if_asked_for(
    corpus: Path,  # noqa: F811
    small_machine: None,
    monkeypatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(preparing, "MAX_PASSES", 2)
    assert main(flags(corpus)) == 1
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert "n-grams of the evaluation sets need 0.0 GiB" in said and ", more than 2: " in said
    asked = said.split(", or ")[-1].split()[0]
    assert asked.startswith("--num_shards=")
    assert main([*flags(corpus), asked]) == 0
