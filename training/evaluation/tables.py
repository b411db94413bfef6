"""Prints an `Evaluation` as tables for a terminal, and its conclusions."""

from collections.abc import Iterator, Sequence

from beam_pipeline.report.tables import Table, ms_text, percent
from beam_pipeline.report.terminal import new_console, print_table, say
from training.evaluation.losses import Loss
from training.evaluation.results import Evaluation, conclusions
from training.evaluation.rtt import GROUPS, MODEL
from training.tokens.kinds import MIN_MEASUREMENTS_FOR_MODE


def print_tables(evaluation: Evaluation) -> None:
    """Prints what was evaluated, all tables, and the conclusions to stdout."""
    console = new_console()
    say(console, _sample_text(evaluation))
    for table in _tables(evaluation):
        print_table(console, table)
    console.print()
    for sentence in conclusions(evaluation):
        console.print(f"- {sentence}", soft_wrap=True, markup=False)


def _sample_text(evaluation: Evaluation) -> str:
    shards, extent, baselines = evaluation.split.shards, evaluation.extent, evaluation.baselines
    text = (
        f"{evaluation.model['description']}, step {evaluation.model['step']:,}, on "
        f"{shards.dataset.path}, split {shards.split} ({shards.fingerprint}"
        f"{', not held out' if shards.split == 'train' else ''}): "
        f"{extent.num_contexts:,} examples of {evaluation.model['crop_size']:,} tokens from "
        f"{len(evaluation.split.rows):,} rows (seed {extent.seed}). Unigrams are counted in "
        f"{extent.num_train_contexts:,} examples of split train, "
        f"{evaluation.num_train_tokens:,} tokens"
    )
    if baselines:
        text += f"; RTT baselines use {baselines.num_rtts:,} RTTs of {baselines.num_rows:,} rows"
    return text + "."


def _tables(evaluation: Evaluation) -> Iterator[Table]:
    losses, calibration = evaluation.losses, evaluation.calibration
    total = losses.overall.num_tokens
    yield _loss_table("kind", "kind of token", (losses.overall, *losses.kinds), total)
    yield _loss_table("timestamp mode", "mode of the segment", losses.modes, total)
    columns = ("destination", "all", "", "first seen", "", "seen before", "")
    yield Table("Median errors of RTTs", columns, list(_error_rows(evaluation)))
    rows = []
    if calibration:
        rows = [
            *((f"truths in the central {x}", percent(y)) for x, y in calibration.coverage.items()),
            ("deviation from uniform", f"{calibration.deviation:.4f}"),
            ("by chance, if calibrated", f"{calibration.deviation_by_chance:.4f}"),
        ]
    yield Table("Calibration of the model's RTTs", ("measure", "value"), rows)


def _loss_table(by: str, column: str, losses: Sequence[Loss], total: int) -> Table:
    notes = {"short": f" (< {MIN_MEASUREMENTS_FOR_MODE} measurements)"}
    rows = [
        (
            *(loss.name + notes.get(loss.name, ""), loss.num_tokens, loss.num_tokens / total),
            *(loss.bits, loss.kind_unigram_bits, loss.unigram_bits),
        )
        for loss in losses
    ]
    bits = [(name, "decimals3") for name in ("model", "unigram of the kind", "one unigram")]
    columns = (column, "tokens", ("share", "percent"), *bits)
    return Table(f"Loss in bits per token, by {by}", columns, rows)


def _error_rows(evaluation: Evaluation) -> Iterator[tuple[str, ...]]:
    errors = {(error.method, error.group): error for error in evaluation.errors}
    for method in dict.fromkeys(error.method for error in evaluation.errors):
        found = [errors.get((method, group)) for group in GROUPS]
        if method == MODEL:
            counts = (f"{error.num_queries:,}" if error else "none" for error in found)
            yield "queries", *(cell for count in counts for cell in (count, ""))
        cells = (
            (percent(e.median_relative, 2), f"{ms_text(e.median_ms)} ms") if e else ("", "")
            for e in found
        )
        yield method, *(cell for pair in cells for cell in pair)
