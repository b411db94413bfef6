"""The summary that an overlap run prints: a table of overlaps, counts, and the next command.

It comes from the finished output's files, not from worker counters.
"""

import shlex
from collections.abc import Iterator
from typing import Any

import msgspec
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.errors import number_of, printable, program
from beam_pipeline.overlap.job.config import DeconConfig
from beam_pipeline.overlap.job.manifest import read_summary
from beam_pipeline.overlap.report.contents import Report, RowCounts, read_contents
from beam_pipeline.overlap.report.output import Output
from beam_pipeline.overlap.results.layout import (
    BOILERPLATE,
    DEAD_LETTER_FOLDER,
    DETAILS_LEFT_OUT,
    NOT_LOOKED_UP,
    STATS,
    VERDICTS,
)
from beam_pipeline.overlap.results.output_files import read_lines
from beam_pipeline.overlap.results.rules import SHORT_TOKENS
from beam_pipeline.report.tables import Table
from beam_pipeline.report.terminal import new_console, print_table


def print_summary(config: DeconConfig, output: str, seconds: float) -> None:
    """Prints the overlap of each evaluation set, the effect of caps, and the next command."""
    console = new_console()
    summary, report = read_summary(output), read_contents(Output(output), config.lengths)
    print_table(console, _verdicts(output))
    if report.verdicts:
        columns = ["evaluation set", ("rule", "text"), *("n", "rows")]
        rows = [msgspec.structs.astuple(one)[:-2] for one in report.verdicts]
        print_table(console, Table("", [*columns, "clean", "between", "dirty"], rows))
    for line in _lines(config, output, summary, report, seconds):
        console.print(printable(line), soft_wrap=True, markup=False)


def _verdicts(output: str) -> Table:
    """Returns the rows that are hit, clean and not looked up, by evaluation set and n."""
    stats = read_lines(FileSystems.join(output, STATS))
    num_ids = {line["eval_dataset"]: line["num_instances"] for line in stats}
    lines = list(Output(output).records(VERDICTS, RowCounts))
    columns = ["evaluation set", "n", "rows", "ids", "hit", f"under {SHORT_TOKENS} tokens"]
    columns += ["clean", "not looked up", ("share", "percent2")]
    rows = []
    for one in lines:
        share = one.num_hit / one.num_looked_up if one.num_looked_up else None
        ids, *counts = num_ids[one.eval_dataset], *msgspec.structs.astuple(one)[3:]
        if one.n is not None:
            rows.append([one.eval_dataset, one.n, one.num_rows, ids, *counts, share])
    return Table(output, columns, rows)


def _lines(
    config: DeconConfig, output: str, summary: dict[str, Any], report: Report, seconds: float
) -> list[str]:
    """Returns the lines below the table."""
    counts = summary["counts"]
    texts, rows = number_of(counts["train_texts"], "text"), number_of(counts["eval_rows"], "row")
    train_files = number_of(summary["num_train_files"], "training file")
    eval_files = number_of(summary["num_eval_files"], "evaluation file")
    lines = [
        f"{texts} of {train_files} and {rows} of {eval_files} in {seconds:.1f} s: "
        f"{report.num_matches:,} matches"
    ]
    lines += [
        f"{number_of(found.num_rows, 'row')} of {found.eval_dataset} hit in {found.fields}"
        for found in report.fields
    ]
    names = config.eval_text_fields
    without = counts["train_without_text"], counts["eval_without_text"]
    if any(without):
        of_rows = f" and --eval_text_field={','.join(names)}" if names else ""
        lines.append(
            f"Without a text: {without[0]:,} training and {without[1]:,} evaluation records; the "
            f"field is --text_field={config.text_field}{of_rows}"
        )
    if letters := counts["dead_letters"]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in letters.items())
        folder = FileSystems.join(output, DEAD_LETTER_FOLDER)
        num_letters = number_of(sum(letters.values()), "dead letter")
        lines.append(f"{num_letters} in {folder}: {reasons}")
    lines += [*_not_looked_up(config, output, counts), *summary["warnings"]]
    if num_boilerplate := counts["matches"] - report.num_matches:
        path = FileSystems.join(output, BOILERPLATE)
        lines.append(f"Boilerplate is not counted: {num_boilerplate:,} matches, see {path}")
    if counts["details_left_out"]:
        caps = [
            f"--{name}={getattr(config, name)}"
            for name in ("max_details_per_pair", "max_details")
            if getattr(config, name) >= 0
        ]
        lines.append(
            f"overlap_details has {number_of(counts['details'], 'record')}; "
            f"{counts['details_left_out']:,} are left out by {' and '.join(caps)}, see "
            f"{FileSystems.join(output, DETAILS_LEFT_OUT)}; all would be "
            f"{counts['detail_bytes'] / 1e6:,.1f} MB before compression"
        )
    lines.append(f"Next: {program('report', 'beam_pipeline.overlap.report')} {shlex.quote(output)}")
    return lines


def _not_looked_up(config: DeconConfig, output: str, counts: dict[str, Any]) -> Iterator[str]:
    """Yields warnings about evaluation rows that were not looked up, or should not be."""
    if num_degenerate := counts["degenerate_eval_rows"]:
        rows = f"{number_of(num_degenerate, 'evaluation row')} with only empty tokens"
        if config.degenerate == "emit":
            yield f"Warning: {rows}, which nearly any text matches; --degenerate=skip omits them"
    if by_reason := counts["eval_rows_not_looked_up"]:
        rows = number_of(sum(by_reason.values()), "evaluation row")
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in by_reason.items())
        yield f"Not looked up: {rows} ({reasons}), see {FileSystems.join(output, NOT_LOOKED_UP)}"
