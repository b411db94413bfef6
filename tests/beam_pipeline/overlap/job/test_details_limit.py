"""A run stops before it writes more details than there is room for, and goes on without a scan."""

import gzip
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap import DeconConfig, NGramConfig, run_train_test_overlap
from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import gathering, scanning
from beam_pipeline.overlap.job.preparing import Job
from beam_pipeline.overlap.results.counts import UnitSize, add_sizes
from tests.support import documents
from tests.support.overlap_jobs import corpus, files_below, flags  # noqa: F401 (fixture)


def test_the_scan_of_a_run_without_room_for_its_details_is_kept(
    corpus: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(flags(corpus)) == 0
    undisturbed = files_below(corpus / "out/stats")
    monkeypatch.setattr(gathering, "free_bytes", lambda path: 6000)
    assert main([*flags(corpus), "--overwrite"]) == 1
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert " would have 17 records of " in said and " kB before compression, more than" in said
    assert "choose --max_details_per_pair=1, --max_details=" in said
    command = shlex.split(said.partition("go on with ")[2])
    assert command[:3] == ["python", "-m", "beam_pipeline.overlap"]
    assert command[3:] == [*flags(corpus), "--overwrite", "--skip_existing", "--details=compact"]
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


def test_a_run_without_room_for_its_matches_stops_before_it_writes_them(
    corpus: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gathering, "free_bytes", lambda path: 1000)
    assert main([*flags(corpus), "--details=none"]) == 1
    said = capfd.readouterr().err.strip().splitlines()[-1]
    assert "overlap_matches in " in said and " would have 17 records" in said
    assert "more than the 1.0 kB free there; the scan is kept: make room" in said
    assert said.endswith(" --details=none --skip_existing")
    assert not list((corpus / "out").rglob("*matches*"))


def test_python_is_told_its_own_options(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(gathering, "free_bytes", lambda path: 6000)
    config = DeconConfig(
        input_path=f"{corpus}/in",
        decontaminate_source=f"{corpus}/eval/music-1a2b3c",
        output_path=f"{corpus}/out",
        ngram=NGramConfig((5, 12)),
    )
    with pytest.raises(ProbelineError) as raised:
        run_train_test_overlap(config, ["--direct_num_workers=1"])
    assert "choose max_details_per_pair=1, max_details=" in str(raised.value)
    assert str(raised.value).endswith("run it again with skip_existing=True and details='compact'")


def test_the_estimate_is_no_less_than_what_is_written(
    corpus: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    estimated = []
    check = gathering.check_room

    def kept(sizes: Sequence[UnitSize], job: Job) -> None:
        estimated.append(add_sizes(sizes))
        check(sizes, job)

    monkeypatch.setattr(gathering, "check_room", kept)
    assert main([*flags(corpus), "--details=none"]) == 0
    table = pq.read_table(corpus / "out/stats/overlap_matches.parquet")
    places = [
        len(table[side].combine_chunks().values) for side in ("eval_offsets", "train_offsets")
    ]
    assert [(each.num_matches, each.num_places) for each in estimated] == [(17, sum(places))]


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
    (query,) = (
        block.text
        for block in documents.blocks("docs/overlap.md")
        if block.text.startswith("FROM 'overlap/")
    )
    with duckdb.connect() as connection:
        joined = connection.sql(query).to_arrow_table().to_pylist()

    def in_order(records: list[dict]) -> list[str]:
        kept = ({k: v for k, v in each.items() if v is not None} for each in records)
        return sorted(json.dumps(each, sort_keys=True) for each in kept)

    assert in_order(joined) == in_order(full) and full
