"""A run stops before it writes more details than there is room for, and goes on without a scan."""

import gzip
import json
import re
from pathlib import Path

import duckdb
import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import gathering, preparing, scanning
from tests.support import documents
from tests.support.overlap_jobs import corpus as corpus
from tests.support.overlap_jobs import flags
from tests.support.repository import files_below


def test_scan_is_kept_without_room_for_details(
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(flags(corpus)) == 0
    undisturbed = files_below(corpus / "out/stats")
    monkeypatch.setattr(gathering, "free_bytes", lambda path: 6000)
    assert main([*flags(corpus), "--overwrite"]) == 1
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert " would have 17 records of " in said and " kB before compression, more than" in said
    assert "go on with --skip_existing and --details=compact, --max_details_per_pair=1, a" in said
    assert not (corpus / "out/.SUCCESS").exists()

    def not_again(*_: object) -> None:
        raise AssertionError("a work unit is scanned again")

    monkeypatch.setattr(scanning, "read_texts", not_again)
    fewer = [*flags(corpus), "--skip_existing", "--max_details=1"]
    assert main(fewer) == 0
    assert len(files_below(corpus / "out/stats")) == len(undisturbed) + 1  # what is left out
    monkeypatch.undo()
    monkeypatch.setattr(scanning, "read_texts", not_again)
    assert main([*flags(corpus), "--skip_existing", "--overwrite"]) == 0
    assert files_below(corpus / "out/stats") == undisturbed


def test_no_room_for_matches(
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gathering, "free_bytes", lambda path: 1000)
    assert main([*flags(corpus), "--details=none"]) == 1
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert "overlap_matches in " in said and " would have 17 records" in said
    assert "more than the 1.0 kB free there; the scan is kept: make room" in said
    assert not list((corpus / "out").rglob("*matches*"))


def test_compact_details_are_joined_with_their_texts(
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the two lines of docs/overlap_outputs.md, as they are printed."""
    assert main(flags(corpus)) == 0
    with gzip.open(corpus / "out/stats/overlap_details.jsonl.gz") as lines:
        full = [json.loads(line) for line in lines]
    assert main([*flags(corpus), "--overwrite", "--details=compact"]) == 0
    (corpus / "out").rename(corpus / "overlap")
    monkeypatch.chdir(corpus)
    (query,) = (
        block.text
        for block in documents.blocks("docs/overlap_outputs.md")
        if block.text.startswith("FROM 'overlap/")
    )
    with duckdb.connect() as connection:
        joined = connection.sql(query).to_arrow_table().to_pylist()

    def in_order(records: list[dict]) -> list[str]:
        kept = ({k: v for k, v in each.items() if v is not None} for each in records)
        return sorted(json.dumps(each, sort_keys=True) for each in kept)

    assert in_order(joined) == in_order(full) and full


@pytest.fixture
def small_machine(monkeypatch) -> None:
    """A third of the memory has room for 8 n-grams."""
    monkeypatch.setattr(preparing, "machine_memory_bytes", lambda: 3 * 8 * 48)


def test_the_index_is_cut_to_a_third_of_the_memory(
    corpus: Path,
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
    corpus: Path,
    small_machine: None,
    monkeypatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(preparing, "MAX_PASSES", 2)
    assert main(flags(corpus)) == 1
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert re.search(r"n-grams of the evaluation sets need 1.4 kB, .*, more than 2: ", said)
    asked = said.split(", or pass ")[-1].split()[0]
    assert asked.startswith("--num_shards=")
    assert main([*flags(corpus), asked]) == 0
