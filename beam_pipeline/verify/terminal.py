"""Verifies a dataset with a progress bar and prints the results."""

import time
from collections.abc import Iterator

from beam_pipeline.dataset.rows import Dataset, open_whole
from beam_pipeline.errors import printable, program
from beam_pipeline.report.tables import Table
from beam_pipeline.report.terminal import new_console, print_table, progress_bar
from beam_pipeline.verify.dataset import PROMISES, Verification, verify

_STYLES = {"ok": "green", "FAILED": "bold red", "partly": "yellow"}


def verify_and_report(path: str, max_faults: int) -> int:
    """Verifies a dataset, prints the report and returns the exit code."""
    dataset = open_whole(path)
    started = time.monotonic()
    total = 2 * sum(split.num_bytes for split in dataset.manifest.splits.values())
    with progress_bar("verify", total) as advance:
        report = verify(dataset, max_faults, advance)
    print_report(dataset, report, time.monotonic() - started)
    return 1 if report.num_faults else 0


def print_report(dataset: Dataset, report: Verification, seconds: float) -> None:
    """Prints one line per check, one per fault, and the conclusion, to stdout."""
    rows = []
    for name, promise in PROMISES.items():
        check = report.checks[name]
        checked = f"{check.num_checked:,} {promise.unit}"
        rows.append((name, promise.text, checked, check.num_faults, report.result(name)))
    console = new_console()
    columns = ("check", ("what holds", "text"), "checked", "faults", "")
    print_table(console, Table("", columns, rows), _STYLES)
    for line in (*_fault_lines(report), _conclusion(dataset, report, seconds)):
        console.print(printable(line), soft_wrap=True, markup=False)


def _fault_lines(report: Verification) -> Iterator[str]:
    for name, check in report.checks.items():
        for shard, record, message in check.faults:
            where = shard if record is None else f"{shard} record {record}"
            yield " ".join(f"{name}: {where}: {message}".split())
        num_hidden = check.num_faults - len(check.faults)
        if num_hidden:
            yield f"{name}: and {num_hidden:,} more; --max_faults={check.num_faults} shows all"


def _conclusion(dataset: Dataset, report: Verification, seconds: float) -> str:
    failed = [name for name in PROMISES if report.checks[name].num_faults]
    if failed:
        return (
            f"{dataset.path} FAILED: {report.num_faults:,} faults in {', '.join(failed)}; replace "
            f"it with an intact copy, or rebuild it with {program('rows', 'beam_pipeline.main')}"
        )
    measurements = report.checks["order"].num_checked
    rate = measurements / max(seconds, 1e-9) / 1e6
    return (
        f"{dataset.path} keeps every promise: {measurements:,} measurements in "
        f"{report.checks['records'].num_checked:,} records read in {seconds:.1f} s ({rate:.1f} M/s)"
    )
