"""Contexts drawn of a row, and whether they are those of the plain reference."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.layout import Encoding
from beam_pipeline.dataset.row_codec import RowKey
from beam_pipeline.dataset.row_encoder import encode_row
from tests.support import reference_sampler as reference
from tests.support.helpers import as_number, records_as_tuples
from training.batches.lanes import context_keys
from training.rows.keyed_random import key_of
from training.rows.row_layout import Columns, locate
from training.tokens.contexts import CONTEXT_FACTS, draw_contexts
from training.tokens.draws import FULL, MODE_NAMES, NONE, PARTIAL, Drawing, new_scratch
from training.tokens.tokenizer import MAX_MEASUREMENT_TOKENS

SRC = "192.0.2.1"
WEIGHTS = {FULL: (1.0, 0.0), PARTIAL: (0.0, 1.0), NONE: (0.0, 0.0)}
every_mode = pytest.mark.parametrize("mode", WEIGHTS, ids=MODE_NAMES)


class Row(NamedTuple):
    """A row's bytes, for drawing, and its measurements, for comparing."""

    src_addr: str
    columns: Columns
    items: list[reference.Item]


class Drawn(NamedTuple):
    tokens: np.ndarray  # uint16 [contexts, num_tokens]
    facts: np.ndarray  # CONTEXT_FACTS [contexts]


def row_of(run: np.ndarray, encoding: Encoding = "compact", src_addr: str = SRC) -> Row:
    located = locate(encode_row(run, RowKey(src_addr, 0), encoding))
    return Row(src_addr, located.columns, reference.items_of(records_as_tuples(run)))


def draw(
    row: Row,
    num: int,
    weights: tuple[float, float] = (0.4, 0.3),
    crop_size: int = 1024,
    strided: bool = False,
    seed: int = 0,
    epoch: int = 0,
    identity: int = 0,
    first_k: int = 0,
    **more: Any,
) -> Drawn:
    """Draws contexts first_k, first_k + 1, … of a row; `more` are further fields of Drawing."""
    hi, lo, family = addresses.parse(pa.array([row.src_addr]))
    tokens = np.full((num, crop_size + 1), 9, np.uint16)
    facts = np.zeros(num, CONTEXT_FACTS)
    is_whole = draw_contexts(
        *row.columns,
        (hi[0], lo[0], bool(family[0] == 6)),
        keys_of(num, seed, epoch, identity, first_k),
        Drawing(crop_size + 1, *weights, strided, **more),
        new_scratch(crop_size + 1),
        tokens,
        facts,
    )
    assert is_whole
    return Drawn(tokens, facts)


def keys_of(
    num: int, seed: int = 0, epoch: int = 0, identity: int = 0, first_k: int = 0
) -> np.ndarray:
    """Returns the keys of the contexts that `draw` draws."""
    return context_keys(key_of(seed), np.int64(epoch), key_of(identity), first_k, num)


def contexts_of(drawn: Drawn) -> list[list[int]]:
    return [
        tokens[: fact["num_tokens"]].tolist() for tokens, fact in zip(drawn.tokens, drawn.facts)
    ]


def assert_as_reference(row: Row, drawn: Drawn) -> None:
    """The tokens are those that the reference writes for the choices that they show."""
    src = as_number(row.src_addr)
    for tokens, fact in zip(contexts_of(drawn), drawn.facts):
        choices = reference.choices_of(tokens, src, row.items)
        assert reference.encode(src, choices, len(tokens)) == tokens
        # Of those that were drawn last, of 12 tokens and more, the crop's end may show nothing.
        assert 0 <= fact["num_measurements"] - len(choices) <= MAX_MEASUREMENT_TOKENS // 12
        told = [choice.item.second for choice in choices if "time" in choice.order]
        assert 0 <= fact["num_timed"] - len(told) <= 1 + fact["num_measurements"] - len(choices)
        assert told == sorted(told)
        mode = fact["mode"]
        assert all(("time" in choice.order) == (mode == FULL) for choice in choices[:-1]) or (
            mode == PARTIAL
        )
