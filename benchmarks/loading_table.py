"""The table of the loading bench: speed and memory of each loader, without slowed-down runs."""

import statistics
from dataclasses import replace
from typing import Any

from benchmarks import markdown as md
from benchmarks.loading_cases import LOADERS, Case
from benchmarks.results import Median, Results, medians


def _title(case: dict[str, Any]) -> str:
    return LOADERS[case["loader"]]


def _row(case: dict[str, Any]) -> str:
    """Returns the dataset, with the workers and threads of the loader."""
    parts = [case["dataset"]]
    for name in ("worker", "thread"):
        if count := case[f"num_{name}s"]:
            parts.append(f"{count} {name}{'s' if count > 1 else ''}")
    return ", ".join(parts)


def _millions(number: float) -> str:
    return f"{number / 1e6:.1f}" if number >= 10e6 else f"{number / 1e6:.2f}"


def _speed(lines: list[Median]) -> str:
    """Returns one row per dataset, workers and threads, with a column per loader."""
    rows: dict[str, dict[str, str]] = {}
    for line in lines:
        per_s, per_cpu_s = (line.figures[f"tokens_per_{unit}"] for unit in ("s", "cpu_s"))
        cell = _millions(per_s)
        if per_cpu_s < 0.95 * per_s:
            cell += f" ({_millions(per_cpu_s)})"
        rows.setdefault(_row(line.case), {})[_title(line.case)] = cell
    loaders = [name for name in LOADERS.values() if any(name in row for row in rows.values())]
    cells = [[row, *(found.get(name, "") for name in loaders)] for row, found in rows.items()]
    return md.table(["M real tokens/s", *loaders], cells)


def _notes(results: Results, plain: list[Median]) -> list[str]:
    """Returns the notes on the table, one sentence each."""
    options = results.options
    lines = [
        md.circumstances(results),
        "In brackets: M real tokens per CPU-second, if that is lower.",
        f"Batches of {options['batch_size']} × 1,024 for {options['seconds']:g} s or more, to "
        "whole cycles of 32 batches, after a warm-up; CPU is of the whole process tree in that "
        f"time. Batches of rows of 8 MiB and of the sampler have {options['small_batch_size']} "
        "examples. Files are in the page cache.",
    ]
    for name in LOADERS.values():
        own = [line.figures for line in plain if _title(line.case) == name]
        if own:
            lines.append(
                f"{name}: first batch after {_span(own, 'first_batch_of_build_s', '.1f')} s, peak "
                f"{_span(own, 'peak_mib', ',.0f')} MiB, padding at most "
                f"{max(figures.get('padding', 0) for figures in own):.1%}."
            )
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
    reasons = {skip["reason"]: _title(skip) for skip in results.skipped}
    lines += [f"{name} did not run on all datasets: {why}." for why, name in reasons.items()]
    return lines + md.shortfalls(replace(results, skipped=[]), _title, lambda c: f"on {_row(c)}")


def _span(every: list[dict[str, float]], name: str, pattern: str) -> str:
    values = [figures[name] for figures in every if name in figures] or [0.0]
    return f"{min(values):{pattern}} to {max(values):{pattern}}"


def markdown(results: Results) -> str:
    """Returns the table and the notes, without loaders that are no longer compared."""
    runs = [run for run in results.runs if run.case["loader"] in LOADERS]
    skipped = [skip for skip in results.skipped if skip["loader"] in LOADERS]
    results = replace(results, runs=runs, skipped=skipped)
    lines = [line for line in medians(results.runs) if line.figures]
    plain = [line for line in lines if not line.case.get("request_ms") and not line.case["step_ms"]]
    return md.page([_speed(plain)], _notes(results, plain))
