"""Evaluates a model on held-out contexts: draws examples, queries the model, compares.

The results depend only on the model, the data and the seed. Memory is the examples' tokens, one
batch of predictions and a few KiB per query.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.evaluation.baselines import Baselines, MoreBaselines, look_back, predict_baselines
from training.evaluation.examples import Split, draw_examples, take_batches
from training.evaluation.losses import Losses, count_unigrams, summarise_losses
from training.evaluation.predictions import Advance, Predictor, causal_pass, second_bytes_after
from training.evaluation.rtt import (
    GROUPS,
    MODEL,
    Calibration,
    RttError,
    RttPredictions,
    calibration,
    choose_queries,
    code_ms,
    fill_up_groups,
    integral_transforms,
    median_codes,
    summarise_errors,
)
from training.extent import EvaluationExtent
from training.tokens.kinds import parse
from training.tokens.log_rtt import stored_codes, token_codes

NUM_PASSES = 2  # over the examples: causal and what-if
KIND_UNIGRAM = "the unigram of each token's kind"
UNIGRAM = "one unigram of all tokens"
BEATS, BEATS_UNCLEARLY, BEATS_NOT = "beats", "does not clearly beat", "does not beat"


@dataclass(frozen=True)
class Evaluation:
    """All results; None where there is no data."""

    model: dict[str, Any]  # description, step, crop_size, fixed_order_share, log_rtt, vocab_size
    split: Split
    train: Split
    extent: EvaluationExtent
    batch_size: int
    losses: Losses
    num_train_tokens: int  # tokens in which unigrams were counted
    num_possible_queries: int  # RTTs that could be predicted; some were chosen
    rtt: RttPredictions | None  # of the usual mix, plus additional queries for the groups
    baselines: Baselines | None

    @property
    def errors(self) -> list[RttError]:
        return summarise_errors(self.rtt) if self.rtt else []

    @property
    def calibration(self) -> Calibration | None:
        return calibration(self.rtt.usual().pit) if self.rtt else None

    def to_json(self) -> dict[str, Any]:
        """Returns all figures, for JSON."""
        shards, rtt, baselines = self.split.shards, self.rtt, self.baselines
        calibrated = self.calibration
        return {
            "model": self.model,
            "data": {
                "dataset": shards.dataset.path,
                "split": shards.split,
                "fingerprint": shards.fingerprint,
                "rows": len(self.split.rows),
                "examples": self.extent.num_contexts,
                "batch_size": self.batch_size,
            },
            "baselines": {
                "fingerprint": self.train.shards.fingerprint,
                "rows": len(self.train.rows),
                "unigram_tokens": self.num_train_tokens,
                "median_rows": baselines.num_rows if baselines else 0,
                "median_rtts": baselines.num_rtts if baselines else 0,
            },
            "options": dataclasses.asdict(self.extent),
            "loss": dataclasses.asdict(self.losses),
            "rtt": {
                "possible_queries": self.num_possible_queries,
                "queries": int(rtt.is_usual.sum()) if rtt else 0,
                "further_queries": int((~rtt.is_usual).sum()) if rtt else 0,
                "what_if_queries": rtt.num_what_if if rtt else 0,
                "errors": [dataclasses.asdict(error) for error in self.errors],
            },
            "calibration": dataclasses.asdict(calibrated) if calibrated else None,
            "conclusions": conclusions(self),
        }


def evaluate(
    predictor: Predictor,
    split: Split,
    train: Split,
    extent: EvaluationExtent,
    advance: Advance = lambda _: None,
    more_baselines: MoreBaselines | None = None,
) -> Evaluation:
    """Evaluates a model on a split; `advance` gets each finished share of one of NUM_PASSES.

    Raises ProbelineError if rows cannot be read or the model does not suit the data, UsageError if
    the rows do not suffice for an example of the model's crop size.
    """
    examples = draw_examples(split, predictor, extent)
    counted = slice(extent.num_contexts)
    log_rtt = predictor.log_rtt
    parsed = parse(examples.targets[counted], examples.segmentation[counted], log_rtt)
    usual, numbers = _choose(parsed.measurements, extent.num_rtt)
    queries = parsed.measurements[numbers]
    batches = take_batches(train, predictor, extent.num_train_contexts, extent)
    unigrams = count_unigrams(batches)
    found = causal_pass(predictor, examples, queries, advance)
    rtt = baselines = None
    if len(queries):
        baselines = predict_baselines(parsed.measurements, numbers, train, extent, more_baselines)
        codes = token_codes(queries["code"], log_rtt)
        medians, num_what_if = median_codes(
            found.first,
            found.second,
            codes,
            lambda chosen, first_bytes: second_bytes_after(
                predictor, examples, queries[chosen], first_bytes, advance
            ),
        )
        rtt = RttPredictions(
            true_ms=code_ms(queries["code"]),
            is_repeat=baselines.is_repeat,
            is_usual=np.isin(numbers, usual),
            predicted_ms={MODEL: code_ms(stored_codes(medians, log_rtt)), **baselines.predicted_ms},
            pit=integral_transforms(found.first, found.second, codes),
            num_what_if=num_what_if,
        )
    return Evaluation(
        model={
            "description": predictor.description,
            "step": int(predictor.step),
            "crop_size": int(predictor.crop_size),
            "fixed_order_share": float(predictor.fixed_order_share),
            "log_rtt": bool(predictor.log_rtt),
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
        baselines=baselines,
    )


def _choose(measurements: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the queries of the usual mix, and of all queries."""
    queries = np.flatnonzero(measurements["is_query"])
    is_repeat = look_back(measurements, queries).is_repeat
    usual = choose_queries(measurements, limit)
    return usual, fill_up_groups(usual, queries, is_repeat, limit)


def conclusions(evaluation: Evaluation) -> list[str]:
    """Returns sentences about which baselines the model beats."""
    losses = evaluation.losses
    bits = losses.overall.bits
    unigrams = {
        KIND_UNIGRAM: losses.overall.kind_unigram_bits,
        UNIGRAM: losses.overall.unigram_bits,
    }
    compared = _listed(
        (BEATS if bits < other else BEATS_NOT, f"{name} ({other:.3f})")
        for name, other in unigrams.items()
    )
    sentences = [
        f"loss of {losses.overall.num_tokens:,} tokens: {bits:.3f} bits a token; {compared}"
    ]
    behind = [
        f"{loss.name} ({loss.bits:.3f} to {loss.kind_unigram_bits:.3f})"
        for loss in losses.kinds
        if not loss.bits < loss.kind_unigram_bits
    ]
    if behind:
        sentences.append(f"it {BEATS_NOT} {KIND_UNIGRAM} on {', '.join(behind)}")
    return sentences + [_group_sentence(evaluation.errors, group) for group in GROUPS]


def _group_sentence(all_errors: Iterable[RttError], group: str) -> str:
    where = {"all": "", "first": " to new destinations", "repeat": " to destinations seen before"}
    errors = {error.method: error for error in all_errors if error.group == group}
    if not errors:
        return f"RTTs{where[group]}: none"
    model = errors.pop(MODEL)
    compared = _listed(
        (verdict(model, error), f"{error.method} ({error.median_relative:.1%})")
        for error in errors.values()
    )
    return (
        f"RTTs{where[group]}, {model.num_queries:,} queries: median error "
        f"{model.median_relative:.1%}; {compared}"
    )


def verdict(model: RttError, other: RttError) -> str:
    """Compares medians: BEATS if the model's is significantly lower, by a sign test at 2 σ."""
    if not model.median_relative < other.median_relative:
        return BEATS_NOT
    margin = other.model_nearer - other.model_farther
    is_clear = margin > 2 * math.sqrt(other.model_nearer + other.model_farther)
    return BEATS if is_clear else BEATS_UNCLEARLY


def _listed(verdicts: Iterable[tuple[str, str]]) -> str:
    """Joins pairs of verdict and baseline, grouped by verdict."""
    names: dict[str, list[str]] = {BEATS: [], BEATS_UNCLEARLY: [], BEATS_NOT: []}
    for result, name in verdicts:
        names[result].append(name)
    parts = [f"{result} {', '.join(beaten)}" for result, beaten in names.items() if beaten]
    return "; ".join(parts) or "there is no baseline to compare with"
