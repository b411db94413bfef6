"""The steps that find which n-grams are boilerplate and do not count.

files of --drop_ngrams, index shards → a file of KEYS
ScannedUnit → SHARED_COUNTS by bucket of n-grams → BucketBoilerplate → a file of all KEYS
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.jobs.monitoring import logged
from beam_pipeline.overlap.job.preparing import Job, Prepared
from beam_pipeline.overlap.results.boilerplate import (
    bucket_of,
    find_boilerplate,
    keys_of,
    read_boilerplate,
    read_keys,
    write_boilerplate,
    write_boilerplate_lines,
    write_dropped,
)
from beam_pipeline.overlap.results.counts import (
    ROWS_PER_BUCKET,
    SHARED_COUNTS,
    PackedCounts,
    Sum,
    add_counts,
    count_shared,
    pack,
    shared_sum,
    unpack,
)
from beam_pipeline.overlap.results.dropped_ngrams import find_ngrams, read_ngrams
from beam_pipeline.overlap.results.match_files import Keep, ScannedUnit
from beam_pipeline.storage.matching import FileVersion


class BucketBoilerplate(NamedTuple):
    """The boilerplate of a bucket of n-grams."""

    ngrams: np.ndarray  # KEYS
    lines_path: str


def filter_at(boilerplate_path: str | None) -> Keep | None:
    return None if boilerplate_path is None else read_boilerplate(boilerplate_path)


def empty_buckets(prepared: Prepared) -> Iterator[tuple[int, PackedCounts]]:
    """Yields every bucket of evaluation rows, without counts."""
    for bucket in range(-(-prepared.counts["eval_rows"] // ROWS_PER_BUCKET)):
        yield bucket, PackedCounts.of(add_counts([]))


def find_dropped(
    files: Sequence[FileVersion], job: Job, prepared: Prepared, train_counts: Mapping[str, Any]
) -> str:
    """Writes which n-grams of the evaluation sets --drop_ngrams names; returns the path.

    Args:
      train_counts: of the scan, for which it waits, since that waits for the index.
    """
    with logged("Read dropped n-grams"):
        path, shards = job.temp_path("boilerplate", "dropped"), range(prepared.num_index_shards)
        indexes = [prepared.open_index(shard) for shard in shards]
        ngrams = (ngram for file in files for ngram in read_ngrams(file))
        found = find_ngrams(ngrams, indexes, prepared.evaluation().postings)
        write_dropped(path, job.temp_folder, found)
    return path


def count_documents(scanned: ScannedUnit) -> Iterator[tuple[int, tuple[int, bytes]]]:
    """Yields the source and the packed SHARED_COUNTS of a work unit by bucket of n-grams."""
    with logged("Count documents", path=scanned.unit.path):
        counts = count_shared(scanned.paths)
    buckets, starts = np.unique(bucket_of(counts), return_index=True)
    for bucket, of_bucket in zip(buckets.tolist(), np.split(counts, starts[1:]), strict=False):
        yield bucket, (scanned.unit.source, pack(of_bucket))


def add_by_source(counts: Iterable[tuple[int, bytes]]) -> dict[int, np.ndarray]:
    """Returns the sums of packed SHARED_COUNTS by source, which are the keys, in order."""
    sums: dict[int, Sum] = defaultdict(shared_sum)
    for source, packed in counts:
        sums[source].add(unpack(packed, SHARED_COUNTS))
    return {source: found.records() for source, found in sorted(sums.items())}


def list_boilerplate(
    keyed: tuple[int, Iterable[tuple[int, bytes]]],
    job: Job,
    prepared: Prepared,
    dropped_path: str,
) -> BucketBoilerplate:
    """Returns the boilerplate of a bucket, its lines written to a file."""
    (bucket, counts), config = keyed, job.config
    by_source = add_by_source(counts)
    limits = config.max_document_frequency, config.min_boilerplate_sources
    found = find_boilerplate(by_source, *limits, read_keys(dropped_path))
    path = job.temp_path("boilerplate", f"{bucket:016d}.jsonl")
    postings = prepared.evaluation().postings
    sources = job.config.input_paths
    write_boilerplate_lines(path, job.temp_folder, found, postings, by_source, sources)
    return BucketBoilerplate(keys_of(found), path)


def gather_boilerplate(
    _: bytes, job: Job, dropped_path: str, found: Iterable[BucketBoilerplate]
) -> str:
    """Writes the boilerplate of all buckets to one file and returns its path."""
    path = job.temp_path("boilerplate", "keys")
    write_boilerplate(path, job.temp_folder, [bucket.ngrams for bucket in found], dropped_path)
    return path
