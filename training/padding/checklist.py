"""The checklist of `training.analyze_padding`: expectation, measurement and verdict of each check.

A check of something that the data does not have, large rows for example, is "not applicable": it
says nothing, and does not pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from beam_pipeline.dataset import row_codec
from beam_pipeline.errors import ProbelineError
from beam_pipeline.report.tables import percent
from training.padding.statistics import SMALL, Statistics
from training.padding.summary import (
    CONTEXTS_PER_MEASUREMENTS,
    MAX_CONTEXTS,
    MIN_MEASUREMENTS_FOR_SHARE,
    MODE_SHARES,
    NUM_DEVIATIONS,
    expected_contexts,
    padding_line,
    partial_outside,
)
from training.tokens.kinds import MIN_MEASUREMENTS_FOR_MODE

Result = Literal["pass", "FAIL", "not applicable"]
PASS: Result = "pass"
FAIL: Result = "FAIL"
NOT_APPLICABLE: Result = "not applicable"
MAX_BATCH_PADDING = 0.001
MAX_CONTEXT_PADDING = 0.05


@dataclass(frozen=True)
class Check:
    """One line of the checklist."""

    name: str
    expectation: str
    measured: str
    result: Result


def run_checks(statistics: Statistics) -> list[Check]:
    """Returns the checklist: rows, examples, contexts, padding, bytes."""
    return [
        *_rows(statistics),
        *_examples(statistics),
        _num_contexts(statistics),
        *_modes(statistics),
        _partial_share(statistics),
        *_padding(statistics),
        _strides(statistics),
        _bytes(statistics),
    ]


def _check(name: str, expectation: str, measured: str, holds: bool | None) -> Check:
    """Returns a check; one that does not hold and does not fail either (None) is not applicable."""
    result = NOT_APPLICABLE if holds is None else PASS if holds else FAIL
    return Check(name, expectation, measured, result)


# --- rows ---------------------------------------------------------------------------------------


def _rows(statistics: Statistics) -> Iterator[Check]:
    options = statistics.dataset.manifest.options
    if "max_row_size_mb" not in options:
        raise ProbelineError(
            f"the manifest of {statistics.dataset.path} has no option max_row_size_mb: it was not "
            "written by this version of Probeline"
        )
    limit = int(float(options["max_row_size_mb"]) * (1 << 20))
    yield _row_count(statistics, limit)

    sampled, bad = statistics.sampled, statistics.bad_rows
    indexed = statistics.rows.num_bytes
    num_wrong = int((sampled["record_bytes"] != indexed[sampled["number"]]).sum())
    largest = max(int(indexed.max()), int(sampled["record_bytes"].max(initial=0)))
    measured = f"largest {largest:,} bytes"
    if num_wrong:
        measured += f"; rows.parquet gives another size for {num_wrong} of the rows read"
    expectation = f"every record ≤ {limit:,} bytes (max_row_size_mb)"
    yield _check("row_size", expectation, measured, largest <= limit and not num_wrong)

    expectation = f"every sampled row decodes, to {', '.join(row_codec.RECORD_SCHEMA.names)}"
    count = f"{len(sampled):,} of {len(sampled) + len(bad):,} rows do"
    measured = "; ".join([f"{count}, {statistics.encoding} measurements", *bad[:1]])
    yield _check("schema", expectation, measured, len(sampled) > 0 and not bad)

    expectation = "timestamps of a row ascend, from its first_timestamp to its last_timestamp"
    good = int(sampled["is_in_order"].sum())
    measured, holds = f"in {good:,} of {len(sampled):,} rows", good == len(sampled)
    if not len(sampled):
        measured, holds = "no row could be read", None
    yield _check("row_order", expectation, measured, holds)


def _row_count(statistics: Statistics, max_row_bytes: int) -> Check:
    """A probe has more than one row only if its measurements do not fit into one."""
    name, rows = "row_count", statistics.rows
    expectation = "one row per probe, more only if one would be too large; as the manifest counts"
    split = statistics.dataset.manifest.splits[statistics.shards.split]
    if len(statistics.shards.chosen) < len(statistics.shards.shards):
        return _check(name, expectation, "only some shards of the split were named", None)
    order = np.lexsort([rows.row_index, rows.src_id])
    src_id, index, size = rows.src_id[order], rows.row_index[order], rows.num_bytes[order]
    is_next = src_id[1:] == src_id[:-1]
    num_probes = int((~is_next).sum()) + 1
    expected_index = np.where(is_next, index[:-1] + 1, 0)
    seconds = rows.last_second[order][1:] - rows.first_second[order][:-1]
    fits = is_next & (size[1:] + size[:-1] <= max_row_bytes)
    fits &= seconds <= row_codec.COMPACT_MAX_SPAN_SECONDS
    faults = (
        (len(rows) != split.num_records, f"the manifest says {split.num_records:,} rows"),
        (num_probes != split.num_probes, f"the manifest says {split.num_probes:,} probes"),
        (index[0] != 0 or (index[1:] != expected_index).any(), "rows of a probe are missing"),
        (fits.any(), f"{int(fits.sum())} pairs of rows would fit into one"),
    )
    wrong = [text for is_wrong, text in faults if is_wrong]
    count = f"{len(rows):,} rows = {num_probes:,} probes + {len(rows) - num_probes:,} row splits"
    return _check(name, expectation, "; ".join([count, *wrong]), not wrong)


# --- contexts -----------------------------------------------------------------------------------


def _examples(statistics: Statistics) -> Iterator[Check]:
    expectations = {
        "shapes": f"six arrays of int32 [batch, {statistics.extent.crop_size}]",
        "targets": "a target is the next input of its segment; padding is zero",
        "positions": "positions count from 0 in every segment, padding is last",
        "decodes": "every context decodes to measurements of its row",
        "context_order": "timestamps in a context never go back",
    }
    for name, expectation in expectations.items():
        tally = statistics.tallies[name]
        noun = "contexts" if name in ("decodes", "context_order") else "examples"
        measured, holds = "there are no examples", None
        if tally.num_checked:
            count = f"{tally.num_checked:,} {noun}, {tally.num_faults} faults"
            measured, holds = "; ".join([count, *tally.faults[:1]]), not tally.faults
        yield _check(name, expectation, measured, holds)


def _num_contexts(statistics: Statistics) -> Check:
    name = "num_contexts"
    formula = f"min(ceil(n / {CONTEXTS_PER_MEASUREMENTS}), {MAX_CONTEXTS})"
    expectation = f"a large row of n measurements has K = {formula} contexts"
    large = statistics.sampled[statistics.sampled["size"] != SMALL]
    if not len(large):
        return _check(name, expectation, "there are no large rows", None)
    k = large["num_contexts"]
    good = int((k == expected_contexts(large["num_measurements"])).sum())
    measured = f"{good:,} of {len(large):,} rows; K {k.min()} to {k.max()}"
    return _check(name, expectation, measured, good == len(large))


def _modes(statistics: Statistics) -> Iterator[Check]:
    lines = statistics.summary["modes"]
    for rows in ("large", "small"):
        shares = " / ".join(percent(share, 0) for share in MODE_SHARES)
        name, expectation = f"modes_{rows}", f"modes {shares} of {rows} rows"
        draws = lines[0][f"{rows}_draws"]
        if not draws:
            minimum = f" of {MIN_MEASUREMENTS_FOR_MODE} measurements" if rows == "small" else ""
            yield _check(name, expectation, f"there are no {rows} rows{minimum}", None)
            continue
        bounds = " / ".join(f"{100 * line[f'{rows}_bound']:.1f}" for line in lines)
        expectation += f", ± {bounds} points ({NUM_DEVIATIONS} σ, binomial)"
        found = " / ".join(percent(line[f"{rows}_share"]) for line in lines)
        holds = all(
            abs(line[f"{rows}_share"] - line["expected"]) <= line[f"{rows}_bound"] for line in lines
        )
        yield _check(name, expectation, f"{found} of {draws:,} draws", holds)


def _partial_share(statistics: Statistics) -> Check:
    name = "partial_share"
    expectation = "10 to 90 % (± 2 measurements) without timestamp in mode partial"
    num, num_outside = partial_outside(statistics)
    if not num:
        measured = f"no partial context has {MIN_MEASUREMENTS_FOR_SHARE} measurements"
        return _check(name, expectation, measured, None)
    return _check(name, expectation, f"{num:,} contexts, {num_outside} outside", not num_outside)


# --- padding, strides, bytes --------------------------------------------------------------------


def _padding(statistics: Statistics) -> Iterator[Check]:
    for name, of, limit, absent in (
        ("batch_padding", "batches of build_dataset", MAX_BATCH_PADDING, "batches"),
        ("context_padding", "contexts of large rows", MAX_CONTEXT_PADDING, "large rows"),
    ):
        line = padding_line(statistics.summary, of)
        expectation = f"mean padding < {percent(limit)} in {of}"
        if name == "batch_padding" and statistics.batch_error is not None:
            yield _check(name, expectation, statistics.batch_error, False)
        elif line["mean"] is None:
            yield _check(name, expectation, f"there are no {absent}", None)
        else:
            measured = f"{percent(line['mean'], 4)} of {line['examples']:,} examples"
            measured += f", at most {percent(line['max'], 2)}"
            yield _check(name, expectation, measured, line["mean"] < limit)


def _strides(statistics: Statistics) -> Check:
    name, strided = "strides", statistics.strided
    expectation = "strides are powers of two, and their windows lie within the row"
    if not len(strided):
        return _check(name, expectation, "no row could be read", None)
    stride, n = strided["window"], statistics.rows.n_measurements[strided["number"]]
    is_right = (stride > 0) & (stride & (stride - 1) == 0)
    is_right &= stride * (strided["num_measurements"] - 1) < n
    measured = f"{int(is_right.sum()):,} of {len(strided):,} contexts, strides 1 to {stride.max()}"
    return _check(name, expectation, measured, bool(is_right.all()))


def _bytes(statistics: Statistics) -> Check:
    name = "bytes_per_measurement"
    expectation = "compact: at most as many bytes per measurement as tokens without timestamps"
    line = next((line for line in statistics.summary["density"] if line["group"] == "all"), None)
    if line is None:
        return _check(name, expectation, "no row could be read", None)
    stored, tokens = line["measurements_bytes"], line["untimed_tokens"]
    measured = f"{stored:.2f} bytes, {tokens:.2f} tokens"
    if statistics.encoding != "compact":
        measured += f"; the encoding is {statistics.encoding}"
        return _check(name, expectation, measured, None)
    return _check(name, expectation, measured, stored <= tokens)
