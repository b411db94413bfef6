"""The tables of the loading bench: speed, beside a training step, padding and storage."""

from typing import Any

from benchmarks import markdown as md
from benchmarks.loading_cases import LOADERS
from benchmarks.results import Results, medians

SPEED_COLUMNS = (
    "dataset",
    "loader",
    "M real tokens/s",
    "M real tokens/CPU-second",
    "ratio to plain Python",
    "first batch s, of the process",
    "first batch s, of the loader",
    "peak MiB",
)
STEP_COLUMNS = (
    "dataset",
    "loader",
    "step ms",
    "batches",
    "CPU of a worker",
    "CPU of the main process",
    "waiting for data",
)
STORAGE_COLUMNS = ("dataset", "stored as", "measurements", "records", "bytes/measurement")
PADDING_COLUMNS = ("dataset", "loader", "padding")


def title(case: dict[str, Any]) -> str:
    """Returns the loader's name, with its workers and threads."""
    parts = [LOADERS[case["loader"]]]
    for name in ("worker", "thread"):
        if count := case[f"num_{name}s"]:
            parts.append(f"{count} {name}{'s' if count > 1 else ''}")
    return ", ".join(parts)


def speed_rows(results: Results) -> list[list[str]]:
    """Returns a row a dataset and loader, in the order in which they ran, fastest first."""
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
    rows = []
    for line in lines:
        dataset, figures = line.case["dataset"], line.figures
        cells = [dataset, title(line.case)]
        if not figures:
            rows.append([*cells, "failed", *[""] * (len(SPEED_COLUMNS) - 3)])
            continue
        seed = of_seed.get(dataset)
        rows.append(
            [
                *cells,
                _millions(figures["tokens_per_s"]),
                _millions(figures["tokens_per_cpu_s"]),
                _ratio(figures["tokens_per_cpu_s"] / seed) if seed else "",
                f"{figures['first_batch_s']:.1f}",
                f"{figures['first_batch_of_build_s']:.1f}",
                f"{figures['peak_mib']:,.0f}",
            ]
        )
    return rows


def step_rows(results: Results) -> list[list[str]]:
    """Returns a row a loader that fed a consumer which sleeps after each batch."""
    rows = []
    for line in medians(results.runs):
        if not line.case["step_ms"]:
            continue
        cells = [line.case["dataset"], title(line.case), f"{line.case['step_ms']:g}"]
        if not line.figures:
            rows.append([*cells, "failed", *[""] * (len(STEP_COLUMNS) - 4)])
            continue
        shares = [f"{line.figures[name]:.1%}" for name in ("worker_cpu", "main_cpu", "waiting")]
        rows.append([*cells, f"{line.figures['num_batches']:.0f}", *shares])
    return rows


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


def padding_rows(results: Results) -> list[list[str]]:
    """Returns the mean padding of each dataset and loader without workers or threads."""
    rows = []
    for line in medians(results.runs):
        case = line.case
        if line.figures and not (case["num_workers"] or case["num_threads"] or case["step_ms"]):
            rows.append([case["dataset"], title(case), f"{line.figures['padding']:.3%}"])
    return rows


def _millions(number: float) -> str:
    return f"{number / 1e6:.1f}" if number >= 10e6 else f"{number / 1e6:.2f}"


def _ratio(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


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
    if any(line.case["loader"] == "gcs" for line in medians(results.runs)):
        lines.append("The GCS emulator runs on the same machine; its CPU is not counted.")
    reasons: dict[tuple[str, str], list[str]] = {}
    for skip in results.skipped:
        reasons.setdefault((skip["loader"], skip["reason"]), []).append(skip["dataset"])
    lines += [
        f"{LOADERS[loader]}, did not run on {', '.join(dict.fromkeys(datasets))}: {reason}."
        for (loader, reason), datasets in reasons.items()
    ]
    lines += [
        f"{title(line.case)}, failed {line.num_failed} of {line.num_runs} runs on "
        f"{line.case['dataset']}."
        for line in medians(results.runs)
        if line.num_failed
    ]
    return lines


def markdown(results: Results) -> str:
    """Returns all tables and the notes."""
    tables: list[tuple[tuple[str, ...], list[list[str]]]] = [
        (SPEED_COLUMNS, speed_rows(results)),
        (STEP_COLUMNS, step_rows(results)),
        (PADDING_COLUMNS, padding_rows(results)),
        (STORAGE_COLUMNS, storage_rows(results)),
    ]
    shown = [md.table(columns, rows, num_words=2) for columns, rows in tables if rows]
    return "\n\n".join([*shown, "\n".join(notes(results))])
