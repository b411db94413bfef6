"""The tables of `benchmarks.overlap_scale`: what was measured, and the estimates from it."""

from collections.abc import Iterator

from benchmarks import markdown as md
from benchmarks.estimate import REQUESTS, Assumptions, Prices
from benchmarks.overlap_estimate import (
    NGRAMS_PER_EVAL_BYTE,
    OverlapFigures,
    OverlapRun,
    overlap_costs,
    overlap_figures,
    overlap_use,
)
from benchmarks.results import Results, medians
from benchmarks.scale_table import figure, inputs

_TB, _GB = 1e12, 1e9
# Machines of Dataflow: name, vCPUs, GB.
MACHINES = (
    ("n2-standard-8", 8, 32),
    ("n2-highmem-16", 16, 128),
    ("n2-highmem-64", 64, 512),
)
NUM_VCPUS = 128
_UNITS = {"per_mb": "MB of training text", "per_pass_mb": "MB and further pass"}
_MEASURED: md.Columns = {
    "training MB": lambda line: f"{line.figures['text_mb']:,.0f}",
    "files": md.figure("num_files"),
    "evaluation n-grams": md.figure("eval_ngrams"),
    "passes": lambda line: f"{line.case['passes']}",
    "matches": md.figure("matches"),
    "CPU s": md.figure("cpu_s", "{:.1f}"),
    "wall s": md.figure("wall_s", "{:.1f}"),
    "class A": md.figure("class_a"),
    "class B": md.figure("class_b"),
    "deletes": md.figure("deletes"),
    "to GCS, MB": lambda line: f"{line.figures['uploaded_bytes'] / 1e6:,.1f}",
    "from GCS, MB": lambda line: f"{line.figures['downloaded_bytes'] / 1e6:,.1f}",
    "peak MiB": md.figure("peak_mib"),
}


def runs() -> Iterator[tuple[str, OverlapRun]]:
    """Yields the runs to estimate and their machines."""
    name, vcpus, machine_gb = MACHINES[0]
    yield name, OverlapRun(_TB, 0.1 * _GB, vcpus, machine_gb, NUM_VCPUS)
    for name, vcpus, machine_gb in MACHINES:
        yield name, OverlapRun(_TB, 10 * _GB, vcpus, machine_gb, NUM_VCPUS)


def estimates(figures: OverlapFigures, prices: Prices, assumed: Assumptions) -> str:
    """Returns the table of estimates, two lines for each run: low and high."""
    columns = (
        *("evaluation GB", "machines", "estimate", "passes", "disk GB each", "vCPU-hours"),
        *("hours", "of them alone", "class A", "class B", "dollars"),
    )
    rows = []
    for machine, run in runs():
        number = -(-run.num_vcpus // run.machine_vcpus)
        for name in ("low", "high"):
            use = overlap_use(run, figures, assumed, is_high=name == "high")
            rows.append(
                [
                    *(f"{run.eval_bytes / _GB:g}", f"{number} {machine}", name, f"{run.passes}"),
                    *(figure(run.disk_gb), figure(use.vcpu_hours), figure(use.wall_hours)),
                    *(figure(use.commit_hours), f"{use.class_a:,.0f}", f"{use.class_b:,.0f}"),
                    f"{overlap_costs(run, use, prices, assumed):,.0f}",
                ]
            )
    return md.table(columns, rows, num_words=3)


def differences(figures: OverlapFigures) -> str:
    """Returns a sentence on what a GB, a pass and a million n-grams take."""
    parts = [
        f"A {unit.replace('MB', 'GB')} takes {_told(getattr(figures, name), 1e3)}."
        for name, unit in _UNITS.items()
    ]
    return " ".join([*parts, f"A million n-grams take {_told(figures.per_ngram, 1e6)}."])


def _told(per_unit: dict[str, float], units: float) -> str:
    requests = sum(per_unit[name] for name in REQUESTS) * units
    return f"{per_unit['cpu_s'] * units:.2f} CPU s and {requests:,.1f} requests"


def markdown(results: Results) -> str:
    """Returns both tables, and what a reader must know of each."""
    lines, prices, assumed = medians(results.runs), Prices(), Assumptions()
    parts = [
        "**Measured**, against an emulator of GCS, "
        f"{results.options['request_s'] * 1000:g} ms added to each request, one process:",
        md.results_table(_MEASURED, lines, num_named=4, num_words=0),
        md.circumstances(results),
    ]
    faults = md.shortfalls(results, lambda case: f"{case['mb']} MB", lambda case: "")
    if faults:
        return "\n\n".join([*parts, *faults])
    figures = overlap_figures(lines)
    return "\n\n".join(
        [
            *parts,
            differences(figures),
            f"**Estimated** from these differences, not measured: 1 TB of training text, one n, "
            f"{NUM_VCPUS} vCPUs (`benchmarks/overlap_estimate.py` has the formulas):",
            estimates(figures, prices, assumed),
            f"Prices: {inputs(prices)}.",
            f"Assumptions: {inputs(assumed)}, `NGRAMS_PER_EVAL_BYTE` = {NGRAMS_PER_EVAL_BYTE}; "
            "memory and disk are those of the machines.",
        ]
    )
