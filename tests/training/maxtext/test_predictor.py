"""The attention mask of a loaded model."""

from typing import Any

import numpy as np
import pytest
from maxtext.common.common_types import MODEL_MODE_TRAIN, AttentionType
from maxtext.layers.attention_op import AttentionOp

from training.maxtext import predictor

SEGMENTS = np.array([[1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 2, 2, 2, 2, 0]])
BRANCHES = np.array([[1, 1, 1, 0, -1, -1, -2, -3]])


class Op(AttentionOp):
    """As much of an attention layer as makes a mask on one device."""

    def __init__(self, attention_type: AttentionType):
        self.attention_type, self.sliding_window_size = attention_type, 3
        self.chunk_attn_window_size = 4

    def _logical_to_mesh_axes(self, *_: Any) -> None:
        return None

    def _maybe_shard_with_pspec(self, values: Any, *_: Any) -> Any:
        return values

    def _load_balanced_context_parallel(self) -> bool:
        return False


def seen(segments: np.ndarray, attention_type: AttentionType = AttentionType.GLOBAL) -> np.ndarray:
    """Returns which token sees which, bool [examples, tokens, tokens]."""
    states: Any = np.zeros((*segments.shape, 1, 4), np.float32)
    op: Any = Op(attention_type)
    mask = op.generate_attention_mask(states, states, segments, MODEL_MODE_TRAIN)
    return np.asarray(mask)[:, 0, 0] == 0


@pytest.mark.parametrize(
    "attention_type", [AttentionType.GLOBAL, AttentionType.LOCAL_SLIDING, AttentionType.CHUNK]
)
def test_without_branches_a_model_sees_what_maxtext_shows_it(attention_type: AttentionType) -> None:
    usual = seen(SEGMENTS, attention_type)
    with predictor._branches():
        assert np.array_equal(seen(SEGMENTS, attention_type), usual)
    assert np.array_equal(seen(SEGMENTS, attention_type), usual)


def test_a_branch_sees_itself_and_the_segment_before_it() -> None:
    with predictor._branches():
        (found,) = seen(BRANCHES)
    (ids,) = BRANCHES
    for asks, sees in np.ndindex(found.shape):
        is_own = ids[sees] == ids[asks] or (ids[asks] < 0 and ids[sees] == 1)
        assert found[asks, sees] == (is_own and sees <= asks), (asks, sees)
