"""N-grams that do not count: those in many training documents or evaluation rows, or dropped.

SHARED_COUNTS                     → those in more than k documents, and dropped ones
index shards                      → those in many evaluation rows
lines {ngram} of --drop_ngrams    → (index shard, n-gram) of those in an evaluation row
all                               → a file of keys → Keep
                                  → rows of which all n-grams are boilerplate
                                  → lines {ngram, n, documents} of those in training documents
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from beam_pipeline.documents.batch import decode, text_buffers
from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.overlap.ngrams.index import Index
from beam_pipeline.overlap.ngrams.matching import find_candidates
from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.ngrams.token_texts import ngrams_of, token_texts
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from beam_pipeline.overlap.results.counts import NGRAM_KEYS, count_buckets, ngrams_of_rows
from beam_pipeline.overlap.results.expansion import PAIRS
from beam_pipeline.overlap.results.match_files import Keep
from beam_pipeline.overlap.results.output_files import parse_lines, write_lines
from beam_pipeline.overlap.results.row_overlaps import RowLists
from beam_pipeline.storage.files import atomic_write, open_file
from beam_pipeline.storage.matching import FileVersion, unchanged

KEYS = np.dtype([("shard", "<u4"), ("ngram", "<i8")])
NGRAMS_PER_BUCKET = 1 << 16
_LINES_AT_A_TIME = 1 << 16
_JOINED = Tokenizer("n-grams", " ", lowercase=False)


def bucket_of(shared: np.ndarray) -> np.ndarray:
    """Returns the bucket of each of some SHARED_COUNTS, int64."""
    return shared["shard"].astype(np.int64) << 40 | shared["ngram"] // NGRAMS_PER_BUCKET


def find_boilerplate(
    shared: np.ndarray, max_document_frequency: int, dropped: np.ndarray
) -> np.ndarray:
    """Returns the SHARED_COUNTS of n-grams that are in too many documents or in `dropped` KEYS."""
    is_found = np.isin(_numbers(shared), _numbers(dropped))
    if max_document_frequency:
        is_found |= shared["documents"] > max_document_frequency
    return shared[is_found]


def _numbers(keys: np.ndarray) -> np.ndarray:
    """Returns an identifier of each n-gram, int64; a shard has at most 2**32 n-grams."""
    return keys["shard"].astype(np.int64) << 32 | keys["ngram"]


# --- files of keys ------------------------------------------------------------------------------


def write_keys(path: str, temp_folder: str, parts: Iterable[np.ndarray]) -> None:
    """Writes arrays with the fields of KEYS."""
    with atomic_write(path, temp_folder) as stream:
        for part in parts:
            stream.write(part[list(KEYS.names or ())].astype(KEYS).tobytes())


@functools.lru_cache(2)
def read_keys(path: str) -> np.ndarray:
    """Returns the KEYS of a file."""
    with open_file(path) as stream:
        return np.frombuffer(stream.read(), KEYS)


@functools.lru_cache(16)
def _by_shard(path: str) -> dict[int, np.ndarray]:
    """Returns the n-grams of each index shard in a file of keys, distinct and sorted."""
    keys = read_keys(path)
    shards = np.unique(keys["shard"]).tolist()
    return {shard: np.unique(keys["ngram"][keys["shard"] == shard]) for shard in shards}


def read_boilerplate(path: str) -> Keep:
    """Returns a filter that drops the n-grams in a file of keys."""
    by_shard, nothing = _by_shard(path), np.empty(0, np.int64)
    return lambda shard, ngrams: ~np.isin(ngrams, by_shard.get(shard, nothing))


def boilerplate_of(path: str, bucket: int, postings: Sequence[Postings]) -> np.ndarray:
    """Returns the sorted NGRAM_KEYS, in a bucket of evaluation rows, of a file of keys."""
    parts = [np.empty(0, NGRAM_KEYS)]
    for shard, ngrams in _by_shard(path).items():
        located = postings[shard].locate(ngrams)
        parts.append(ngrams_of_rows(postings[shard], located, bucket, NGRAM_KEYS)[0])
    return np.sort(np.concatenate(parts))


def bare_rows(path: str, postings: Sequence[Postings]) -> np.ndarray:
    """Returns the PAIRS of evaluation rows and n whose n-grams are all in a file of keys."""
    texts, found = postings[0].texts, [np.empty(0, PAIRS)]
    for bucket in range(count_buckets(len(texts.firsts) - 1)):
        for lists in RowLists.of(boilerplate_of(path, bucket, postings)).pieces(texts):
            num_places = lists.num_tokens(texts) - lists.lengths + 1
            is_bare = lists.all_places(texts).sizes == num_places
            bare = np.empty(int(is_bare.sum()), PAIRS)
            bare["number"], bare["n"] = lists.numbers[is_bare], lists.lengths[is_bare]
            found.append(bare)
    return np.concatenate(found)


def write_boilerplate_lines(
    path: str, temp_folder: str, boilerplate: np.ndarray, postings: Sequence[Postings]
) -> None:
    """Writes lines {ngram, n, documents} of SHARED_COUNTS, ordered by n and n-gram."""
    found: list[tuple[int, str, int]] = []
    for shard in np.unique(boilerplate["shard"]).tolist():
        shared, of_shard = boilerplate[boilerplate["shard"] == shard], postings[shard]
        lengths = of_shard.lengths(shared["ngram"])
        texts: pa.LargeBinaryArray = ngrams_of(
            of_shard.texts, of_shard.first_tokens(shared["ngram"]), lengths
        )
        ngrams = (decode(each.as_py()) for each in texts)
        found += zip(lengths.tolist(), ngrams, shared["documents"].tolist(), strict=True)
    names = ("ngram", "n", "documents")
    records = ((ngram, n, documents) for n, ngram, documents in sorted(found))
    write_lines(path, temp_folder, (dict(zip(names, each, strict=True)) for each in records))


# --- many evaluation rows -----------------------------------------------------------------------


def common_ngrams(
    indexes: Sequence[Index], postings: Sequence[Postings], max_eval_rows: int
) -> np.ndarray:
    """Returns the KEYS of the n-grams of more than `max_eval_rows` evaluation rows."""
    found = [np.empty(0, KEYS)]
    for shard, (index, posting) in enumerate(zip(indexes, postings, strict=True)):
        has_many = np.diff(index.bounds.astype(np.int64)) > max_eval_rows
        located = posting.locate(index.bounds[:-1][has_many].astype(np.int64))
        num_rows, _ = posting.num_rows(located.ngrams, located.keys)
        ngrams = located.ngrams[num_rows > max_eval_rows]
        of_shard = np.empty(len(ngrams), KEYS)
        of_shard["shard"], of_shard["ngram"] = shard, ngrams
        found.append(of_shard)
    return np.concatenate(found)


# --- --drop_ngrams ------------------------------------------------------------------------------


def read_ngrams(file: FileVersion) -> Iterator[str]:
    """Yields the n-grams of a JSON lines file; raises ProbelineError for an invalid line."""
    with unchanged(file), open_file(file.path) as stream:
        for number, line in enumerate(stream, 1):
            try:
                ngram = _ngram_of(line)
            except ValueError as error:
                raise ProbelineError(
                    f"--drop_ngrams={file.path}: line {number}: {one_line(error)}; give lines such "
                    'as {"ngram": "all rights reserved"}'
                ) from error
            yield ngram


def check_ngrams(file: FileVersion) -> None:
    """Raises any error of `read_ngrams` before a run begins."""
    for _ in read_ngrams(file):
        pass


def _ngram_of(line: bytes) -> str:
    try:
        (record,) = parse_lines([line])
    except ValueError as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(record, dict) or not isinstance(ngram := record.get("ngram"), str):
        raise ValueError("it is not a record with an ngram")
    num_tokens = ngram.count(" ") + 1
    if record.get("n", num_tokens) != num_tokens:
        raise ValueError(f"n is {record['n']}, but {ngram!r} has {num_tokens} tokens")
    return ngram


def find_ngrams(
    ngrams: Iterable[str], indexes: Sequence[Index], postings: Sequence[Postings]
) -> np.ndarray:
    """Returns the KEYS of those n-grams, tokens joined by spaces, that an evaluation row has."""
    found = [np.empty(0, KEYS)]
    for some in itertools.batched(ngrams, _LINES_AT_A_TIME):
        utf8, bounds = text_buffers(list(some))
        texts = token_texts(utf8, bounds, _JOINED)
        num_tokens = np.diff(texts.firsts)
        for shard, (index, posting) in enumerate(zip(indexes, postings, strict=True)):
            _, tokens, lengths, keys, *_ = candidates = find_candidates(
                index, _JOINED, utf8, bounds
            )
            is_whole = (tokens == 0) & (lengths == num_tokens[candidates.documents])
            first = texts.firsts[candidates.documents[is_whole]]
            numbers = posting.identify(keys[is_whole], texts, first, lengths[is_whole])
            numbers = numbers[numbers >= 0]
            of_shard = np.empty(len(numbers), KEYS)
            of_shard["shard"], of_shard["ngram"] = shard, numbers
            found.append(of_shard)
    return np.unique(np.concatenate(found))
