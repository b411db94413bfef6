"""The steps that find boilerplate n-grams.

files of --drop_ngrams, index shards → a file of KEYS, also of n-grams of many evaluation rows
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
    common_ngrams,
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

MIN_DOCUMENTS = 1000  # fewer may be copies of one leak


class BoilerplateOptions(NamedTuple):
    """Which n-grams are boilerplate; 0 is no limit."""

    max_documents: int = 0  # training documents
    max_document_share: float = 0.0  # of the training documents, but at least MIN_DOCUMENTS
    max_eval_rows: int = 0

    def most_documents(self, num_texts: int) -> int:
        """Returns the max number of training documents, given their number, or 0."""
        if self.max_documents or not self.max_document_share:
            return self.max_documents
        return max(MIN_DOCUMENTS, int(num_texts * self.max_document_share))


class BucketBoilerplate(NamedTuple):
    """The boilerplate of a bucket of n-grams."""

    shared: np.ndarray  # SHARED_COUNTS
    lines_path: str


def filter_at(boilerplate_path: str | None) -> Keep | None:
    """Returns the filter of a file of keys, or None if everything counts."""
    return None if boilerplate_path is None else read_boilerplate(boilerplate_path)


def find_dropped(
    files: Sequence[FileVersion],
    run: JobRun,
    prepared: Prepared,
    options: BoilerplateOptions,
    train_counts: Mapping[str, Any],
) -> str:
    """Writes the n-grams that --drop_ngrams lists or many evaluation rows have; returns the path.

    `train_counts` only delays this step until after the scan, which waits for the index.
    """
    with logged("Read dropped n-grams"):
        path, shards = run.below("boilerplate/dropped"), range(prepared.num_index_shards)
        indexes = [prepared.open_index(shard) for shard in shards]
        ngrams = (ngram for file in files for ngram in read_ngrams(file))
        postings = prepared.evaluation().postings
        found = [find_ngrams(ngrams, indexes, postings)]
        if options.max_eval_rows:
            found.append(common_ngrams(indexes, postings, options.max_eval_rows))
        write_keys(path, run.folder, found)
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
    options: BoilerplateOptions,
    train_counts: Mapping[str, Any],
) -> BucketBoilerplate:
    """Returns the boilerplate of a bucket, after writing its lines to a file."""
    bucket, packed = keyed
    shared = add_shared(unpack(each, SHARED_COUNTS) for each in packed)
    most = options.most_documents(train_counts["train_texts"])
    found = find_boilerplate(shared, most, read_keys(dropped_path))
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
