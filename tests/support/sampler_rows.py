"""Rows for the samplers, and what their examples must be."""

from typing import Any

import numpy as np
import pytest

from beam_pipeline.dataset.layout import Encoding
from beam_pipeline.dataset.row_codec import RowKey, decode_record
from beam_pipeline.dataset.row_encoder import encode_row
from tests.support import reference_sampler as reference
from tests.support.helpers import MAPPED_IPV4, make_run, records_as_tuples
from training.rows.row_layout import locate
from training.rows.row_source import Measurements
from training.sampler import ProbeRowSampler, ProbeWindowSampler

SRC = "192.0.2.1"
NAMES = {
    *("inputs", "inputs_segmentation", "inputs_position"),
    *("targets", "targets_segmentation", "targets_position"),
}
WEIGHTS = {"full": (1, 0, 0), "partial": (0, 1, 0), "none": (0, 0, 1)}
every_mode = pytest.mark.parametrize("mode", WEIGHTS)
both_samplers = pytest.mark.parametrize("sampler_class", [ProbeRowSampler, ProbeWindowSampler])

Row = dict[str, Any]
Example = dict[str, np.ndarray]


def row_of(
    run: np.ndarray, encoding: Encoding = "compact", src_addr: str = SRC, row_index: int = 0
) -> Row:
    """Returns what a data source gives for a row, as far as samplers look at it."""
    record = encode_row(run, RowKey(src_addr, row_index), encoding)
    row, located = decode_record(record), locate(record)
    return {
        "src_id": row.src_id,
        "src_addr": row.src_addr,
        "row_index": row.row_index,
        "n_measurements": row.n_measurements,
        "measurements": Measurements(located.columns),
    }


def items_of(run: np.ndarray) -> list[reference.Item]:
    return reference.items_of(records_as_tuples(run))


def numbered_run(n: int, seed: int = 0, ipv6: bool = False) -> np.ndarray:
    """Returns a run in which each destination is another one."""
    run = make_run(n, seed=seed, wide=True)
    run["dst_hi"] = 1 if ipv6 else 0
    run["dst_lo"] = np.arange(n, dtype=np.uint64) | np.uint64(MAPPED_IPV4)
    return run


def tokens_of(example: Example) -> list[int]:
    """Returns the tokens of the one segment of an example, the last one a target only."""
    length = int(np.count_nonzero(example["inputs_segmentation"]))
    return [*example["inputs"][:length].tolist(), int(example["targets"][length - 1])]


def assert_example(example: Example, crop_size: int = 1024) -> None:
    """One segment, then padding: MaxText's six arrays, where a target is the next token."""
    assert set(example) == NAMES
    for values in example.values():
        assert values.dtype == np.int32
        assert values.shape == (crop_size,)
    length = int(np.count_nonzero(example["inputs_segmentation"]))
    assert length >= 1
    expected = (np.arange(crop_size) < length).astype(int)
    for name in ("inputs", "targets"):
        assert np.array_equal(example[f"{name}_segmentation"], expected)
        assert np.array_equal(example[f"{name}_position"], np.arange(crop_size) * expected)
        assert not example[name][length:].any()
        assert example[name].max() < 267
    assert np.array_equal(example["inputs"][1:length], example["targets"][: length - 1])


def damaged_row(n: int) -> Row:
    """Returns a row whose destinations are all no addresses, as only its readers can find out."""
    record = bytearray(encode_row(make_run(n, seed=7), RowKey(SRC, 5), "arrow"))
    columns = locate(bytes(record)).columns
    row = row_of(make_run(n, seed=7), "arrow", row_index=5)
    begin, end = columns.layout.dst_more, columns.layout.families
    record[begin:end] = b"x" * (end - begin)
    columns = columns._replace(raw=np.frombuffer(bytes(record), np.uint8))
    return row | {"measurements": Measurements(columns)}
