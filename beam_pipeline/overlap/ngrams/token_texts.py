"""The tokens of texts as compared, and their places in the original texts, as arrays.

  UTF-8 of texts → their tokens one after another, each followed by a space, and their bounds

So an n-gram, its tokens joined by spaces, is a slice. Evaluation rows have their tokens in one
memory-mapped file; training documents get theirs only if they have a candidate.
"""

import os
import tempfile
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.documents.batch import decode, encode
from beam_pipeline.kernels import kernel, subkernel
from beam_pipeline.overlap.ngrams.arrays import Column, map_file
from beam_pipeline.overlap.ngrams.token_kernels import (
    ascii_separators,
    find_edges,
    hash_words,
    scratch_for,
    table_of,
)
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer, origins, pieces_of
from beam_pipeline.storage.files import create_file
from beam_pipeline.storage.lines import explained_damage

_TWO = np.uint64(2)
_SPACE = np.uint8(0x20)
_SIGMA = "\u03a3".encode()
_PADDING = np.zeros(15, np.uint8)


class Tokens(NamedTuple):
    """The tokens of a text: ranges in code points, and hashes."""

    starts: np.ndarray  # uint32 [k]
    ends: np.ndarray  # uint32 [k]
    hashes: np.ndarray  # uint64 [k]


class TokenTexts(NamedTuple):
    """The k tokens of d texts."""

    firsts: np.ndarray  # int64 [d + 1], first token of each text, and k
    starts: np.ndarray  # uint32 [k], code points of the original text
    ends: np.ndarray  # uint32 [k]
    bounds: np.ndarray  # int64 [k + 1], of the tokens in `words`
    words: np.ndarray  # uint8


@subkernel
def ngram_slice(texts, token, n):
    """Returns the bounds of an n-gram in `words`."""
    return texts.bounds[token], texts.bounds[token + n] - 1


@subkernel
def is_same_ngram(texts, token, other_texts, other, n):
    """Returns whether the n-grams at two tokens have the same text."""
    start, stop = ngram_slice(texts, token, n)
    other_start, other_stop = ngram_slice(other_texts, other, n)
    if stop - start != other_stop - other_start:
        return False
    for byte in range(stop - start):
        if texts.words[start + byte] != other_texts.words[other_start + byte]:
            return False
    return True


def token_texts(utf8: np.ndarray, bounds: np.ndarray, tokenizer: Tokenizer) -> TokenTexts:
    """Returns the tokens of the texts utf8[bounds[i]:bounds[i + 1]], surrogates as three bytes."""
    if tokenizer.function is not None:
        return _by_function(utf8, bounds, tokenizer)
    changed: dict[int, list[int]] = {}
    if tokenizer.lowercase:
        utf8, bounds, changed = _lower_sigmas(utf8, bounds)
    room = len(utf8) // 2 + 2 * len(bounds)
    text, edges = scratch_for(int(np.diff(bounds).max(initial=0)) // 2 + 2)
    firsts, word_bounds = np.empty(len(bounds), np.int64), np.empty(room + 1, np.int64)
    starts, ends = np.empty(room, np.uint32), np.empty(room, np.uint32)
    # Lower case and spaces take at most 8 bytes per 5: a 2-byte letter and a 3-byte token.
    words = np.empty(4 * room, np.uint8)
    count, size = _fill(
        utf8, bounds, table_of(tokenizer), ascii_separators(tokenizer), tokenizer.lowercase,
        tokenizer.keep_empty, text, edges, np.empty_like(edges), firsts, starts, ends,
        word_bounds, words,
    )  # fmt: skip
    found = TokenTexts(firsts, starts[:count], ends[:count], word_bounds[: count + 1], words[:size])
    for document, origin in changed.items():
        here = slice(firsts[document], firsts[document + 1])
        for places in (starts, ends):
            places[here] = np.array(origin, np.uint32)[places[here]]
    return found


@kernel
def _fill(
    utf8, bounds, table, separators, lowercase, keep_empty, text, edges, places, firsts, starts,
    ends, word_bounds, words,
):  # fmt: skip
    """Fills the arrays of TokenTexts; returns the numbers of tokens and of their bytes."""
    count, size = 0, 0
    for document in range(bounds.size - 1):
        firsts[document] = count
        at, end = np.uint64(bounds[document]), np.uint64(bounds[document + 1])
        num_edges = find_edges(
            utf8, at, end, table, separators, lowercase, text, edges, True, places
        )
        for edge in range(np.uint64(0), num_edges, _TWO):
            start, stop = np.int64(edges[edge]), np.int64(edges[edge + 1])
            if keep_empty or stop > start:
                starts[count], ends[count] = places[edge], places[edge + 1]
                word_bounds[count] = size
                for byte in range(start, stop):
                    words[size] = text[byte]
                    size += 1
                words[size] = _SPACE
                size += 1
                count += 1
    firsts[bounds.size - 1] = count
    word_bounds[count] = size
    return count, size


def _lower_sigmas(
    utf8: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, np.ndarray, dict[int, list[int]]]:
    """Lower-cases the texts with a capital sigma, whose lower case depends on its context.

    Returns the texts, and the `origins` of those that became longer, by number.
    """
    if _SIGMA not in utf8.tobytes():
        return utf8, bounds, {}
    texts = [utf8[start:stop].tobytes() for start, stop in pairwise(bounds.tolist())]
    changed = {}
    for document, data in enumerate(texts):
        if _SIGMA not in data:
            continue
        text = decode(data)
        lowered = text.lower()
        texts[document] = encode(lowered)
        if len(lowered) != len(text):
            changed[document] = origins(text)
    joined = np.frombuffer(b"".join(texts), np.uint8)
    return joined, np.cumsum([0, *map(len, texts)], dtype=np.int64), changed


def _by_function(utf8: np.ndarray, bounds: np.ndarray, tokenizer: Tokenizer) -> TokenTexts:
    starts, ends, words, counts = [], [], [], [0]
    for first, stop in pairwise(bounds.tolist()):
        for token in tokenizer.tokenize(decode(utf8[first:stop].tobytes())):
            starts.append(token.start)
            ends.append(token.end)
            words.append(encode(token.text) + b" ")
        counts.append(len(words))
    return TokenTexts(
        np.array(counts, np.int64),
        np.array(starts, np.uint32),
        np.array(ends, np.uint32),
        np.cumsum([0, *map(len, words)], dtype=np.int64),
        np.frombuffer(b"".join(words), np.uint8),
    )


def tokens_of(text: str, tokenizer: Tokenizer) -> Tokens:
    """Returns the tokens of a text, at 16 bytes per token, plus one piece of it at a time."""
    room = len(text) // 2 + 2
    columns = Column(np.uint32, room), Column(np.uint32, room), Column(np.uint64, room)
    for place, piece in pieces_of(text, tokenizer):
        utf8 = np.frombuffer(encode(piece), np.uint8)
        found = token_texts(utf8, np.array([0, len(utf8)]), tokenizer)
        hashes = hash_words(np.concatenate([found.words, _PADDING]), found.bounds)
        places = found.starts + np.uint32(place), found.ends + np.uint32(place)
        for column, values in zip(columns, (*places, hashes), strict=True):
            column.add(values)
    return Tokens(*(column.taken() for column in columns))


# --- slices -------------------------------------------------------------------------------------


@kernel
def _copy_slices(data, starts, stops, bounds):
    out = np.empty(bounds[-1], np.uint8)
    for at in range(starts.size):
        to = bounds[at]
        for byte in range(starts[at], stops[at]):
            out[to] = data[byte]
            to += 1
    return out


def slices_of(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> pa.LargeBinaryArray:
    """Returns data[starts[i]:stops[i]] of uint8."""
    bounds = np.append(0, np.cumsum(stops - starts))
    copied = pa.py_buffer(_copy_slices(data, starts, stops, bounds))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(starts), [None, pa.py_buffer(bounds), copied]
    )


def ngrams_of(texts: TokenTexts, tokens: np.ndarray, lengths: np.ndarray) -> pa.LargeBinaryArray:
    """Returns the n-grams at some tokens, as UTF-8."""
    bounds = texts.bounds
    return slices_of(texts.words, bounds[tokens], bounds[tokens + lengths] - 1)


# --- the file -----------------------------------------------------------------------------------


def write_token_texts(parts: Iterable[TokenTexts], stream: BinaryIO) -> None:
    """Writes token texts as an Arrow file of one row, growing the arrays in temporary files."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in TokenTexts._fields]
        _append_parts(parts, paths)
        kinds = (np.int64, np.uint32, np.uint32, np.int64, np.uint8)
        lists = [_list_of(path, kind) for path, kind in zip(paths, kinds, strict=True)]
        batch = pa.record_batch(lists, list(TokenTexts._fields))
        with pa.ipc.new_file(stream, batch.schema) as writer:
            writer.write_batch(batch)


def _append_parts(parts: Iterable[TokenTexts], paths: Sequence[str]) -> None:
    num_tokens = num_bytes = 0
    files = list(map(create_file, paths))
    for part in parts:
        shifted = part._replace(
            firsts=part.firsts[:-1] + num_tokens, bounds=part.bounds[:-1] + num_bytes
        )
        for file, array in zip(files, shifted, strict=True):
            file.write(np.ascontiguousarray(array))
        num_tokens, num_bytes = num_tokens + len(part.starts), num_bytes + len(part.words)
    files[0].write(np.int64(num_tokens))
    files[3].write(np.int64(num_bytes))
    for file in files:
        file.close()


def _list_of(path: str, kind: type) -> pa.LargeListArray:
    size = os.path.getsize(path)
    array = np.memmap(path, kind, "r") if size else np.empty(0, kind)
    return pa.LargeListArray.from_arrays([0, len(array)], pa.array(np.asarray(array)))


def open_token_texts(path: str) -> TokenTexts:
    """Maps a local file of `write_token_texts` into memory; raises ProbelineError if damaged."""
    with explained_damage(f"the tokens of the evaluation sets {path}", "remove it and run again"):
        batch = pa.ipc.open_file(map_file(path)).get_batch(0)
        return TokenTexts(*(batch.column(name).values.to_numpy() for name in TokenTexts._fields))
