"""Runs the job and tells what Beam counted: for benches that need bytes shuffled and the like.

    python -m benchmarks.counted --input=… --output=… [flags of beam_pipeline.main]

The last line on stderr is a JSON object: each counter's value, each distribution's sum. What the
runner reports as committed counts; bundles that it retried may count twice.
"""

import sys
from collections import Counter
from typing import Any

import apache_beam as beam
import orjson
from apache_beam.runners.runner import PipelineResult

from beam_pipeline import main as job
from beam_pipeline.jobs.monitoring import NAMESPACE


def main(argv: list[str] | None = None) -> int:
    results: list[PipelineResult] = []
    run = beam.Pipeline.run

    def noted(pipeline: beam.Pipeline, *args: Any) -> PipelineResult:
        results.append(run(pipeline, *args))
        return results[-1]

    beam.Pipeline.run = noted
    try:
        code = job.main(argv)
    finally:
        beam.Pipeline.run = run
    if code == 0:
        print(orjson.dumps(counters_of(results[0])).decode(), file=sys.stderr)
    return code


def counters_of(result: PipelineResult) -> dict[str, int]:
    """Returns our counters' values and distributions' sums by name, added up over the steps."""
    found = result.metrics().query(beam.metrics.MetricsFilter().with_namespace(NAMESPACE))
    totals: Counter[str] = Counter()
    for metric in found["counters"]:
        totals[metric.key.metric.name] += metric.result
    for metric in found["distributions"]:
        totals[metric.key.metric.name] += metric.result.sum
    return dict(totals)


if __name__ == "__main__":
    sys.exit(main())
