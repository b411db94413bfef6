"""States of iterators: whose they are, and how other hosts go on with them."""

from collections.abc import Sequence
from typing import Any

from beam_pipeline.errors import ProbelineError

STATE_FORMAT = 1


def check_state(state: dict[str, Any], fingerprint: str) -> None:
    """Raises ProbelineError if a state does not belong to the dataset of that fingerprint."""
    if state.get("format") != STATE_FORMAT:
        raise ProbelineError(
            f"the iterator's state has format {state.get('format')}, this Probeline reads "
            f"{STATE_FORMAT}: go on with the version that saved it"
        )
    if state["fingerprint"] != fingerprint:
        raise ProbelineError(
            f"the iterator's state was saved with data and options of fingerprint "
            f"{state['fingerprint']}, these have {fingerprint}: give the same files, seed, "
            "batch_size, crop_size and sampling options, or begin a new run"
        )


def reshard_states(states: Sequence[dict[str, Any]], host_count: int) -> list[dict[str, Any]]:
    """Shares the states of all hosts of a run anew among `host_count` hosts.

    Args:
      states: of every host of one step, in any order.

    Raises:
      ProbelineError: some are missing, or of different steps or runs, or cannot be shared.
    """
    if not states:
        raise ProbelineError("no state is given: give those of all hosts, of one checkpoint")
    for state in states:
        check_state(state, states[0].get("fingerprint", ""))
    states = sorted(states, key=lambda state: state["first_lane"])
    cursors: list[list[int]] = []
    for state in states:
        if state["step"] != states[0]["step"] or state["first_lane"] != len(cursors):
            raise ProbelineError(
                f"the states do not fit together at lane {len(cursors)}, step "
                f"{states[0]['step']}: give those of all hosts, of one checkpoint"
            )
        cursors += state["cursors"]
    batch_size = states[0]["batch_size"]
    if len(cursors) != batch_size or batch_size % host_count:
        raise ProbelineError(
            f"the states have {len(cursors)} of {batch_size} lanes, for {host_count} hosts: give "
            "those of all hosts, and a number of hosts that divides the batch"
        )
    share = batch_size // host_count
    skipped = sorted({tuple(row) for state in states for row in state["skipped_rows"]})
    return [
        {
            **states[0],
            "skipped_rows": [list(row) for row in skipped],
            "first_lane": host * share,
            "cursors": cursors[host * share : (host + 1) * share],
        }
        for host in range(host_count)
    ]
