"""--duplicates=drop: of equal measurements of a probe, one is kept.

Two are equal if their records are: time, destination and RTT as the dataset stores them. Equal
records are neighbours in a sorted run, so they are found wherever runs have been merged, and which
file, work unit or generation each came from makes no difference.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from beam_pipeline.dataset.sorted_run import distinct
from beam_pipeline.probe_rows.bucket import History


class DuplicateFilter:
    """Drops duplicates from merged histories, and counts them in `num_dropped`."""

    def __init__(self) -> None:
        self.num_dropped = 0

    def filter_history(self, history: History) -> History:
        """Returns whole histories without duplicates; their records are overwritten."""
        run, bounds = distinct(history.run, history.bounds)
        self.num_dropped += len(history.run) - len(run)
        return History(history.src_addrs, run, bounds)

    def filter_blocks(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yields consecutive blocks of one sorted run without duplicates, none of them empty."""
        last = None
        for block in blocks:
            rest, _ = distinct(block, np.array([0, len(block)]))
            if last is not None and rest[:1].tobytes() == last:
                rest = rest[1:]
            self.num_dropped += len(block) - len(rest)
            if len(rest):
                last = rest[-1:].tobytes()
                yield rest
