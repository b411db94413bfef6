"""Finished datasets as input: their rows are grouped anew, whatever they were written with."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.row_codec import decode_record
from beam_pipeline.dataset.rows import open_dataset, read_shard
from beam_pipeline.main import main
from tests.support.helpers import measurements_table
from tests.support.job_runs import FLAGS, files_of, history, make_dataset, read_rows, write_input

TABLE = measurements_table(3000, seed=5, num_probes=12)
KEY = "00112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210"


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    return make_dataset(write_input(folder / "all", TABLE), folder / "whole")


@pytest.fixture(scope="module")
def part(folder: Path) -> Path:
    """A third of the measurements."""
    return make_dataset(write_input(folder / "first", TABLE.slice(0, 1000)), folder / "part")


@pytest.mark.slow
def test_a_dataset_is_written_in_another_form(whole: Path, tmp_path: Path) -> None:
    """Compact rows are those of the values that they hold."""
    compact, again = tmp_path / "compact", tmp_path / "again"
    flags = [*FLAGS, "--measurement_encoding=compact", "--input_format=probe_rows"]
    assert main([f"--input={whole}", f"--output={compact}", *flags]) == 0
    told = open_dataset(str(compact)).manifest
    assert told.counts.measurements == told.counts.rows_read == TABLE.num_rows
    assert main([f"--input={compact}", f"--output={again}", *flags]) == 0
    assert main([f"--input={again}", f"--output={tmp_path / 'third'}", *flags]) == 0
    assert files_of(tmp_path / "third") == files_of(again)
    expected = {
        probe: sorted((time // 10**6 * 10**6, dst) for time, dst, _ in measurements)
        for probe, measurements in history(read_rows(whole)).items()
    }
    found = history(read_rows(again))
    assert {probe: [m[:2] for m in values] for probe, values in found.items()} == expected


def test_what_compact_cannot_hold_is_a_dead_letter(tmp_path: Path) -> None:
    table = measurements_table(20, seed=1)
    rtt = table["rtt"].to_pylist()
    rtt[3] = 5e9
    table = table.set_column(4, "rtt", pa.array(rtt, pa.float32()))
    dataset = make_dataset(write_input(tmp_path / "in", table), tmp_path / "arrow")
    output = tmp_path / "compact"
    assert main([f"--input={dataset}", f"--output={output}", "--probes_per_shard=3"]) == 0
    assert open_dataset(str(output)).manifest.counts.dead_letters == {"rtt_out_of_range": 1}
    (letter,) = pq.read_table(*output.glob("dead_letter/*")).to_pylist()
    assert letter["file"].startswith(f"{dataset}/t") and '"rtt":"5000000000"' in letter["value"]
    records = cast(Iterator[bytes], read_shard(letter["file"], "arrayrecord"))
    rtts = np.concatenate([decode_record(record).run["rtt"] for record in records])
    assert rtts[letter["row"]] == 5e9


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_damaged_shard_ends_the_run(
    part: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(part, copy)
    shard = max(copy.glob("train/*.arrayrecord"), key=lambda path: path.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data[:-1] if damage == "cut" else data)
    if damage == "gone":
        shard.unlink()
    flags = [f"--input={copy}", f"--output={tmp_path / 'out'}", "--on_bad_file=dead_letter"]
    assert main(flags) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert str(shard) in line and line.endswith("copy the dataset again as a whole"), line
    assert not (tmp_path / "out" / "_SUCCESS").exists()


@pytest.mark.parametrize("input_format", ["probe_rows", "auto"])
def test_only_finished_datasets_are_taken(
    part: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], input_format: str
) -> None:
    """A part of one is refused, too: test_append.py."""
    shutil.copytree(part, tmp_path / "unfinished")
    (tmp_path / "unfinished" / "_SUCCESS").unlink()
    flags = [f"--input={tmp_path / 'unfinished'}", f"--output={tmp_path / 'refused'}"]
    assert main([*flags, f"--input_format={input_format}"]) > 0
    assert "is not a finished dataset" in capsys.readouterr().err
    assert not (tmp_path / "refused").exists()


@pytest.mark.slow
def test_addresses_are_replaced_once(
    folder: Path, part: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROBELINE_ANONYMIZE_KEY", KEY)
    replaced, again, copied = (folder / name for name in ("replaced", "again", "copied"))
    anonymize = "--anonymize=prefix_preserving"
    assert main([f"--input={part}", f"--output={replaced}", *FLAGS, anonymize]) == 0
    assert main([f"--input={replaced}", f"--output={again}", *FLAGS, anonymize]) == 0
    assert main([f"--input={replaced}", f"--output={copied}", *FLAGS]) == 0
    assert files_of(replaced) == files_of(again) == files_of(copied) != files_of(part)
    options = [open_dataset(str(path)).manifest.options for path in (replaced, again, copied)]
    assert options[0] == options[1] == options[2]
    capsys.readouterr()
    mixed = [f"--input={replaced}", f"--input={part}", f"--output={folder / 'mixed'}"]
    assert main(mixed) == 2
    assert "real ones: give only datasets of one key" in capsys.readouterr().err
    assert main([*mixed, *FLAGS, anonymize]) == 0
    monkeypatch.setenv("PROBELINE_ANONYMIZE_KEY", KEY[::-1])
    assert main([f"--input={replaced}", f"--output={folder / 'other_key'}", anonymize]) == 2
    assert "give only datasets of one key" in capsys.readouterr().err
