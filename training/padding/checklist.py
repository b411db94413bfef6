"""The seeds' checklist: each check with what is expected, what was measured, and a verdict.

A check of something that the data does not have, large rows for example, is "not applicable": it
says nothing, and does not pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from beam_pipeline.dataset import row_codec
from beam_pipeline.errors import ProbelineError
from training.padding.statistics import LEAST_OF_A_SMALL_ROW, SMALL, Figures
from training.padding.summary import (
    CONTEXTS_PER_MEASUREMENTS,
    LEAST_OF_A_CONTEXT,
    MODE_SHARES,
    MOST_CONTEXTS,
    NUM_DEVIATIONS,
    Line,
    expected_contexts,
    mean_padding,
    partial_outside,
    percent,
)

Result = Literal["pass", "FAIL", "not applicable"]
PASS: Result = "pass"
FAIL: Result = "FAIL"
NOT_APPLICABLE: Result = "not applicable"
MOST_BATCH_PADDING = 0.001
MOST_CONTEXT_PADDING = 0.05


@dataclass(frozen=True)
class Check:
    """One line of the checklist."""

    name: str
    expectation: str
    measured: str
    result: Result


def run_checks(figures: Figures, summary: dict[str, list[Line]]) -> list[Check]:
    """Returns the checklist, in the order of the seeds: rows, contexts, padding."""
    return [
        _row_count(figures),
        _row_size(figures),
        _schema(figures),
        _row_order(figures),
        *_examples(figures),
        _num_contexts(figures),
        *_modes(summary),
        _partial_share(figures),
        _batch_padding(figures, summary),
        _context_padding(summary),
        _strides(figures),
        _bytes(figures, summary),
    ]


def _check(name: str, expectation: str, measured: str, holds: bool) -> Check:
    return Check(name, expectation, measured, PASS if holds else FAIL)


def _absent(name: str, expectation: str, why: str) -> Check:
    return Check(name, expectation, why, NOT_APPLICABLE)


# --- rows ---------------------------------------------------------------------------------------


def _max_row_bytes(figures: Figures) -> int:
    options = figures.dataset.manifest.options
    if "max_row_size_mb" not in options:
        raise ProbelineError(
            f"the manifest of {figures.dataset.path} has no option max_row_size_mb: it was not "
            "written by this version of Probeline"
        )
    return int(float(options["max_row_size_mb"]) * (1 << 20))


def _row_count(figures: Figures) -> Check:
    """A row a probe; more only of probes whose measurements do not fit into one row."""
    name, rows = "row_count", figures.rows
    expectation = "a row a probe, more only where one would be too large; as the manifest counts"
    split = figures.dataset.manifest.splits[figures.shards.split]
    if not figures.is_whole_split:
        return _absent(name, expectation, "only some shards of the split were named")
    order = np.lexsort([rows.row_index, rows.src_id])
    src_id, index, size = rows.src_id[order], rows.row_index[order], rows.num_bytes[order]
    is_next = src_id[1:] == src_id[:-1]
    num_probes = int((~is_next).sum()) + 1
    expected_index = np.where(is_next, index[:-1] + 1, 0)
    faults = [
        (len(rows) != split.num_records, f"the manifest says {split.num_records:,} rows"),
        (num_probes != split.num_probes, f"the manifest says {split.num_probes:,} probes"),
        (index[0] != 0 or (index[1:] != expected_index).any(), "rows of a probe are missing"),
    ]
    seconds = rows.last_second[order][1:] - rows.first_second[order][:-1]
    fits = is_next & (size[1:] + size[:-1] <= _max_row_bytes(figures))
    fits &= seconds <= row_codec.COMPACT_MAX_SPAN_SECONDS
    faults.append((fits.any(), f"{int(fits.sum())} pairs of rows would fit into one"))
    wrong = [text for is_wrong, text in faults if is_wrong]
    count = f"{len(rows):,} rows = {num_probes:,} probes + {len(rows) - num_probes:,} row splits"
    return _check(name, expectation, "; ".join([count, *wrong]), not wrong)


def _row_size(figures: Figures) -> Check:
    limit, sampled = _max_row_bytes(figures), figures.sampled
    largest = int(figures.rows.num_bytes.max())
    num_untrue = int((sampled["record_bytes"] != figures.rows.num_bytes[sampled["number"]]).sum())
    largest = max(largest, int(sampled["record_bytes"].max(initial=0)))
    measured = f"largest {largest:,} bytes"
    if num_untrue:
        measured += f"; of {num_untrue} rows read rows.parquet has another size"
    return _check(
        "row_size",
        f"every record ≤ {limit:,} bytes (max_row_size_mb)",
        measured,
        largest <= limit and not num_untrue,
    )


def _schema(figures: Figures) -> Check:
    """Every row that is sampled decodes; that of the first line is asked for by the seeds."""
    columns = ", ".join(row_codec.RECORD_SCHEMA.names)
    expectation = f"every sampled row decodes, to {columns}"
    num_bad, num_good = len(figures.bad_rows), len(figures.sampled)
    measured = f"{num_good:,} of {num_good + num_bad:,} rows do, {figures.encoding} measurements"
    if num_bad:
        measured += f"; {figures.bad_rows[0]}"
    return _check("schema", expectation, measured, num_good > 0 and not num_bad)


def _row_order(figures: Figures) -> Check:
    expectation = "the timestamps of a row ascend, from its first_ to its last_timestamp"
    if not len(figures.sampled):
        return _absent("row_order", expectation, "no row could be read")
    good = int(figures.sampled["is_in_order"].sum())
    measured = f"in {good:,} of {len(figures.sampled):,} rows"
    return _check("row_order", expectation, measured, good == len(figures.sampled))


# --- contexts -----------------------------------------------------------------------------------


def _examples(figures: Figures) -> Iterator[Check]:
    size = figures.extent.crop_size
    for name, expectation, unit in (
        ("shapes", f"six arrays of int32 [batch, {size}]", "examples"),
        ("targets", "a target is the next input of its segment; padding is zero", "examples"),
        ("positions", "positions count from 0 in every segment, padding is last", "examples"),
        ("decodes", "every context decodes to measurements of its row", "contexts"),
        ("context_order", "timestamps in a context never go back", "contexts"),
    ):
        tally = figures.tallies["times" if name == "context_order" else name]
        if not tally.num_checked:
            yield _absent(name, expectation, "there are no examples")
            continue
        measured = f"{tally.num_checked:,} {unit}, {tally.num_faults} faults"
        if tally.faults:
            measured += f"; {tally.faults[0]}"
        yield _check(name, expectation, measured, not tally.num_faults)


def _num_contexts(figures: Figures) -> Check:
    expectation = (
        f"K = min(ceil(n / {CONTEXTS_PER_MEASUREMENTS}), {MOST_CONTEXTS}) contexts of a large row"
    )
    large = figures.sampled[figures.sampled["size"] != SMALL]
    if not len(large):
        return _absent("num_contexts", expectation, "there are no large rows")
    is_right = large["num_contexts"] == expected_contexts(large["num_measurements"])
    k = large["num_contexts"]
    measured = f"of {int(is_right.sum()):,} of {len(large):,} rows; K {k.min()} to {k.max()}"
    return _check("num_contexts", expectation, measured, bool(is_right.all()))


def _modes(summary: dict[str, list[Line]]) -> Iterator[Check]:
    shares = " / ".join(percent(share, 0) for share in MODE_SHARES)
    for rows in ("large", "small"):
        lines = summary["modes"]
        expectation = f"modes {shares} of {rows} rows"
        name, draws = f"modes_{rows}", lines[0][f"{rows}_draws"]
        if not draws:
            least = f" of {LEAST_OF_A_SMALL_ROW} measurements" if rows == "small" else ""
            yield _absent(name, expectation, f"there are no {rows} rows{least}")
            continue
        bounds = " / ".join(f"{100 * line[f'{rows}_bound']:.1f}" for line in lines)
        expectation += f", ± {bounds} points ({NUM_DEVIATIONS} σ, binomial)"
        found = " / ".join(percent(line[f"{rows}_share"]) for line in lines)
        holds = all(
            abs(line[f"{rows}_share"] - line["expected"]) <= line[f"{rows}_bound"] for line in lines
        )
        yield _check(name, expectation, f"{found} of {draws:,} draws", holds)


def _partial_share(figures: Figures) -> Check:
    name = "partial_share"
    expectation = "10 to 90 % (± 2 measurements) without timestamp in mode partial"
    num, num_outside = partial_outside(figures)
    if not num:
        why = f"no partial context has {LEAST_OF_A_CONTEXT} measurements"
        return _absent(name, expectation, why)
    return _check(name, expectation, f"{num:,} contexts, {num_outside} outside", not num_outside)


# --- padding, strides, bytes --------------------------------------------------------------------


def _batch_padding(figures: Figures, summary: dict[str, list[Line]]) -> Check:
    name = "batch_padding"
    expectation = f"mean padding < {percent(MOST_BATCH_PADDING)} in build_dataset's endless batches"
    line = mean_padding(summary, "batches of build_dataset")
    if figures.batch_error is not None:
        return Check(name, expectation, figures.batch_error, FAIL)
    if line["mean"] is None:
        return _absent(name, expectation, "there are no batches")
    measured = f"{percent(line['mean'], 4)} of {line['examples']:,} examples"
    return _check(name, expectation, measured, line["mean"] < MOST_BATCH_PADDING)


def _context_padding(summary: dict[str, list[Line]]) -> Check:
    name = "context_padding"
    expectation = f"mean padding < {percent(MOST_CONTEXT_PADDING, 0)} in contexts of large rows"
    line = mean_padding(summary, "contexts of large rows")
    if line["mean"] is None:
        return _absent(name, expectation, "there are no large rows")
    measured = f"{percent(line['mean'], 4)} of {line['examples']:,} contexts"
    measured += f", at most {percent(line['most'], 2)}"
    return _check(name, expectation, measured, line["mean"] < MOST_CONTEXT_PADDING)


def _strides(figures: Figures) -> Check:
    expectation = "strides are powers of two, and their windows lie in the row"
    strided = figures.strided
    if not len(strided):
        return _absent("strides", expectation, "no row could be read")
    stride, n = strided["window"], figures.facts(strided, "num_measurements")
    is_right = (stride > 0) & (stride & (stride - 1) == 0)
    is_right &= stride * (strided["num_measurements"] - 1) < n
    measured = f"{int(is_right.sum()):,} of {len(strided):,} contexts, strides 1 to {stride.max()}"
    return _check("strides", expectation, measured, bool(is_right.all()))


def _bytes(figures: Figures, summary: dict[str, list[Line]]) -> Check:
    name = "bytes_per_measurement"
    expectation = "compact: no more bytes than tokens without timestamps, a measurement"
    line = next((line for line in summary["density"] if line["group"] == "all"), None)
    if line is None:
        return _absent(name, expectation, "no row could be read")
    stored, tokens = line["measurements_bytes"], line["untimed_tokens"]
    measured = f"{stored:.2f} bytes, {tokens:.2f} tokens"
    if figures.encoding != "compact":
        return _absent(name, expectation, f"{measured}; the encoding is {figures.encoding}")
    return _check(name, expectation, measured, stored <= tokens)
