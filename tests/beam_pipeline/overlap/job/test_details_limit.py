"""A run stops before it writes more details than there is room for, and goes on without a scan."""

import gzip
import json
from pathlib import Path

import duckdb
import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import gathering, scanning
from tests.support.docs_commands import all_blocks
from tests.support.overlap_jobs import corpus, files_below, flags  # noqa: F401 (fixture)


def test_the_scan_of_a_run_without_room_for_its_details_is_kept(
    corpus: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(flags(corpus)) == 0
    undisturbed = files_below(corpus / "out/stats")
    monkeypatch.setattr(gathering, "free_bytes", lambda path: 1000)
    assert main([*flags(corpus), "--overwrite"]) == 1
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert "would have 17 records of 0.0 GB" in said and "more than the 0.0 GB free there" in said
    assert "with --skip_existing and --details=compact, --max_details_per_pair=1" in said
    assert not (corpus / "out/.SUCCESS").exists()

    def not_again(*_: object) -> None:
        raise AssertionError("a work unit is scanned again")

    monkeypatch.setattr(scanning, "read_work_unit", not_again)
    fewer = [*flags(corpus), "--skip_existing", "--max_details=1"]
    assert main(fewer) == 0
    assert len(files_below(corpus / "out/stats")) == len(undisturbed) + 1  # what is left out
    monkeypatch.undo()
    monkeypatch.setattr(scanning, "read_work_unit", not_again)
    assert main([*flags(corpus), "--skip_existing", "--overwrite"]) == 0
    assert files_below(corpus / "out/stats") == undisturbed


def test_compact_details_are_joined_with_their_texts(
    corpus: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the two lines of docs/overlap.md, as they are printed."""
    assert main(flags(corpus)) == 0
    with gzip.open(corpus / "out/stats/overlap_details.jsonl.gz") as lines:
        full = [json.loads(line) for line in lines]
    assert main([*flags(corpus), "--overwrite", "--details=compact"]) == 0
    (corpus / "out").rename(corpus / "overlap")
    monkeypatch.chdir(corpus)
    (query,) = (block.text for block in all_blocks() if block.text.startswith("FROM 'overlap/"))
    with duckdb.connect() as connection:
        joined = connection.sql(query).to_arrow_table().to_pylist()

    def in_order(records: list[dict]) -> list[str]:
        kept = ({k: v for k, v in each.items() if v is not None} for each in records)
        return sorted(json.dumps(each, sort_keys=True) for each in kept)

    assert in_order(joined) == in_order(full) and full
