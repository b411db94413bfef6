"""States of iterators: as JSON, checked against a dataset, and resharded for other hosts."""
# The arguments of kernels get their types from numba.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from beam_pipeline.errors import ProbelineError
from beam_pipeline.kernels import kernel
from training.batches.config import DataConfig
from training.batches.lanes import CURSOR, Plan, small_at

_FORMAT = 3
_CURE = "restore an unmodified state, or start a new run"


@dataclass(frozen=True)
class HostState:
    """The positions of a host's lanes between two batches."""

    cursors: np.ndarray  # CURSOR [datasets, lanes]
    step: int = 0  # number of batches yielded
    first_epoch: int = 0  # all lanes began this epoch at first_step
    first_step: int = 0
    skipped: frozenset[tuple[int, int, int]] = frozenset()  # rows: (dataset, shard, position)
    has_ended: bool = False  # whether the last batch has been yielded

    def to_json(self, config: DataConfig, data: Sequence[str]) -> dict[str, Any]:
        """Returns the state for JSON; `data` are the fingerprints of the datasets."""
        return {
            "format": _FORMAT,
            "fingerprint": config.fingerprint,
            "batch_size": config.batch_size,
            "num_epochs": config.num_epochs,
            "has_ended": self.has_ended,
            "step": self.step,
            "first_epoch": self.first_epoch,
            "first_step": self.first_step,
            "first_lane": config.lanes.start,
            "datasets": [
                {
                    "fingerprint": fingerprint,
                    "skipped_rows": sorted(list(row) for of, *row in self.skipped if of == number),
                    "cursors": cursors_to_numbers(self.cursors[number]).tolist(),
                }
                for number, fingerprint in enumerate(data)
            ],
        }

    @staticmethod
    def from_json(values: dict[str, Any], config: DataConfig, data: Sequence[str]) -> "HostState":
        """Inverts `to_json`; a run of more epochs continues where one of fewer ended.

        The weights of a mixture are not part of a state. A dataset not in the state starts afresh.

        Raises:
          ProbelineError: the state belongs to other data, another configuration or other lanes.
        """
        _check_state(values, config.fingerprint)
        saved = {dataset["fingerprint"]: dataset for dataset in values["datasets"]}
        if missing := sorted(saved.keys() - set(data)):
            raise ProbelineError(
                "the iterator's state was saved with data of fingerprint "
                f"{', '.join(missing)}, these have {', '.join(data)}: use the same files (a "
                "mixture may have new weights and more datasets), or start a new run"
            )
        lanes, num_lanes = config.lanes, len(values["datasets"][0]["cursors"])
        if (values["first_lane"], num_lanes) != (lanes.start, len(lanes)):
            raise ProbelineError(
                f"the state has lanes {values['first_lane']} to "
                f"{values['first_lane'] + num_lanes - 1} of the batch, this host has {lanes.start} "
                f"to {lanes.stop - 1}: divide the states of all hosts among the new hosts with "
                "training.batches.states.reshard_states"
            )
        before, wanted = values["num_epochs"], config.num_epochs
        goes_on = values["has_ended"] and before != wanted
        if None not in (before, wanted) and wanted != before and not (goes_on and wanted > before):
            raise ProbelineError(
                f"the state is of an unfinished run of {before} epochs, but num_epochs is "
                f"{wanted}: finish it with num_epochs={before}, or set None"
            )
        begin: dict[str, Any] = {
            "cursors": cursors_to_numbers(np.zeros(len(lanes), CURSOR)),
            "skipped_rows": [],
        }
        datasets = [saved.get(fingerprint, begin) for fingerprint in data]
        numbers = np.array([dataset["cursors"] for dataset in datasets], np.int64)
        return HostState(
            cursors=cursors_from_numbers(numbers),
            step=values["step"],
            first_epoch=before if goes_on else values["first_epoch"],
            first_step=values["step"] if goes_on else values["first_step"],
            skipped=frozenset(
                (number, shard, position)
                for number, dataset in enumerate(datasets)
                for shard, position in dataset["skipped_rows"]
            ),
            has_ended=values["has_ended"] and not goes_on,
        )


def cursors_to_numbers(cursors: np.ndarray) -> np.ndarray:
    """Returns CURSOR [lanes] as int64 [lanes, fields]."""
    return cursors.view(np.int64).reshape(len(cursors), -1)


def cursors_from_numbers(numbers: np.ndarray) -> np.ndarray:
    """Returns int64 [datasets, lanes, fields] as CURSOR [datasets, lanes]."""
    return numbers.view(CURSOR)[:, :, 0]


type _Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _DatasetState(msgspec.Struct):
    fingerprint: str
    skipped_rows: list[tuple[_Count, _Count]]
    cursors: list[tuple[_Count, _Count, _Count, _Count, _Count, _Count]]  # CURSOR


class _State(msgspec.Struct):
    batch_size: _Count
    num_epochs: _Count | None
    has_ended: bool
    step: _Count
    first_epoch: _Count
    first_step: _Count
    first_lane: _Count
    datasets: Annotated[list[_DatasetState], msgspec.Meta(min_length=1)]


def _check_state(state: Any, fingerprint: str) -> None:
    """Raises ProbelineError if a state is damaged, or was saved with other options."""
    if not isinstance(state, dict):
        raise ProbelineError(f"the iterator's state is {str(state)[:40]!r}, not a dict: {_CURE}")
    if state.get("format") != _FORMAT:
        raise ProbelineError(
            f"the iterator's state has format {state.get('format')}, this version reads "
            f"{_FORMAT}: use the version that saved it"
        )
    if state.get("fingerprint") != fingerprint:
        raise ProbelineError(
            "the iterator's state was saved with options of fingerprint "
            f"{state.get('fingerprint')}, these have {fingerprint}: use the same seed, "
            "batch_size, crop_size and sampling options, or start a new run"
        )
    try:
        datasets = msgspec.convert(state, _State).datasets
        if len({len(dataset.cursors) for dataset in datasets}) > 1:
            raise msgspec.ValidationError("its datasets have different numbers of cursors")
    except msgspec.ValidationError as error:
        raise ProbelineError(f"the iterator's state is damaged: {error}: {_CURE}") from error


def check_cursors(plan: Plan, cursors: np.ndarray, n_measurements: np.ndarray) -> None:
    """Raises ProbelineError if a cursor is out of its lane's range."""
    if (i := _find_impossible(plan, cursors, n_measurements)) >= 0:
        raise ProbelineError(
            f"the iterator's state is damaged: the cursor of lane {plan.lane[i]} is "
            f"out of range: {_CURE}"
        )


@kernel
def _find_impossible(plan, cursors, n_measurements):
    """Returns a lane here whose cursor is beyond its rows or their measurements, or -1."""
    for i in range(len(cursors)):
        cursor = cursors[i]
        num_large = plan.large_end[i] - plan.large_begin[i]
        num_small = plan.small_end[i] - plan.small_begin[i]
        if cursor.large_window > num_large or cursor.small_row > num_small:
            return i
        if cursor.small_place > 0:
            if cursor.small_row == num_small:
                return i
            row = small_at(plan, i, cursor.small_epoch, cursor.small_row)
            if cursor.small_place >= n_measurements[row]:
                return i
    return -1


def reshard_states(states: Sequence[dict[str, Any]], host_count: int) -> list[dict[str, Any]]:
    """Divides the states of all hosts of a run among a different number of hosts.

    Args:
      states: the states of all hosts at one step, in any order.
      host_count: the new number of hosts.

    Returns:
      The state of each new host, by host_index.

    Raises:
      ProbelineError: states are missing, are of different steps or runs, or cannot be divided.

    Example:

        batches = iter(build_dataset(DataConfig(files="rows/train", batch_size=4)))
        of_both_hosts = reshard_states([batches.get_state()], host_count=2)
    """
    if not states:
        raise ProbelineError("states is empty: pass the states of all hosts from one checkpoint")
    for state in states:
        _check_state(state, states[0].get("fingerprint", ""))
    states = sorted(states, key=lambda state: state["first_lane"])
    step, batch_size = states[0]["step"], states[0]["batch_size"]
    data = [dataset["fingerprint"] for dataset in states[0]["datasets"]]
    num_lanes = 0
    for state in states:
        is_same = [dataset["fingerprint"] for dataset in state["datasets"]] == data
        if state["step"] != step or state["first_lane"] != num_lanes or not is_same:
            raise ProbelineError(
                f"the states do not fit together at lane {num_lanes}, step {step}: pass those of "
                "all hosts from one checkpoint"
            )
        num_lanes += len(state["datasets"][0]["cursors"])
    if num_lanes != batch_size or batch_size % host_count:
        raise ProbelineError(
            f"the states have {num_lanes} of {batch_size} lanes, and host_count is {host_count}: "
            "pass those of all hosts, and a host_count that divides the batch size"
        )
    share = batch_size // host_count
    joined = [_join([state["datasets"][number] for state in states]) for number in range(len(data))]
    return [
        {
            **states[0],
            "first_lane": first,
            "datasets": [
                {**dataset, "cursors": dataset["cursors"][first : first + share]}
                for dataset in joined
            ],
        }
        for first in range(0, batch_size, share)
    ]


def _join(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Joins the states of one dataset from all hosts, given in order."""
    skipped = {tuple(row) for part in parts for row in part["skipped_rows"]}
    return {
        **parts[0],
        "skipped_rows": [list(row) for row in sorted(skipped)],
        "cursors": [cursor for part in parts for cursor in part["cursors"]],
    }
