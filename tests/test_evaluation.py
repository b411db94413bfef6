"""The evaluation of a model: what it says of models whose answers are known, or of plain Python's.

The models are fakes: `Uniform`, `Oracle`, `Bytes` of a known law, and `Network`, whose every answer
depends on all tokens of its segment before.
"""

import importlib.util
import itertools
import json
import math
import statistics
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.image import imread

from beam_pipeline.addresses import packed
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.row_codec import Encoding
from beam_pipeline.rtt import FAILED_RTT, decode_rtt, encode_rtt
from beam_pipeline.runs import WIDE, sort_groups
from tests.helpers import MAPPED_IPV4, YEAR_2024_US, canonical, records_as_tuples
from tests.loader_helpers import refusal_of
from tests.probe_rows_on_disk import (
    CROP,
    RowSpec,
    damage_record,
    mixed_rows,
    read_records,
    shard_paths,
    write_dataset,
)
from tests.test_tokenizer import batch, contexts
from training.evaluate import main
from training.evaluation import baselines, kinds, rtt
from training.evaluation.baselines import look_back, predict, training_medians
from training.evaluation.evaluating import evaluate
from training.evaluation.examples import (
    Examples,
    Extent,
    Predictor,
    Split,
    draw_examples,
    open_splits,
)
from training.evaluation.kinds import KIND_NAMES, MODE_CLASSES, NOTHING, parse
from training.evaluation.losses import count_unigrams
from training.evaluation.predictions import byte_probabilities, causal_pass, second_bytes_after
from training.evaluation.results import Evaluation, conclusions, verdict
from training.padding.example_faults import segments_of
from training.row_source import ProbeRowDataSource
from training.sampler import ProbeRowSampler
from training.tokenizer import (
    FAILED,
    FIRST_BYTE,
    MEASUREMENT_START,
    RTT_START,
    VOCABULARY_SIZE,
    decode,
    encode,
)

EXTENT = Extent(num_contexts=24, num_rtt=300, num_train_contexts=40, batch_size=4)
PICTURES = ("loss_by_kind.png", "rtt_predictions.png", "rtt_calibration.png")
NUM_BYTES = {1: 4, 2: 16, 3: 4, 4: 16, 5: 8, 6: 1, 7: 4, 8: 2, FAILED: 0}
KIND_OF_ROLE = {
    **dict.fromkeys((1, 2), "source, again"),
    **dict.fromkeys((3, 4), "destination"),
    **dict.fromkeys((5, 6, 7), "timestamp"),
}


# --- data ---------------------------------------------------------------------------------------


def pings(n: int, seed: int, base_ms: float, rtt_ms: np.ndarray | None = None) -> np.ndarray:
    """Returns a run to twelve destinations of both families, each of which has its RTT."""
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
    """Probes of three /16 and, each fourth one, of two /32; small and large rows."""
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
    """A network that probes ping over and over: 30 of training, 10 to test on."""
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
    return draw_examples(stored.split, CROP, EXTENT)


# --- models -------------------------------------------------------------------------------------


class Uniform:
    """Thinks every token equally likely."""

    step, vocab_size, description = 700, VOCABULARY_SIZE, "a fake"

    def __init__(self, crop_size: int = CROP):
        self.crop_size = crop_size
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


class Oracle(Uniform):
    """Knows what comes next in some examples; elsewhere it has no idea."""

    def __init__(self, examples: Examples):
        super().__init__(examples.inputs.shape[1])
        lines = zip(examples.inputs, examples.targets, strict=True)
        self._targets = {inputs.tobytes(): targets for inputs, targets in lines}

    def log_p(self, inputs, positions, segmentation):
        with np.errstate(divide="ignore"):
            return np.log(
                [
                    np.eye(VOCABULARY_SIZE)[self._targets[example.tobytes()]]
                    for example in np.ascontiguousarray(inputs)
                ]
            )


class Bytes(Uniform):
    """Draws codes of RTTs from one law: p(first), p(second | first); knows nothing else."""

    def __init__(self, first: np.ndarray, second: np.ndarray, crop_size: int = CROP):
        super().__init__(crop_size)
        self.first, self.second = first, second

    def log_p(self, inputs, positions, segmentation):
        log_p = super().log_p(inputs, positions, segmentation)
        is_first = inputs == RTT_START
        is_second = np.roll(is_first, 1, axis=1) & (positions > 0)
        with np.errstate(divide="ignore"):
            log_p[is_first, FIRST_BYTE:] = np.log(self.first)
            log_p[is_second, FIRST_BYTE:] = np.log(self.second[inputs[is_second] - FIRST_BYTE])
        log_p[is_first | is_second, :FIRST_BYTE] = -np.inf
        return log_p


class Network(Uniform):
    """An attention of sorts: sums random vectors of all tokens of the segment so far."""

    def __init__(self, crop_size: int = CROP):
        super().__init__(crop_size)
        rng = np.random.default_rng(5)
        self._inner = rng.normal(size=(VOCABULARY_SIZE, 6))
        self._outer = rng.normal(size=(6, VOCABULARY_SIZE))

    def log_p(self, inputs, positions, segmentation):
        sees = np.tri(inputs.shape[1], dtype=bool) & (
            segmentation[:, :, np.newaxis] == segmentation[:, np.newaxis]
        )
        age = positions[:, :, np.newaxis] - positions[:, np.newaxis]
        hidden = np.where(sees, np.exp(-0.02 * age), 0.0) @ self._inner[inputs]
        logits = hidden @ self._outer + 3 * np.sin(positions[..., np.newaxis] / 9)
        return logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)


def evaluate_stored(predictor: Predictor, stored: Stored, **extent: Any) -> Evaluation:
    options = {**vars(EXTENT), **extent}
    return evaluate(predictor, stored.split, stored.train, Extent(**options))


Fake = Callable[[Any], None]
BRIEF = (
    *("--num_contexts=24", "--num_rtt=300", "--num_train_contexts=40", "--batch_size=4"),
    "--checkpoint=runs/first",
)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Makes `training.predictor.load_predictor` return a model, or raise an error."""

    def set_predictor(predictor: Any) -> None:
        def load_predictor(checkpoint: str) -> Any:
            if isinstance(predictor, Exception):
                raise predictor
            return predictor

        module = types.ModuleType("training.predictor")
        module.load_predictor = load_predictor
        monkeypatch.setitem(sys.modules, "training.predictor", module)

    return set_predictor


# --- kinds of tokens, modes, queries --------------------------------------------------------------


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
            names += ["RTT exponent", "RTT mantissa"]
        elif token in (1, 2) and num_measurements == 1:
            names += ["source, first"] * NUM_BYTES[token]
        elif token != FAILED:
            names += [KIND_OF_ROLE[token]] * NUM_BYTES[token]
    return names[1 : len(tokens)]


def plain_measurements(tokens: list[int]) -> list[list[int]]:
    starts = [at for at, token in enumerate(tokens) if token == MEASUREMENT_START]
    return [tokens[a:b] for a, b in itertools.pairwise([*starts, len(tokens)])]


def plain_mode(tokens: list[int]) -> str:
    tells = [any(token in (5, 6, 7) for token in each) for each in plain_measurements(tokens)]
    if len(tells) < 10:
        return "short"
    if not tells[-1]:
        tells.pop()
    return "full" if all(tells) else "partial" if any(tells) else "none"


class Query(NamedTuple):
    """A query as plain Python finds it; `place` is RTT_START's in the segment."""

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


def pack(segments: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns targets and segmentation of one example with these segments, and some padding."""
    targets = [token for tokens in segments for token in tokens[1:]]
    numbers = [i + 1 for i, tokens in enumerate(segments) for _ in tokens[1:]]
    padding = [0] * 3
    return np.array([targets + padding], np.int32), np.array([numbers + padding], np.int32)


@st.composite
def cut_segments(draw: st.DrawFn) -> list[list[int]]:
    segments = []
    for _ in range(draw(st.integers(1, 3))):
        src, measurements, is_timed, orders = draw(contexts())
        if draw(st.booleans()):  # enough of them for a mode
            measurements, is_timed, orders = measurements * 4, is_timed * 4, orders * 4
        tokens = encode(src, batch(*measurements), np.array(is_timed), np.array(orders)).tolist()
        segments.append(tokens[: draw(st.integers(2, len(tokens)))])
    return segments


@settings(max_examples=60, deadline=None)
@given(cut_segments())
@example([[0, 3, 11, 11, 11, 11, 10], [0, 8]])
@example([[0, 1, 12, 12, 12, 12, 3, 13, 13, 13, 13, 8, 11, 11]])  # an RTT of zero
def test_tokens_are_parsed_as_plain_python_parses_them(segments: list[list[int]]) -> None:
    targets, segmentation = pack(segments)
    parsed = parse(targets, segmentation)
    is_token = segmentation > 0
    assert (parsed.kinds[~is_token] == NOTHING).all() and (parsed.modes[~is_token] == NOTHING).all()
    assert [KIND_NAMES[kind] for kind in parsed.kinds[is_token]] == [
        name for tokens in segments for name in plain_kinds(tokens)
    ]
    assert [MODE_CLASSES[mode] for mode in parsed.modes[is_token]] == [
        plain_mode(tokens) for tokens in segments for _ in tokens[1:]
    ]
    found = parsed.measurements[parsed.measurements["is_query"]]
    begins = np.cumsum([0, *(len(tokens) - 1 for tokens in segments)])
    expected = [
        (0, number, begins[number] + query.place, query.src, query.dst, np.float32(query.ms))
        for number, tokens in enumerate(segments)
        for query in plain_queries(tokens)
    ]
    assert expected == [
        (
            *(one["example"], one["segment"], one["place"]),
            canonical(int(one["src_hi"]) << 64 | int(one["src_lo"])),
            canonical(int(one["dst_hi"]) << 64 | int(one["dst_lo"])),
            decode_rtt(one["code"]),
        )
        for one in found
    ]


def test_modes_are_those_that_were_drawn(stored: Stored) -> None:
    source, sampler = ProbeRowDataSource(str(stored.folder)), ProbeRowSampler(crop_size=CROP)
    contexts_ = [
        context
        for row in source
        if not sampler.is_small(row)
        for epoch in range(10)
        for context in sampler.contexts(row, epoch)
    ]
    targets, segmentation = (
        np.stack([context.example[name] for context in contexts_])
        for name in ("targets", "targets_segmentation")
    )
    parsed = parse(targets, segmentation)
    is_long = 1 + (parsed.kinds == kinds.START).sum(axis=1) >= kinds.LEAST_TO_TELL_MODE
    assert (parsed.modes[~is_long, 0] == kinds.SHORT).all()
    right: dict[str, list[bool]] = {"full": [], "partial": [], "none": []}
    for number in np.flatnonzero(is_long):
        drawn, told = contexts_[number].mode, MODE_CLASSES[parsed.modes[number, 0]]
        right[drawn].append(told == drawn)
    assert all(right["full"]) and all(right["none"]) and sum(map(len, right.values())) > 200
    # Among ten measurements of mode partial there can be none without a timestamp, or none with.
    assert np.mean(right["partial"]) > 0.9


def test_queries_are_chosen_evenly() -> None:
    measurements = np.zeros(1000, kinds.MEASUREMENT)
    measurements["is_query"][::2] = True
    assert rtt.choose_queries(measurements, 500).tolist() == list(range(0, 1000, 2))
    assert rtt.choose_queries(measurements, 4).tolist() == [0, 250, 500, 750]
    chosen = rtt.choose_queries(measurements, 333)
    assert len(set(chosen.tolist())) == 333 and measurements["is_query"][chosen].all()
    assert rtt.choose_queries(measurements, 0).tolist() == []


# --- losses ---------------------------------------------------------------------------------------


def test_a_uniform_model_has_the_same_bits_everywhere(stored: Stored) -> None:
    predictor = Uniform()
    losses = evaluate_stored(predictor, stored).losses
    assert [loss.name for loss in losses.kinds] == list(KIND_NAMES)
    assert {loss.name for loss in losses.modes} == set(MODE_CLASSES)
    for loss in (losses.overall, *losses.kinds, *losses.modes):
        assert loss.bits == pytest.approx(math.log2(267))
    for classes in (losses.kinds, losses.modes):
        assert sum(loss.num_tokens for loss in classes) == losses.overall.num_tokens
        for name in ("kind_unigram_bits", "unigram_bits"):
            total = sum(getattr(loss, name) * loss.num_tokens for loss in classes)
            assert total / losses.overall.num_tokens == pytest.approx(getattr(losses.overall, name))
    start = losses.kinds[0]
    assert start.kind_unigram_bits < 0.01 < start.unigram_bits
    assert predictor.shapes == {(EXTENT.batch_size, CROP)}


def test_only_examples_that_were_asked_for_count(stored: Stored, examples: Examples) -> None:
    assert len(examples.targets) == 24
    losses = evaluate_stored(Uniform(), stored, num_contexts=22).losses
    assert losses.overall.num_tokens == int((examples.segmentation[:22] > 0).sum())


def test_unigrams_are_counted_by_kind(examples: Examples) -> None:
    """A model that is a unigram has its bits; so has the unigram, if counted on the same tokens."""
    is_token = examples.segmentation > 0
    targets = examples.targets[is_token]
    names = [name for tokens in all_segments(examples) for name in plain_kinds(tokens)]
    counted = count_unigrams(
        [{"targets": examples.targets, "targets_segmentation": examples.segmentation}]
    )
    assert counted.num_tokens == len(targets)
    for i, kind in enumerate(KIND_NAMES):
        of_kind = targets[np.array(names) == kind].tolist()
        for token in {0, 8, 11, 200, *of_kind[:20]}:
            p = (of_kind.count(token) + 0.01) / (len(of_kind) + 2.67)
            assert counted.of_kind[i, token] == pytest.approx(-math.log2(p))
    p = (np.bincount(targets, minlength=267) + 0.01) / (len(targets) + 2.67)
    assert counted.of_all == pytest.approx(-np.log2(p))
    empty = count_unigrams([])
    assert empty.of_all == pytest.approx(np.full(267, math.log2(267)))


def all_segments(examples: Examples) -> Iterator[list[int]]:
    fields = {
        "inputs": examples.inputs,
        "targets": examples.targets,
        "inputs_segmentation": examples.segmentation,
    }
    for number in range(examples.num_counted):
        for tokens in segments_of(fields, number):
            yield tokens.tolist()


# --- RTTs: oracle, brute force --------------------------------------------------------------------


def test_an_oracle_makes_no_error(stored: Stored, examples: Examples) -> None:
    evaluation = evaluate_stored(Oracle(examples), stored)
    losses = evaluation.losses
    assert {loss.bits for loss in (losses.overall, *losses.kinds, *losses.modes)} == {0.0}
    assert evaluation.rtt and evaluation.calibration
    assert evaluation.rtt.num_what_if == 0
    assert {e.median_relative for e in evaluation.errors if e.method == "model"} == {0.0}
    assert (evaluation.rtt.predicted_ms["model"] == evaluation.rtt.true_ms).all()
    assert (evaluation.rtt.pit == 0.5).all()
    assert set(evaluation.calibration.coverage.values()) == {1.0}
    sentences = conclusions(evaluation)
    assert not any("does not beat" in sentence for sentence in sentences)
    assert sum("beats last seen" in sentence for sentence in sentences) == 3


def test_the_model_is_asked_all_that_brute_force_asks(stored: Stored, examples: Examples) -> None:
    predictor = Network()
    evaluation = evaluate_stored(predictor, stored, num_rtt=9)
    assert predictor.shapes == {(EXTENT.batch_size, CROP)}
    predictions = evaluation.rtt
    assert predictions and predictions.num_what_if >= 5
    measurements = parse(examples.targets, examples.segmentation).measurements
    queries = measurements[rtt.choose_queries(measurements, 9)]
    for number, query in enumerate(queries):
        p = brute_force(predictor, examples, int(query["example"]), int(query["place"]))
        cumulated = p.cumsum()
        median = int((cumulated >= 0.5).argmax())
        assert predictions.predicted_ms["model"][number] == float(decode_rtt(np.array(median)))
        code = int(query["code"])
        assert predictions.true_ms[number] == float(decode_rtt(np.array(code)))
        expected = cumulated[code] - p[code] / 2
        assert predictions.pit[number] == pytest.approx(expected, abs=1e-6)


def brute_force(predictor: Uniform, examples: Examples, number: int, place: int) -> np.ndarray:
    """Returns the probabilities of all 65,536 codes, of the segment up to RTT_START alone."""
    segment = examples.segmentation[number, place]
    begin = int((examples.segmentation[number] == segment).argmax())
    context = examples.inputs[number, begin : place + 1]
    assert context[-1] == RTT_START
    length = len(context) + 1
    inputs = np.zeros((256, length), np.int32)
    inputs[:, :-1], inputs[:, -1] = context, FIRST_BYTE + np.arange(256)
    positions = np.tile(np.arange(length, dtype=np.int32), (256, 1))
    p = np.exp(predictor.log_p(inputs, positions, np.ones_like(inputs)))[..., FIRST_BYTE:]
    first, second = p[0, -2], p[:, -1]
    joint = (first / first.sum())[:, np.newaxis] * second / second.sum(axis=1, keepdims=True)
    return joint.reshape(-1)


def test_what_if_passes_show_the_model_nothing_behind_the_query(examples: Examples) -> None:
    measurements = parse(examples.targets, examples.segmentation).measurements
    queries = measurements[rtt.choose_queries(measurements, 6)]
    seen = []

    class Watched(Uniform):
        def log_p(self, inputs, positions, segmentation):
            seen.append((inputs, positions, segmentation))
            return super().log_p(inputs, positions, segmentation)

    wanted = np.arange(6) * 40
    second = second_bytes_after(Watched(), examples, queries, wanted, lambda *_: None)
    assert second == pytest.approx(np.full((6, 256), 1 / 256))
    inputs, positions, segmentation = (np.concatenate(each) for each in zip(*seen, strict=True))
    assert len(inputs) == 8  # two batches, the second one filled up
    for number, query in enumerate(queries):
        example, place = int(query["example"]), int(query["place"])
        assert inputs[number, place + 1] == FIRST_BYTE + wanted[number]
        for given_, original in (
            (inputs, examples.inputs),
            (positions, examples.positions),
            (segmentation, examples.segmentation),
        ):
            assert (given_[number, : place + 1] == original[example, : place + 1]).all()
            assert not given_[number, place + 2 :].any()


def random_law(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    first, second = rng.random(256) ** 4, rng.random((256, 256)) ** 4
    return first / first.sum(), second / second.sum(axis=1, keepdims=True)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_medians_and_transforms_of_a_law(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = random_law(rng)
    joint = (first[:, np.newaxis] * second).reshape(-1)
    cumulated = joint.cumsum()
    # Truths spread over the law as evenly as can be: a calibrated model's.
    n = 200
    wanted = (np.arange(n) + 0.5) / n
    codes = np.searchsorted(cumulated, wanted)
    firsts, seconds = np.tile(first, (n, 1)), second[codes >> 8]
    pit = rtt.integral_transforms(firsts, seconds, codes)
    assert pit == pytest.approx(cumulated[codes] - joint[codes] / 2, abs=1e-9)
    assert (np.abs(pit - wanted) <= joint[codes] / 2 + 1e-9).all()
    calibration = rtt.calibration(pit)
    assert calibration.deviation < 1e-3
    assert calibration.pit_histogram == [n // 20] * 20
    assert calibration.coverage == {"50%": 0.5, "80%": 0.8, "90%": 0.9}
    medians, num_asked = rtt.median_codes(firsts, seconds, codes, lambda _, b: second[b])
    assert set(medians.tolist()) == {int(np.searchsorted(cumulated, 0.5))}
    assert num_asked == int((codes >> 8 != medians >> 8).sum())


def test_medians_at_the_edges() -> None:
    def median(first: np.ndarray, second: np.ndarray) -> int:
        codes, _ = rtt.median_codes(
            first[np.newaxis], second[:1], np.array([0]), lambda _, b: second[b]
        )
        return int(codes[0])

    one = np.eye(256)
    flat = np.full((256, 256), 1 / 256)
    assert median(one[0], one) == 0 and median(one[255], np.tile(one[255], (256, 1))) == 65535
    assert median((one[3] + one[9]) / 2, flat) == 3 << 8 | 255  # half is reached with the last byte
    assert median(one[7], (one[[4]] + one[[6]]) / 2 * np.ones((256, 1))) == 7 << 8 | 4
    assert rtt.code_ms(np.array([FAILED_RTT]))[0] == rtt.code_ms(np.array([FAILED_RTT - 1]))[0] > 0


def test_bytes_only() -> None:
    log_p = np.full((2, VOCABULARY_SIZE), -np.inf, np.float32)
    log_p[:, 3] = 0
    log_p[0, FIRST_BYTE + 5], log_p[0, FIRST_BYTE + 6] = -300, -300 - math.log(3)  # float32
    p = byte_probabilities(log_p)
    assert p[0, [4, 5, 6]] == pytest.approx([0, 0.75, 0.25], abs=1e-5)
    assert (p[1] == 1 / 256).all()  # impossible, all of them


def test_deviation_of_a_calibrated_model_is_what_chance_makes_it() -> None:
    rng = np.random.default_rng(0)
    found = [rtt.calibration(rng.random(400)) for _ in range(300)]
    mean = np.mean([each.deviation for each in found])
    assert mean == pytest.approx(found[0].deviation_by_chance, rel=0.05)
    assert rtt.calibration(np.full(50, 0.99)).deviation == pytest.approx(0.49, abs=0.001)


def test_a_model_that_knows_the_law_is_calibrated(tmp_path: Path) -> None:
    """RTTs of a dataset are drawn from a law, which the model knows: all figures follow."""
    rng = np.random.default_rng(1)
    codes = 11 * 2048 + np.arange(1024, 2048, 8)  # 128 of them, of the four first bytes 92 to 95
    law = np.zeros((256, 256))
    law[codes >> 8, codes & 255] = 1 / len(codes)
    rows = [
        RowSpec(f"10.1.{i}.1", pings(150, i, 0, decode_rtt(rng.choice(codes, 150))))
        for i in range(12)
    ]
    folder = write_dataset(tmp_path / "rows", rows, test_rows=rows)
    stored = Stored(folder, rows, *open_splits(str(folder)))
    first = law.sum(axis=1)
    second = law / np.maximum(first, 1e-12)[:, np.newaxis]
    second[first == 0] = 1 / 256
    evaluation = evaluate_stored(Bytes(first, second), stored, num_contexts=60, num_rtt=1000)
    bits = {loss.name: loss.bits for loss in evaluation.losses.kinds}
    assert bits["RTT exponent"] == pytest.approx(2) and bits["RTT mantissa"] == pytest.approx(5)
    assert bits["role"] == pytest.approx(math.log2(267))
    predictions, calibration = evaluation.rtt, evaluation.calibration
    assert predictions and calibration and calibration.num_queries > 200
    assert set(predictions.predicted_ms["model"]) == {rtt.code_ms(codes[[63]])[0]}
    assert calibration.deviation < 4 * calibration.deviation_by_chance
    for name, share in (("50%", 0.5), ("80%", 0.8), ("90%", 0.9)):
        assert calibration.coverage[name] == pytest.approx(share, abs=0.1)
    # Every code has its place in the distribution, (i + 1/2) / 128.
    order = np.searchsorted(rtt.code_ms(codes), predictions.true_ms)
    assert predictions.pit == pytest.approx((order + 0.5) / 128, abs=1e-6)


# --- baselines ------------------------------------------------------------------------------------


def prefix_of(address: str) -> bytes:
    number = packed(address)
    return number[:2] if len(number) == 4 else number[:4]


def test_baselines_are_plain_medians(stored: Stored, examples: Examples) -> None:
    by_destination: dict[str, list[float]] = {}
    by_prefix: dict[tuple[bytes, str], list[float]] = {}
    for row in stored.train_rows:
        for _, destination, rtt_ms in records_as_tuples(row.run):
            code = encode_rtt(np.array([rtt_ms], np.float32))
            if code[0] != FAILED_RTT:
                address, ms = canonical(destination), float(decode_rtt(code)[0])
                by_destination.setdefault(address, []).append(ms)
                by_prefix.setdefault((prefix_of(row.src_addr), address), []).append(ms)
    everything = statistics.median(ms for values in by_destination.values() for ms in values)

    expected: dict[str, list[float]] = {name: [] for name in ("last seen", "context median")}
    expected |= {name: [] for name in ("prefix × destination", "destination", "global")}
    repeats = []
    for tokens in all_segments(examples):
        for query in plain_queries(tokens):
            dst = query.dst
            of_dst = by_destination.get(dst)
            fallback = statistics.median(of_dst) if of_dst else everything
            before = [ms for address, ms in query.earlier if address == dst and ms >= 0]
            repeats.append(any(address == dst for address, _ in query.earlier))
            expected["last seen"].append(before[-1] if before else fallback)
            expected["context median"].append(statistics.median(before) if before else fallback)
            of_prefix = by_prefix.get((prefix_of(query.src), dst))
            expected["prefix × destination"].append(
                statistics.median(of_prefix) if of_prefix else fallback
            )
            expected["destination"].append(fallback)
            expected["global"].append(everything)

    measurements = parse(examples.targets, examples.segmentation).measurements
    numbers = rtt.choose_queries(measurements, 10**6)
    history = look_back(measurements, numbers)
    medians = training_medians(stored.train, measurements[numbers], EXTENT)
    assert medians and medians.num_rows == 30
    found = predict(history, medians)
    assert list(found) == list(expected) and len(numbers) > 50
    for name, values in expected.items():
        assert found[name] == pytest.approx(values), name
    assert history.is_repeat.tolist() == repeats
    assert 0.1 < np.mean(repeats) < 0.9
    # Prefixes of the test split are seen in training, some with other destinations only.
    assert (found["prefix × destination"] != found["destination"]).any()


def test_a_destination_that_training_has_not_seen(stored: Stored) -> None:
    measurements = np.zeros(2, kinds.MEASUREMENT)
    measurements["segment"] = (0, 1)  # the same one in another segment tells nothing
    measurements["dst_lo"], measurements["code"] = 77, 500
    history = look_back(measurements, np.arange(2))
    assert np.isnan(history.last_ms).all() and not history.is_repeat.any()
    medians = training_medians(stored.train, measurements, EXTENT)
    assert medians
    for name, values in predict(history, medians).items():
        assert (values == medians.global_ms).all(), name


@pytest.mark.parametrize("code", [FAILED_RTT, 700])
def test_segments_do_not_leak(code: int) -> None:
    measurements = np.zeros(4, kinds.MEASUREMENT)
    measurements["segment"] = (0, 0, 1, 1)
    measurements["dst_lo"] = 5
    measurements["code"] = (300, code, 400, 100)
    history = look_back(measurements, np.arange(4))
    assert history.is_repeat.tolist() == [False, True, False, True]
    np.testing.assert_allclose(history.last_ms, [np.nan, 0.3, np.nan, 0.4], rtol=1e-6)
    measurements["segment"] = 0
    last = 0.3 if code == FAILED_RTT else 0.7
    median = 0.3 if code == FAILED_RTT else 0.5
    history = look_back(measurements, np.array([2]))
    assert history.last_ms[0] == pytest.approx(last)
    assert history.median_ms[0] == pytest.approx(median)


def test_training_medians_of_a_sample(
    mixed: dict[Encoding, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of long rows some measurements, one of each stretch; of many rows some; of both encodings."""
    queries = np.zeros(1, kinds.MEASUREMENT)
    monkeypatch.setattr(baselines, "_MOST_MEASUREMENTS", 20)
    found = []
    for folder in mixed.values():
        _, train = open_splits(str(folder))
        for rows, most_bytes in ((10**6, 1 << 30), (9, 1 << 30), (10**6, 60_000), (10**6, 1)):
            monkeypatch.setattr(baselines, "_MOST_BYTES", most_bytes)
            medians = training_medians(train, queries, Extent(num_train_rows=rows))
            assert medians
            found.append((medians.num_rows, medians.num_rtts, medians.global_ms))
            if most_bytes == 1:
                assert medians.num_rows == 1
    arrow, compact = found[:4], found[4:]
    assert arrow[:2] == compact[:2] and arrow[0][0] == 55 and arrow[1][0] == 9
    assert 1 < arrow[2][0] < compact[2][0]  # compact rows are smaller
    n = [min(20, len(row.run)) for row in mixed_rows()]
    assert 0.8 * sum(n) < arrow[0][1] < sum(n)


# --- what there is nothing of ---------------------------------------------------------------------


def test_no_queries_and_no_repeats(
    tmp_path: Path, mixed: dict[Encoding, Path], capsys: pytest.CaptureFixture[str], fake: Fake
) -> None:
    fake(Uniform())
    run = pings(60, 0, 5)
    run["rtt"] = -1
    rows = [RowSpec("10.0.0.1", run), RowSpec("10.0.0.2", run)]
    failed = write_dataset(tmp_path / "failed", rows, test_rows=rows)
    working = [RowSpec("10.0.0.3", pings(60, 1, 5))]
    untold = write_dataset(tmp_path / "untold", rows, test_rows=working)
    for folder, has_queries, has_baselines in (
        (failed, False, False),
        (untold, True, False),
        (mixed["compact"], True, True),
    ):
        output = tmp_path / f"out of {folder.name}"
        code, results = run_main(folder, output)
        assert code == 0
        out = capsys.readouterr().out
        assert "nan" not in out and "none" in out
        assert bool(results["rtt"]["queries"]) == has_queries
        assert (results["calibration"] is not None) == has_queries
        methods = {error["method"] for error in results["rtt"]["errors"]}
        assert len(methods) == (6 if has_baselines else 1 if has_queries else 0)
        assert all((output / name).stat().st_size > 5000 for name in PICTURES)
    # No destination comes twice in `mixed`, and its test split is one row.
    assert {error["group"] for error in results["rtt"]["errors"]} == {"all", "first"}
    assert results["data"]["rows"] == 1 and results["data"]["batch_size"] < EXTENT.batch_size
    assert not results["loss"]["kinds"][0]["name"].isspace()


def test_no_rtt_is_asked_for(stored: Stored) -> None:
    evaluation = evaluate_stored(Uniform(), stored, num_rtt=0)
    assert evaluation.rtt is None and evaluation.calibration is None and evaluation.errors == []
    assert evaluation.num_possible_queries > 50


# --- what is claimed ------------------------------------------------------------------------------


def test_nothing_is_claimed_that_is_not_so(stored: Stored) -> None:
    evaluation = evaluate_stored(Uniform(), stored)
    sentences = conclusions(evaluation)
    overall = evaluation.losses.overall
    assert overall.unigram_bits < overall.bits
    assert "beats" not in sentences[0].replace("does not beat", "")
    assert "does not beat the unigram of each token's kind on" in sentences[1]
    for group, sentence in zip(rtt.GROUPS, sentences[-3:], strict=True):
        errors = {e.method: e.median_relative for e in evaluation.errors if e.group == group}
        beaten, _, unbeaten = sentence.partition("does not beat")
        for method, error in errors.items():
            if method != "model":
                assert (f"{method} (" in beaten) == (errors["model"] < error)
                assert (f"{method} (" in unbeaten) == (errors["model"] >= error)


@pytest.mark.parametrize(
    ("nearer", "farther", "is_lower", "expected"),
    [
        (60, 40, True, "does not clearly beat"),  # as tossed coins may fall
        (61, 40, True, "beats"),
        (4, 0, True, "does not clearly beat"),
        (5, 0, True, "beats"),
        (0, 0, False, "does not beat"),  # a draw
        (90, 10, False, "does not beat"),
    ],
)
def test_a_claim_is_clear(
    nearer: int, farther: int, is_lower: bool, expected: str, stored: Stored
) -> None:
    evaluation = evaluate_stored(Uniform(), stored, num_rtt=0)
    model = rtt.RttError("model", "all", 100, 0.2, 1.0, 0, 0)
    other = rtt.RttError("global", "all", 100, 0.3 if is_lower else 0.2, 1.0, nearer, farther)
    assert verdict(model, other) == expected
    assert conclusions(evaluation)[-3:] == [
        "RTTs: none",
        "RTTs to new destinations: none",
        "RTTs to destinations seen before: none",
    ]


def test_who_is_nearer() -> None:
    predictions = rtt.RttPredictions(
        true_ms=np.array([8.0, 8, 16, 32]),
        is_repeat=np.array([False, True, True, True]),
        predicted_ms={"model": np.array([9.0, 7, 16, 16]), "other": np.array([7.0, 6, 17, 28])},
        pit=np.zeros(4),
        num_what_if=0,
    )
    found = {(e.method, e.group): e for e in rtt.summarise_errors(predictions)}
    assert found["other", "all"] == rtt.RttError("other", "all", 4, 0.125, 1.5, 2, 1)
    assert found["other", "repeat"] == rtt.RttError("other", "repeat", 3, 0.125, 2.0, 2, 1)
    assert found["other", "first"] == rtt.RttError("other", "first", 1, 0.125, 1.0, 0, 0)
    assert found["model", "repeat"] == rtt.RttError("model", "repeat", 3, 0.125, 1.0, 0, 0)


# --- the command ----------------------------------------------------------------------------------


def run_main(data: Path, output: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    code = main([f"--data={data}", f"--output={output}", *BRIEF, *flags])
    return code, json.loads((output / "evaluation.json").read_bytes())


def test_the_command(
    stored: Stored, tmp_path: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(Network())
    code, results = run_main(stored.folder, tmp_path / "one")
    assert code == 0
    out = capsys.readouterr().out
    for text in ("by kind", "by timestamp mode", "Median errors", "Calibration", "does not beat"):
        assert text in out
    assert "nan" not in out and "a fake, step 700" in out
    assert results["checkpoint"] == "runs/first"
    assert results["model"] == {
        "description": "a fake",
        "step": 700,
        "crop_size": CROP,
        "vocab_size": VOCABULARY_SIZE,
    }
    assert results["data"]["split"] == "test"
    assert results["data"]["fingerprint"] == stored.split.shards.fingerprint
    assert results["options"]["num_contexts"] == 24
    assert results["conclusions"] == [line[2:] for line in out.splitlines() if line[:2] == "- "]
    direct = evaluate_stored(Network(), stored)
    assert {**json.loads(json.dumps(direct.to_json())), "checkpoint": "runs/first"} == results
    for name in PICTURES:
        image = imread(tmp_path / "one" / name)
        assert image.shape[0] > 400 and image.shape[1] > 1000
        assert 0.5 < (image[..., :3] == 1).all(axis=2).mean() < 0.99, name

    # The same again, to the byte; with another seed something else.
    run_main(stored.folder, tmp_path / "two")
    one, two = ((tmp_path / name / "evaluation.json").read_bytes() for name in ("one", "two"))
    assert one == two
    _, other = run_main(stored.folder, tmp_path / "two", "--seed=1")
    assert other["loss"] != results["loss"]


def test_a_training_split_is_not_held_out(
    stored: Stored, tmp_path: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(Uniform())
    _, results = run_main(stored.folder / "train", tmp_path)
    assert results["data"]["split"] == "train"
    assert results["data"]["fingerprint"] == results["baselines"]["fingerprint"]
    assert "not held out" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["local", "gs"])
def test_the_output_lies_beside_a_local_checkpoint(
    place: str, stored: Stored, tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(Uniform())
    monkeypatch.chdir(tmp_path)
    checkpoint = "gs://bucket/run" if place == "gs" else str(tmp_path / "run")
    brief = [flag for flag in BRIEF if "checkpoint" not in flag]
    assert main([f"--data={stored.folder}", f"--checkpoint={checkpoint}", *brief]) == 0
    folder = tmp_path / ("evaluation" if place == "gs" else "run/evaluation")
    assert {path.name for path in folder.iterdir()} == {*PICTURES, "evaluation.json"}


class NoNumbers(Uniform):
    def log_p(self, inputs, positions, segmentation):
        return np.full((*inputs.shape, VOCABULARY_SIZE), np.nan)


class OtherTokens(Uniform):
    def log_p(self, inputs, positions, segmentation):
        return np.zeros((*inputs.shape, 300))


@pytest.mark.parametrize(
    ("predictor", "words"),
    [
        (NoNumbers(), "nan"),
        (OtherTokens(), "[4, 256, 300]"),
        (Uniform(crop_size=32), "crop_size is 32"),
        (UsageError("runs/first has no checkpoint: give a run's folder"), "has no checkpoint"),
    ],
)
def test_a_model_that_cannot_be_evaluated(
    predictor: Any,
    words: str,
    stored: Stored,
    tmp_path: Path,
    fake: Fake,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake(predictor)
    assert main([f"--data={stored.folder}", f"--output={tmp_path}", *BRIEF]) == 2
    assert words in the_error(capsys)


def the_error(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), captured.err
    assert captured.out == ""
    return lines[0]


def test_errors_of_the_command(
    stored: Stored,
    tmp_path: Path,
    fake: Fake,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake(Uniform())
    empty = write_dataset(tmp_path / "empty", stored.train_rows[:2])
    untrained = write_dataset(tmp_path / "untrained", [], test_rows=stored.train_rows[:2])
    (tmp_path / "file").write_text("")
    data = f"--data={stored.folder}"
    for flags, words in (
        ([f"--data={tmp_path}/nothing"], "holds no finished dataset"),
        ([f"--data={stored.folder}/train/nothing*"], "names no shard"),
        ([f"--data={empty}"], f"{empty}/test has no rows"),
        ([f"--data={untrained}"], f"{untrained}/train has no rows"),
        ([data, f"--output={tmp_path}/file"], "cannot write into"),
        ([data, "--output=gs://bucket/there"], "local folders only"),
        ([data, "--num_contexts=0"], "--num_contexts=0: give 1 or more"),
        ([data, "--num-rtt=-1"], "--num_rtt=-1: give 0 or more"),
        ([data, "--batches=2"], "--help lists the flags"),
        ([], "--data"),
    ):
        assert main([*BRIEF, *flags]) == 2
        assert words in the_error(capsys)
    monkeypatch.setitem(sys.modules, "training.predictor", None)
    assert main([*BRIEF, data]) == 2
    assert "MaxText" in the_error(capsys)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main([*BRIEF, data]) == 2
    assert "pip install 'matplotlib" in the_error(capsys)


def test_stopped(
    stored: Stored, tmp_path: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stops(Uniform):
        def log_p(self, inputs, positions, segmentation):
            raise KeyboardInterrupt

    fake(Stops())
    assert main([f"--data={stored.folder}", f"--output={tmp_path}", *BRIEF]) == 130
    assert capsys.readouterr().err == "stopped; nothing was found out\n"


@pytest.mark.parametrize(
    ("encoding", "old", "new"),
    [("compact", b"", b"no row at all"), ("arrow", b"8.8.8.", b"8.x.8.")],
)
def test_a_training_row_that_cannot_be_read(
    encoding: Encoding, old: bytes, new: bytes, stored: Stored, tmp_path: Path
) -> None:
    rows = stored.train_rows
    folder = write_dataset(tmp_path / "rows", rows, encoding, test_rows=rows[:2])
    record = read_records(shard_paths(folder)[0])[0]
    damage_record(folder, 0, 0, record.index(old), new)
    _, train = open_splits(str(folder))
    queries = np.zeros(1, kinds.MEASUREMENT)
    refusal_of(lambda: training_medians(train, queries, EXTENT), "train_shard_00000", "record 0")


def test_progress_is_told(stored: Stored, examples: Examples) -> None:
    told: list[tuple[str, int, int]] = []
    measurements = parse(examples.targets, examples.segmentation).measurements
    queries = measurements[rtt.choose_queries(measurements, 6)]
    causal_pass(Uniform(), examples, queries, lambda *args: told.append(args))
    assert told == [("contexts", done, 6) for done in range(6)]
    told.clear()
    zeros = np.zeros(6, np.int64)
    second_bytes_after(Uniform(), examples, queries, zeros, lambda *args: told.append(args))
    assert told == [("what if", 0, 2), ("what if", 1, 2)]


def test_the_test_split_is_meant(stored: Stored, tmp_path: Path) -> None:
    folder = str(stored.folder)
    for data in (folder, f"{folder}/", f"{folder}/test", f"{folder}/test/"):
        split, train = open_splits(data)
        assert (split.shards.split, train.shards.split) == ("test", "train")
    assert open_splits(f"{folder}/train")[0].shards.split == "train"
    shard = open_splits(f"{folder}/test/*00001-of*")[0].shards
    assert shard.split == "test" and shard.chosen == [1]
    with pytest.raises(ProbelineError):
        open_splits(str(tmp_path))
