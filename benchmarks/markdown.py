"""What the tables of all benches share: cells to Markdown, their place in a document."""

import re
from collections.abc import Sequence

from benchmarks.results import Results


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], num_words: int = 1) -> str:
    """Returns a table; the first `num_words` columns are words, the others numbers."""
    aligned = ["---"] * num_words + ["---:"] * (len(columns) - num_words)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, aligned, *rows))


def circumstances(results: Results) -> str:
    """Returns a sentence on when, on what and how often was measured."""
    machine, num_rounds = results.machine, results.options["rounds"]
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    rounds = "one round"
    if num_rounds > 1:
        rounds = f"medians of {num_rounds} rounds, the contenders interleaved"
    return (
        f"{results.date[:10]}, {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB; {rounds}; {versions}."
    )


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
        raise ValueError(f"{end} stands before {begin}")
    return replaced
