"""States of iterators: as JSON, checked against a dataset, and shared among other hosts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_pipeline.errors import ProbelineError
from training.batches.config import DataConfig
from training.batches.lanes import CURSOR

_FORMAT = 2


@dataclass(frozen=True)
class HostState:
    """The positions of a host's lanes between two batches.

    Attributes:
      cursors: CURSOR [lanes].
      step: number of batches given.
      first_epoch, first_step: all lanes began this epoch at this step.
      skipped: (shard, position) of rows that were skipped.
      has_ended: whether the last batch has been given.
    """

    cursors: np.ndarray
    step: int = 0
    first_epoch: int = 0
    first_step: int = 0
    skipped: frozenset[tuple[int, int]] = frozenset()
    has_ended: bool = False

    def to_json(self, config: DataConfig, fingerprint: str) -> dict[str, Any]:
        """Returns the state for JSON; a few dozen bytes a lane."""
        return {
            "format": _FORMAT,
            "fingerprint": fingerprint,
            "batch_size": config.batch_size,
            "num_epochs": config.num_epochs,
            "has_ended": self.has_ended,
            "step": self.step,
            "first_epoch": self.first_epoch,
            "first_step": self.first_step,
            "skipped_rows": sorted(list(row) for row in self.skipped),
            "first_lane": config.lanes.start,
            "cursors": cursors_to_numbers(self.cursors).tolist(),
        }

    @staticmethod
    def from_json(values: dict[str, Any], config: DataConfig, fingerprint: str) -> "HostState":
        """Inverts `to_json`; a run of more epochs continues where one of fewer has ended.

        Raises:
          ProbelineError: the state belongs to other data, another configuration or other lanes.
        """
        _check_state(values, fingerprint)
        lanes, num_lanes = config.lanes, len(values["cursors"])
        if (values["first_lane"], num_lanes) != (lanes.start, len(lanes)):
            raise ProbelineError(
                f"the state is of lanes {values['first_lane']} to "
                f"{values['first_lane'] + num_lanes - 1} of the batch, this host has {lanes.start} "
                f"to {lanes.stop - 1}: it was saved by another number of hosts; use "
                "training.batches.states.reshard_states to divide it among these"
            )
        saved, wanted = values["num_epochs"], config.num_epochs
        goes_on = values["has_ended"] and saved != wanted
        if None not in (saved, wanted) and wanted != saved and not (goes_on and wanted > saved):
            raise ProbelineError(
                f"the state is of a run of {saved} epochs that has not ended, this one has "
                f"{wanted}: continue with num_epochs={saved} to its end, or with None"
            )
        return HostState(
            cursors=cursors_from_numbers(np.array(values["cursors"], np.int64)),
            step=values["step"],
            first_epoch=saved if goes_on else values["first_epoch"],
            first_step=values["step"] if goes_on else values["first_step"],
            skipped=frozenset((shard, position) for shard, position in values["skipped_rows"]),
            has_ended=values["has_ended"] and not goes_on,
        )


def cursors_to_numbers(cursors: np.ndarray) -> np.ndarray:
    """Returns CURSOR [lanes] as int64 [lanes, fields]."""
    return cursors.view(np.int64).reshape(len(cursors), -1)


def cursors_from_numbers(numbers: np.ndarray) -> np.ndarray:
    """Inverts `cursors_to_numbers`."""
    return numbers.view(CURSOR).reshape(-1)


def _check_state(state: dict[str, Any], fingerprint: str) -> None:
    """Raises ProbelineError if a state does not belong to the dataset with that fingerprint."""
    if state.get("format") != _FORMAT:
        raise ProbelineError(
            f"the iterator's state has format {state.get('format')}, this Probeline reads "
            f"{_FORMAT}: continue with the version that saved it"
        )
    if state["fingerprint"] != fingerprint:
        raise ProbelineError(
            f"the iterator's state was saved with data and options of fingerprint "
            f"{state['fingerprint']}, these have {fingerprint}: give the same files, seed, "
            "batch_size, crop_size and sampling options, or begin a new run"
        )


def reshard_states(states: Sequence[dict[str, Any]], host_count: int) -> list[dict[str, Any]]:
    """Divides the states of all hosts of a run among another number of hosts.

    Args:
      states: of every host at one step, in any order.
      host_count: the new number of hosts.

    Returns:
      The state of each of the new hosts, by host_index.

    Raises:
      ProbelineError: states are missing, are of different steps or runs, or cannot be shared.

    Example:

        batches = iter(build_dataset(DataConfig(files="rows/train", batch_size=4)))
        of_both_hosts = reshard_states([batches.get_state()], host_count=2)
    """
    if not states:
        raise ProbelineError("no state is given: give those of all hosts, of one checkpoint")
    for state in states:
        _check_state(state, states[0].get("fingerprint", ""))
    states = sorted(states, key=lambda state: state["first_lane"])
    step, batch_size = states[0]["step"], states[0]["batch_size"]
    cursors: list[list[int]] = []
    for state in states:
        if state["step"] != step or state["first_lane"] != len(cursors):
            raise ProbelineError(
                f"the states do not fit together at lane {len(cursors)}, step {step}: give those "
                "of all hosts, of one checkpoint"
            )
        cursors += state["cursors"]
    if len(cursors) != batch_size or batch_size % host_count:
        raise ProbelineError(
            f"the states have {len(cursors)} of {batch_size} lanes, for {host_count} hosts: give "
            "those of all hosts, and a number of hosts that divides the batch"
        )
    share = batch_size // host_count
    skipped = {tuple(row) for state in states for row in state["skipped_rows"]}
    return [
        {
            **states[0],
            "skipped_rows": [list(row) for row in sorted(skipped)],
            "first_lane": host * share,
            "cursors": cursors[host * share : (host + 1) * share],
        }
        for host in range(host_count)
    ]
