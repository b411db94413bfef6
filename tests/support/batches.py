"""Batches in tests: how to draw, compare and take them apart, and what epochs of them must hold."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.probe_rows_on_disk import CROP, RowSpec, num_contexts, untimed_tokens
from training.dataset import DataConfig, build_dataset
from training.rows.row_source import ProbeRowDataSource
from training.sampler import ProbeRowSampler
from training.tokens.tokenizer import (
    TIMESTAMP_ABS,
    TIMESTAMP_DELTA1,
    TIMESTAMP_DELTA4,
    Measurement,
    decode,
)

Batch = dict[str, np.ndarray]


def host_batches(dataset: Path | str, num_batches: int | None = None, **config: Any) -> list[Batch]:
    """Returns one host's batches, all or the first of them."""
    iterator = iter(build_dataset(DataConfig(files=str(dataset), **config)))
    batches = []
    for batch in iterator:
        batches.append(batch)
        if len(batches) == num_batches:
            break
    iterator.close()
    return batches


def global_batches(
    dataset: Path | str, host_count: int = 1, num_batches: int | None = None, **config: Any
) -> list[Batch]:
    """Returns the batches of all hosts, put together; each host must have as many."""
    hosts = [
        host_batches(dataset, num_batches, host_index=host, host_count=host_count, **config)
        for host in range(host_count)
    ]
    return [join_hosts(parts) for parts in zip(*hosts, strict=True)]


def join_hosts(parts: Sequence[Batch]) -> Batch:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def is_same(one: Sequence[Batch], other: Sequence[Batch]) -> bool:
    """Tells whether two lists of batches are equal, token by token and mask by mask."""
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


def segments(batch: Batch, example: int) -> list[np.ndarray]:
    """Returns the tokens of each segment: its inputs and its last target."""
    segmentation = batch["inputs_segmentation"][example]
    found = []
    for segment in range(1, int(segmentation.max()) + 1):
        at = np.flatnonzero(segmentation == segment)
        found.append(np.append(batch["inputs"][example][at], batch["targets"][example][at[-1]]))
    return found


def sources(batches: Sequence[Batch], lane: int) -> list[str]:
    """Returns the source of every segment of a lane, in order; some are cut before it is told."""
    told = [decode(part)[0].src_addr for batch in batches for part in segments(batch, lane)]
    return [source for source in told if source]


_TIMESTAMPS = (TIMESTAMP_ABS, TIMESTAMP_DELTA1, TIMESTAMP_DELTA4)


def split_by_size(rows: Iterable[RowSpec], crop_size: int) -> tuple[list[RowSpec], list[RowSpec]]:
    """Returns the small and the large ones."""
    small, large = [], []
    for row in rows:
        (small if untimed_tokens(row) <= crop_size else large).append(row)
    return small, large


class Epochs:
    """What the batches of some epochs must hold, by the samplers, which know no batches.

    Contexts of large rows are expected token by token. What a small row gives is known from a crop
    so large that nothing is cut. A probe must not have two small rows.
    """

    def __init__(
        self,
        dataset: Path | str,
        rows: Iterable[RowSpec],
        num_epochs: int,
        crop_size: int = CROP,
        seed: int = 0,
        **sampling: Any,
    ):
        elements = {
            (row["src_addr"], row["row_index"]): row for row in ProbeRowDataSource(str(dataset))
        }
        small, large = split_by_size(rows, crop_size)
        self.num_epochs = num_epochs
        self._small = {row.src_addr: elements[row.src_addr, row.row_index] for row in small}
        self._whole = ProbeRowSampler(crop_size=1 << 15, seed=seed, **sampling)
        sampler = ProbeRowSampler(crop_size=crop_size, seed=seed, **sampling)
        # Of each context of a large row: the epoch and the row.
        self.contexts = {
            tokens: (epoch, (row.src_addr, row.row_index))
            for row in large
            for epoch in range(num_epochs)
            for tokens in _context_tokens(sampler, elements[row.src_addr, row.row_index], epoch)
        }
        expected = sum(num_contexts(row) for row in large) * num_epochs
        assert len(self.contexts) == expected, "contexts must all differ"

    def check(self, batches: Sequence[Batch]) -> None:
        """Nothing lost, nothing doubled: small rows by measurement, large ones by context."""
        found: Counter[bytes] = Counter()
        done: Counter[str] = Counter()
        for lane in range(len(batches[0]["inputs"])):
            crops = []
            last_epoch = 0
            for batch in batches:
                parts = segments(batch, lane)
                context = parts[0].tobytes() if len(parts) == 1 else b""
                if context in self.contexts:
                    found[context] += 1
                    epoch, _ = self.contexts[context]
                    assert epoch >= last_epoch, "a context of an epoch that has ended"
                    last_epoch = epoch
                elif parts:
                    crops.append((parts, bool(batch["inputs_segmentation"][lane, -1] > 0)))
            self._walk(crops, done)
        assert found == Counter(self.contexts.keys())
        assert done == Counter(dict.fromkeys(self._small, self.num_epochs))

    def _walk(self, crops: list[tuple[list[np.ndarray], bool]], done: Counter[str]) -> None:
        """Follows a lane's small rows: each is begun, goes on where it was cut, and ends."""
        source, left = "", []  # the row in progress and its measurements to come
        for parts, is_full in crops:
            for number, tokens in enumerate(parts):
                is_last = number == len(parts) - 1
                measurements = decode(tokens)
                if not left:
                    if measurements[0].src_addr is None:  # cut before that; it comes again
                        assert is_last and is_full and len(measurements) == 1
                        continue
                    source = measurements[0].src_addr
                    left = self.measurements(source, done[source])
                for place, measurement in enumerate(measurements):
                    assert left and _agrees(measurement, left[0]), (source, measurement, left[:1])
                    if _is_cut(measurement, left[0]):
                        assert is_last and is_full and place == len(measurements) - 1
                    else:
                        left = left[1:]
                if not left:
                    done[source] += 1
                else:
                    assert is_last and is_full, f"{source} was left before its end"
        assert not left, f"{len(left)} measurements of {source} are lost"

    def measurements(self, source: str, epoch: int) -> list[Measurement]:
        """Returns what the small row of a probe must give in an epoch, in order."""
        (example,) = self._whole.examples(self._small[source], epoch)
        (tokens,) = segments({name: values[None] for name, values in example.items()}, 0)
        return decode(tokens)


def _context_tokens(sampler: ProbeRowSampler, row: dict[str, Any], epoch: int) -> list[bytes]:
    examples = [context.example for context in sampler.contexts(row, epoch)]
    return [
        segments({name: values[None] for name, values in example.items()}, 0)[0].tobytes()
        for example in examples
    ]


def _kinds(measurement: Measurement) -> list[int]:
    """Returns the order of the fields, the three roles of a timestamp taken as one."""
    return [TIMESTAMP_ABS if role in _TIMESTAMPS else role for role in measurement.roles]


def _is_cut(found: Measurement, whole: Measurement) -> bool:
    """Tells whether `found` is a copy of `whole` that was cut, be it right before its timestamp."""
    return not found.is_whole or (found.event_time is None and whole.event_time is not None)


def _agrees(found: Measurement, whole: Measurement) -> bool:
    """Tells whether `found` says, in the same order, what `whole` says, up to where it is cut."""
    kinds, fields = _kinds(found), ("src_addr", "dst_addr", "rtt_ms", "event_time")
    told = [(getattr(found, name), getattr(whole, name)) for name in fields]
    return all(one is None or one == other for one, other in told) and (
        kinds == _kinds(whole)[: len(kinds)] if _is_cut(found, whole) else kinds == _kinds(whole)
    )
