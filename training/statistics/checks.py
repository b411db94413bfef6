"""The checks of `training.analyze_padding`: rows, examples, contexts, modes and padding.

A check is not applicable if the data lack its subject, such as large rows.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from beam_pipeline.dataset import row_codec
from beam_pipeline.errors import ProbelineError
from beam_pipeline.report.tables import percent
from training.statistics.analysis import SMALL, Statistics
from training.statistics.summary import NUM_DEVIATIONS, Summary, expected_contexts, padding_line

Result = Literal["pass", "FAIL", "not applicable"]
PASS: Result = "pass"
FAIL: Result = "FAIL"
NOT_APPLICABLE: Result = "not applicable"
MAX_BATCH_PADDING = 0.001
MAX_CONTEXT_PADDING = 0.05


class Check(NamedTuple):
    """A check, its measurement as text, and its result."""

    name: str
    measured: str
    result: Result


def run_checks(statistics: Statistics, summary: Summary) -> list[Check]:
    """Returns all checks, in the order of the report."""
    return [
        _row_count(statistics),
        _row_size(statistics),
        _rows_decode(statistics),
        _examples(statistics),
        _num_contexts(statistics),
        *_modes(summary),
        *_padding(statistics, summary),
    ]


def _check(name: str, measured: str, holds: bool | None) -> Check:
    """Returns a check, which is not applicable if `holds` is None."""
    return Check(name, measured, NOT_APPLICABLE if holds is None else PASS if holds else FAIL)


def _max_row_bytes(statistics: Statistics) -> int:
    options = statistics.dataset.manifest.options
    if "max_row_size_mb" not in options:
        raise ProbelineError(
            f"the manifest of {statistics.dataset.path} has no option max_row_size_mb: it was not "
            "written by this version of Probeline"
        )
    return int(float(options["max_row_size_mb"]) * (1 << 20))


def _row_count(statistics: Statistics) -> Check:
    """A probe has more than one row only if its measurements do not fit into one."""
    rows, max_row_bytes = statistics.rows, _max_row_bytes(statistics)
    split = statistics.dataset.manifest.splits[statistics.shards.split]
    if len(statistics.shards.chosen) < len(statistics.shards.shards):
        return _check("row_count", "not all shards of the split were named", None)
    order = np.lexsort([rows.row_index, rows.src_id])
    src_id, index, size = rows.src_id[order], rows.row_index[order], rows.num_bytes[order]
    is_next = src_id[1:] == src_id[:-1]
    num_probes = int((~is_next).sum()) + 1
    expected_index = np.where(is_next, index[:-1] + 1, 0)
    seconds = rows.last_second[order][1:] - rows.first_second[order][:-1]
    fits = is_next & (size[1:] + size[:-1] <= max_row_bytes)
    fits &= seconds <= row_codec.COMPACT_MAX_SPAN_SECONDS
    faults = (
        (len(rows) != split.num_records, f"the manifest has {split.num_records:,} rows"),
        (num_probes != split.num_probes, f"the manifest has {split.num_probes:,} probes"),
        (index[0] != 0 or (index[1:] != expected_index).any(), "rows of a probe are missing"),
        (fits.any(), f"{int(fits.sum())} pairs of rows would fit into one"),
    )
    wrong = [text for is_wrong, text in faults if is_wrong]
    count = f"{len(rows):,} rows = {num_probes:,} probes + {len(rows) - num_probes:,} row splits"
    return _check("row_count", "; ".join([count, *wrong]), not wrong)


def _row_size(statistics: Statistics) -> Check:
    sampled, indexed = statistics.sampled, statistics.rows.num_bytes
    limit = _max_row_bytes(statistics)
    num_wrong = int((sampled["record_bytes"] != indexed[sampled["number"]]).sum())
    largest = max(int(indexed.max()), int(sampled["record_bytes"].max(initial=0)))
    measured = f"largest record {largest:,} bytes, limit {limit:,} (max_row_size_mb)"
    if num_wrong:
        measured += f"; rows.parquet has a different size for {num_wrong} of the rows read"
    return _check("row_size", measured, largest <= limit and not num_wrong)


def _rows_decode(statistics: Statistics) -> Check:
    sampled, bad = statistics.sampled, statistics.bad_rows
    count = f"{len(sampled):,} of {len(sampled) + len(bad):,} rows decode"
    measured = "; ".join([f"{count}, {statistics.encoding} measurements", *bad[:1]])
    return _check("schema", measured, len(sampled) > 0 and not bad)


def _examples(statistics: Statistics) -> Check:
    """Shapes, targets and positions of examples; the measurements of decoded segments."""
    tally = statistics.examples
    if not tally.num_checked:
        return _check("examples", "there are no examples", None)
    count = f"{tally.num_checked:,} examples and segments, {tally.num_faults} faults"
    return _check("examples", "; ".join([count, *tally.faults[:1]]), not tally.faults)


def _num_contexts(statistics: Statistics) -> Check:
    large = statistics.sampled[statistics.sampled["size"] != SMALL]
    if not len(large):
        return _check("num_contexts", "there are no large rows", None)
    k = large["num_contexts"]
    good = int((k == expected_contexts(large["num_measurements"])).sum())
    measured = f"K {k.min()} to {k.max()}, right in {good:,} of {len(large):,} large rows"
    return _check("num_contexts", measured, good == len(large))


def _modes(summary: Summary) -> Iterator[Check]:
    lines = summary["modes"]
    for rows in ("large", "small"):
        draws = lines[0][f"{rows}_draws"]
        if not draws:
            yield _check(f"modes_{rows}", f"no context of {rows} rows shows its mode", None)
            continue
        found, expected = (
            " / ".join(percent(line[key]) for line in lines)
            for key in (f"{rows}_share", "expected")
        )
        bounds = " / ".join(f"{100 * line[f'{rows}_bound']:.1f}" for line in lines)
        holds = all(
            abs(line[f"{rows}_share"] - line["expected"]) <= line[f"{rows}_bound"] for line in lines
        )
        measured = f"{found} of {draws:,} draws; {expected} ± {bounds} points ({NUM_DEVIATIONS} σ)"
        yield _check(f"modes_{rows}", measured, holds)


def _padding(statistics: Statistics, summary: Summary) -> Iterator[Check]:
    for name, kind, limit, absent in (
        ("batch_padding", "batches of build_dataset", MAX_BATCH_PADDING, "batches"),
        ("context_padding", "contexts of large rows", MAX_CONTEXT_PADDING, "large rows"),
    ):
        line = padding_line(summary["padding"], kind)
        if name == "batch_padding" and statistics.batch_error is not None:
            yield _check(name, statistics.batch_error, False)
        elif line["mean"] is None:
            yield _check(name, f"there are no {absent}", None)
        else:
            measured = f"mean {percent(line['mean'], 4)} of {line['examples']:,} examples, "
            measured += f"limit {percent(limit)}; max {percent(line['max'], 2)}"
            yield _check(name, measured, line["mean"] < limit)
