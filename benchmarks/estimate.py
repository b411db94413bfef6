"""Cost and time of a run on Dataflow, estimated from measurements of smaller ones.

Every line is a formula over measured figures per measurement, `Prices` and `Assumptions`, which can
be edited; each estimate has a low and a high value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from beam_pipeline.storage.gcs import REQUESTS_AT_A_TIME
from benchmarks.results import Median

_GB = 1 << 30  # as Google bills
REQUESTS = ("class_a", "class_b", "deletes", "upload_parts")
_GCS_FIGURES = (*REQUESTS, "uploaded_bytes", "downloaded_bytes")
SHUFFLED = ("grouped_by_probe_bytes", "cut_bytes", "grouped_by_shard_bytes")


@dataclass(frozen=True)
class Prices:
    """US dollars, us-central1, batch, undiscounted except for the tiers of Dataflow Shuffle.

    Google publishes them at cloud.google.com/dataflow/pricing and cloud.google.com/storage/pricing,
    and may change them; docs/dataflow_estimate.md has their sources.
    """

    vcpu_hour: float = 0.056
    memory_gb_hour: float = 0.003557
    disk_gb_hour: float = 0.000054
    shuffle_gb: float = 0.011
    shuffle_tiers: tuple[tuple[float, float], ...] = ((250, 0.25), (5120, 0.5))  # up to GB, share
    class_a_1000: float = 0.005
    class_b_1000: float = 0.0004
    storage_gb_month: float = 0.020


@dataclass(frozen=True)
class Assumptions:
    """Unmeasured values, since Dataflow is not available here."""

    vcpu_speed: float = 1.0  # a worker's vCPU against a core of the measuring machine
    request_s: float = 0.05  # until GCS answers a request
    stream_bytes_per_s: float = 100e6  # of one thread from or to GCS
    threads_per_vcpu: int = 1  # Dataflow's for Python in batch
    start_s: float = 300.0  # until workers work
    memory_gb_per_vcpu: float = 4.0  # n2-standard
    disk_gb_per_vcpu: float = 12.5  # 50 GB for 4 vCPUs
    soft_delete_days: float = 7.0  # GCS's default, in which deleted objects are still paid


@dataclass(frozen=True)
class PerMeasurement:
    """Measured figures per measurement.

    Requests and bytes of GCS are the difference between two runs of different sizes, since the
    rest, such as listing files and the requests of each shard, does not grow with the measurements.
    """

    cpu_s: float  # in-memory runner
    gcs_cpu_s: float  # additional if input and output are on GCS
    runner_cpu_s: float  # additional for Prism, a separate process
    shuffle_bytes: float
    output_bytes: float
    uploaded_bytes: float
    downloaded_bytes: float
    class_a: float
    class_b: float
    deletes: float
    upload_parts: float


@dataclass(frozen=True)
class Run:
    """The size and vCPUs of a run to estimate."""

    num_measurements: int
    num_shards: int
    vcpus: int


@dataclass(frozen=True)
class Use:
    """The resources of a run."""

    vcpu_hours: float
    wall_hours: float
    commit_hours: float  # of the wall: renames and deletes by one worker
    shuffle_gb: float  # as processed, before Google's tiers
    temporary_gb: float
    output_gb: float
    class_a: float
    class_b: float


def per_measurement(lines: Sequence[Median], shape: str) -> PerMeasurement:
    """Computes a shape's figures from its largest runs; ValueError if one is missing or failed."""
    memory = _by_size(lines, shape, "memory")
    small, large = min(memory), max(memory)
    whole, here, gcs = memory[large], memory[small], _figures(lines, shape, "gcs", small)
    tenth = min(_by_size(lines, shape, "gcs"))
    base = _figures(lines, shape, "gcs", tenth)
    runner_cpu_s = _figures(lines, "all probes", "prism", small)["cpu_s"]
    runner_cpu_s -= _figures(lines, "all probes", "memory", small)["cpu_s"]
    return PerMeasurement(
        cpu_s=whole["cpu_s"] / large,
        gcs_cpu_s=max(0.0, gcs["cpu_s"] - here["cpu_s"]) / small,
        runner_cpu_s=max(0.0, runner_cpu_s) / small,
        shuffle_bytes=sum(whole.get(name, 0.0) for name in SHUFFLED) / large,
        output_bytes=whole["bytes_written"] / large,
        **{name: max(0.0, gcs[name] - base[name]) / (small - tenth) for name in _GCS_FIGURES},
    )


def with_more_probes(
    figures: PerMeasurement, lines: Sequence[Median], few: int, many: int
) -> PerMeasurement:
    """Adds the extra cost of a work unit and a bucket of `many` probes over those of `few`.

    ValueError if one of them was not measured.
    """
    if many == few:
        return figures
    less, more = (_bucket(lines, num_probes) for num_probes in (few, many))
    return replace(
        figures, **{name: getattr(figures, name) + more[name] - less[name] for name in more}
    )


def _bucket(lines: Sequence[Median], num_probes: int) -> dict[str, float]:
    """Returns figures per measurement of a work unit and a bucket together."""
    for line in lines:
        if line.case.get("num_probes") == num_probes and line.figures:
            return bucket_figures(line)
    raise ValueError(f"no good run of a bucket of {num_probes:,} probes: run benchmarks.scale")


def bucket_figures(line: Median) -> dict[str, float]:
    """Returns some fields of PerMeasurement, of a work unit and a bucket together."""
    figures, num_measurements = line.figures, line.figures["measurements"]
    of_bucket = sum(figures[f"{step}_cpu_s"] for step in ("sort", "write"))
    shuffled = sum(figures.get(name, 0.0) for name in SHUFFLED)
    return {
        "cpu_s": figures["unit_cpu_s"] / figures["unit_rows"] + of_bucket / num_measurements,
        "shuffle_bytes": shuffled / num_measurements,
        "output_bytes": figures["shard_bytes"] / num_measurements,
        "uploaded_bytes": figures["shard_bytes"] / num_measurements,
        "class_b": figures["payloads_stored"] / num_measurements,
    }


def _by_size(lines: Sequence[Median], shape: str, place: str) -> dict[int, dict[str, float]]:
    """Returns the figures of a shape's successful runs by their number of measurements."""
    found = {
        line.case["num_measurements"]: line.figures
        for line in lines
        if (line.case["shape"], line.case["place"]) == (shape, place) and line.figures
    }
    if not found:
        raise ValueError(f"no good run of {shape} in {place}: run benchmarks.scale again")
    return found


def _figures(lines: Sequence[Median], shape: str, place: str, size: int) -> dict[str, float]:
    wanted = {"shape": shape, "place": place, "num_measurements": size}
    for line in lines:
        if line.case == wanted and line.figures:
            return line.figures
    raise ValueError(f"no good run of {shape} at {size:,} in {place}: run benchmarks.scale again")


def per_shard(lines: Sequence[Median]) -> dict[str, float]:
    """Returns the requests per additional shard, from two runs that differ only in their shards."""
    many = next(line for line in lines if line.case["shape"] == "many shards")
    few = _figures(lines, "all probes", "gcs", many.case["num_measurements"])
    more = many.figures["shards_written"] - few["shards_written"]
    return {name: (many.figures[name] - few[name]) / more for name in REQUESTS}


def billed_shuffle_gb(num_gb: float, prices: Prices) -> float:
    """Returns the gigabytes billed at the full price, after the tiers' discounts."""
    billed = below = 0.0
    for up_to, share in prices.shuffle_tiers:
        billed += share * max(0.0, min(num_gb, up_to) - below)
        below = up_to
    return billed + max(0.0, num_gb - below)


def use_of(
    run: Run,
    figures: PerMeasurement,
    requests_per_shard: dict[str, float],
    assumed: Assumptions,
    is_high: bool,
) -> Use:
    """Computes the resources of a run, low or high.

    Low: the measured CPU, with all waiting hidden behind it; shuffled bytes count once. High: also
    Prism's CPU; a thread waits for each request and byte of GCS; all vCPUs are kept from the start
    to the end of the commit; shuffled bytes count when written and when read.
    """
    n = run.num_measurements
    requests = {
        name: n * getattr(figures, name) + run.num_shards * requests_per_shard[name]
        for name in REQUESTS
    }
    busy_s = n * (figures.cpu_s + figures.gcs_cpu_s) / assumed.vcpu_speed
    if is_high:
        bytes_moved = n * (figures.uploaded_bytes + figures.downloaded_bytes)
        waiting_s = sum(requests.values()) * assumed.request_s
        waiting_s += bytes_moved / assumed.stream_bytes_per_s
        busy_s += n * figures.runner_cpu_s / assumed.vcpu_speed
        busy_s = max(busy_s, (busy_s + waiting_s) / assumed.threads_per_vcpu)
    alone = run.num_shards * sum(requests_per_shard.values()) + n * figures.deletes
    commit_s = alone * assumed.request_s / REQUESTS_AT_A_TIME
    wall_s = assumed.start_s + busy_s / run.vcpus + commit_s
    output_gb = n * figures.output_bytes / _GB
    return Use(
        vcpu_hours=(run.vcpus * wall_s if is_high else busy_s) / 3600,
        wall_hours=wall_s / 3600,
        commit_hours=commit_s / 3600,
        shuffle_gb=n * figures.shuffle_bytes / _GB * (2 if is_high else 1),
        temporary_gb=max(0.0, n * figures.uploaded_bytes / _GB - output_gb),
        output_gb=output_gb,
        class_a=requests["class_a"],
        class_b=requests["class_b"],
    )


def costs_of(use: Use, prices: Prices, assumed: Assumptions) -> dict[str, float]:
    """Returns dollars by component."""
    kept_months = assumed.soft_delete_days / 30
    return {
        "vCPU, memory, disk": use.vcpu_hours
        * (
            prices.vcpu_hour
            + assumed.memory_gb_per_vcpu * prices.memory_gb_hour
            + assumed.disk_gb_per_vcpu * prices.disk_gb_hour
        ),
        "shuffle": billed_shuffle_gb(use.shuffle_gb, prices) * prices.shuffle_gb,
        "requests": use.class_a / 1000 * prices.class_a_1000
        + use.class_b / 1000 * prices.class_b_1000,
        "deleted objects": use.temporary_gb * prices.storage_gb_month * kept_months,
    }
