"""Monitoring of a run: counters, distributions, and one line of JSON per error.

They are informative only, since a retried bundle may count and log twice. The counts in the
manifest prove that nothing was lost. On Dataflow, counters are on the job's page under "Custom
counters", and errors in Cloud Logging. docs/operations.md lists the counters; a test compares.
"""

import contextlib
import logging
from collections.abc import Iterator

import orjson
from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import Metrics as _Kinds

from beam_pipeline.errors import one_line

NAMESPACE = "probeline"
COUNTERS = {
    "rows_read": "input rows, good and bad",
    "rows_left_out": "input rows that are not in the sample",
    "files_unreadable": "unreadable files, with --on_bad_file=dead_letter",
    "chunks": "chunks of a bucket of probes from one work unit",
    "grouped_by_probe_bytes": "bytes that went into the GroupByKey by probe",
    "probes": "probes sorted",
    "duplicates_dropped": "measurements that equal another, with --duplicates=drop",
    "spilled_bytes": "bytes that sorting wrote to storage because a probe exceeded its memory",
    "cut_bytes": "bytes that went into the stateful row split",
    "row_splits": "rows of probes with several rows",
    "grouped_by_shard_bytes": "bytes that went into the GroupByKey by shard",
    "records_written": "rows in shards",
    "bytes_written": "bytes of shards",
    "shards_written": "shards",
    "train_probes": "probes of the finished dataset's train split",
    "test_probes": "probes of the finished dataset's test split",
    "overlap_documents": "training documents with a text, scanned by the overlap job",
    "overlap_text_bytes": "bytes of text scanned by the overlap job, once per index shard",
    "overlap_matches": "n-grams that a training document shares with an evaluation row",
    "overlap_details": "records of overlap_details",
}
DISTRIBUTIONS = {
    "measurements_per_probe": "measurements of a probe",
    "record_bytes": "bytes of a record as written",
}
DEAD_LETTERS = "dead_letters_"  # followed by the reason
_LOGGER = logging.getLogger("beam_pipeline")


def counter(name: str) -> _Kinds.DelegatingCounter:
    """Returns one of COUNTERS; raises KeyError for any other name."""
    COUNTERS[name]
    return Metrics.counter(NAMESPACE, name)


def distribution(name: str) -> _Kinds.DelegatingDistribution:
    """Returns one of DISTRIBUTIONS; raises KeyError for any other name."""
    DISTRIBUTIONS[name]
    return Metrics.distribution(NAMESPACE, name)


def count_dead_letters(reason: str, count: int) -> None:
    """Counts dead letters of one reason."""
    Metrics.counter(NAMESPACE, f"{DEAD_LETTERS}{reason}").inc(count)


@contextlib.contextmanager
def logged(step: str, **where: object) -> Iterator[None]:
    """Logs an exception in the block as a line of JSON with its place, and re-raises it."""
    try:
        yield
    except Exception as error:
        fields = {"step": step, **where, "error": type(error).__name__, "message": one_line(error)}
        _LOGGER.error(orjson.dumps(fields).decode())
        raise
