"""Rows described, encoded and listed many at a time; the job on many small probes."""

from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import (
    ENCODINGS,
    RECORD_ENCODINGS,
    DatasetOptions,
    RowFormat,
    row_key,
    split_of,
    src_id,
)
from beam_pipeline.dataset.row_codec import RowKey
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER
from beam_pipeline.jobs.frame import add_transforms
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.probe_rows import bucket
from beam_pipeline.probe_rows import pipeline as probe_rows
from beam_pipeline.probe_rows.job import Job
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.probe_rows.pipeline import (
    ATTRIBUTES,
    _add_up,
    _size,
    describe,
    encode,
    index_table,
)
from beam_pipeline.probe_rows.row_splitting import CutRows
from beam_pipeline.shards.staging import Records, StageRecords
from beam_pipeline.sources.inputs import MeasurementFile
from beam_pipeline.storage.matching import FileVersion
from tests.support.helpers import (
    NOW,
    make_run,
    measurements_table,
    quick_and_slow,
    records_as_tuples,
    reference_rows,
    run_do_fn,
    runs_strategy,
)
from tests.support.job_runs import files_of, history, make_dataset, read_rows, write_input
from tests.support.probe_rows_on_disk import attributes_of, cut_row
from tests.support.properties import num_examples

OPTIONS = DatasetOptions(
    measurement_encoding="arrow",
    max_row_size_mb=8.0,
    train_ratio=0.6,
    split_seed=3,
    probes_per_shard=100,
    num_shards=0,
    array_record_options="group_size:1",
)
Row = tuple[RowKey, np.ndarray]


def joined(rows: list[Row]) -> CutRows:
    keys, runs = zip(*rows, strict=True)
    return CutRows.of(list(keys), np.concatenate(runs), list(map(len, runs)))


def plain_line(key: RowKey, run: np.ndarray) -> dict:
    """What is known of a row, one measurement after another."""
    records = records_as_tuples(run)
    return {
        "split": split_of(key.src_addr, OPTIONS.train_ratio, OPTIONS.split_seed),
        "is_wide": run.dtype.itemsize == 28,
        "src_id": src_id(key.src_addr),
        "src_addr": key.src_addr,
        "row_index": key.row_index,
        "n_measurements": len(records),
        "num_ipv6": sum(destination >> 32 != 0xFFFF for _, destination, _ in records),
        "num_failed": sum(rtt < 0 for _, _, rtt in records),
        "first_timestamp": records[0][0],
        "last_timestamp": records[-1][0],
    }


def lines_of(table: pa.Table) -> list[dict]:
    """Returns lines with their timestamps as numbers: not every one is a date of Python."""
    numbers = [
        pa.field(field.name, pa.int64()) if pa.types.is_timestamp(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(numbers)).to_pylist()


_keys = st.builds(
    RowKey,
    src_addr=st.sampled_from(["192.0.2.1", "8.8.8.8", "::", "2001:db8::1"]),
    row_index=st.integers(0, 2**31 - 1),
)


@st.composite
def rows_strategy(draw) -> list[Row]:
    wide = draw(st.booleans())
    rows = st.tuples(_keys, runs_strategy(max_size=12, wide=wide))
    return draw(st.lists(rows, min_size=1, max_size=6))


@settings(max_examples=num_examples(100))
@given(rows_strategy())
def test_rows_are_described_as_each_is_measurement_by_measurement(rows: list[Row]) -> None:
    described = Records.decode(describe(joined(rows), OPTIONS).encode())
    assert described.keys == [row_key(src_id(key.src_addr), key.row_index) for key, _ in rows]
    assert described.payloads == [run.tobytes() for _, run in rows]
    assert lines_of(attributes_of([described])) == [plain_line(key, run) for key, run in rows]


def some_rows(seed: int, num_rows: int = 40) -> list[Row]:
    """Narrow and wide rows in turn, of all sizes up to 30."""
    return [
        (
            RowKey(f"10.0.{seed}.{number}" if number % 3 else f"2001:db8::{number:x}", number % 4),
            make_run(1 + number * 7 % 30, seed=seed + number, wide=number % 2 == 1),
        )
        for number in range(num_rows)
    ]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("record_encoding", RECORD_ENCODINGS)
def test_a_batch_of_narrow_and_wide_rows_is_encoded_in_its_order(encoding, record_encoding) -> None:
    """Records may end with zeros: none may be lost."""
    rows = some_rows(seed=1)
    attributes = attributes_of(describe(cut_row(*row), OPTIONS) for row in rows)
    payloads = [run.tobytes() for _, run in rows]
    row_format = RowFormat(encoding, 1 << 20, record_encoding)
    for start, end in ((0, 40), (3, 4), (4, 5), (10, 10), (11, 40)):
        batch = encode(payloads[start:end], attributes.slice(start, end - start), row_format)
        assert batch == [
            encode_row(run, key, encoding, record_encoding) for key, run in rows[start:end]
        ]


def test_the_index_has_the_lines_of_a_shard_and_refuses_two_probes_of_one_id() -> None:
    rows = sorted(some_rows(seed=2), key=lambda row: (src_id(row[0].src_addr), row[0].row_index))
    attributes = attributes_of(describe(cut_row(*row), OPTIONS) for row in rows)
    table = index_table(attributes)
    assert table.column_names == ATTRIBUTES.names[2:]
    assert lines_of(table) == [
        {name: value for name, value in plain_line(*row).items() if name in table.column_names}
        for row in rows
    ]
    assert index_table(attributes.slice(0, 0)).num_rows == 0
    lines = lines_of(attributes)
    lines[8] |= {"src_id": lines[7]["src_id"], "row_index": lines[7]["row_index"]}
    one, other = lines[7]["src_addr"], lines[8]["src_addr"]
    with pytest.raises(ProbelineError, match=f"{one} and {other} have the same src_id") as error:
        index_table(pa.Table.from_pylist(lines, ATTRIBUTES))
    assert str(lines[7]["src_id"]) in str(error.value)


def test_sizes_of_splits(tmp_path: Path) -> None:
    """They decide on the number of shards."""
    rows = [*some_rows(seed=3), *some_rows(seed=4, num_rows=9)]
    elements = [describe(cut_row(*row), OPTIONS) for row in rows]
    stage = StageRecords(str(tmp_path), 200, ATTRIBUTES)
    staged = [part for at in (0, 40) for part in run_do_fn(stage, elements[at : at + 40], **NOW)]
    assert len(staged) == 2
    totals = _add_up([_add_up([]), _add_up(map(_size, staged[:1])), *map(_size, staged[1:])])
    for split in (0, 1):
        lines = [line for line in (plain_line(*row) for row in rows) if line["split"] == split]
        sizes = [16 * line["n_measurements"] + 12 * line["num_ipv6"] for line in lines]
        assert totals[split].tolist() == [sum(not line["row_index"] for line in lines), sum(sizes)]


def test_pipeline_of_a_thousand_large_files_is_small() -> None:
    """Dataflow refuses 10 MB."""
    options, _ = parse(["--input=x", "--output=x"])
    sizes = 350_000_000, 1
    files = [
        MeasurementFile(FileVersion(f"gs://bucket/in/{i:04d}", *sizes), "parquet", (131_072,) * 267)
        for i in range(1000)
    ]
    pipeline = beam.Pipeline(IN_MEMORY_RUNNER)
    job = Job(
        run=JobRun("gs://bucket/out/.probeline-temp/run", output="gs://bucket/out"),
        command="a command",
        read_options=options.read_options(),
        dataset_options=options.dataset_options(),
        inline_bytes=1 << 16,
    )
    add_transforms(pipeline, job.run, lambda *_: probe_rows.build(pipeline, files, job))
    assert len(pipeline.to_runner_api().SerializeToString()) < 400_000


# --- many small probes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    table = measurements_table(6000, seed=4, num_probes=2500, ipv6_share=0.4)
    parts = [table.slice(at, 2000) for at in (0, 2000, 4000)]
    return write_input(tmp_path_factory.mktemp("small") / "in", *parts), table


SHAPE = ("--probes_per_shard=1000", "--max_row_size_mb=1")


@pytest.fixture(scope="module")
def dataset(source: tuple[Path, pa.Table], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(source[0], tmp_path_factory.mktemp("dataset") / "out", *SHAPE)


@pytest.mark.slow
def test_many_small_probes_come_out_whole(source: tuple[Path, pa.Table], dataset: Path) -> None:
    rows, wanted = read_rows(dataset), reference_rows(source[1])
    assert history(rows) == wanted and len(wanted) > 1500
    counts = [split.num_probes for split in open_dataset(str(dataset)).manifest.splits.values()]
    assert sum(counts) == len(wanted) and min(counts) > 100


@pytest.mark.parametrize(
    "limits", quick_and_slow([(1, 10_000), (1000, 10_000), (10, 7)], [(10, 7)])
)
def test_the_number_of_buckets_changes_no_byte(
    source: tuple[Path, pa.Table],
    dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
) -> None:
    monkeypatch.setattr(bucket, "BUCKET_ROWS", limits[0])
    monkeypatch.setattr(bucket, "MAX_BUCKETS", limits[1])
    again = make_dataset(source[0], tmp_path / "out", *SHAPE, "--inline_bytes=300")
    assert files_of(again) == files_of(dataset)
