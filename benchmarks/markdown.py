"""The benches' tables and notes in Markdown, and their place in a document."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.results import Results, medians

type Columns = dict[str, Callable[[Any], str]]  # by title: a line's cell


def table(columns: Iterable[str], rows: Iterable[Sequence[str]], num_words: int = 1) -> str:
    """Returns a table; the first `num_words` columns are words, the others numbers."""
    titles = [*columns]
    aligned = ["---"] * num_words + ["---:"] * (len(titles) - num_words)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, aligned, *rows))


def results_table(
    columns: Columns, lines: Iterable[Any], num_named: int = 2, num_words: int = 1
) -> str:
    """Returns a table of medians; a line without figures has `num_named` cells and `failed`."""
    cells, rows = [*columns.values()], []
    for line in lines:
        if line.figures:
            rows.append([cell(line) for cell in cells])
        else:
            named = [cell(line) for cell in cells[:num_named]]
            rows.append([*named, "failed", *[""] * (len(cells) - num_named - 1)])
    return table(columns, rows, num_words)


def figure(name: str, pattern: str = "{:,.0f}") -> Callable[[Any], str]:
    """Returns a column for a figure of a line, empty if the line lacks it."""
    return lambda line: pattern.format(line.figures[name]) if name in line.figures else ""


COSTS: Columns = {
    "wall s": figure("wall_s", "{:.1f}"),
    "CPU s": figure("cpu_s", "{:.1f}"),
    "peak MiB": figure("peak_mib"),
}


def size(number: int) -> str:
    """Returns a size such as 35 B or 10 M; below a million, with separators."""
    if number >= 1_000_000_000:
        return f"{number / 1e9:g} B"
    return f"{number / 1e6:g} M" if number >= 1_000_000 else f"{number:,}"


def circumstances(results: Results) -> str:
    """Returns a sentence on the date, the machine and the number of rounds."""
    num_rounds = results.options["rounds"]
    rounds = "one round"
    if num_rounds > 1:
        rounds = f"medians of {num_rounds} rounds, the contenders interleaved"
    return f"{results.date[:10]}, {machine(results)}; {rounds}."


def machine(results: Results) -> str:
    """Returns the machine: its CPU, cores and memory."""
    found = results.machine
    return f"{found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB"


def shortfalls(
    results: Results, title: Callable[[dict], str], where: Callable[[dict], str]
) -> list[str]:
    """Returns a sentence for each case that failed or did not run.

    Args:
      title: the name of a case's contender.
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


def page(tables: Iterable[str], notes: Iterable[str]) -> str:
    """Returns the tables, then the notes, one line each."""
    return "\n\n".join([*tables, "\n".join(notes)])


def insert(text: str, bench: str, content: str) -> str:
    """Returns a document with `content` between the markers of a bench.

    ValueError unless each marker is there once, in order.
    """
    begin, end = f"<!-- bench:{bench} -->", f"<!-- /bench:{bench} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"needs one line {begin} and after it one line {end}")
    return f"{text.partition(begin)[0]}{begin}\n{content}\n{end}{text.partition(end)[2]}"
