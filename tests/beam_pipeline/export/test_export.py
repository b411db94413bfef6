"""Datasets as flat measurements again: what comes out, which part of it, and what a kill leaves."""

import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.addresses import format_any
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.dataset.sorted_run import widen
from beam_pipeline.export import __main__ as export
from beam_pipeline.export import measurements
from beam_pipeline.main import main
from beam_pipeline.sources.options import Sample
from beam_pipeline.storage.files import read_file
from tests.support.engines import Gcs
from tests.support.helpers import as_number, measurements_table, spellings_of
from tests.support.job_runs import files_of, write_input
from tests.support.kills import run_and_kill
from tests.support.probe_rows_on_disk import RowSpec, make_measurements, write_dataset
from tests.support.properties import num_examples

TABLE = measurements_table(3000, seed=11, num_probes=12)
COLUMNS = ["event_time", "src_addr", "dst_addr", "ip_version", "rtt"]
FORMS = [
    ["--measurement_encoding=arrow"],
    ["--measurement_encoding=compact", "--output_format=tfrecord", "--record_encoding=tf_example"],
]
TO_CSV = pa_csv.ConvertOptions(column_types={"rtt": pa.float32(), "ip_version": pa.int8()})


def run_job(source: Path | str, output: Path, *flags: str) -> Path:
    """Writes a dataset of small rows: probes have several, in several shards."""
    small = ["--max_row_size_mb=0.004", "--num_shards=3", "--train_ratio=0.6"]
    assert main([f"--input={source}", f"--output={output}", *small, *flags]) == 0
    return output


def exported(dataset: Path, output: Path, *flags: str) -> pa.Table:
    assert export.main([str(dataset), f"--output={output}", *flags]) == 0
    return pq.read_table(output)


def stored(dataset: Path, split: str) -> Iterator[tuple]:
    """Yields the measurements of a split from its rows, one by one."""
    for row in open_dataset(str(dataset)).rows(split):
        run = widen(row.run)
        dst = format_any(*(np.ascontiguousarray(run[half]) for half in ("dst_hi", "dst_lo")))
        for time, address, rtt in zip(run["event_time"].tolist(), dst.to_pylist(), run["rtt"]):
            yield time, row.src_addr, address, 6 if ":" in address else 4, rtt


def as_tuples(table: pa.Table) -> list[tuple]:
    times = table["event_time"].cast(pa.int64()).to_pylist()
    columns = [times, *(table[name].to_pylist() for name in COLUMNS[1:])]
    return list(zip(*columns, strict=True))


@pytest.fixture(scope="module", params=range(len(FORMS)))
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    return run_job(write_input(folder / "in", TABLE), folder / "rows", *FORMS[request.param])


# --- what comes out -------------------------------------------------------------------------------


def test_a_dataset_in_its_order(dataset: Path, tmp_path: Path, capsys) -> None:
    capsys.readouterr()
    table = exported(dataset, tmp_path / "new/pings.parquet")
    assert table.schema.names == COLUMNS
    assert table.schema.types == [
        *(pa.timestamp("us", "UTC"), pa.string(), pa.string(), pa.int8(), pa.float32())
    ]
    assert as_tuples(table) == [*stored(dataset, "train"), *stored(dataset, "test")]
    line = f"3,000 measurements of 12 probes in {tmp_path}/new/pings.parquet, "
    assert capsys.readouterr().out.startswith(line)
    assert as_tuples(exported(dataset, tmp_path / "test.parquet", "--split=test")) == [
        *stored(dataset, "test")
    ]


@pytest.mark.slow
def test_import_export_import_gives_the_same_bytes(tmp_path: Path) -> None:
    """Compact rows round their input once."""
    table = measurements_table(2000, seed=1, num_probes=8, span_us=10**10)
    source: Path | str = write_input(tmp_path / "in", table)
    for encoding, num_rounds in (("arrow", 1), ("compact", 2)):
        found = []
        for number in range(num_rounds + 1):
            rows = run_job(
                source, tmp_path / f"{encoding}{number}", f"--measurement_encoding={encoding}"
            )
            found.append(files_of(rows))
            source = tmp_path / f"{encoding}{number}.parquet"
            exported(rows, source)
        assert found[-1] == found[-2] and len(found[-1]) == 8
        source = tmp_path / "in/*.parquet"


def test_csv_has_the_same_values(dataset: Path, tmp_path: Path, capfdbinary) -> None:
    expected = exported(dataset, tmp_path / "pings.parquet", "--split=test")
    capfdbinary.readouterr()
    assert export.main([str(dataset), "--output=-", "--split=test"]) == 0
    printed, line = capfdbinary.readouterr()
    assert line.endswith(b" probes in -\n")
    for name in ("pings.csv", "pings.csv.gz"):
        assert export.main([str(dataset), f"--output={tmp_path / name}", "--split=test"]) == 0
    text = (tmp_path / "pings.csv").read_bytes()
    assert gzip.decompress((tmp_path / "pings.csv.gz").read_bytes()) == text == printed
    assert text.startswith(b"event_time,src_addr,dst_addr,ip_version,rtt\n2024-01-")
    times = [line.partition(b",")[0] for line in text.splitlines()[1:]]
    assert {(len(time), time[10:11], time[-1:]) for time in times} == {(27, b"T", b"Z")}
    found = pa_csv.read_csv(tmp_path / "pings.csv", convert_options=TO_CSV)
    assert found.cast(expected.schema).equals(expected)


def test_on_gs(gcs: Gcs, tmp_path: Path) -> None:
    bucket = gcs.make_bucket()
    rows = run_job(write_input(tmp_path / "in", TABLE), tmp_path / "rows")
    gcs.upload(rows, f"{bucket}/rows")
    flags = ["--since=2024-01-05", "--output"]
    assert export.main([f"{bucket}/rows", *flags, f"{bucket}/pings.parquet"]) == 0
    assert export.main([str(rows), *flags, str(tmp_path / "pings.parquet")]) == 0
    expected = (tmp_path / "pings.parquet").read_bytes()
    assert read_file(f"{bucket}/pings.parquet") == expected
    assert export.main([f"{bucket}/rows", *flags, f"{bucket}/pings.parquet"]) == 2


# --- a part of it ---------------------------------------------------------------------------------

TIMES = st.sampled_from(TABLE["event_time"].cast(pa.int64()).to_pylist())


@settings(max_examples=num_examples(100, 25))
@given(data=st.data())
def test_selections_equal_a_filter_of_everything(dataset: Path, data: st.DataObject) -> None:
    everything = {split: [*stored(dataset, split)] for split in ("train", "test")}
    names = sorted({row[1] for rows in everything.values() for row in rows})
    split = data.draw(st.sampled_from(["train", "test", "all"]))
    probes = data.draw(st.none() | st.lists(st.sampled_from([*names, "192.0.2.9"]), min_size=1))
    since, until = sorted([data.draw(TIMES), data.draw(TIMES) + data.draw(st.integers(0, 10**6))])
    sample = data.draw(
        st.sampled_from([Sample(), Sample(1.0, 1.0, since), Sample(1.0, 1.0, since, until + 1)])
    )
    expected = [
        row
        for name in (("train", "test") if split == "all" else (split,))
        for row in everything[name]
        if (probes is None or row[1] in probes)
        and sample.since_us <= row[0] < (sample.until_us or 2**63)
    ]
    spelled = None
    if probes is not None:
        spelled = [data.draw(st.sampled_from(spellings_of(as_number(each)))) for each in probes]
        spelled = [",".join(spelled[:2]), *spelled[2:]]
    found = measurements.chosen_batches(str(dataset), split, spelled, sample)
    assert [row for batch in found for row in as_tuples(pa.Table.from_batches([batch]))] == expected


def test_the_sample_is_that_of_the_job(dataset: Path, tmp_path: Path) -> None:
    sampled = run_job(dataset, tmp_path / "sample", "--sample_probes=0.5", FORMS[0][0])
    found = exported(dataset, tmp_path / "pings.parquet", "--sample_probes=0.5")
    wanted = [*stored(sampled, "train"), *stored(sampled, "test")]
    assert sorted(as_tuples(found)) == sorted(wanted) and 0 < len(wanted) < TABLE.num_rows


def test_only_rows_that_may_match_are_read(dataset: Path, tmp_path: Path, monkeypatch) -> None:
    read: list[tuple[int, int]] = []
    original = measurements.RowReader.read

    def read_row(self, row: int) -> bytes:
        read.append(self.rows.place(row))
        return original(self, row)

    monkeypatch.setattr(measurements.RowReader, "read", read_row)
    lines = open_dataset(str(dataset)).index("test").to_pylist()
    probe = max(lines, key=lambda line: line["row_index"])["src_addr"]
    exported(dataset, tmp_path / "one.parquet", f"--probe={probe}", "--split=test")
    places = [(line["shard"], line["position"]) for line in lines if line["src_addr"] == probe]
    assert read == places and 1 < len(places) < len(lines)


def test_a_long_row_in_parts(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(measurements, "_PART_ROWS", 64)
    monkeypatch.setattr(measurements, "_TABLE_ROWS", 192)
    runs = [make_measurements(n, n, ipv6_share=0.4) for n in (1000, 1, 64, 100)]
    specs = [RowSpec(f"192.0.2.{number % 3}", run, number // 3) for number, run in enumerate(runs)]
    for encoding in ("arrow", "compact"):
        rows = write_dataset(tmp_path / encoding, specs, encoding)
        output = tmp_path / f"{encoding}.parquet"
        assert as_tuples(exported(rows, output)) == [*stored(rows, "train")]
        groups = pq.ParquetFile(output).metadata
        sizes = [groups.row_group(at).num_rows for at in range(groups.num_row_groups)]
        assert len(sizes) > 4 and all(192 <= size < 256 for size in sizes[:-1])


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["parquet", "csv.gz"])
def test_a_killed_export_leaves_nothing_that_looks_finished(tmp_path: Path, suffix: str) -> None:
    rows = write_dataset(tmp_path / "rows", [RowSpec("192.0.2.1", make_measurements(50, 1))])
    output, log = tmp_path / "out" / f"pings.{suffix}", tmp_path / "changes"
    flags, number = [str(rows), f"--output={output}"], 0
    while not log.exists():
        number += 1
        module = "beam_pipeline.export.__main__"
        ended = run_and_kill(module, "", output.parent, number, flags, log)
        assert output.exists() == log.exists() == (ended.returncode == 0), ended.stderr
    assert number >= 3


@pytest.mark.parametrize(
    ("flag", "code", "message"),
    [
        ("--probe=192.0.2.99", 1, "no measurement matches: beam_pipeline.inspect shows"),
        ("--output=old.csv", 2, "--output=old.csv exists: choose another or pass --overwrite"),
    ],
)
def test_a_refused_command_writes_nothing(
    tmp_path: Path, monkeypatch, capsys, flag: str, code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_dataset(Path("rows"), [RowSpec("192.0.2.1", make_measurements(5, 1))])
    Path("old.csv").write_text("old")
    assert export.main(["rows", "--output=new.csv", flag]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line
    assert Path("old.csv").read_text() == "old"
    assert sorted(path.name for path in Path().iterdir()) == ["old.csv", "rows"]
    assert export.main(["rows", "--output=old.csv", "--overwrite"]) == 0
    assert len(Path("old.csv").read_text().splitlines()) == 6


def test_only_whole_and_sound_datasets(dataset: Path, tmp_path: Path, capsys) -> None:
    output = tmp_path / "pings.parquet"
    copy = shutil.copytree(dataset, tmp_path / "copy")
    rows = open_dataset(str(copy)).rows("train")
    shard = sorted(copy.glob("train/*shard*"))[rows.lines.shard[0]]
    data = bytearray(shard.read_bytes())
    data[data.index(rows[0].measurements[-40:-20])] ^= 1  # in no length or offset
    shard.write_bytes(data)
    assert export.main([str(copy), f"--output={output}"]) == 1
    assert f"{shard} record " in capsys.readouterr().err
    (copy / "_SUCCESS").unlink()
    assert export.main([str(copy), f"--output={output}"]) == 1
    assert "is not a finished dataset" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
