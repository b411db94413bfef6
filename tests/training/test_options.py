"""Invalid options and states end in one line."""

import copy
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_pipeline.dataset.layout import Encoding
from beam_pipeline.errors import ProbelineError, UsageError
from tests.support.loader_helpers import config_of, open_iterator, refusal_of
from tests.support.probe_rows_on_disk import mixed_rows, write_dataset
from training.batches.states import reshard_states
from training.dataset import DataConfig, build_dataset
from training.rows.row_source import ProbeRowDataSource
from training.rows.row_table import find_shards

NAN = float("nan")
WRONG: dict[str, list[Any]] = {
    "seed": [None, 1.5, "7", True, 2**64, 2**80],
    "batch_size": ["4", 4.0, None, True, 2**40, 0, -8],
    "crop_size": ["4", 1024.0, None, 200_000, 2**31, 2**62, 63],
    "mode_weights": ["abc", None, 3, "xyz", (1, 2), (1, 2, NAN), (1, -1, 1), (0, 0, 0)],
    "mixed_rows": ["3", 2.5, 2**70, 0],
    "avg_tokens_per_measurement": ["3", 2.5, 2**70, 0],
    "max_contexts_per_row": ["3", 2.5, 2**70, 0],
    "num_workers": ["3", 2.5, None, -1],
    "worker_buffer_size": ["3", 2.5, 2**40, 0],
    "num_threads": ["3", 2.5, None, -2],
    "num_epochs": ["3", 2.5, 0, 2**70],
    "host_index": ["0", 0.0, None, -1],
    "host_count": ["1", 1.0, None, 0],
    "shuffle": ["no", 1, None],
    "pack": ["no"],
    "sampler": [None, ["rows"], "row"],
    "on_bad_row": [None, 3, "drop"],
    "repeat_share": ["many", 1.5, None],
    "fixed_order_share": [NAN],
    "random_source_share": [-0.1],
    "stride_ratio": [0, -1, NAN, float("inf")],
    "window_shares": [3, (0.5, 0.2), (0, 2), (1,)],
    "cache_dir": [3, "", b"x"],
    "weights": [["a"], None, "probe"],
}


@pytest.mark.parametrize("option", WRONG)
def test_invalid_option(option: str) -> None:
    for value in WRONG[option]:
        given = {"files": "rows", "batch_size": 4, "sampler": "windows", option: value}
        message = f"{option} is {value!r}: it must be"
        refusal_of(lambda: DataConfig(**given), message, kind=UsageError)  # noqa: B023


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host_index": 2, "host_count": 2}, "host_index is 2, but host_count is 2"),
        ({"batch_size": 9, "host_count": 2}, "batch_size 9 is not a multiple of host_count 2"),
        ({"repeat_share": 0.5, "sampler": "windows"}, "repeat_share requires sampler=rows"),
        ({"window_shares": (0, 0), "sampler": "windows"}, "window_shares require sampler=rows"),
        ({"stride_ratio": 0.5}, "stride_ratio requires sampler=windows"),
        ({"weights": "probes"}, "weights require sampler=windows"),
        ({"weights": [1, 2]}, "weights require sampler=windows"),
        ({"mixed_rows": None}, "set cache_dir"),
    ],
    ids=str,
)
def test_conflicting_options(options: dict[str, Any], message: str) -> None:
    refusal_of(lambda: config_of("rows", **options), message, kind=UsageError)


@pytest.mark.parametrize("files", [None, 3, b"rows", [None], [b"rows"], [3]])
def test_files_of_a_wrong_kind_are_named(files: Any) -> None:
    refusal_of(lambda: find_shards(files), f"files is {files!r}", kind=UsageError)


def test_paths_may_be_path_objects(mixed: dict[Encoding, Path], tmp_path: Path) -> None:
    seed: Any = np.int64(3)
    config = DataConfig(mixed["compact"], 4, 256, cache_dir=tmp_path, seed=seed)
    next(iter(build_dataset(config)))
    assert list(tmp_path.iterdir())
    assert len(ProbeRowDataSource(mixed["compact"])) == len(mixed_rows())


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_iterator_that_cannot_begin_says_so_once(
    mixed: dict[Encoding, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ProbelineError("no")

    monkeypatch.setattr("training.dataset.keep_large_blocks", fail)
    refusal_of(lambda: open_iterator(mixed["compact"]), "no")
    gc.collect()


@pytest.mark.parametrize("cache", [False, True])
def test_an_empty_split_is_told(tmp_path: Path, cache: bool) -> None:
    dataset = write_dataset(tmp_path / "rows", mixed_rows(), "compact", 2)
    options = {"cache_dir": str(tmp_path / "cache")} if cache else {}
    refusal_of(
        lambda: build_dataset(config_of(f"{dataset}/test", batch_size=1, **options)),
        *(f"{dataset}/test", "have no rows"),
        kind=UsageError,
    )


# --- states ---------------------------------------------------------------------------------------


def saved(dataset: Path) -> dict[str, Any]:
    iterator = open_iterator(dataset)
    for _ in range(5):
        next(iterator)
    return iterator.get_state()


def continued(dataset: Path, state: Any) -> None:
    iterator = open_iterator(dataset)
    iterator.set_state(state)
    next(iterator)


def test_a_state_that_lacks_something_is_refused(mixed: dict[Encoding, Path]) -> None:
    state = saved(mixed["compact"])
    for name in state:
        lacking = {key: value for key, value in state.items() if key != name}
        refusal_of(lambda: continued(mixed["compact"], lacking), "the iterator's state")  # noqa: B023
        if name != "format":
            refusal_of(lambda: reshard_states([lacking], 1), "state")  # noqa: B023
        for value in ({}, "x", -1, 1.5, [1], 2**70, [[-1] * 6] * 8):
            wrong = {**state, name: value}
            refusal_of(lambda: continued(mixed["compact"], wrong), "state")  # noqa: B023
    for name in state["datasets"][0]:
        for value in ({}, "x", -1, None, [1], [[-1] * 6] * 8, [[0] * 6] * 3 + [[0]]):
            wrong = {**state, "datasets": [{**state["datasets"][0], name: value}]}
            refusal_of(lambda: continued(mixed["compact"], wrong), "state")  # noqa: B023
    for wrong in ([1], None, "state", {}):
        refusal_of(lambda: continued(mixed["compact"], wrong), "the iterator's state")  # noqa: B023


def test_a_cursor_beyond_its_lane_is_refused(mixed: dict[Encoding, Path]) -> None:
    state = saved(mixed["compact"])
    continued(mixed["compact"], state)
    for field in range(6):
        for value in (-1, 10**6, 2**62):
            wrong = copy.deepcopy(state)
            wrong["datasets"][0]["cursors"][3][field] = value
            try:
                continued(mixed["compact"], wrong)
            except ProbelineError as error:
                assert "state is damaged" in str(error)
                continue
            assert value > 0 and field in (0, 2, 3)  # epochs, and an index that is past all
