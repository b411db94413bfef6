"""Compiled tokenizers: tokens and n-gram hashes of UTF-8, without Python objects.

A tokenizer becomes a table of code points: the lower case of each or a separator mark, and whether
it is a token by itself. A token's hash covers its lower case, 16 bytes of UTF-8 at a time; an
n-gram's hash, over those of its tokens, is a difference of two prefix hashes. Final sigma depends
on its context, so Python lower-cases texts with a capital sigma.
"""

import functools
import re
import sys

import numpy as np

from beam_pipeline.byte_blocks import (
    BLOCK,
    copy_block,
    first_bit,
    load_word,
    low_bits,
    mask_of,
    put_bits,
    put_code_point,
)
from beam_pipeline.kernels import kernel, subkernel
from beam_pipeline.overlap.ngrams.tokenizers import EXPANDS, Tokenizer

_SEPARATOR, _NEEDS_PYTHON = np.uint32(0xFFFF_FFFF), np.uint32(0xFFFF_FFFE)
_ALONE = np.uint32(1 << 31)  # marks a character that is a token by itself
_DOTTED_I, _I, _COMBINING_DOT = np.uint32(0x130), np.uint8(0x69), np.uint32(0x307)
_CAPITAL_SIGMA = 0x3A3
HASH_NAME = "mixed_pairs"  # changes with the hash of an n-gram
_FNV_START, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
BASE = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_ONE, _TWO, _THREE, _FOUR = (np.uint64(n) for n in (1, 2, 3, 4))  # bytes per code point
_EIGHT, _SIXTEEN, _HALF = (np.uint64(n) for n in (8, 16, 32))
# Masks of the first n - 8 bytes of a word, clamped to 0 to 8 bytes.
_MASKS = np.array([(1 << 8 * min(max(n - 8, 0), 8)) - 1 for n in range(25)], np.uint64)
_MIN_BLOCK = np.uint64(8)  # min ASCII characters for a block to pay
_BEYOND_ASCII, _SPAN_OF_ASCII = np.uint8(0x80), np.uint8(0x7F)
_CAPITAL_A, _SPAN_OF_CAPITALS, _TO_LOWER = np.uint8(ord("A")), np.uint8(25), np.uint8(0x20)


@functools.cache
def table_of(tokenizer: Tokenizer) -> np.ndarray:
    """Returns uint32 [1,114,112]: the lower case of each code point, possibly with a mark."""
    table = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    everything = table.tobytes().decode("utf-32-le", "surrogatepass")
    if tokenizer.lowercase:
        lowered = everything.replace(EXPANDS, " ").lower().encode("utf-32-le", "surrogatepass")
        table[:] = np.frombuffer(lowered, np.uint32)
        table[_DOTTED_I], table[_CAPITAL_SIGMA] = _DOTTED_I, _NEEDS_PYTHON
    if tokenizer.characters:
        for run in re.finditer(f"{tokenizer.characters}+", everything):
            table[run.start() : run.end()] |= _ALONE
    for run in tokenizer.separator_pattern.finditer(everything):
        table[run.start() : run.end()] = _SEPARATOR
    return table


@functools.cache
def ascii_separators(tokenizer: Tokenizer) -> np.ndarray:
    """Returns uint8 [runs, 2]: first and length - 1 of each run of ASCII separators."""
    is_separator = table_of(tokenizer)[: int(_BEYOND_ASCII)] == _SEPARATOR
    edges = np.flatnonzero(np.diff(is_separator, prepend=False, append=False)).reshape(-1, 2)
    return np.stack([edges[:, 0], edges[:, 1] - 1 - edges[:, 0]], axis=1).astype(np.uint8)


@kernel
def mix(value):
    """Mixes the bits of a hash (the finaliser of splitmix64)."""
    value ^= value >> _SHIFT_1
    value *= _MIX_1
    value ^= value >> _SHIFT_2
    value *= _MIX_2
    return value ^ (value >> _SHIFT_3)


@subkernel
def _next_code_point(utf8, at):
    """Returns a code point of two to four bytes, and the index after it.

    Indices are unsigned here and below, since numba checks the sign of signed ones.
    """
    first = utf8[at]
    second = np.uint32(utf8[at + _ONE] & 0x3F)
    if first < 0xE0:
        return np.uint32(first & 0x1F) << np.uint32(6) | second, at + _TWO
    third = np.uint32(utf8[at + _TWO] & 0x3F)
    if first < 0xF0:
        code = np.uint32(first & 0x0F) << np.uint32(12) | second << np.uint32(6) | third
        return code, at + _THREE
    fourth = np.uint32(utf8[at + _THREE] & 0x3F)
    code = np.uint32(first & 0x07) << np.uint32(18) | second << np.uint32(12)
    return code | third << np.uint32(6) | fourth, at + _FOUR


@subkernel
def _put_edge(count, size, edges, place, places, with_places):
    edges[count] = size
    if with_places:
        places[count] = place
    return count + _ONE


@subkernel
def find_edges(
    utf8, at, end, table, separators, lowercase, text, edges, with_places, places
):  # fmt: skip
    """Writes the lower case of a document and the edges of its tokens there.

    Token k is text[edges[2 * k]:edges[2 * k + 1]]; `places` has the edges in code points. Runs of
    ASCII are processed in blocks, the rest by code point. A character that is a token ends as if
    an empty separator followed, which leaves empty tokens that must be dropped. Returns the number
    of edges, or 0 for a document that Python must lower-case.
    """
    count, size, place = _ONE, np.uint64(0), np.uint64(0)
    was_separator = np.uint64(0)
    to_lower = _TO_LOWER if lowercase else np.uint8(0)
    edges[0] = 0
    if with_places:
        places[0] = 0
    while at < end:
        num_ascii = np.uint64(0)
        if at + BLOCK <= utf8.size:
            num_ascii = min(first_bit(mask_of(utf8, at, _BEYOND_ASCII, _SPAN_OF_ASCII)), end - at)
        if num_ascii >= _MIN_BLOCK:
            copy_block(utf8, at, _CAPITAL_A, _SPAN_OF_CAPITALS, to_lower, text, size)
            is_separator = np.uint64(0)
            for run in range(separators.shape[0]):
                is_separator |= mask_of(utf8, at, separators[run, 0], separators[run, 1])
            changes = (is_separator ^ (is_separator << _ONE | was_separator)) & low_bits(num_ascii)
            if with_places:
                put_bits(changes, place, places, count)
            count = put_bits(changes, size, edges, count)
            was_separator = is_separator >> (num_ascii - _ONE) & _ONE
            at, size, place = at + num_ascii, size + num_ascii, place + num_ascii
            continue
        stop = min(at + _MIN_BLOCK, end)
        while at < stop:
            edges[count] = size
            if with_places:
                places[count] = place
            if utf8[at] < 0x80:
                lowered = table[utf8[at]]
                text[size] = lowered
                at += _ONE
                size += _ONE
            else:
                code, at = _next_code_point(utf8, at)
                lowered = table[code]
                if lowered == _NEEDS_PYTHON:
                    return np.uint64(0)
                if lowered == _DOTTED_I and lowercase:
                    text[size] = _I
                    size = put_code_point(_COMBINING_DOT, text, size + _ONE)
                elif lowered != _SEPARATOR:
                    is_alone = lowered & _ALONE != 0
                    if is_alone:
                        count += _ONE - was_separator
                        count = _put_edge(count, size, edges, place, places, with_places)
                    size = put_code_point(lowered & ~_ALONE, text, size)
                    if is_alone:
                        place += _ONE
                        count = _put_edge(count, size, edges, place, places, with_places)
                        was_separator = _ONE
                        continue
            is_separator = np.uint64(lowered == _SEPARATOR)
            # The edge is always written; it counts only where the kind of character changes.
            count += is_separator ^ was_separator
            was_separator = is_separator
            place += _ONE
    for _ in range(_ONE + was_separator):  # a trailing separator leaves an empty token
        count = _put_edge(count, size, edges, place, places, with_places)
    return count


@subkernel
def _hash_step(value, word):
    value = (value ^ word) * _FNV_PRIME
    return value ^ value >> _HALF


@subkernel
def _hash_of(text, start, stop):
    """Returns the hash of text[start:stop], which 15 more bytes must follow."""
    # Multiplied, so that the first word cannot cancel a difference in length.
    value = _FNV_START ^ (stop - start) * BASE
    while True:
        num_bytes = min(stop - start, _SIXTEEN)
        value = _hash_step(value, load_word(text, start) & _MASKS[num_bytes + _EIGHT])
        value = _hash_step(value, load_word(text, start + _EIGHT) & _MASKS[num_bytes])
        start += _SIXTEEN
        if start >= stop:
            value *= _MIX_1
            return value ^ value >> _SHIFT_3


@kernel
def tokenize(
    utf8, bounds, first, table, separators, lowercase, keep_empty, text, edges, hashes, prefixes,
    firsts, unfinished,
):  # fmt: skip
    """Fills the hashes of the tokens of documents from `first` on, while there is room.

    Also fills their `prefix_hashes`, computed while the processor works on the next hash. Document
    d is utf8[bounds[d]:bounds[d + 1]] and has tokens firsts[d - first] to firsts[d - first + 1]. A
    document that Python must lower-case is marked `unfinished` and has no tokens. Returns the next
    document.
    """
    count = 0
    prefix = prefixes[0] = np.uint64(0)
    for document in range(first, bounds.size - 1):
        at, end = np.uint64(bounds[document]), np.uint64(bounds[document + 1])
        firsts[document - first] = count
        if count + np.int64(end - at) // 2 + 2 > hashes.size:
            return document
        num_edges = find_edges(
            utf8, at, end, table, separators, lowercase, text, edges, False, edges
        )
        unfinished[document] = num_edges == 0
        for edge in range(np.uint64(0), num_edges, _TWO):
            start, stop = np.uint64(edges[edge]), np.uint64(edges[edge + _ONE])
            if keep_empty or stop > start:
                hashes[count] = _hash_of(text, start, stop)
                prefix = prefixes[count + 1] = prefix * BASE + hashes[count]
                count += 1
    firsts[bounds.size - 1 - first] = count
    return bounds.size - 1


def scratch_for(max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns buffers for lower case and token edges, at 2 bytes per token.

    Lower case is at most 1.5 times as long; a text has at most 2 GiB. Blocks exceed both ends.
    """
    return np.empty(3 * max_tokens + 64, np.uint8), np.empty(2 * max_tokens + 12, np.uint32)


@kernel
def hash_words(words, bounds):
    """Returns the hashes of words that each end in a space; 15 more bytes must follow."""
    hashes = np.empty(bounds.size - 1, np.uint64)
    for token in range(hashes.size):
        stop = np.uint64(bounds[token + 1]) - _ONE
        hashes[token] = _hash_of(words, np.uint64(bounds[token]), stop)
    return hashes


@kernel
def prefix_hashes(hashes):
    """Returns the hashes of the first 0 to k tokens, uint64 [k + 1]."""
    prefixes = np.empty(hashes.size + 1, np.uint64)
    value = prefixes[0] = np.uint64(0)
    for at in range(hashes.size):
        value = value * BASE + hashes[at]
        prefixes[at + 1] = value
    return prefixes


@kernel
def ngram_hash(prefixes, at, n, power):
    """Returns the hash of the n-gram at a token; `power` is BASE to the power of n."""
    # The last summand distinguishes the hashes of different n.
    return mix(prefixes[at + n] - prefixes[at] * power + np.uint64(n) * _MIX_1)


def empty_token() -> np.uint64:
    """Returns the hash of an empty token."""
    return hash_words(np.zeros(16, np.uint8), np.arange(2))[0]


def power_of(n: int) -> np.uint64:
    """Returns BASE to the power of n."""
    return np.uint64(pow(int(BASE), n, 1 << 64))
