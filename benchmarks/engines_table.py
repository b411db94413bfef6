"""The table of the engines bench and what a reader must know to judge it."""

from benchmarks import markdown as md
from benchmarks.results import Results, medians

COLUMNS = ("engine", "measurements", "wall s", "CPU s", "peak MiB", "shuffled MB")
TITLES = {
    "memory": "in-memory runner",
    "memory-2": "in-memory runner, 2 processes",
    "prism": "Prism",
    "flink-1": "Flink, parallelism 1",
    "flink-2": "Flink, parallelism 2",
    "memory-gcs": "in-memory runner, output on `gs://` (emulator)",
}


def rows(results: Results) -> list[list[str]]:
    """Returns the table's cells, a row an engine and size; sizes ascending."""
    lines = sorted(medians(results.runs), key=lambda line: line.case["num_measurements"])
    cells = []
    for line in lines:
        head = [TITLES[line.case["engine"]], f"{line.case['num_measurements'] / 1e6:g} M"]
        if line.figures:
            wall, cpu, peak = (line.figures[name] for name in ("wall_s", "cpu_s", "peak_mib"))
            shuffled = f"{line.figures['shuffled_mb']:,.1f}"
            cells.append([*head, f"{wall:.1f}", f"{cpu:.1f}", f"{peak:,.0f}", shuffled])
        else:
            cells.append([*head, "failed", "", "", ""])
    return cells


def notes(results: Results) -> list[str]:
    """Returns the circumstances, whether the bytes were the same, and what did not run."""
    lines = [
        md.circumstances(results),
        f"Simulated measurements of {results.options['num_probes']:,} probes, default options. "
        "CPU, wall and memory are of the whole process tree, start of Python, Prism and Java "
        "included; the emulator of GCS is not in it. Shuffled are the elements that go into a "
        "GroupByKey or the stateful cut; what they refer to stays on storage.",
    ]
    sizes = sorted({run.case["num_measurements"] for run in results.runs})
    for size in sizes:
        runs = [run for run in results.runs if run.case["num_measurements"] == size]
        good = [run for run in runs if run.error is None]
        same = "the same bytes" if len({run.dataset for run in good}) == 1 else "DIFFERENT BYTES"
        lines.append(f"At {size / 1e6:g} M, {len(good)} of {len(runs)} runs wrote {same}.")
    lines += [
        f"{TITLES[skip['engine']]} did not run: {skip['reason']}." for skip in results.skipped
    ]
    return lines


def markdown(results: Results) -> str:
    """Returns the table and its notes."""
    return "\n".join([md.table(COLUMNS, rows(results)), "", *notes(results)])
