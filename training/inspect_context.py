"""Draws the training context of `python -m beam_pipeline.inspect --context`."""

import numpy as np

from beam_pipeline.dataset.rows import Dataset
from beam_pipeline.errors import UsageError
from training.rows.row_source import ProbeRowDataSource
from training.sampler import Example, ProbeRowSampler
from training.tokens.kinds import FIELD_NAMES, measurement_text, parse
from training.tokens.tokenizer import FIRST_BYTE, MEASUREMENT_START, decode

# A measurement: the (text, field) of each of its tokens, and the whole as text.
DecodedMeasurement = tuple[list[tuple[str, str]], str]

# Short and distinct; a byte is shown as its value.
_SHORT_ROLES = ("start", "src4", "src6", "dst4", "dst6", "abs", "+1", "+4", "rtt", "put", "failed")


def draw_context(
    dataset: Dataset, split: str, number: int, seed: int, k: int
) -> tuple[str, list[DecodedMeasurement]]:
    """Draws context `k` of a row in epoch 0; returns a sentence about it, and its measurements.

    `number` is the row's in rows.parquet. Raises UsageError if the row has no such context.
    """
    row = ProbeRowDataSource(dataset.file(split))[number]
    name = f"{split}:{number}"
    sampler = ProbeRowSampler(seed=seed)
    contexts = [] if sampler.is_small(row) else sampler.contexts(row)
    examples = [context.example for context in contexts] or list(sampler.examples(row))
    if k >= len(examples):
        raise UsageError(f"--context: K is {k}, row {name} gives contexts 0 to {len(examples) - 1}")
    if contexts:
        context = contexts[k]
        about = (
            f"Context {k} of {len(contexts)} that row {name} gives in epoch 0 with seed "
            f"{seed}: timestamp mode {context.mode}; {context.num_measurements} of a window "
            f"of {context.window:,} measurements from number {context.first:,} on, "
            f"{context.num_timed} of them with their time; {context.num_tokens:,} tokens, the last "
            "one is a target only."
        )
    else:
        about = (
            f"Example {k} of {len(examples)} of the small row {name} in epoch 0 with seed "
            f"{seed}: all its measurements come once; in training several such rows are "
            f"packed into a crop of {sampler.crop_size:,} tokens."
        )
    return about, _decode(examples[k])


def _decode(example: Example) -> list[DecodedMeasurement]:
    """Decodes an example of one segment, including its last target."""
    count = int((example["inputs_segmentation"] > 0).sum())
    tokens = np.append(example["inputs"][:1], example["targets"][:count])
    fields = parse(tokens[np.newaxis], np.ones((1, len(tokens)))).fields[0]
    shown = [
        (_SHORT_ROLES[t] if t < FIRST_BYTE else str(t - FIRST_BYTE), FIELD_NAMES[field])
        for t, field in zip(tokens.tolist(), fields.tolist(), strict=True)
    ]
    starts = np.flatnonzero(tokens == MEASUREMENT_START).tolist()
    ends = [*starts[1:], len(tokens)]
    return [
        (shown[start:end], measurement_text(measurement))
        for start, end, measurement in zip(starts, ends, decode(tokens), strict=True)
    ]
