"""The tables of the overlap bench and what a reader must know to judge them."""

from collections.abc import Callable, Sequence

from benchmarks import markdown as md
from benchmarks.overlap_contenders import CONTENDERS, JOINED
from benchmarks.results import Median, Results, medians

_RATES = ("MB per CPU-second, whole run", "start-up, CPU s", "MB per CPU-second, start-up apart")
PEER_COLUMNS = (
    "contender", "n", "text MB", *_RATES, "ratio to the set, whole run",
    "ratio to the set, start-up apart", "wall s", "peak MiB", "documents with a hit",
)  # fmt: skip
FORMAT_COLUMNS = ("format", "n", "passes", "text MB", *_RATES, "wall s", "peak MiB")
GROWTH_COLUMNS = (
    "text MB", "passes", "CPU s", "start-up, CPU s", "CPU s a GB, start-up apart", "wall s",
    "peak MiB",
)  # fmt: skip


class _Line:
    """The medians of a case and what of them is start-up."""

    def __init__(self, line: Median, lines: Sequence[Median]):
        self.case, self.figures = line.case, line.figures
        self.start_s = next(
            (
                other.figures["cpu_s"]
                for other in lines
                if other.case["part"] == "start" and other.figures and _same_start(line, other)
            ),
            None,
        )

    @property
    def whole_rate(self) -> float:
        """MB of text a CPU-second."""
        return self.figures["text_mb"] / self.figures["cpu_s"]

    @property
    def scan_s(self) -> float | None:
        """CPU seconds without start-up; None if the run is too short to tell, or it is unknown."""
        if self.start_s is None or self.figures["cpu_s"] <= 1.05 * self.start_s:
            return None
        return self.figures["cpu_s"] - self.start_s

    @property
    def scan_rate(self) -> float | None:
        """MB of text a CPU-second, start-up apart."""
        return self.figures["text_mb"] / self.scan_s if self.scan_s else None

    @property
    def rates(self) -> list[str]:
        """The cells under _RATES."""
        return [_number(self.whole_rate), _number(self.start_s), _number(self.scan_rate)]

    def figure(self, name: str, pattern: str = "{:,.0f}") -> str:
        return pattern.format(self.figures[name]) if name in self.figures else ""


def _same_start(line: Median, other: Median) -> bool:
    names = ("contender", "lengths", "eval_rows", "num_shards")
    return all(line.case[name] == other.case[name] for name in names)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _table(
    columns: Sequence[str],
    lines: Sequence[_Line],
    cells: Callable[[_Line], list[str]],
    num_words: int,
) -> str:
    rows = []
    for line in lines:
        head, *rest = cells(line) if line.figures else [_name(line), "failed"]
        rows.append([head, *rest, *[""] * (len(columns) - 1 - len(rest))])
    return md.table(columns, rows, num_words)


def _name(line: _Line) -> str:
    case = line.case
    return {
        "peers": _title(case["contender"]),
        "formats": f".{case['file_format']}",
        "growth": f"{case['mb']:,}",
    }[case["part"]]


def _title(contender: str) -> str:
    return CONTENDERS[contender].title if contender in CONTENDERS else contender


def peers(lines: Sequence[_Line]) -> str:
    """Returns the table of all contenders on the same text."""

    def cells(line: _Line) -> list[str]:
        joined = next(
            (
                other
                for other in lines
                if other.case["contender"] == JOINED
                and other.case["lengths"] == line.case["lengths"]
                and other.figures
            ),
            None,
        )
        ratios: list[float | None] = [None, None]
        if joined is not None:
            ratios[0] = line.whole_rate / joined.whole_rate
            if line.scan_rate and joined.scan_rate:
                ratios[1] = line.scan_rate / joined.scan_rate
        return [
            _name(line), line.case["lengths"], line.figure("text_mb"), *line.rates,
            *map(_number, ratios), line.figure("wall_s", "{:.1f}"), line.figure("peak_mib"),
            line.figure("num_documents"),
        ]  # fmt: skip

    return _table(PEER_COLUMNS, lines, cells, 2)


def formats(lines: Sequence[_Line]) -> str:
    """Returns the table of the job on every format, and with more passes."""

    def cells(line: _Line) -> list[str]:
        return [
            _name(line), line.case["lengths"], line.figure("num_passes"), line.figure("text_mb"),
            *line.rates, line.figure("wall_s", "{:.1f}"), line.figure("peak_mib"),
        ]  # fmt: skip

    return _table(FORMAT_COLUMNS, lines, cells, 2)


def growth(lines: Sequence[_Line]) -> str:
    """Returns the table of the job on more and more text."""

    def cells(line: _Line) -> list[str]:
        a_gb = line.scan_s and line.scan_s / line.figures["text_mb"] * 1000
        return [
            line.figure("text_mb"), line.figure("num_passes"), line.figure("cpu_s", "{:.1f}"),
            _number(line.start_s), _number(a_gb), line.figure("wall_s", "{:.1f}"),
            line.figure("peak_mib"),
        ]  # fmt: skip

    return _table(GROWTH_COLUMNS, lines, cells, 0)


def notes(results: Results) -> list[str]:
    """Returns the circumstances, what is compared with what, and what did not run."""
    lines = [
        md.circumstances(results),
        "CPU, wall and memory are of the whole process tree, children included; MB are of text, "
        "uncompressed, without the JSON around it. Start-up is the same command on 20 documents: "
        "interpreter and libraries, the evaluation side, the end of the run.",
    ]
    found = {}
    for run in results.runs:
        if "num_ngrams" in run.figures and run.case["part"] != "start":
            what = (run.case["mb"], run.case["lengths"], run.case["eval_rows"])
            found.setdefault(what, set()).add((run.digest, run.figures["num_ngrams"]))
    if found:
        same = all(len(digests) == 1 for digests in found.values())
        numbers = sorted({int(number) for digests in found.values() for _, number in digests})
        lines.append(
            f"All that tell of n-grams found {'the same' if same else 'DIFFERENT ONES'} in the "
            "same text for the same n, by evaluation row, with occurrences and documents: "
            f"{numbers[0]:,} to {numbers[-1]:,} of them."
        )
    versions = results.options.get("versions_of_peers", {})
    lines += [f"{_title(name)}: version {version}." for name, version in versions.items()]
    lines += [
        f"{_title(skip['contender'])} did not run for n = {skip['lengths']}: {skip['reason']}."
        for skip in results.skipped
    ]
    lines += [
        f"{line.num_failed} of {line.num_runs} runs of {_title(line.case['contender'])} failed "
        f"({line.case['part']}, n = {line.case['lengths']})."
        for line in medians(results.runs)
        if line.num_failed
    ]
    return lines


def markdown(results: Results) -> str:
    """Returns all tables of which there are runs, and the notes."""
    every = medians(results.runs)
    parts = []
    for title, part, table in _SECTIONS:
        lines = [_Line(line, every) for line in every if line.case["part"] == part]
        if lines:
            parts += [title.format(**_indexed(lines)), table(lines)]
    return "\n\n".join([*parts, "\n".join(notes(results))])


def _indexed(lines: Sequence[_Line]) -> dict[str, str]:
    """Returns what a title may say of the index."""
    numbers = [line.figures["num_indexed"] for line in lines if "num_indexed" in line.figures]
    return {"indexed": f"{max(numbers) / 1e6:.1f} M" if numbers else "no"}


_SECTIONS = (
    ("**Beside its peers**", "peers", peers),
    ("**The job, by format and by passes over the text**", "formats", formats),
    ("**More and more text**, against an index of {indexed} n-grams", "growth", growth),
)
