"""Evaluates a model on held-out contexts: draws examples, asks the model, compares.

Everything follows from the model, the data and the seed. Memory is the examples' tokens, one batch
of predictions and some KiB per query.
"""

from training.evaluation.baselines import look_back, predict, training_medians
from training.evaluation.examples import Extent, Split, draw_examples, take_batches
from training.evaluation.losses import count_unigrams, summarise_losses
from training.evaluation.predictions import Advance, Predictor, causal_pass, second_bytes_after
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

NUM_PASSES = 2  # over the examples: as they are, and what if


def evaluate(
    predictor: Predictor,
    split: Split,
    train: Split,
    extent: Extent,
    advance: Advance = lambda _: None,
) -> Evaluation:
    """Evaluates a model on a split.

    Args:
      split, train: the split to evaluate and the training split, see `examples.open_splits`.
      advance: called with the share of one of NUM_PASSES that has been done.

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
    batches = take_batches(train, predictor.crop_size, extent.num_train_contexts, extent)
    unigrams = count_unigrams(batches)
    found = causal_pass(predictor, examples, queries, advance)
    rtt = None
    if len(queries):
        history = look_back(parsed.measurements, numbers)
        codes, num_what_if = median_codes(
            found.first,
            found.second,
            queries["code"],
            lambda chosen, first_bytes: second_bytes_after(
                predictor, examples, queries[chosen], first_bytes, advance
            ),
        )
        baselines = predict(history, medians) if medians else {}
        rtt = RttPredictions(
            true_ms=code_ms(queries["code"]),
            is_repeat=history.is_repeat,
            predicted_ms={MODEL: code_ms(codes), **baselines},
            pit=integral_transforms(found.first, found.second, queries["code"]),
            num_what_if=num_what_if,
        )
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
