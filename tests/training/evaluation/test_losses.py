"""Bits a token by kind and mode, and those of the unigrams beside them."""

import math

import numpy as np
import pytest

from tests.support.evaluation_helpers import (
    EXTENT,
    Stored,
    Uniform,
    all_segments,
    evaluate_stored,
    plain_kinds,
)
from tests.support.evaluation_helpers import examples as examples
from tests.support.evaluation_helpers import stored as stored
from tests.support.probe_rows_on_disk import CROP
from training.evaluation.examples import Examples
from training.evaluation.losses import count_unigrams
from training.tokens.kinds import KIND_NAMES, MODE_CLASSES


def test_uniform_model(stored: Stored) -> None:
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


def test_surplus_examples_do_not_count(stored: Stored, examples: Examples) -> None:
    assert len(examples.targets) == 24
    losses = evaluate_stored(Uniform(), stored, num_contexts=22).losses
    assert losses.overall.num_tokens == int((examples.segmentation[:22] > 0).sum())


def test_unigrams(examples: Examples) -> None:
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
