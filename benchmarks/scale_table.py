"""The tables of the scale bench: results first, then estimates for large runs.

`benchmarks.estimate` has the formulas; prices and assumptions are printed below the tables.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple

from beam_pipeline.dataset.layout import ROW_BYTES, count_shards
from beam_pipeline.probe_rows.options import parse
from benchmarks import markdown as md
from benchmarks.estimate import (
    REQUESTS,
    Assumptions,
    PerMeasurement,
    Prices,
    Run,
    Use,
    costs_of,
    per_measurement,
    per_shard,
    use_of,
    with_more_probes,
)
from benchmarks.results import Median, Results, medians
from benchmarks.scale import LARGE_RUN, MANY_PROBES, NUM_PROBES

# Measurements, probes, vCPUs.
TARGETS = (
    (200_000_000, NUM_PROBES, 4),
    *((LARGE_RUN, num_probes, 100) for num_probes in MANY_PROBES),
)
_APART = ("one thread", "a unit and a bucket")  # shapes with a table of their own
_RUN_BYTES = 16 + 0.1 * 12  # a tenth of the destinations IPv6


def _each(name: str, pattern: str = "{:.1f}", factor: float = 1) -> Callable[[Median], str]:
    """Returns a column that shows a figure per measurement."""
    return lambda line: pattern.format(
        line.figures.get(name, 0) / line.case["num_measurements"] * factor
    )


_MEASURED: md.Columns = {
    "shape": lambda line: line.case["shape"],
    "where": lambda line: line.case["place"],
    "measurements": lambda line: f"{line.case['num_measurements'] / 1e6:g} M",
    "CPU ns": _each("cpu_s", "{:,.0f}", 1e9),
    "grouped by probe": _each("grouped_by_probe_bytes"),
    "grouped by shard": _each("grouped_by_shard_bytes"),
    "shards": _each("bytes_written"),
    "to GCS": _each("uploaded_bytes"),
    "from GCS": _each("downloaded_bytes"),
    "peak MiB": md.figure("peak_mib"),
}


def measured(lines: list[Median]) -> str:
    """Returns the table of the largest job of each shape: CPU and bytes per measurement."""
    largest: dict[tuple[str, str], Median] = {}
    for line in sorted(lines, key=lambda line: line.case.get("num_measurements", 0)):
        if line.case["shape"] not in _APART:
            largest[line.case["shape"], line.case["place"]] = line
    jobs = [line for line in lines if line in largest.values()]
    return md.results_table(_MEASURED, jobs, num_named=3, num_words=2)


def requests(lines: list[Median]) -> str:
    """Returns a sentence on the counted requests."""
    parts = [f"One more shard takes {_counts(per_shard(lines))}."]
    for shape in ("all probes", "few probes"):
        figures = asdict(per_measurement(lines, shape))
        counts = _counts({name: figures[name] * 1e6 for name in REQUESTS})
        parts.append(f"A million more measurements ({shape}): {counts}.")
    return " ".join(parts)


def _counts(counts: dict[str, float]) -> str:
    text = ", ".join(f"{count:.1f} {name}" for name, count in counts.items())
    return text.replace("class_a", "class A").replace("class_b", "class B").replace("_", " ")


def num_shards(num_measurements: int, num_probes: int) -> int:
    """Returns the number of shards that the job would write."""
    options = parse(["--input=x", "--output=x"])[0].dataset_options()
    return sum(
        count_shards(
            round(num_probes * share),
            round((num_measurements * _RUN_BYTES + num_probes * ROW_BYTES) * share),
            options,
        )
        for share in (options.train_ratio, 1 - options.train_ratio)
    )


def estimates(lines: list[Median], prices: Prices, assumed: Assumptions) -> str:
    """Returns the table of estimates, from low to high, for each of TARGETS."""
    requests_per_shard = per_shard(lines)
    a_slice, few = (per_measurement(lines, shape) for shape in ("all probes", "few probes"))
    larger = PerMeasurement(*map(max, astuple(a_slice), astuple(few)))
    columns, rows = ["estimate"], defaultdict[str, list[str]](list)
    measured = {NUM_PROBES, *(line.case.get("num_probes") for line in lines)}
    for size, num_probes, vcpus in TARGETS:
        if num_probes not in measured:
            continue
        run = Run(size, num_shards(size, num_probes), vcpus)
        figures = with_more_probes(
            a_slice if size < LARGE_RUN else larger, lines, NUM_PROBES, num_probes
        )
        columns.append(f"{md.size(size)} of {md.size(num_probes)}")
        both = []
        for is_high in (False, True):
            use = use_of(run, figures, requests_per_shard, assumed, is_high=is_high)
            both.append(_estimate(run, use, costs_of(use, prices, assumed)))
        for (title, low), (_, high) in zip(*both):
            rows[title].append(low if low == high else f"{low}–{high}")
    return md.table(columns, [[title, *cells] for title, cells in rows.items()])


def _estimate(run: Run, use: Use, costs: dict[str, float]) -> Iterator[tuple[str, str]]:
    """Yields the titles and cells of one estimate."""
    yield "vCPUs, given", f"{run.vcpus}"
    yield "shards", f"{run.num_shards:,}"
    yield "vCPU-hours", figure(use.vcpu_hours)
    yield "minutes", figure(use.wall_hours * 60)
    yield "of them commit, one worker", figure(use.commit_hours * 60)
    yield "shuffle, GB", figure(use.shuffle_gb)
    yield "temporary objects, GB", figure(use.temporary_gb)
    yield "dataset, GB", figure(use.output_gb)
    for name, cost in costs.items():
        yield f"$ {name}", f"{cost:,.2f}"
    yield "**$ in all**", f"{sum(costs.values()):,.2f}"


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def inputs(values: Prices | Assumptions) -> str:
    """Returns prices or assumptions as a list of `name` = value."""
    return ", ".join(f"`{name}` = {_input(value)}" for name, value in asdict(values).items())


def _input(value: object) -> str:
    if isinstance(value, tuple):
        return ", then ".join(f"{share:.0%} up to {up_to:g} GB" for up_to, share in value)
    return f"{value:g}"


def markdown(results: Results) -> str:
    """Returns all tables, measured ones first, with notes."""
    lines = medians(results.runs)
    prices, assumed = Prices(), Assumptions()
    parts = [
        "**Measured**, in bytes per measurement unless the heading differs:",
        measured(lines),
        md.circumstances(results),
        requests(lines),
        "**Estimated** from these figures, not measured (`benchmarks/estimate.py` has the "
        "formulas):",
        estimates(lines, prices, assumed),
        f"Prices: {inputs(prices)}.",
        f"Assumptions: {inputs(assumed)}.",
    ]
    name, place = (lambda case: f"{case['shape']} on {case['place']}"), (lambda case: "")
    return "\n\n".join([*parts, *md.shortfalls(results, name, place)])
