"""The steps that find boilerplate n-grams.

files of --drop_ngrams, index shards → a file of KEYS
ScannedUnit → SHARED_COUNTS by bucket of n-grams → BucketBoilerplate → a file of all KEYS
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.jobs.monitoring import logged
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.overlap.job.preparing import Prepared
from beam_pipeline.overlap.results.boilerplate import (
    bucket_of,
    find_boilerplate,
    find_ngrams,
    read_boilerplate,
    read_keys,
    read_ngrams,
    write_boilerplate_lines,
    write_keys,
)
from beam_pipeline.overlap.results.counts import (
    SHARED_COUNTS,
    add_shared,
    count_shared,
    pack,
    unpack,
)
from beam_pipeline.overlap.results.match_files import Keep, ScannedUnit
from beam_pipeline.storage.matching import FileVersion


class BucketBoilerplate(NamedTuple):
    """The boilerplate of a bucket of n-grams."""

    shared: np.ndarray  # SHARED_COUNTS
    lines_path: str


def filter_at(boilerplate_path: str | None) -> Keep | None:
    """Returns the filter of a file of keys, or None if everything counts."""
    return None if boilerplate_path is None else read_boilerplate(boilerplate_path)


def find_dropped(
    files: Sequence[FileVersion], run: JobRun, prepared: Prepared, train_counts: Mapping[str, Any]
) -> str:
    """Writes the evaluation sets' n-grams that --drop_ngrams lists; returns the path.

    `train_counts` only delays this step until after the scan, which waits for the index.
    """
    with logged("Read dropped n-grams"):
        path, shards = run.below("boilerplate/dropped"), range(prepared.num_index_shards)
        indexes = [prepared.open_index(shard) for shard in shards]
        ngrams = (ngram for file in files for ngram in read_ngrams(file))
        found = find_ngrams(ngrams, indexes, prepared.evaluation().postings)
        write_keys(path, run.folder, [found])
    return path


def count_documents(scanned: ScannedUnit) -> Iterator[tuple[int, bytes]]:
    """Yields the packed SHARED_COUNTS of a work unit by bucket of n-grams."""
    with logged("Count documents", path=scanned.unit.path):
        counts = count_shared(scanned.paths)
    buckets, starts = np.unique(bucket_of(counts), return_index=True)
    for bucket, of_bucket in zip(buckets.tolist(), np.split(counts, starts[1:]), strict=False):
        yield bucket, pack(of_bucket)


def list_boilerplate(
    keyed: tuple[int, Iterable[bytes]],
    run: JobRun,
    prepared: Prepared,
    dropped_path: str,
    max_document_frequency: int,
) -> BucketBoilerplate:
    """Returns the boilerplate of a bucket, after writing its lines to a file."""
    bucket, packed = keyed
    shared = add_shared(unpack(each, SHARED_COUNTS) for each in packed)
    found = find_boilerplate(shared, max_document_frequency, read_keys(dropped_path))
    path = run.below(f"boilerplate/{bucket:016d}.jsonl")
    write_boilerplate_lines(path, run.folder, found, prepared.evaluation().postings)
    return BucketBoilerplate(found, path)


def gather_boilerplate(
    _: bytes, run: JobRun, dropped_path: str, found: Iterable[BucketBoilerplate]
) -> str:
    """Writes the keys of all boilerplate and dropped n-grams to one file; returns its path."""
    path = run.below("boilerplate/keys")
    parts = [read_keys(dropped_path), *(bucket.shared for bucket in found)]
    write_keys(path, run.folder, parts)
    return path
