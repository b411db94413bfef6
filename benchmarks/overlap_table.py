"""The table of the overlap bench, with notes: the peers, then the job by format and passes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks import markdown as md
from benchmarks.overlap_contenders import CONTENDERS
from benchmarks.results import Median, Results, medians


class Line(NamedTuple):
    """A case's medians, and its start-up's CPU seconds."""

    case: dict[str, Any]
    figures: dict[str, float]
    start_s: float | None

    @property
    def scan_s(self) -> float | None:
        """CPU seconds without start-up; None if unknown, or nearly all is start-up."""
        if self.start_s is None or self.figures["cpu_s"] <= 1.05 * self.start_s:
            return None
        return self.figures["cpu_s"] - self.start_s


def rate(line: Line | Median) -> float:
    """Returns MB of text per CPU-second."""
    return line.figures["text_mb"] / line.figures["cpu_s"]


def _scan_rate(line: Line) -> float | None:
    """Returns MB of text per CPU-second without start-up."""
    return line.figures["text_mb"] / line.scan_s if line.scan_s else None


def _lines(part: str, every: Sequence[Median]) -> list[Line]:
    """Returns the lines of a part with their start-ups."""

    def task(line: Median) -> tuple:
        return tuple(line.case[n] for n in ("contender", "lengths", "eval_rows", "num_shards"))

    starts = {
        task(line): line.figures["cpu_s"]
        for line in every
        if line.case["part"] == "start" and line.figures
    }
    return [
        Line(line.case, line.figures, starts.get(task(line)))
        for line in every
        if line.case["part"] == part
    ]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _title(case: dict[str, Any]) -> str:
    return CONTENDERS[case["contender"]].title


def _format(case: dict[str, Any]) -> str:
    return f", .{case['file_format']}" if case["part"] == "formats" else ""


_RATES: md.Columns = {
    "MB per CPU-second, whole run": lambda line: _number(rate(line)),
    "start-up, CPU s": lambda line: _number(line.start_s),
    "MB per CPU-second, start-up apart": lambda line: _number(_scan_rate(line)),
}
_COLUMNS: md.Columns = {
    "contender": lambda line: _title(line.case) + _format(line.case),
    "n": lambda line: line.case["lengths"],
    "passes": md.figure("num_passes"),
    "text MB": md.figure("text_mb"),
    **_RATES,
    **{name: md.COSTS[name] for name in ("wall s", "peak MiB")},
}


def _notes(results: Results) -> list[str]:
    """Returns the circumstances, the comparisons, and the cases that did not run."""
    lines = [
        md.circumstances(results),
        "CPU, wall and memory are of the whole process tree, children included; MB are of text, "
        "uncompressed, without the JSON around it. Start-up is the same command on 20 documents: "
        "interpreter and libraries, the evaluation side, the end of the run.",
    ]
    growth = [line for line in medians(results.runs) if line.case["part"] == "growth"]
    if growth := [line.figures for line in growth if line.figures]:
        sizes = (
            f"{figures['peak_mib']:,.0f} MiB at {figures['text_mb']:,.0f} MB" for figures in growth
        )
        indexed = max(figures["num_indexed"] for figures in growth)
        lines.append(
            f"Peak with {indexed / 1e6:.1f} M n-grams in the index: {', '.join(sizes)} of text."
        )
    found: dict[tuple, set] = {}
    for run in results.runs:
        if "num_ngrams" in run.figures and run.case["part"] != "start":
            task = (run.case["mb"], run.case["lengths"], run.case["eval_rows"])
            found.setdefault(task, set()).add((run.details["digest"], run.figures["num_ngrams"]))
    if found:
        same = all(len(digests) == 1 for digests in found.values())
        numbers = sorted({int(number) for digests in found.values() for _, number in digests})
        lines.append(
            f"All that report n-grams found {'the same' if same else 'DIFFERENT ONES'} in the "
            "same text for the same n, by evaluation row, with occurrences and documents: "
            f"{numbers[0]:,} to {numbers[-1]:,} of them."
        )
    for name, version in results.options.get("versions_of_peers", {}).items():
        lines.append(f"{_title({'contender': name})}: version {version}.")
    return lines + md.shortfalls(results, _title, lambda case: f"for n = {case['lengths']}")


def markdown(results: Results) -> str:
    """Returns the table and the notes."""
    every = medians(results.runs)
    lines = _lines("peers", every)
    lines += [line for line in _lines("formats", every) if "," not in line.case["lengths"]]
    return md.page([md.results_table(_COLUMNS, lines, 1, num_words=2)], _notes(results))
