"""The tables of the scale bench: what was measured, and apart from it what follows for large runs.

The first two tables are results. The third is an estimate: its formulas are in
`benchmarks.estimate`, its prices and assumptions are printed beside it.
"""

from collections.abc import Callable
from dataclasses import fields

from beam_pipeline.dataset.layout import count_shards
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.sources.inputs import UNIT_ROWS
from benchmarks import markdown as md
from benchmarks.estimate import (
    REQUESTS,
    Assumptions,
    PerMeasurement,
    Prices,
    Run,
    costs_of,
    hot_probe,
    hot_probe_s,
    of_a_shard,
    per_measurement,
    use_of,
)
from benchmarks.results import Median, Results, medians

TARGETS = ((200_000_000, 4), (35_000_000_000, 100))  # measurements, vCPUs
_NUM_PROBES = 10_000
_RUN_BYTES = 16 + 0.1 * 12  # a tenth of the destinations IPv6


def _each(name: str) -> Callable[[Median], str]:
    """Returns what shows a count for each measurement."""
    return lambda line: f"{line.figures.get(name, 0) / line.case['num_measurements']:.1f}"


def _cpu_ns(line: Median) -> str:
    return f"{line.figures['cpu_s'] / line.case['num_measurements'] * 1e9:,.0f}"


_MEASURED: md.Columns = {
    "shape": lambda line: line.case["shape"],
    "where": lambda line: line.case["place"],
    "measurements": lambda line: f"{line.case['num_measurements'] / 1e6:g} M",
    "CPU ns": _cpu_ns,
    "grouped by probe": _each("grouped_by_probe_bytes"),
    "grouped by shard": _each("grouped_by_shard_bytes"),
    "spilled": _each("spilled_bytes"),
    "shards": _each("bytes_written"),
    "to GCS": _each("uploaded_bytes"),
    "from GCS": _each("downloaded_bytes"),
    "peak MiB": md.figure("peak_mib"),
}
_STEPS = {
    "unit": "pre-group a unit of 2 M rows",
    "sort": "sort the hot probe",
    "cut": "cut it into rows, stage them",
    "shard": "write one shard of them",
}


def measured(lines: list[Median]) -> str:
    """Returns the table of the job's runs: CPU and bytes a measurement."""
    jobs = [line for line in lines if line.case["shape"] != "one thread"]
    return md.table(_MEASURED, md.rows(_MEASURED, jobs, num_named=3), num_words=2)


def thread(lines: list[Median]) -> str:
    """Returns the table of one worker's thread, or says that it is missing."""
    line = next((line for line in lines if line.case["shape"] == "one thread"), None)
    if line is None or not line.figures:
        return "The steps of one thread were not measured."
    figures = line.figures
    rows = [["Python, Beam, compiled code", f"{figures['start_mib']:,.0f}", "", ""]]
    for step, title in _STEPS.items():
        names = (f"{step}_mib", f"{step}_cpu_s", f"{step}_wall_s")
        peak_mib, cpu_s, wall_s = (figures[name] for name in names)
        rows.append([title, f"{peak_mib:,.0f}", f"{cpu_s:.1f}", f"{wall_s:.1f}"])
    size = line.case["num_measurements"] / 1e6
    shard_mib = figures["shard_run_bytes"] / (1 << 20)
    note = (
        f"The hot probe has {size:g} M measurements in chunks of 200, its times are whole seconds, "
        f"so that many tie; the shard holds {shard_mib:,.0f} MiB of its rows as they are staged."
    )
    return md.table(("step", "peak MiB", "CPU s", "wall s"), rows) + "\n\n" + note


def requests(lines: list[Median]) -> str:
    """Returns a sentence on the requests that were counted."""
    of_shard = of_a_shard(lines)
    each = ", ".join(f"{of_shard[name]:.1f} {_title(name)}" for name in REQUESTS)
    parts = [f"One shard more takes {each}."]
    for shape in ("all probes", "few probes"):
        figures = per_measurement(lines, shape)
        counts = ", ".join(
            f"{getattr(figures, name) * 1e6:.1f} {_title(name)}" for name in REQUESTS
        )
        parts.append(f"A million measurements more ({shape}): {counts}.")
    return " ".join(parts)


def _title(name: str) -> str:
    return name.replace("class_a", "class A").replace("class_b", "class B").replace("_", " ")


def num_shards(num_measurements: int) -> int:
    """Returns how many shards the job would make of so many measurements of 10,000 probes."""
    options = parse(["--input=x", "--output=x"])[0].dataset_options()
    return sum(
        count_shards(
            round(_NUM_PROBES * share), round(num_measurements * _RUN_BYTES * share), options
        )
        for share in (options.train_ratio, 1 - options.train_ratio)
    )


def estimates(lines: list[Median], prices: Prices, assumed: Assumptions) -> str:
    """Returns the table of estimates, low and high, for each of TARGETS."""
    of_shard = of_a_shard(lines)
    a_slice, few = (per_measurement(lines, shape) for shape in ("all probes", "few probes"))
    columns = ["estimate"]
    cells: list[list[str]] = []
    for size, vcpus in TARGETS:
        figures: PerMeasurement = a_slice if size < 1e9 else a_slice.largest(few)
        run = Run(size, num_shards(size), vcpus)
        for is_high in (False, True):
            use = use_of(run, figures, of_shard, assumed, is_high)
            costs = costs_of(use, prices, assumed)
            columns.append(f"{_size(size)}, {'high' if is_high else 'low'}")
            cells.append(
                [
                    f"{vcpus}", f"{run.num_shards:,}", _figure(use.vcpu_hours),
                    _figure(use.wall_hours * 60), _figure(use.commit_hours * 60),
                    _figure(use.shuffle_gb), _figure(use.temporary_gb), _figure(use.output_gb),
                    f"{use.class_a:,.0f}", f"{use.class_b:,.0f}",
                    *(f"{cost:,.2f}" for cost in costs.values()),
                    f"{sum(costs.values()):,.2f}",
                ]
            )  # fmt: skip
            names = list(costs)
    titles = [
        "vCPUs, given", "shards", "vCPU-hours", "minutes", "of them commit, one worker",
        "shuffle, GB", "temporary objects, GB", "dataset, GB", "class A", "class B",
        *(f"$ {name}" for name in names), "**$ in all**",
    ]  # fmt: skip
    rows = [list(row) for row in zip(titles, *cells, strict=True)]
    return md.table(columns, rows)


def hot_probes(lines: list[Median], assumed: Assumptions) -> str:
    """Returns the table of estimates for one probe in 35 B measurements on GCS."""
    line = next(line for line in lines if line.case["shape"] == "one thread")
    cpu_s = (line.figures["sort_cpu_s"] + line.figures["cut_cpu_s"]) / line.case["num_measurements"]
    rows = []
    for share in (0.0001, 0.001, 0.01, 0.1):
        n = round(TARGETS[-1][0] * share)
        chunk_bytes = round(UNIT_ROWS * share) * 16
        moved = hot_probe(16 * n, chunk_bytes)
        minutes = hot_probe_s(n, chunk_bytes, cpu_s, assumed) / 60
        rows.append(
            [f"{share:.2%}", f"{n / 1e6:,g} M", f"{chunk_bytes:,}", f"{moved.passes}",
             f"{moved.reads:,.0f}", f"{moved.bytes_moved / 1e9:,.1f}",
             f"{n * cpu_s / 60:,.1f}", f"{minutes:,.1f}"]
        )  # fmt: skip
    columns = (
        "share of 35 B", "measurements", "bytes a chunk", "merges", "reads", "GB moved",
        "CPU minutes", "minutes",
    )  # fmt: skip
    return md.table(columns, rows)


def _size(number: int) -> str:
    return f"{number / 1e9:g} B" if number >= 1e9 else f"{number / 1e6:g} M"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def inputs(values: Prices | Assumptions) -> str:
    """Returns prices or assumptions as a list of `name` = value."""
    each = ((item.name, getattr(values, item.name)) for item in fields(values))
    return ", ".join(f"`{name}` = {_input(value)}" for name, value in each)


def _input(value: object) -> str:
    if isinstance(value, tuple):
        return ", then ".join(f"{share:.0%} up to {up_to:g} GB" for up_to, share in value)
    return f"{value:g}"


def markdown(results: Results) -> str:
    """Returns all tables, measured ones first, and what a reader must know of each."""
    lines = medians(results.runs)
    prices, assumed = Prices(), Assumptions()
    parts = [
        "**Measured**, in bytes a measurement where nothing else is said:",
        measured(lines),
        md.circumstances(results),
        requests(lines),
        "**Measured**, one thread of a worker, step by step:",
        thread(lines),
        "**Estimated** from these figures, not measured (`benchmarks/estimate.py` has the "
        "formulas):",
        estimates(lines, prices, assumed),
        "**Estimated** likewise: the time of one hot probe, one thread, `request_s` for each read:",
        hot_probes(lines, assumed),
        f"Prices: {inputs(prices)}.",
        f"Assumptions: {inputs(assumed)}.",
    ]
    loads = [run.load_before for run in results.runs]
    parts[2] += f" Load of the machine before a run: {min(loads)} to {max(loads)}."
    name, place = (lambda case: f"{case['shape']} on {case['place']}"), (lambda case: "")
    return "\n\n".join([*parts, *md.shortfalls(results, name, place)])
