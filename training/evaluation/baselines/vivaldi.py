"""Vivaldi: a place for each probe and destination, so that distances are RTTs.

Dabek et al., "Vivaldi: A Decentralized Network Coordinate System", SIGCOMM 2004: two dimensions and
a height, adaptive timestep. Training probes and destinations find their places first; then each
query's source finds its own among them by what its context has shown. A place is (x, y, height);
the distance of two is that of the points plus both heights, in ms.
"""

from collections.abc import Sequence

import numpy as np

from beam_pipeline.kernels import kernel
from training.evaluation.baselines.history import Context
from training.evaluation.baselines.pairs import Pairs

_STEP = 0.25  # c_c and c_e of the paper
_MOVES_OF_NODE = 500  # on average, while all nodes move
_MAX_MOVES = 1 << 24
_ROUNDS_OF_SOURCE = 100
_MIN_HEIGHT_MS = 0.001
_MIN_MS = 0.001


def predict_vivaldi(pairs: Pairs, contexts: Sequence[Context], seed: int) -> np.ndarray:
    """Returns the distance of source and destination: ms, [queries].

    NaN where the destination has no place, or the context shows none that has.
    """
    destination, probe = np.nonzero(~np.isnan(pairs.ms))
    rng = np.random.default_rng(seed)
    num_rows, num_probes = pairs.ms.shape
    source = num_rows + num_probes  # the last node; its place is that of one query after the other
    places = rng.normal(size=(source + 1, 3))
    errors = np.ones(source + 1)
    places[:, 2] = _MIN_HEIGHT_MS
    drawn = rng.integers(len(probe), size=min(_MAX_MOVES, _MOVES_OF_NODE * source) // 2)
    destination, probe = destination[drawn], probe[drawn]
    _settle(places, errors, num_rows + probe, destination, pairs.ms[destination, probe], True)
    predicted = np.full(len(contexts), np.nan)
    for number, (asked, known, known_ms) in enumerate(contexts):
        if asked >= 0 and len(known):
            places[source], errors[source] = (0, 0, _MIN_HEIGHT_MS), 1
            others, ms = (np.tile(values, _ROUNDS_OF_SOURCE) for values in (known, known_ms))
            _settle(places, errors, np.full(len(others), source), others, ms, False)
            predicted[number] = _distance(places, source, asked)
    return predicted


@kernel
def _distance(places, a, b):
    flat = np.hypot(places[a, 0] - places[b, 0], places[a, 1] - places[b, 1])
    return flat + places[a, 2] + places[b, 2]


@kernel
def _settle(places, errors, nodes, others, rtt_ms, both_move):
    """Moves nodes, and the other ends of their RTTs if `both_move`, RTT by RTT."""
    for i in range(len(nodes)):
        _move(places, errors, nodes[i], others[i], rtt_ms[i])
        if both_move:
            _move(places, errors, others[i], nodes[i], rtt_ms[i])


@kernel
def _move(places, errors, node, other, rtt_ms):
    """Moves a node along the spring to another one: algorithm 2 of the paper."""
    rtt = max(rtt_ms, _MIN_MS)
    distance = _distance(places, node, other)
    weight = errors[node] / (errors[node] + errors[other])
    error = abs(distance - rtt) / rtt
    errors[node] = max(1e-6, error * _STEP * weight + errors[node] * (1 - _STEP * weight))
    force = _STEP * weight * (rtt - distance) / distance  # heights keep the distance above 0
    places[node, 0] += force * (places[node, 0] - places[other, 0])
    places[node, 1] += force * (places[node, 1] - places[other, 1])
    height = places[node, 2] + force * (places[node, 2] + places[other, 2])
    places[node, 2] = max(height, _MIN_HEIGHT_MS)
