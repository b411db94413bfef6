"""Prints an `Evaluation` as tables for a terminal, and what follows from it."""

import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from training.evaluation.losses import Loss
from training.evaluation.results import Evaluation, conclusions
from training.evaluation.rtt import GROUPS, MODEL
from training.tokens.kinds import MIN_MEASUREMENTS_FOR_MODE


def print_tables(evaluation: Evaluation) -> None:
    """Prints what was looked at, all tables, and the conclusions, to stdout."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = 110  # of a log nobody knows
    console.print(sample_text(evaluation), soft_wrap=True, markup=False)
    for table in _tables(evaluation):
        console.print()
        console.print(table)
    console.print()
    for sentence in conclusions(evaluation):
        console.print(f"- {sentence}", soft_wrap=True, markup=False)


def sample_text(evaluation: Evaluation) -> str:
    """Returns in a few sentences what the figures are of."""
    shards, extent, medians = evaluation.split.shards, evaluation.extent, evaluation.medians
    text = (
        f"{evaluation.model['description']}, step {evaluation.model['step']:,}, on "
        f"{shards.dataset.path}, split {shards.split} ({shards.fingerprint}"
        f"{', not held out' if shards.split == 'train' else ''}): "
        f"{extent.num_contexts:,} examples of {evaluation.model['crop_size']:,} tokens from "
        f"{len(evaluation.split.rows):,} rows (seed {extent.seed}). Unigrams are of "
        f"{extent.num_train_contexts:,} examples of split train, "
        f"{evaluation.num_train_tokens:,} tokens"
    )
    if medians:
        text += f"; its RTT medians of {medians.num_rtts:,} RTTs in {medians.num_rows:,} rows"
    return text + "."


def _tables(evaluation: Evaluation) -> Iterator[Table]:
    losses = evaluation.losses
    total = losses.overall.num_tokens
    columns = "tokens | share | model | unigram of the kind | one unigram"
    yield _table(
        "Loss in bits a token, by kind",
        f"kind of token | {columns}",
        [_loss(loss, total) for loss in (losses.overall, *losses.kinds)],
    )
    yield _table(
        "Loss in bits a token, by timestamp mode",
        f"mode of the segment | {columns}",
        [_loss(loss, total) for loss in losses.modes],
    )
    yield _table(
        "Median errors of RTTs",
        "destination | all | | first seen | | seen before |",
        list(_errors(evaluation)),
    )
    yield _table("Calibration of the model's RTTs", "|", list(_calibration(evaluation)))


def _errors(evaluation: Evaluation) -> Iterator[tuple[str, ...]]:
    errors = {(error.method, error.group): error for error in evaluation.errors}
    for method in dict.fromkeys(error.method for error in evaluation.errors):
        found = [errors.get((method, group)) for group in GROUPS]
        if method == MODEL:
            counts = (f"{error.num_queries:,}" if error else "none" for error in found)
            yield ("queries", *(cell for count in counts for cell in (count, "")))
        yield (
            method,
            *(
                cell
                for error in found
                for cell in (
                    (f"{error.median_relative:.2%}", _ms(error.median_ms)) if error else ("", "")
                )
            ),
        )


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _calibration(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    calibration = evaluation.calibration
    if calibration is None:
        return
    for name, share in calibration.coverage.items():
        yield f"truths in the central {name}", f"{share:.1%}"
    yield "deviation from uniform", f"{calibration.deviation:.4f}"
    yield "by chance, if calibrated", f"{calibration.deviation_by_chance:.4f}"


def _loss(loss: Loss, total: int) -> tuple[str, ...]:
    bits = (loss.bits, loss.kind_unigram_bits, loss.unigram_bits)
    share = f"{loss.num_tokens / total:.1%}"
    note = f" (< {MIN_MEASUREMENTS_FOR_MODE} measurements)" if loss.name == "short" else ""
    name = loss.name + note
    return (name, f"{loss.num_tokens:,}", share, *(f"{value:.3f}" for value in bits))


def _table(title: str, columns: str, lines: Sequence[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    names = [name.strip() for name in columns.split("|")]
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left")
    for line in lines or [("none", *[""] * (len(names) - 1))]:
        table.add_row(*line)
    return table
