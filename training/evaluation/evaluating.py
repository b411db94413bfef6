"""Evaluates a model on held-out contexts: draws, asks, compares.

Everything follows from the model, the data and the seed. Memory is the examples' tokens, one batch
of predictions and some KiB a query.
"""

import numpy as np

from training.evaluation.baselines import History, look_back, predict, training_medians
from training.evaluation.examples import (
    Examples,
    Extent,
    Predictor,
    Split,
    config_of,
    draw_examples,
    take_batches,
)
from training.evaluation.losses import count_unigrams, summarise_losses
from training.evaluation.predictions import Pass, Tell, causal_pass, second_bytes_after
from training.evaluation.results import Evaluation
from training.evaluation.rtt import (
    MODEL,
    RttPredictions,
    choose_queries,
    code_ms,
    integral_transforms,
    median_codes,
)
from training.tokens.kinds import parse


def evaluate(
    predictor: Predictor,
    split: Split,
    train: Split,
    extent: Extent,
    tell: Tell = lambda what, done, total: None,
) -> Evaluation:
    """Evaluates a model on a split, as `examples.open_splits` gives it and the training split.

    Args:
      tell: is told what is done, and of how many how many batches.

    Raises:
      ProbelineError: rows cannot be read, or the model does not suit the data.
      UsageError: the rows give no example of the model's crop size.
    """
    examples = draw_examples(split, predictor.crop_size, extent)
    counted = slice(extent.num_contexts)
    parsed = parse(examples.targets[counted], examples.segmentation[counted])
    numbers = choose_queries(parsed.measurements, extent.num_rtt)
    queries = parsed.measurements[numbers]
    medians = training_medians(train, queries, extent) if len(queries) else None
    config = config_of(train, predictor.crop_size, extent.num_train_contexts, extent)
    unigrams = count_unigrams(take_batches(config, extent.num_train_contexts))
    found = causal_pass(predictor, examples, queries, tell)
    rtt = None
    if len(queries):
        history = look_back(parsed.measurements, numbers)
        baselines = predict(history, medians) if medians else {}
        rtt = _rtt(predictor, examples, queries, found, history, baselines, tell)
    return Evaluation(
        model={
            "description": predictor.description,
            "step": int(predictor.step),
            "crop_size": int(predictor.crop_size),
            "vocab_size": int(predictor.vocab_size),
        },
        split=split,
        train=train,
        extent=extent,
        batch_size=examples.batch_size,
        losses=summarise_losses(found.bits[counted], examples.targets[counted], parsed, unigrams),
        num_train_tokens=unigrams.num_tokens,
        num_possible_queries=int(parsed.measurements["is_query"].sum()),
        rtt=rtt,
        medians=medians,
    )


def _rtt(
    predictor: Predictor,
    examples: Examples,
    queries: np.ndarray,
    found: Pass,
    history: History,
    baselines: dict[str, np.ndarray],
    tell: Tell,
) -> RttPredictions:
    codes, num_what_if = median_codes(
        found.first,
        found.second,
        queries["code"],
        lambda numbers, first_bytes: second_bytes_after(
            predictor, examples, queries[numbers], first_bytes, tell
        ),
    )
    return RttPredictions(
        true_ms=code_ms(queries["code"]),
        is_repeat=history.is_repeat,
        predicted_ms={MODEL: code_ms(codes), **baselines},
        pit=integral_transforms(found.first, found.second, queries["code"]),
        num_what_if=num_what_if,
    )
