"""N-grams that many documents have in common, or many evaluation rows: listed, but not counted.

SHARED_COUNTS → those in more than k documents → a file of their keys → Keep (`read_boilerplate`)
                                               → lines {ngram, n, documents}
Postings      → n-grams of more than k evaluation rows → a file of their keys
                                                       → lines {ngram, n, eval_rows}
files of keys → NGRAM_KEYS of a bucket of evaluation rows (`boilerplate_of`)
"""

import functools
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from beam_pipeline.overlap.documents.batch import decode
from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.ngrams.token_texts import ngrams_of
from beam_pipeline.overlap.results import counts
from beam_pipeline.overlap.results.counts import NGRAM_KEYS
from beam_pipeline.overlap.results.match_files import Keep
from beam_pipeline.overlap.results.output_files import write_lines
from beam_pipeline.storage.files import atomic_write, open_file

_KEY = np.dtype([("shard", "<u4"), ("ngram", "<i8")])
NGRAMS_PER_BUCKET = 1 << 16


def bucket_of(shared: np.ndarray) -> np.ndarray:
    """Returns the bucket of each of some SHARED_COUNTS, int64."""
    return shared["shard"].astype(np.int64) << 40 | shared["ngram"] // NGRAMS_PER_BUCKET


def find_boilerplate(shared: np.ndarray, max_document_frequency: int) -> np.ndarray:
    """Returns the SHARED_COUNTS of n-grams that are in more documents than that."""
    return shared[shared["documents"] > max_document_frequency]


def write_boilerplate(path: str, temp_folder: str, boilerplate: Iterable[np.ndarray]) -> None:
    """Writes the keys of SHARED_COUNTS, or of keys, for `read_boilerplate`."""
    with atomic_write(path, temp_folder) as stream:
        for shared in boilerplate:
            keys = np.empty(len(shared), _KEY)
            keys["shard"], keys["ngram"] = shared["shard"], shared["ngram"]
            stream.write(keys.tobytes())


@functools.lru_cache(16)
def _by_shard(path: str) -> dict[int, np.ndarray]:
    """Returns the n-grams of each index shard, sorted, from a file of `write_boilerplate`."""
    with open_file(path) as stream:
        keys = np.frombuffer(stream.read(), _KEY)
    return {
        shard: np.sort(keys["ngram"][keys["shard"] == shard])
        for shard in np.unique(keys["shard"]).tolist()
    }


def read_boilerplate(path: str) -> Keep:
    """Returns what tells which n-grams are not boilerplate, from a file of `write_boilerplate`."""
    by_shard, nothing = _by_shard(path), np.empty(0, np.int64)
    return lambda shard, ngrams: ~np.isin(ngrams, by_shard.get(shard, nothing))


def boilerplate_of(paths: Iterable[str], bucket: int, postings: Sequence[Postings]) -> np.ndarray:
    """Returns the NGRAM_KEYS of a bucket of evaluation rows that are boilerplate, sorted.

    Args:
      paths: files of `write_boilerplate` and `write_common_ngrams`, which share no n-gram.
    """
    first_row, stop_row = (at * counts.ROWS_PER_BUCKET for at in (bucket, bucket + 1))
    parts = [np.empty(0, NGRAM_KEYS)]
    for shard, ngrams in itertools.chain(*(_by_shard(path).items() for path in paths)):
        found = postings[shard].expand(postings[shard].locate(ngrams), first_row, stop_row)
        part = np.empty(len(found.rows), NGRAM_KEYS)
        part["number"], part["token"] = found.rows, found.tokens[found.bounds[:-1]]
        part["n"] = postings[shard].lengths(ngrams)[found.which]
        parts.append(part)
    return np.sort(np.concatenate(parts))


def write_boilerplate_lines(
    path: str, temp_folder: str, boilerplate: np.ndarray, postings: Sequence[Postings]
) -> None:
    """Writes lines {ngram, n, documents} of SHARED_COUNTS, each once, ordered by n and n-gram."""
    found = set()
    for shard in np.unique(boilerplate["shard"]).tolist():
        shared = boilerplate[boilerplate["shard"] == shard]
        texts = texts_of(postings[shard], shared["ngram"])
        lengths = postings[shard].lengths(shared["ngram"]).tolist()
        found.update(zip(lengths, texts, shared["documents"].tolist(), strict=True))
    records = ({"ngram": ngram, "n": n, "documents": num} for n, ngram, num in sorted(found))
    write_lines(path, temp_folder, records)


def write_common_ngrams(
    lines_path: str, keys_path: str, temp_folder: str, index_shard: int, postings: Postings
) -> None:
    """Writes what too many evaluation rows have in common.

    Args:
      lines_path: gets lines {ngram, n, eval_rows}, ordered by n and n-gram.
      keys_path: gets keys, as `write_boilerplate` writes them.
    """
    ngrams, num_rows = postings.common_ngrams()
    keys = np.empty(len(ngrams), _KEY)
    keys["shard"], keys["ngram"] = index_shard, ngrams
    write_boilerplate(keys_path, temp_folder, [keys])
    lengths = postings.lengths(ngrams).tolist()
    found = zip(lengths, texts_of(postings, ngrams), num_rows.tolist(), strict=True)
    records = ({"ngram": ngram, "n": n, "eval_rows": num} for n, ngram, num in sorted(found))
    write_lines(lines_path, temp_folder, records)


def texts_of(postings: Postings, ngrams: np.ndarray) -> list[str]:
    """Returns n-grams as text."""
    texts: pa.LargeBinaryArray = ngrams_of(
        postings.texts, postings.first_tokens(ngrams), postings.lengths(ngrams)
    )
    return [decode(each.as_py()) for each in texts]
