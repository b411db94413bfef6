"""The tables of the loading bench: speed, beside a training step, padding and storage."""

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
STEP_COLUMNS: md.Columns = {
    **_NAMES,
    "step ms": lambda line: f"{line.case['step_ms']:g}",
    "batches": md.figure("num_batches", "{:.0f}"),
    "CPU of a worker": md.figure("worker_cpu", "{:.1%}"),
    "CPU of the main process": md.figure("main_cpu", "{:.1%}"),
    "waiting for data": md.figure("waiting", "{:.1%}"),
}
PADDING_COLUMNS: md.Columns = {**_NAMES, "padding": md.figure("padding", "{:.3%}")}
STORAGE_COLUMNS = ("dataset", "stored as", "measurements", "records", "bytes/measurement")


def _millions(number: float) -> str:
    return f"{number / 1e6:.1f}" if number >= 10e6 else f"{number / 1e6:.2f}"


def speed_rows(results: Results) -> tuple[md.Columns, list[list[str]]]:
    """Returns columns and a row a dataset and loader, datasets as they ran, fastest first."""
    lines = [line for line in medians(results.runs) if not line.case["step_ms"]]
    datasets = list(dict.fromkeys(line.case["dataset"] for line in lines))
    lines.sort(
        key=lambda line: (
            datasets.index(line.case["dataset"]),
            -line.figures.get("tokens_per_cpu_s", 0),
        )
    )
    of_seed = {
        line.case["dataset"]: line.figures["tokens_per_cpu_s"]
        for line in lines
        if line.case["loader"] == "seed" and line.figures
    }

    def ratio(line: Median) -> str:
        seed = of_seed.get(line.case["dataset"])
        if not seed:
            return ""
        times = line.figures["tokens_per_cpu_s"] / seed
        return f"{times:,.0f}" if times >= 10 else f"{times:.1f}"

    columns: md.Columns = {
        **_NAMES,
        "M real tokens/s": lambda line: _millions(line.figures["tokens_per_s"]),
        "M real tokens/CPU-second": lambda line: _millions(line.figures["tokens_per_cpu_s"]),
        "ratio to plain Python": ratio,
        "first batch s, of the process": md.figure("first_batch_s", "{:.1f}"),
        "first batch s, of the loader": md.figure("first_batch_of_build_s", "{:.1f}"),
        "peak MiB": md.figure("peak_mib"),
    }
    return columns, md.rows(columns, lines)


def step_rows(results: Results) -> list[list[str]]:
    """Returns a row a loader that fed a consumer which sleeps after each batch."""
    lines = [line for line in medians(results.runs) if line.case["step_ms"]]
    return md.rows(STEP_COLUMNS, lines, num_named=3)


def padding_rows(results: Results) -> list[list[str]]:
    """Returns the mean padding of each dataset and loader without workers or threads."""
    lines = [line for line in medians(results.runs) if line.figures]
    return md.rows(PADDING_COLUMNS, [line for line in lines if Case(**line.case).is_plain])


def storage_rows(results: Results) -> list[list[str]]:
    """Returns what each dataset takes on disk, as rows, cached, and as padded buckets."""
    rows = []
    for dataset, stored in results.options["stored"].items():
        kinds = {"probe rows": stored}
        if "cache" in stored:
            kinds["column cache"] = {**stored, **stored["cache"]}
        if "plan1" in stored:
            kinds["padded buckets"] = stored["plan1"]
        for kind, counted in kinds.items():
            per_measurement = counted["file_bytes"] / max(counted["measurements"], 1)
            numbers = [f"{counted['measurements']:,}", f"{counted['records']:,}"]
            rows.append([dataset, kind, *numbers, f"{per_measurement:.1f}"])
    return rows


def notes(results: Results) -> list[str]:
    """Returns what a reader must know to judge the tables, a sentence each."""
    options = results.options
    lines = [
        md.circumstances(results),
        f"Each run takes batches of {options['batch_size']} × 1,024 for {options['seconds']:g} s "
        "or more, to whole cycles of 32 batches, after a warm-up; CPU is of the whole process tree "
        "in that time, peak memory of all of the run. Files are in the page cache.",
        f"Batches of rows of 8 MiB have {options['small_batch_size']} examples, since the data "
        "makes few such rows, and so have those of the sampler in plain Python, since one could "
        "take longer than a run. Padded buckets are only read: their tokens were made beforehand, "
        "the same in every epoch and with all timestamps; one record a chunk, with the ArrayRecord "
        "options of the rows.",
    ]
    fills = [
        f"{dataset} {stored['cache']['fill_s']:.1f} s"
        for dataset, stored in options["stored"].items()
        if "cache" in stored
    ]
    if fills:
        lines.append(f"Filling the cache, first batch included: {', '.join(fills)}.")
    if any(run.case["loader"] == "gcs" for run in results.runs):
        lines.append("The GCS emulator runs on the same machine; its CPU is not counted.")
    return lines + md.shortfalls(
        results, lambda case: f"{title(case)},", lambda case: f"on {case['dataset']}"
    )


def markdown(results: Results) -> str:
    """Returns all tables and the notes."""
    tables = [
        speed_rows(results),
        (STEP_COLUMNS, step_rows(results)),
        (PADDING_COLUMNS, padding_rows(results)),
        (STORAGE_COLUMNS, storage_rows(results)),
    ]
    shown = [md.table(columns, rows, num_words=2) for columns, rows in tables if rows]
    return "\n\n".join([*shown, "\n".join(notes(results))])
