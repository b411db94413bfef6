"""Monitoring of a run: every counter is documented, every logged error names its place."""

import json
import logging
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_pipeline.jobs import monitoring
from beam_pipeline.main import main
from beam_pipeline.probe_rows import grouping
from beam_pipeline.shards import writing as sharded_write
from benchmarks import counted_job
from tests.support.helpers import measurements_table
from tests.support.job_runs import FLAGS, write_input
from tests.support.repository import ROOT


def test_the_docs_list_the_counters_as_the_code_does() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    table = text.partition("<!-- counters -->")[2].partition("<!-- /counters -->")[0]
    listed = re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE)
    explained = {**monitoring.COUNTERS, **monitoring.DISTRIBUTIONS}
    assert dict(listed) == explained


@pytest.fixture
def source(tmp_path: Path) -> Path:
    table = measurements_table(2500, seed=1, num_probes=12)
    bad = table.slice(0, 3).to_pylist()
    for row in bad:
        row["src_addr"] = "nowhere"
    bad_table = type(table).from_pylist(bad, table.schema)
    return write_input(tmp_path / "in", table, bad_table)


def test_the_counters_tell_what_happened(
    source: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "SORT_MEMORY_BYTES", 4000)
    (tmp_path / "in" / "part-2.parquet").write_bytes(b"PAR1 but no more")
    flags = [f"--input={source}", f"--output={tmp_path}/out", "--on_bad_file=dead_letter"]
    assert counted_job.main([*flags, *FLAGS]) == 0
    values = json.loads(capsys.readouterr().err.splitlines()[-2])  # then those of GCS
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    splits = manifest["splits"].values()
    shards = [shard for split in splits for shard in split["shards"]]
    index = [pq.read_table(tmp_path / "out" / name / "rows.parquet") for name in ("train", "test")]
    rows_per_probe = [table.group_by("src_addr").aggregate([([], "count_all")]) for table in index]
    split_rows = sum(
        count for table in rows_per_probe for count in table["count_all"].to_pylist() if count > 1
    )
    assert split_rows > 0
    assert values["rows_read"] == 2504
    assert values["files_unreadable"] == 1
    assert values["dead_letters_src_addr_invalid"] == 3
    assert values["dead_letters_file_unreadable"] == 1
    assert values["probes"] == 12
    assert values["measurements_per_probe"] == 2500
    assert values["row_splits"] == split_rows
    assert values["records_written"] == sum(shard["num_records"] for shard in shards)
    assert values["shards_written"] == len(shards)
    assert values["bytes_written"] == sum(shard["num_bytes"] for shard in shards)
    assert values["record_bytes"] == sum(sum(table["num_bytes"].to_pylist()) for table in index)
    assert (values["train_probes"], values["test_probes"]) == (11, 1)
    assert min(values[f"grouped_by_{what}_bytes"] for what in ("probe", "shard")) > 0
    assert values["cut_bytes"] > 0


def test_an_error_is_logged_with_what_it_was_about(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    def failing(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(sharded_write.WriteShard, "_write_shard", failing)
    caplog.set_level(logging.ERROR, "beam_pipeline")
    with pytest.raises(Exception, match="Input/output error"):
        main([f"--input={source}", f"--output={tmp_path}/out", "--debug", *FLAGS])
    lines = [r.getMessage() for r in caplog.records if r.name == "beam_pipeline"]
    logged = json.loads(lines[0])
    assert (logged["step"], logged["error"]) == ("Write shard", "OSError")
    assert logged["shard"] in range(5) and "Input/output error" in logged["message"]
