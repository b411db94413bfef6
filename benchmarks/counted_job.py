"""A job with Beam's counters and its requests to GCS, on a part of a larger run.

    python -m benchmarks.counted_job [--group_rows=8000] [--rows_in_all=35000000000] --input=… …
    python -m benchmarks.counted_job --job=overlap [--request_s=0.05] --input_path=… …

--group_rows sets how many rows are pre-grouped at a time, in place of 2 M, so that a few probes get
chunks as small as those of ten thousand. --rows_in_all is the size of the larger run, which sets
the number of buckets. --request_s is added to each request to GCS. All other flags are the job's.
The last two lines on stderr are JSON objects: the values of counters and the sums of distributions,
in which retried bundles may count twice; and the requests to GCS by billing class.
"""

import argparse
import importlib
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest import mock

import apache_beam as beam
import orjson
from apache_beam.runners.runner import PipelineResult

from beam_pipeline.jobs.monitoring import NAMESPACE
from beam_pipeline.probe_rows import grouping
from beam_pipeline.probe_rows.bucket import num_buckets
from beam_pipeline.sources import reading
from benchmarks.gcs_requests import counted_requests

JOBS = {"probe_rows": "beam_pipeline.main", "overlap": "beam_pipeline.overlap.__main__"}


def counters_of(result: PipelineResult) -> dict[str, int]:
    """Returns our counters' values and distributions' sums by name, summed over the steps."""
    found = result.metrics().query(beam.metrics.MetricsFilter().with_namespace(NAMESPACE))
    totals: Counter[str] = Counter()
    for metric in found["counters"]:  # None: at 0, and Prism has only committed values
        totals[metric.key.metric.name] += metric.result or 0
    for metric in found["distributions"]:
        totals[metric.key.metric.name] += metric.result.sum
    return dict(totals)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job and prints the counts; returns its exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--group_rows", type=int, default=grouping.UNIT_ROWS)
    parser.add_argument("--rows_in_all", type=int)
    parser.add_argument("--job", choices=JOBS, default="probe_rows")
    parser.add_argument("--request_s", type=float, default=0.0)
    args, flags = parser.parse_known_args(argv)
    grouping.UNIT_ROWS = args.group_rows
    if args.rows_in_all:
        grouping.num_buckets = lambda _: num_buckets(args.rows_in_all)
    reading.BATCH_ROWS = min(reading.BATCH_ROWS, args.group_rows)
    results: list[PipelineResult] = []
    run = beam.Pipeline.run

    def noting(pipeline: beam.Pipeline, *arguments: Any) -> PipelineResult:
        results.append(run(pipeline, *arguments))
        return results[-1]

    with (
        counted_requests(args.request_s) as counts,
        mock.patch.object(beam.Pipeline, "run", noting),
    ):
        code = importlib.import_module(JOBS[args.job]).main(flags)
    if code == 0:
        for counted in (counters_of(results[0]), counts):
            print(orjson.dumps(counted).decode(), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
