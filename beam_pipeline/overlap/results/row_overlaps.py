"""An evaluation row's overlap with all training data: its shared n-grams and their coverage.

  BucketCounts, and the rows' tokens
  → RowLists: one place of each n-gram → RowLists: all its places in the row
  → lines of overlap_ngrams and overlap_coverage, and HITS for stats and clean lists

Lines are made in columns, for several rows at a time. Counts identify an n-gram by its first place
in the row. Its other places have the same hash and are compared as text.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.errors import ProbelineError
from beam_pipeline.kernels import kernel
from beam_pipeline.overlap.evaluation import EvaluationRow, EvaluationRows
from beam_pipeline.overlap.ngrams.token_kernels import BASE, ngram_hash, power_of
from beam_pipeline.overlap.ngrams.token_texts import TokenTexts, is_same_ngram, ngrams_of
from beam_pipeline.overlap.results.contaminated import merge_spans_of
from beam_pipeline.overlap.results.counts import NGRAM_KEYS, BucketCounts
from beam_pipeline.overlap.results.matches import cut_by_weight
from beam_pipeline.overlap.results.output_files import (
    GzipMember,
    column_of,
    join_pieces,
    json_fields,
    json_floats,
    json_lists,
    json_numbers,
    json_places,
    json_strings,
    piece,
    place_lists,
    record_lines,
)
from beam_pipeline.storage.files import atomic_write

# An evaluation row that shares an n-gram of that length with the training data.
HITS = np.dtype(
    [
        ("number", "<u4"),
        ("n", "<u4"),
        ("num_tokens", "<i8"),
        ("num_covered_tokens", "<i8"),
        ("longest_run", "<i8"),
        ("num_shared_places", "<i8"),
        ("num_informative_places", "<i8"),
    ]
)
_TEXTS_AT_A_TIME = 256
_TOKENS_AT_A_TIME = 1 << 16
_HALF = np.uint64(32)
_START, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # of FNV-1a


# --- places -------------------------------------------------------------------------------------


class RowLists(NamedTuple):
    """First tokens of n-grams in evaluation rows: an ascending list for each row and n."""

    numbers: np.ndarray  # int64 [g], evaluation rows
    lengths: np.ndarray  # int64 [g], n
    bounds: np.ndarray  # int64 [g + 1], of the lists in `tokens`
    tokens: np.ndarray  # int64, index in the row

    @classmethod
    def of(cls, keys: np.ndarray) -> "RowLists":
        """Returns the lists of sorted NGRAM_KEYS, or of records with their fields."""
        lists = _lists_of(keys)
        firsts = np.flatnonzero(np.append(True, lists[1:] != lists[:-1])[: len(keys)])
        numbers, lengths = (keys[name][firsts].astype(np.int64) for name in ("number", "n"))
        return cls(numbers, lengths, np.append(firsts, len(keys)), keys["token"].astype(np.int64))

    def of_same(self, keys: np.ndarray) -> "RowLists":
        """Returns the lists of other sorted records for the same rows and n."""
        lists = self.numbers.astype(np.uint64) << _HALF | self.lengths.astype(np.uint64)
        found = _lists_of(keys)
        is_there = np.isin(found, lists)
        bounds = np.searchsorted(found[is_there], lists)
        tokens = keys["token"][is_there].astype(np.int64)
        return self._replace(bounds=np.append(bounds, len(tokens)), tokens=tokens)

    def pieces(self, texts: TokenTexts) -> Iterator["RowLists"]:
        """Yields all lists, several at a time."""
        weights = self.num_tokens(texts) + np.diff(self.bounds) * self.lengths // 8
        for start, stop in cut_by_weight(weights, _TOKENS_AT_A_TIME):
            bounds = self.bounds[start : stop + 1]
            tokens = self.tokens[bounds[0] : bounds[-1]]
            here = self.numbers[start:stop], self.lengths[start:stop]
            yield RowLists(*here, bounds - bounds[0], tokens)

    @property
    def sizes(self) -> np.ndarray:
        """The number of tokens in each list, int64 [g]."""
        return np.diff(self.bounds)

    @property
    def of_tokens(self) -> np.ndarray:
        """The list of each token, int64."""
        return np.repeat(np.arange(len(self.numbers)), self.sizes)

    def num_tokens(self, texts: TokenTexts) -> np.ndarray:
        """Returns the number of tokens in each row, int64 [g]."""
        return texts.firsts[self.numbers + 1] - texts.firsts[self.numbers]

    def all_places(self, texts: TokenTexts) -> "RowLists":
        """Returns all places of the n-grams that begin with the tokens."""
        powers = np.array([power_of(n) for n in self.lengths.tolist()], np.uint64)
        bounds, tokens = _all_places(texts, *self, powers, int(self.num_tokens(texts).sum()))
        return self._replace(bounds=bounds, tokens=tokens)

    def cover(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the number of covered tokens of each row, and its longest covered run."""
        of_tokens = self.of_tokens
        begins = np.ones(len(of_tokens), bool)
        begins[1:] = np.diff(self.tokens) > self.lengths[of_tokens[1:]]
        begins[1:] |= of_tokens[1:] != of_tokens[:-1]
        of_runs, firsts = of_tokens[begins], self.tokens[begins]
        sizes = self.tokens[np.append(begins[1:], True)[: len(begins)]] - firsts
        sizes += self.lengths[of_runs]
        covered, longest = np.zeros((2, len(self.numbers)), np.int64)
        np.add.at(covered, of_runs, sizes)
        np.maximum.at(longest, of_runs, sizes)
        return covered, longest


def _lists_of(keys: np.ndarray) -> np.ndarray:
    """Returns an identifier of each row and n, uint64, in their order."""
    return keys["number"].astype(np.uint64) << _HALF | keys["n"].astype(np.uint64)


@kernel
def _all_places(texts, rows, lengths, bounds, tokens, powers, room):
    """Returns the bounds of each list of all places, and the places."""
    max_tokens = max_keys = 0
    for at in range(rows.size):
        max_tokens = max(max_tokens, texts.firsts[rows[at] + 1] - texts.firsts[rows[at]])
        max_keys = max(max_keys, bounds[at + 1] - bounds[at])
    prefixes = np.zeros(max_tokens + 1, np.uint64)
    slots = np.empty(4 * max_keys + 2, np.int64)
    found_bounds, found = np.empty(rows.size + 1, np.int64), np.empty(room, np.int64)
    num_found = 0
    for at in range(rows.size):
        found_bounds[at] = num_found
        first, n = texts.firsts[rows[at]], lengths[at]
        count = texts.firsts[rows[at] + 1] - first
        if at == 0 or rows[at] != rows[at - 1]:
            for token in range(count):
                value = _START
                for byte in range(texts.bounds[first + token], texts.bounds[first + token + 1]):
                    value = (value ^ texts.words[byte]) * _PRIME
                prefixes[token + 1] = prefixes[token] * BASE + value
        mask = 1
        while mask < 2 * (bounds[at + 1] - bounds[at]):
            mask *= 2
        slots[:mask] = -1
        mask = np.uint64(mask - 1)
        for key in range(bounds[at], bounds[at + 1]):
            slot = ngram_hash(prefixes, tokens[key], n, powers[at]) & mask
            while slots[slot] >= 0:
                slot = slot + np.uint64(1) & mask
            slots[slot] = tokens[key]
        for token in range(count - n + 1):
            slot = ngram_hash(prefixes, token, n, powers[at]) & mask
            while slots[slot] >= 0:
                key = slots[slot]
                if key == token or is_same_ngram(texts, first + key, texts, first + token, n):
                    found[num_found] = token
                    num_found += 1
                    break
                slot = slot + np.uint64(1) & mask
    found_bounds[rows.size] = num_found
    return found_bounds, found[:num_found].copy()


# --- files --------------------------------------------------------------------------------------


class BucketFiles(NamedTuple):
    """The files and HITS of a bucket of evaluation rows."""

    ngrams_path: str  # a gzip member
    coverage_path: str
    hits: bytes  # HITS
    texts_path: str | None = None  # of `write_eval_texts`, a gzip member


def write_bucket(
    prefix: str,
    temp_folder: str,
    counts: BucketCounts,
    rows: EvaluationRows,
    texts: TokenTexts,
    boilerplate: np.ndarray | None = None,
) -> BucketFiles:
    """Writes the lines of a bucket to `prefix`.ngrams.gz and `prefix`.coverage.jsonl.

    `boilerplate` has the bucket's sorted NGRAM_KEYS that do not count.
    """
    ngrams_path, coverage_path = f"{prefix}.ngrams.gz", f"{prefix}.coverage.jsonl"
    dropped = np.empty(0, NGRAM_KEYS) if boilerplate is None else boilerplate
    lists = RowLists.of(counts.ngrams)
    assert np.array_equal(lists.numbers, counts.rows["number"])
    assert np.array_equal(lists.lengths, counts.rows["n"])
    hits = [np.empty(0, HITS)]
    row = ngram = 0
    with (
        atomic_write(ngrams_path, temp_folder) as ngrams_stream,
        atomic_write(coverage_path, temp_folder) as coverage_stream,
        GzipMember(ngrams_stream) as ngrams_member,
    ):
        for firsts in lists.pieces(texts):
            _check(firsts, texts)
            fields = row_fields(firsts, rows)
            of_ngrams = counts.ngrams[ngram : ngram + len(firsts.tokens)]
            ngrams = {"overlapping_ngram_counts": _ngram_lists(firsts, of_ngrams, texts)}
            ngrams_member.write(record_lines({**fields, **ngrams}))
            places = firsts.all_places(texts)
            hits.append(_hits_of(places, firsts.of_same(dropped).all_places(texts), texts))
            documents = counts.rows["documents"][row : row + len(firsts.numbers)]
            coverage = {"num_train_documents": json_numbers(documents)}
            coverage |= _coverage_fields(places, hits[-1], texts)
            coverage_stream.write(record_lines({**fields, **coverage}))
            row, ngram = row + len(firsts.numbers), ngram + len(firsts.tokens)
    return BucketFiles(ngrams_path, coverage_path, np.concatenate(hits).tobytes())


def _check(firsts: RowLists, texts: TokenTexts) -> None:
    of_tokens = firsts.of_tokens
    ends = firsts.tokens + firsts.lengths[of_tokens]
    missing = of_tokens[ends > firsts.num_tokens(texts)[of_tokens]]
    if len(missing):
        raise ProbelineError(
            f"the match files have {np.sum(missing == missing[0])} n-grams of evaluation row "
            f"{firsts.numbers[missing[0]]} that it does not have: they are of other evaluation "
            "sets; remove the output and run again"
        )


def _hits_of(places: RowLists, dropped: RowLists, texts: TokenTexts) -> np.ndarray:
    """Returns HITS, from all places of shared n-grams and of n-grams that do not count."""
    hits = np.empty(len(places.numbers), HITS)
    num_tokens = places.num_tokens(texts)
    hits["number"], hits["n"], hits["num_tokens"] = places.numbers, places.lengths, num_tokens
    hits["num_covered_tokens"], hits["longest_run"] = places.cover()
    hits["num_shared_places"] = places.sizes
    hits["num_informative_places"] = num_tokens - places.lengths + 1 - dropped.sizes
    return hits


# --- lines --------------------------------------------------------------------------------------


def row_fields(lists: RowLists, rows: EvaluationRows) -> dict[str, pa.LargeBinaryArray]:
    """Returns the fields that identify an evaluation row and n, as JSON."""
    table = rows.take(lists.numbers, with_texts=False)
    return {**json_fields(table, *EvaluationRow._fields), "n": json_numbers(lists.lengths)}


def _ngram_lists(firsts: RowLists, counts: np.ndarray, texts: TokenTexts) -> pa.LargeBinaryArray:
    """Returns the n-grams of each list as JSON, with their NGRAM_COUNTS."""
    of_tokens = firsts.of_tokens
    tokens = texts.firsts[firsts.numbers[of_tokens]] + firsts.tokens
    ngrams = [
        piece(b"["),
        json_strings(ngrams_of(texts, tokens, firsts.lengths[of_tokens])),
        piece(b","),
        json_numbers(counts["occurrences"]),
        piece(b","),
        json_numbers(counts["documents"]),
        piece(b"]"),
    ]
    return json_lists(firsts.bounds, join_pieces(ngrams))


def _coverage_fields(
    places: RowLists, hits: np.ndarray, texts: TokenTexts
) -> dict[str, pa.LargeBinaryArray]:
    """Returns the coverage of each row, from places and HITS, as JSON."""
    of_places = places.of_tokens
    at = texts.firsts[places.numbers[of_places]] + places.tokens
    starts, ends = texts.starts[at], texts.ends[at + places.lengths[of_places] - 1]
    spans = merge_spans_of(of_places, starts.astype(np.int64), ends.astype(np.int64))
    bounds = np.searchsorted(spans.documents, np.arange(len(hits) + 1))
    return {
        "spans": json_places(place_lists(bounds, spans.starts, spans.ends)),
        "longest_span": json_numbers(np.maximum.reduceat(spans.ends - spans.starts, bounds[:-1])),
        "num_tokens": json_numbers(hits["num_tokens"]),
        "num_covered_tokens": json_numbers(hits["num_covered_tokens"]),
        "coverage": json_floats(hits["num_covered_tokens"] / hits["num_tokens"]),
        "longest_run": json_numbers(hits["longest_run"]),
        "num_informative_ngrams": json_numbers(hits["num_informative_places"]),
        "num_shared_ngrams": json_numbers(hits["num_shared_places"]),
        "ngram_coverage": json_floats(hits["num_shared_places"] / hits["num_informative_places"]),
    }


def write_eval_texts(
    path: str, temp_folder: str, numbers: np.ndarray, rows: EvaluationRows
) -> None:
    """Writes the texts of evaluation rows, numbered in ascending order, as a gzip member."""
    with atomic_write(path, temp_folder) as stream, GzipMember(stream) as member:
        for at in range(0, len(numbers), _TEXTS_AT_A_TIME):
            table = rows.take(numbers[at : at + _TEXTS_AT_A_TIME])
            texts = {"eval_text": json_strings(column_of(table, "text"))}
            places = json_fields(table, "eval_dataset", "eval_path", "eval_row")
            member.write(record_lines({**places, **texts}))
