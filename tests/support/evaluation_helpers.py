"""What tests of the evaluation share: data, models whose answers are known, plain Python's answers.

A test file imports the fixtures `as` themselves: so ruff takes them for used.
"""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt, encode_rtt
from beam_pipeline.dataset.sorted_run import WIDE, sort_groups
from tests.support.helpers import MAPPED_IPV4, YEAR_2024_US, canonical, records_as_tuples
from tests.support.probe_rows_on_disk import CROP, RowSpec, write_dataset
from training.evaluation.examples import Examples, Split, draw_examples, open_splits
from training.evaluation.predictions import Predictor
from training.evaluation.results import Evaluation, evaluate
from training.extent import EvaluationExtent
from training.statistics.collector import segments_of
from training.tokens.tokenizer import FAILED, MEASUREMENT_START, RTT_START, VOCABULARY_SIZE, decode

EXTENT = EvaluationExtent(num_contexts=24, num_rtt=300, num_train_contexts=40, batch_size=4)
NUM_BYTES = {1: 4, 2: 16, 3: 4, 4: 16, 5: 8, 6: 1, 7: 4, 8: 2, FAILED: 0}
KIND_OF_ROLE = {
    **dict.fromkeys((1, 2), "source, again"),
    **dict.fromkeys((3, 4), "destination"),
    **dict.fromkeys((5, 6, 7), "timestamp"),
}


# --- data -----------------------------------------------------------------------------------------


def pings(n: int, seed: int, base_ms: float, rtt_ms: np.ndarray | None = None) -> np.ndarray:
    """A run to twelve destinations of both families, each with its RTT."""
    rng = np.random.default_rng(seed)
    run = np.zeros(n, WIDE)
    run["event_time"] = YEAR_2024_US + np.cumsum(rng.integers(0, 600_000_000, n))
    number = rng.integers(0, 12, n)
    is_ipv6 = number >= 8
    run["dst_hi"] = np.where(is_ipv6, 0x2001_0DB8 << 32, 0)
    run["dst_lo"] = np.where(is_ipv6, number, MAPPED_IPV4 | (0x0808_0800 + number))
    values = base_ms * (1 + number) * rng.lognormal(0, 0.05, n) if rtt_ms is None else rtt_ms
    run["rtt"] = np.where(rng.random(n) < 0.1, -1, values)
    sort_groups(run, np.array([0, n]))
    return run


def probe_rows(first: int, count: int) -> list[RowSpec]:
    """Probes of three /16 and, each fourth one, of two /32; small and large."""
    rows = []
    for i in range(first, first + count):
        source = f"2001:db{i % 8}::{i + 1:x}" if i % 4 == 3 else f"10.{i % 3}.{i}.7"
        rows.append(RowSpec(source, pings(5 + 13 * (i % 9), i, 3.0 * (1 + i % 3))))
    return rows


class Stored(NamedTuple):
    folder: Path
    train_rows: list[RowSpec]
    split: Split
    train: Split


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """30 probes to train on, 10 to test on; all ping the same destinations over and over."""
    rows = probe_rows(0, 30)
    folder = write_dataset(
        tmp_path_factory.mktemp("evaluation") / "rows",
        rows,
        "compact",
        test_rows=probe_rows(30, 10),
    )
    return Stored(folder, rows, *open_splits(str(folder)))


@pytest.fixture(scope="session")
def examples(stored: Stored) -> Examples:
    return draw_examples(stored.split, Uniform(), EXTENT)


# --- models ---------------------------------------------------------------------------------------


class Uniform:
    """Thinks every token equally likely."""

    step, vocab_size, description = 700, VOCABULARY_SIZE, "a fake"

    def __init__(
        self, crop_size: int = CROP, fixed_order_share: float = 0.0, log_rtt: bool = False
    ):
        self.crop_size, self.fixed_order_share = crop_size, fixed_order_share
        self.log_rtt = log_rtt
        self.shapes: set[tuple[int, ...]] = set()

    def __call__(
        self, inputs: np.ndarray, positions: np.ndarray, segmentation: np.ndarray
    ) -> np.ndarray:
        for values in (inputs, positions, segmentation):
            assert values.dtype == np.int32
            self.shapes.add(values.shape)
        return self.log_p(inputs, positions, segmentation).astype(np.float32)

    def log_p(
        self, inputs: np.ndarray, positions: np.ndarray, segmentation: np.ndarray
    ) -> np.ndarray:
        return np.full((*inputs.shape, VOCABULARY_SIZE), -math.log(VOCABULARY_SIZE))


class Network(Uniform):
    """An attention of sorts: sums random vectors of all tokens of the segment so far."""

    def __init__(self, crop_size: int = CROP, log_rtt: bool = False):
        super().__init__(crop_size, log_rtt=log_rtt)
        rng = np.random.default_rng(5)
        self._inner = rng.normal(size=(VOCABULARY_SIZE, 6))
        self._outer = rng.normal(size=(6, VOCABULARY_SIZE))

    def log_p(self, inputs, positions, segmentation):
        asks, seen = segmentation[:, :, np.newaxis], segmentation[:, np.newaxis]
        sees = (asks == seen) | (asks < 0) & (seen == 1)  # a branch sees segment 1
        sees &= np.tri(inputs.shape[1], dtype=bool)
        age = positions[:, :, np.newaxis] - positions[:, np.newaxis]
        hidden = np.where(sees, np.exp(-0.02 * age), 0.0) @ self._inner[inputs]
        logits = hidden @ self._outer + 3 * np.sin(positions[..., np.newaxis] / 9)
        return logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)


def evaluate_stored(predictor: Predictor, stored: Stored, **extent: Any) -> Evaluation:
    options = {**vars(EXTENT), **extent}
    return evaluate(predictor, stored.split, stored.train, EvaluationExtent(**options))


# --- plain Python ---------------------------------------------------------------------------------


def plain_kinds(tokens: list[int]) -> list[str]:
    """Returns the kinds of all tokens of a segment but the first."""
    names: list[str] = []
    num_measurements = 0
    while len(names) < len(tokens):
        token = tokens[len(names)]
        if token == MEASUREMENT_START:
            names.append("measurement start")
            num_measurements += 1
            continue
        names.append("role")
        if token == RTT_START:
            names += ["RTT, first byte", "RTT, second byte"]
        elif token in (1, 2) and num_measurements == 1:
            names += ["source, first"] * NUM_BYTES[token]
        elif token != FAILED:
            names += [KIND_OF_ROLE[token]] * NUM_BYTES[token]
    return names[1 : len(tokens)]


def plain_measurements(tokens: list[int]) -> list[list[int]]:
    starts = [at for at, token in enumerate(tokens) if token == MEASUREMENT_START]
    return [tokens[a:b] for a, b in itertools.pairwise([*starts, len(tokens)])]


class Query(NamedTuple):
    """`place` is RTT_START's in the segment."""

    place: int
    src: str
    dst: str
    ms: float
    earlier: list[tuple[str, float]]  # destination and outcome of measurements before


def plain_queries(tokens: list[int]) -> list[Query]:
    queries: list[Query] = []
    earlier: list[tuple[str, float]] = []
    begin = 0
    pieces = plain_measurements(tokens)
    for piece, found in zip(pieces, decode(tokens), strict=True):
        roles, rtt_ms = list(found.roles), found.rtt_ms
        if rtt_ms is not None and rtt_ms > 0:
            before = {"src" if role < 3 else "dst" for role in roles[: roles.index(8)] if role < 5}
            if before == {"src", "dst"}:
                assert found.src_addr and found.dst_addr
                place = begin + piece.index(RTT_START)
                queries.append(Query(place, found.src_addr, found.dst_addr, rtt_ms, list(earlier)))
        if found.dst_addr is not None and rtt_ms is not None:
            earlier.append((found.dst_addr, rtt_ms))
        begin += len(piece)
    return queries


def training_rtts(stored: Stored) -> list[tuple[str, str, float]]:
    """Returns source, destination and encoded RTT of all answered pings to train on."""
    found = []
    for row in stored.train_rows:
        for _, destination, rtt_ms in records_as_tuples(row.run):
            code = encode_rtt(np.array([rtt_ms], np.float32))
            if code[0] != FAILED_RTT:
                found.append((row.src_addr, canonical(destination), float(decode_rtt(code)[0])))
    return found


def all_segments(examples: Examples) -> Iterator[list[int]]:
    fields = {
        "inputs": examples.inputs,
        "targets": examples.targets,
        "inputs_segmentation": examples.segmentation,
    }
    for number in range(EXTENT.num_contexts):
        for tokens in segments_of(fields, number):
            yield tokens.tolist()
