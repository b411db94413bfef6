"""A run stops before it writes more details than there is room for, and goes on without a scan."""

import json
import re
from pathlib import Path

import duckdb
import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import gathering, preparing, scanning
from beam_pipeline.overlap.results.layout import SUMMARY
from tests.support import documents
from tests.support.overlap_jobs import flags, read_lines
from tests.support.repository import files_below


def last_line(capfd: pytest.CaptureFixture[str]) -> str:
    return capfd.readouterr().err.strip().splitlines()[-1]


def test_scan_is_kept_without_room_for_matches_or_details(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    given = flags(finished, f"--output_path={tmp_path}/out")
    with monkeypatch.context() as patch:
        patch.setattr(gathering, "free_bytes", lambda path: 1000)
        assert main([*given, "--details=none"]) == 1
        said = last_line(capfd)
        assert "overlap_matches in " in said and " would have 17 records" in said
        assert "more than the 1.0 kB free there; the scan is kept: make room" in said
        assert not list((tmp_path / "out").rglob("*matches*"))

    def not_again(*_: object) -> None:
        raise AssertionError("a work unit is scanned again")

    monkeypatch.setattr(scanning, "read_texts", not_again)
    with monkeypatch.context() as patch:
        patch.setattr(gathering, "free_bytes", lambda path: 6000)
        assert main([*given, "--skip_existing"]) == 1
        said = last_line(capfd)
        assert " would have 17 records of " in said and " kB before compression, more than" in said
        assert "go on with --skip_existing and --details=compact, --max_details_per_pair=1" in said
        assert not (tmp_path / "out/.SUCCESS").exists()
    assert main([*given, "--skip_existing"]) == 0
    assert files_below(tmp_path / "out/stats") == files_below(finished / "out/stats")


def test_compact_details_are_joined_with_their_texts(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the two lines of docs/overlap_outputs.md, as they are printed."""
    full = read_lines(finished / "out/stats/overlap_details.jsonl.gz")
    assert main(flags(finished, f"--output_path={tmp_path}/overlap", "--details=compact")) == 0
    monkeypatch.chdir(tmp_path)
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
    finished: Path, tmp_path: Path, small_machine: None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(flags(finished, f"--output_path={tmp_path}/out")) == 0
    summary = json.loads((tmp_path / "out" / SUMMARY).read_text())
    assert summary["num_shards"] == -(-summary["counts"]["eval_ngrams"] // 8) > 1
    assert f"the training data is read {summary['num_shards']} times" in capfd.readouterr().err
    assert files_below(tmp_path / "out/stats") == files_below(finished / "out/stats")
    progress = {path.name for path in (tmp_path / "out/progress").glob("progress-*")}
    assert len(progress) == summary["num_shards"]  # each scan of a work unit has its own file
    assert {"progress-00001.jsonl", "progress-00001-00001-pass-00002.jsonl"} <= progress


def test_more_than_a_few_passes_are_made_only_if_asked_for(
    corpus: Path, small_machine: None, monkeypatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preparing, "MAX_PASSES", 2)
    assert main(flags(corpus)) == 1
    said = last_line(capfd)
    assert re.search(r"n-grams of the evaluation sets need 1.4 kB, .*, more than 2: ", said)
    assert said.split(", or pass ")[-1].startswith("--num_shards=")
    assert main(flags(corpus, "--index_memory_mb=1")) == 0
    assert json.loads((corpus / "out" / SUMMARY).read_text())["num_shards"] == 1
