"""The tables of the loading bench: speed, a training step, slow requests, padding and storage."""

import statistics
from dataclasses import replace
from typing import Any

from benchmarks import markdown as md
from benchmarks.loading_cases import LOADERS, Case
from benchmarks.results import Median, Results, medians


def title(case: dict[str, Any]) -> str:
    """Returns the loader's name, with its workers and threads."""
    parts = [LOADERS[case["loader"]]]
    for name in ("worker", "thread"):
        if count := case[f"num_{name}s"]:
            parts.append(f"{count} {name}{'s' if count > 1 else ''}")
    return ", ".join(parts)


_NAMES: md.Columns = {
    "dataset": lambda line: line.case["dataset"],
    "loader": lambda line: title(line.case),
}
_STEP: md.Columns = {
    **_NAMES,
    "step ms": lambda line: f"{line.case['step_ms']:g}",
    "batches": md.figure("num_batches", "{:.0f}"),
    "CPU of a worker": md.figure("worker_cpu", "{:.1%}"),
    "CPU of the main process": md.figure("main_cpu", "{:.1%}"),
    "waiting for data": md.figure("waiting", "{:.1%}"),
}


def _millions(number: float) -> str:
    return f"{number / 1e6:.1f}" if number >= 10e6 else f"{number / 1e6:.2f}"


def _speed(lines: list[Median]) -> str:
    """Returns one row per dataset and loader, datasets in run order, fastest first."""
    datasets = list(dict.fromkeys(line.case["dataset"] for line in lines))
    ranked = sorted(
        lines,
        key=lambda line: (
            datasets.index(line.case["dataset"]),
            -line.figures.get("tokens_per_cpu_s", 0),
        ),
    )
    columns: md.Columns = {
        **_NAMES,
        "M real tokens/s": _tokens_per_s,
        "M real tokens/CPU-second": lambda line: _millions(line.figures["tokens_per_cpu_s"]),
        "first batch s": md.figure("first_batch_of_build_s", "{:.1f}"),
        "peak MiB": md.figure("peak_mib"),
    }
    return md.results_table(columns, ranked, num_words=2)


def _slow_requests(lines: list[Median], stored: dict[str, dict]) -> str:
    """Returns the table of loaders on gs:// with slow requests."""

    def shards(line: Median) -> str:
        return str(stored.get(line.case["dataset"], {}).get("shards", ""))

    columns: md.Columns = {
        **_NAMES,
        "ms per request": lambda line: f"{line.case['request_ms']:g}",
        "shards": shards,
        "requests to the first batch": md.figure("first_batch_requests"),
        "first batch s, of the loader": md.figure("first_batch_of_build_s", "{:.1f}"),
        "requests per batch": md.figure("requests_per_batch", "{:.1f}"),
        "M real tokens/s": _tokens_per_s,
    }
    return md.results_table(columns, lines, num_named=4, num_words=2)


def _tokens_per_s(line: Median) -> str:
    return _millions(line.figures["tokens_per_s"])


def _notes(results: Results) -> list[str]:
    """Returns the notes on the tables, one sentence each."""
    options = results.options
    lines = [
        md.circumstances(results),
        f"Each run takes batches of {options['batch_size']} × 1,024 for {options['seconds']:g} s "
        "or more, to whole cycles of 32 batches, after a warm-up; CPU is of the whole process tree "
        "in that time, peak memory of all of the run. Files are in the page cache.",
        f"Batches of rows of 8 MiB have {options['small_batch_size']} examples, since the data "
        "makes few such rows, and so have those of the sampler in plain Python, since one could "
        "take longer than a run.",
    ]
    padding: dict[str, float] = {}
    for run in results.runs:
        name = LOADERS[run.case["loader"]]
        padding[name] = max(padding.get(name, 0), run.figures.get("padding", 0))
    most = "; ".join(f"{name} {share:.1%}" for name, share in padding.items())
    lines.append(f"Padding, at most: {most}.")
    if fills := [s["cache"]["fill_s"] for s in options["stored"].values() if "cache" in s]:
        lines.append(f"Filling the cache took {min(fills):.1f} to {max(fills):.1f} s.")
    if any(Case(**run.case).is_on_gcs for run in results.runs):
        lines.append("The GCS emulator runs on the same machine; its CPU is not counted.")
    load = statistics.median(run.load_before for run in results.runs) if results.runs else 0.0
    if load > results.machine["cores"]:
        lines.append(
            f"Other programs ran, too: the load average before a run was {load:.0f}. Tokens per "
            "second and first batches are slower for it, tokens per CPU-second somewhat."
        )
    if any(run.case.get("request_ms") for run in results.runs):
        lines.append(
            "A slow request takes that many ms longer than the emulator's; the cache is filled in "
            "each run, before its first batch."
        )
    return lines + md.shortfalls(results, title, lambda case: f"on {case['dataset']}")


def markdown(results: Results) -> str:
    """Returns all tables and the notes, without loaders that are no longer compared."""
    runs = [run for run in results.runs if run.case["loader"] in LOADERS]
    skipped = [skip for skip in results.skipped if skip["loader"] in LOADERS]
    results = replace(results, runs=runs, skipped=skipped)
    lines = medians(results.runs)
    slow = [line for line in lines if line.case.get("request_ms")]
    stepped = [line for line in lines if line.case["step_ms"]]
    tables = [_speed([line for line in lines if line not in slow and line not in stepped])]
    if stepped:
        tables.append(md.results_table(_STEP, stepped, num_named=3, num_words=2))
    if slow:
        tables.append(_slow_requests(slow, results.options["stored"]))
    return md.page(tables, _notes(results))
