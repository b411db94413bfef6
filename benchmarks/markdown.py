"""Tables and notes of all benches in Markdown, and their place in a document."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.results import Results, medians

type Columns = dict[str, Callable[[Any], str]]  # title: what a line shows


def table(columns: Iterable[str], rows: Iterable[Sequence[str]], num_words: int = 1) -> str:
    """Returns a table; the first `num_words` columns are words, the others numbers."""
    titles = [*columns]
    aligned = ["---"] * num_words + ["---:"] * (len(titles) - num_words)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, aligned, *rows))


def rows(columns: Columns, lines: Iterable[Any], num_named: int = 2) -> list[list[str]]:
    """Returns the cells of lines; without figures, the first `num_named` of them and `failed`."""
    cells = [*columns.values()]
    failed = ["failed", *[""] * (len(cells) - num_named - 1)]
    return [
        [cell(line) for cell in cells]
        if line.figures
        else [*(cell(line) for cell in cells[:num_named]), *failed]
        for line in lines
    ]


def figure(name: str, pattern: str = "{:,.0f}") -> Callable[[Any], str]:
    """Returns what shows a figure of a line; nothing if it has none of that name."""
    return lambda line: pattern.format(line.figures[name]) if name in line.figures else ""


def millions(number: int) -> str:
    """Returns a size such as 10 M; below a million, with separators."""
    return f"{number / 1e6:g} M" if number >= 1_000_000 else f"{number:,}"


def circumstances(results: Results) -> str:
    """Returns a sentence on when, on what and how often was measured."""
    num_rounds = results.options["rounds"]
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    rounds = "one round"
    if num_rounds > 1:
        rounds = f"medians of {num_rounds} rounds, the contenders interleaved"
    return f"{results.date[:10]}, {machine(results)}; {rounds}; {versions}."


def machine(results: Results) -> str:
    """Returns the machine: its CPU, cores and memory."""
    found = results.machine
    return f"{found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB"


def shortfalls(
    results: Results, title: Callable[[dict], str], where: Callable[[dict], str]
) -> list[str]:
    """Returns a sentence for each case that did not run or failed.

    Args:
      title: what to call the contender of a case.
      where: the rest of the case, such as "at 1 M".
    """
    places: dict[tuple[str, str], list[str]] = {}
    for skip in results.skipped:
        places.setdefault((title(skip), f": {skip['reason']}."), []).append(where(skip))
    lines = []
    for (name, reason), found in places.items():
        first, *others = dict.fromkeys(found)
        all_places = ", ".join([first, *(place.partition(" ")[2] for place in others)])
        lines.append(f"{name} did not run {all_places}".rstrip() + reason)
    for line in medians(results.runs):
        if line.num_failed:
            failed = f"failed {line.num_failed} of {line.num_runs} runs {where(line.case)}"
            lines.append(f"{title(line.case)} {failed}".rstrip() + ".")
    return lines


def insert(text: str, bench: str, content: str) -> str:
    """Returns a document's text with `content` between the markers of a bench.

    Raises:
      ValueError: the markers are not there, once each and in order.
    """
    begin, end = f"<!-- bench:{bench} -->", f"<!-- /bench:{bench} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"needs one line {begin} and after it one line {end}")
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    replaced, count = pattern.subn(lambda _: f"{begin}\n{content}\n{end}", text)
    if count != 1:
        raise ValueError(f"{end} is before {begin}")
    return replaced
