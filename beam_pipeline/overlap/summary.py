"""The summary that an overlap run prints: a table of the overlaps, counts and the next command.

It is read from the files of the finished output, not from what workers reported.
"""

import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from apache_beam.io.filesystems import FileSystems
from rich.console import Console
from rich.table import Table
from rich.text import Text

from beam_pipeline.errors import printable
from beam_pipeline.overlap.job.config import DeconConfig
from beam_pipeline.overlap.job.manifest import read_summary
from beam_pipeline.overlap.results.layout import (
    BOILERPLATE,
    DEAD_LETTER_FOLDER,
    DETAILS_LEFT_OUT,
    FIELD_HITS,
    MATCHES,
    RULES,
    SHORT_ROWS,
    STATS,
)
from beam_pipeline.overlap.results.output_files import read_lines
from beam_pipeline.report.tables import number_of
from beam_pipeline.storage.parquet import open_parquet


def print_summary(config: DeconConfig, output: str, seconds: float) -> None:
    """Prints the overlap of each evaluation set, what caps left out, and the next command."""
    console = Console(file=sys.stdout, highlight=False)
    summary = read_summary(output)
    console.print(_table(output, read_lines(FileSystems.join(output, STATS))))
    if config.all_rules:
        console.print(_rule_table(read_lines(FileSystems.join(output, RULES))))
    for line in _lines(config, output, summary, seconds):
        console.print(printable(line), soft_wrap=True, markup=False)


def _table(output: str, stats: Iterable[dict[str, Any]]) -> Table:
    # Text, since square brackets in a plain string are markup.
    table = Table("evaluation set", "n", "instances", "hit", "share", title=Text(output))
    for column in table.columns[1:]:
        column.justify = "right"
    for line in stats:
        instances, hit = line["num_instances"], len(line["instance_ids"])
        share = f"{hit / instances:.2%}" if instances else "-"
        numbers = (str(line["n"]), f"{instances:,}", f"{hit:,}", share)
        table.add_row(Text(line["eval_dataset"]), *numbers)
    return table


def _rule_table(lines: Iterable[dict[str, Any]]) -> Table:
    """Returns how many instances are clean and dirty by each rule."""
    table = Table("evaluation set", "rule", "n", "instances", "clean", "between", "dirty")
    for column in table.columns[2:]:
        column.justify = "right"
    names = ("n", "num_instances", "num_clean", "num_between", "num_dirty")
    for line in lines:
        numbers = (f"{line[name]:,}" for name in names)
        table.add_row(Text(line["eval_dataset"]), line["rule"], *numbers)
    return table


def _lines(config: DeconConfig, output: str, summary: dict[str, Any], seconds: float) -> list[str]:
    """Returns the lines below the table."""
    counts = summary["counts"]
    texts, rows = number_of(counts["train_texts"], "text"), number_of(counts["eval_rows"], "row")
    train_files = number_of(summary["num_train_files"], "training file")
    eval_files = number_of(summary["num_eval_files"], "evaluation file")
    with open_parquet(FileSystems.join(output, MATCHES)) as file:
        num_matches = file.metadata.num_rows  # without boilerplate
    lines = [
        f"{texts} of {train_files} and {rows} of {eval_files} in {seconds:.1f} s: "
        f"{num_matches:,} matches"
    ]
    names = config.eval_text_fields
    if config.eval_fields == "each":
        found = Counter(
            (row["eval_dataset"], ", ".join(row["fields_hit"]))
            for row in read_lines(FileSystems.join(output, FIELD_HITS))
        )
        lines += [
            f"{number_of(count, 'row')} of {name} hit in {hit}"
            for (name, hit), count in found.items()
        ]
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
    if num_boilerplate := counts["matches"] - num_matches:
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
    lines.append(f"Next: python -m beam_pipeline.overlap.report {shlex.quote(output)}")
    return lines


def _not_looked_up(config: DeconConfig, output: str, counts: dict[str, Any]) -> Iterator[str]:
    """Yields which rows and n-grams of the evaluation sets were left out, or should be."""
    if num_degenerate := counts["degenerate_eval_rows"]:
        rows = f"{number_of(num_degenerate, 'evaluation row')} of empty tokens alone"
        if config.degenerate == "emit":
            yield f"Warning: nearly any text matches {rows}; --degenerate=skip leaves such rows out"
        else:
            yield f"Not looked up, so without a hit: {rows}, by --degenerate=skip"
    if config.min_tokens and (num_short := counts["short_eval_rows"]):
        rows = f"{number_of(num_short, 'evaluation row')} of fewer tokens"
        yield (
            f"Not looked up, so without a hit: {rows}, by --min_tokens={config.min_tokens}, see "
            f"{FileSystems.join(output, SHORT_ROWS)}"
        )
