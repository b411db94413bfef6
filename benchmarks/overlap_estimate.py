"""Cost and time of an overlap run on Dataflow, estimated from runs of `benchmarks.overlap_scale`.

As in `benchmarks.estimate`: formulas over measured figures, `Prices` and `Assumptions`, each with a
low and a high value. Figures are differences between two runs that differ in one thing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from beam_pipeline.overlap.job.scanning import count_groups
from beam_pipeline.overlap.ngrams.index import INDEX_BYTES_PER_PLACE, count_index_shards
from benchmarks.estimate import REQUESTS, Assumptions, Prices, Use, costs_of
from benchmarks.results import Median

_GB = 1 << 30  # as Google bills
_FIGURES = ("cpu_s", *REQUESTS, "uploaded_bytes", "downloaded_bytes")
_TOKEN_BYTES = 21  # of a token's text and places in a file
NGRAMS_PER_EVAL_BYTE = 0.17  # English text has a token in six bytes


@dataclass(frozen=True)
class OverlapFigures:
    """What the overlap job takes for one unit of its input: of requests, bytes and CPU, by name."""

    per_mb: dict[str, float]  # of training text, the first pass and all that follows it
    per_pass_mb: dict[str, float]  # of training text, each further pass
    per_ngram: dict[str, float]  # of the evaluation sets: read, tokenised, indexed


@dataclass(frozen=True)
class OverlapRun:
    """An overlap run to estimate.

    Attributes:
      text_bytes: of the training texts, before compression.
      num_vcpus: of all machines together.
    """

    text_bytes: float
    eval_bytes: float
    machine_vcpus: int
    machine_gb: float
    num_vcpus: int

    @property
    def num_ngrams(self) -> int:
        """N-grams of the evaluation sets, of one n."""
        return round(self.eval_bytes * NGRAMS_PER_EVAL_BYTE)

    @property
    def passes(self) -> int:
        """How often the training text is read: the index has a third of a machine's memory."""
        return count_index_shards(self.num_ngrams, int(self.machine_gb * _GB / 3))

    @property
    def disk_gb(self) -> float:
        """The disk of a machine: system, evaluation rows, their tokens, all index shards."""
        per_ngram = INDEX_BYTES_PER_PLACE + _TOKEN_BYTES
        return 25 + (self.eval_bytes + self.num_ngrams * per_ngram) / _GB


def overlap_figures(lines: Sequence[Median]) -> OverlapFigures:
    """Computes the figures from runs of `benchmarks.overlap_scale` that differ in one thing.

    Raises:
      ValueError: a run is missing or failed.
    """
    if len(lines) != 4 or not all(line.figures for line in lines):
        raise ValueError("a run is missing: run benchmarks.overlap_scale again")
    few, many, large, passes = (line.figures for line in lines)
    text_mb = large["text_mb"] - many["text_mb"]
    more_mb = (lines[3].case["passes"] - 1) * large["text_mb"]
    more_ngrams = many["eval_ngrams"] - few["eval_ngrams"]

    def between(one: dict[str, float], other: dict[str, float], units: float) -> dict[str, float]:
        return {name: max(0.0, other[name] - one[name]) / units for name in _FIGURES}

    return OverlapFigures(
        between(many, large, text_mb),
        between(large, passes, more_mb),
        between(few, many, more_ngrams),
    )


def overlap_use(
    run: OverlapRun, figures: OverlapFigures, assumed: Assumptions, is_high: bool
) -> Use:
    """Computes the resources of an overlap run, low or high.

    One worker reads and indexes the evaluation sets, while the others wait. Low: the measured CPU,
    with all waiting hidden behind it. High: a thread waits for each request and byte of GCS; each
    group of work units fetches all index shards; all vCPUs are kept from the start to the end.
    """
    mb, further, ngrams = run.text_bytes / 1e6, run.passes - 1, run.num_ngrams
    evaluation = {name: ngrams * each for name, each in figures.per_ngram.items()}
    training = {
        name: mb * (each + further * figures.per_pass_mb[name])
        for name, each in figures.per_mb.items()
    }
    alone_s, busy_s = (of["cpu_s"] / assumed.vcpu_speed for of in (evaluation, training))
    if is_high:
        index_bytes = ngrams * INDEX_BYTES_PER_PLACE
        groups = count_groups(int(run.text_bytes), run.passes, int(index_bytes / run.passes))
        fetched = index_bytes * max(groups, -(-run.num_vcpus // run.machine_vcpus))
        waiting_s = _waiting_s(training, assumed) + fetched / assumed.stream_bytes_per_s
        busy_s = max(busy_s, (busy_s + waiting_s) / assumed.threads_per_vcpu)
        alone_s += _waiting_s(evaluation, assumed)
    wall_s = assumed.start_s + alone_s + busy_s / run.num_vcpus
    return Use(
        vcpu_hours=(run.num_vcpus * wall_s if is_high else busy_s + alone_s) / 3600,
        wall_hours=wall_s / 3600,
        commit_hours=alone_s / 3600,
        shuffle_gb=0.0,
        temporary_gb=(training["uploaded_bytes"] + evaluation["uploaded_bytes"]) / _GB,
        output_gb=0.0,
        class_a=training["class_a"] + evaluation["class_a"],
        class_b=training["class_b"] + evaluation["class_b"],
    )


def _waiting_s(took: dict[str, float], assumed: Assumptions) -> float:
    """Returns how long one thread waits for requests and bytes."""
    num_bytes = took["uploaded_bytes"] + took["downloaded_bytes"]
    requests = sum(took[name] for name in REQUESTS)
    return requests * assumed.request_s + num_bytes / assumed.stream_bytes_per_s


def overlap_costs(run: OverlapRun, use: Use, prices: Prices, assumed: Assumptions) -> float:
    """Returns the dollars of an overlap run on its machines."""
    machine = replace(
        assumed,
        memory_gb_per_vcpu=run.machine_gb / run.machine_vcpus,
        disk_gb_per_vcpu=run.disk_gb / run.machine_vcpus,
    )
    return sum(costs_of(use, prices, machine).values())
