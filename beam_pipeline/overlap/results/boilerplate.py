"""N-grams that many documents have in common, or many evaluation rows: listed, but not counted.

SHARED_COUNTS by source → those in more than k documents → a file of keys → Keep
and n-grams of the user                                  → lines {ngram, n, documents}
Postings      → n-grams of more than k evaluation rows → a file of keys
                                                       → lines {ngram, n, eval_rows}
files of keys → NGRAM_KEYS of a bucket of evaluation rows (`boilerplate_of`)
"""

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from beam_pipeline.documents.batch import decode
from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.ngrams.token_texts import ngrams_of
from beam_pipeline.overlap.results import counts
from beam_pipeline.overlap.results.counts import NGRAM_KEYS, add_shared
from beam_pipeline.overlap.results.match_files import Keep
from beam_pipeline.overlap.results.output_files import escape_surrogates, write_lines
from beam_pipeline.storage.files import atomic_write, open_file

KEYS = np.dtype([("shard", "<u4"), ("ngram", "<i8"), ("is_shared", "?")])
BySource = Mapping[int, np.ndarray]  # SHARED_COUNTS by number of the value of --input_path
NGRAMS_PER_BUCKET = 1 << 16


def bucket_of(shared: np.ndarray) -> np.ndarray:
    """Returns the bucket of each of some SHARED_COUNTS, int64."""
    return shared["shard"].astype(np.int64) << 40 | shared["ngram"] // NGRAMS_PER_BUCKET


def find_boilerplate(
    by_source: BySource,
    max_document_frequency: int,
    min_sources: int = 0,
    dropped: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the SHARED_COUNTS of n-grams that are in more documents than that, or are dropped.

    Args:
      max_document_frequency: 0 is no limit.
      min_sources: that have so many documents each; 0 counts those of all sources together.
      dropped: KEYS of `write_dropped`.
    """
    total = add_shared(by_source.values())
    is_found = np.zeros(len(total), bool)
    if max_document_frequency and min_sources:
        sources = [each[each["documents"] > max_document_frequency] for each in by_source.values()]
        numbers = _numbers(np.concatenate([total[:0], *sources]))
        distinct, num_sources = np.unique(numbers, return_counts=True)
        is_found = np.isin(_numbers(total), distinct[num_sources >= min_sources])
    elif max_document_frequency:
        is_found = total["documents"] > max_document_frequency
    if dropped is not None:
        is_found |= np.isin(_numbers(total), _numbers(dropped))
    return total[is_found]


def _numbers(keys: np.ndarray) -> np.ndarray:
    """Returns a number for each n-gram of any index shard, int64; there are 2**32 in one."""
    return keys["shard"].astype(np.int64) << 32 | keys["ngram"]


def keys_of(shared: np.ndarray) -> np.ndarray:
    """Returns the KEYS of SHARED_COUNTS."""
    keys = np.empty(len(shared), KEYS)
    keys["shard"], keys["ngram"], keys["is_shared"] = shared["shard"], shared["ngram"], True
    return keys


def write_boilerplate(
    path: str, temp_folder: str, boilerplate: Sequence[np.ndarray], dropped_path: str
) -> None:
    """Writes KEYS, and those of `write_dropped` that are not among them, for `read_boilerplate`."""
    shared, dropped = np.concatenate([np.empty(0, KEYS), *boilerplate]), read_keys(dropped_path)
    others = dropped[~np.isin(_numbers(dropped), _numbers(shared))]
    _write_keys(path, temp_folder, [shared, others])


def write_dropped(path: str, temp_folder: str, ngrams: Sequence[np.ndarray]) -> None:
    """Writes the n-grams of each index shard as KEYS of which it is not known who shares them."""
    _write_keys(path, temp_folder, itertools.starmap(_unshared, enumerate(ngrams)))


def _unshared(shard: int, ngrams: np.ndarray) -> np.ndarray:
    keys = np.zeros(len(ngrams), KEYS)
    keys["shard"], keys["ngram"] = shard, ngrams
    return keys


def _write_keys(path: str, temp_folder: str, parts: Iterable[np.ndarray]) -> None:
    with atomic_write(path, temp_folder) as stream:
        for keys in parts:
            stream.write(keys.tobytes())


@functools.lru_cache(2)
def read_keys(path: str) -> np.ndarray:
    """Returns KEYS from a file of `write_boilerplate` or `write_dropped`."""
    with open_file(path) as stream:
        return np.frombuffer(stream.read(), KEYS)


@functools.lru_cache(16)
def _by_shard(path: str) -> dict[int, np.ndarray]:
    """Returns the KEYS of each index shard, sorted, from a file of `write_boilerplate`."""
    keys = read_keys(path)
    keys = keys[np.lexsort((keys["ngram"], keys["shard"]))]
    return {shard: keys[keys["shard"] == shard] for shard in np.unique(keys["shard"]).tolist()}


def read_boilerplate(path: str) -> Keep:
    """Returns what tells which n-grams are not boilerplate, from a file of `write_boilerplate`."""
    by_shard, nothing = _by_shard(path), np.empty(0, KEYS)
    return lambda shard, ngrams: ~np.isin(ngrams, by_shard.get(shard, nothing)["ngram"])


def boilerplate_of(
    paths: Iterable[str], bucket: int, postings: Sequence[Postings], only_shared: bool = False
) -> np.ndarray:
    """Returns the NGRAM_KEYS of a bucket of evaluation rows that are boilerplate, sorted.

    Args:
      paths: files of `write_boilerplate` and `write_common_ngrams`.
      only_shared: leaves out what no training document has.
    """
    first_row, stop_row = (at * counts.ROWS_PER_BUCKET for at in (bucket, bucket + 1))
    parts = [np.empty(0, NGRAM_KEYS)]
    for shard, keys in itertools.chain(*(_by_shard(path).items() for path in paths)):
        ngrams = keys["ngram"][keys["is_shared"]] if only_shared else keys["ngram"]
        found = postings[shard].expand(postings[shard].locate(ngrams), first_row, stop_row)
        part = np.empty(len(found.rows), NGRAM_KEYS)
        part["number"], part["token"] = found.rows, found.tokens[found.bounds[:-1]]
        part["n"] = postings[shard].lengths(ngrams)[found.which]
        parts.append(part)
    return np.sort(np.concatenate(parts))


def write_boilerplate_lines(
    path: str,
    temp_folder: str,
    boilerplate: np.ndarray,
    postings: Sequence[Postings],
    by_source: BySource | None = None,
    sources: Sequence[str] = (),
) -> None:
    """Writes lines {ngram, n, documents} of SHARED_COUNTS, each once, ordered by n and n-gram.

    Args:
      sources: the values of --input_path; with several, lines have `documents_by_source`.
    """
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for shard in np.unique(boilerplate["shard"]).tolist():
        shared = boilerplate[boilerplate["shard"] == shard]
        texts = texts_of(postings[shard], shared["ngram"])
        lengths = postings[shard].lengths(shared["ngram"]).tolist()
        counts_of = [{} for _ in texts]
        for number, counts_there in sorted((by_source or {}).items()):
            there = counts_there[counts_there["shard"] == shard]
            at = np.searchsorted(there["ngram"], shared["ngram"])
            for which, place in enumerate(at.tolist()):
                if place < len(there) and there["ngram"][place] == shared["ngram"][which]:
                    name = escape_surrogates(sources[number])
                    counts_of[which][name] = int(there["documents"][place])
        each = zip(lengths, texts, shared["documents"].tolist(), counts_of, strict=True)
        for n, ngram, num, of_sources in each:
            more = {"documents_by_source": of_sources} if len(sources) > 1 else {}
            found[n, ngram] = {"ngram": ngram, "n": n, "documents": num, **more}
    write_lines(path, temp_folder, (found[key] for key in sorted(found)))


def write_common_ngrams(
    lines_path: str, keys_path: str, temp_folder: str, index_shard: int, postings: Postings
) -> None:
    """Writes what too many evaluation rows have in common.

    Args:
      lines_path: gets lines {ngram, n, eval_rows}, ordered by n and n-gram.
      keys_path: gets keys, as `write_boilerplate` writes them.
    """
    ngrams, num_rows = postings.common_ngrams()
    _write_keys(keys_path, temp_folder, [_unshared(index_shard, ngrams)])
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
