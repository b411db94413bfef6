"""Tokens and n-gram hashes of UTF-8, compiled: what `tokenizers` does, without an object a token.

A tokeniser becomes a table of code points: what each is lower-cased to, or that it separates. A
token's hash runs over its lower-cased code points, an n-gram's over its tokens' hashes, so that
one pass over the bytes gives the hashes of all n at once. Final sigma depends on its context: a
text that has a capital one is lower-cased by Python first.
"""

import functools
import re
import sys
from typing import NamedTuple

import numpy as np

from beam_pipeline.kernels import kernel, kernel_part
from beam_pipeline.overlap.tokenizers import Tokenizer, origins

_SEPARATOR, _NEEDS_PYTHON = np.uint32(0xFFFF_FFFF), np.uint32(0xFFFF_FFFE)
_DOTTED_I, _I, _COMBINING_DOT = np.uint32(0x130), np.uint64(0x69), np.uint64(0x307)
_CAPITAL_SIGMA = 0x3A3
_FNV_START, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
BASE = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)
UNFINISHED = -1  # what a kernel returns for a text that Python has to lower-case


@functools.cache
def table_of(tokenizer: Tokenizer) -> np.ndarray:
    """Returns uint32 [1,114,112]: each code point's lower case, or what is special about it."""
    table = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    if tokenizer.lowercase:
        for code, char in enumerate(everything):
            lowered = char.lower()
            if lowered != char and len(lowered) == 1:
                table[code] = ord(lowered)
        table[_CAPITAL_SIGMA] = _NEEDS_PYTHON
    for run in re.finditer(tokenizer.separators, everything):
        table[run.start() : run.end()] = _SEPARATOR
    return table


@kernel_part
def mix(value):
    """Spreads the bits of a hash over all of it (the finaliser of splitmix64)."""
    value ^= value >> _30
    value *= _MIX_1
    value ^= value >> _27
    value *= _MIX_2
    return value ^ (value >> _31)


@kernel_part
def next_code_point(utf8, at):
    """Returns the code point that begins at a byte, and where the next one begins."""
    first = utf8[at]
    if first < 0x80:
        return np.uint32(first), at + 1
    second = np.uint32(utf8[at + 1] & 0x3F)
    if first < 0xE0:
        return np.uint32(first & 0x1F) << np.uint32(6) | second, at + 2
    third = np.uint32(utf8[at + 2] & 0x3F)
    if first < 0xF0:
        code = np.uint32(first & 0x0F) << np.uint32(12) | second << np.uint32(6) | third
        return code, at + 3
    fourth = np.uint32(utf8[at + 3] & 0x3F)
    code = np.uint32(first & 0x07) << np.uint32(18) | second << np.uint32(12)
    return code | third << np.uint32(6) | fourth, at + 4


@kernel_part
def add_to_hash(value, lowered, lowercase):
    """Returns a token's hash with one more code point."""
    if lowercase and lowered == _DOTTED_I:
        value = (value ^ _I) * _FNV_PRIME
        return (value ^ _COMBINING_DOT) * _FNV_PRIME
    return (value ^ np.uint64(lowered)) * _FNV_PRIME


@kernel
def _tokens(utf8, table, lowercase, keep_empty, starts, ends, hashes):
    """Fills the tokens' ranges, in code points, and hashes; returns their number or UNFINISHED."""
    at = place = start = count = 0
    value = _FNV_START
    in_separator = False
    while at < utf8.size:
        code, at = next_code_point(utf8, at)
        lowered = table[code]
        if lowered == _NEEDS_PYTHON:
            return UNFINISHED
        if lowered != _SEPARATOR:
            if in_separator:
                in_separator, start, value = False, place, _FNV_START
            value = add_to_hash(value, lowered, lowercase)
        elif not in_separator:
            if keep_empty or place > start:
                starts[count], ends[count], hashes[count] = start, place, mix(value)
                count += 1
            in_separator = True
        place += 1
    if in_separator:
        start, value = place, _FNV_START
    if keep_empty or place > start:
        starts[count], ends[count], hashes[count] = start, place, mix(value)
        count += 1
    return count


class Tokens(NamedTuple):
    """The tokens of a text: where they stand in it, in code points, and their hashes."""

    starts: np.ndarray  # int64 [k]
    ends: np.ndarray  # int64 [k]
    hashes: np.ndarray  # uint64 [k]


def encode(text: str) -> np.ndarray:
    """Returns the UTF-8 of a text, uint8; a lone surrogate keeps its three bytes."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogatepass")
    return np.frombuffer(data, np.uint8)


def tokens_of(text: str, tokenizer: Tokenizer) -> Tokens:
    """Returns what `tokenizer.tokenize` returns, as arrays, hashes in place of texts."""
    if tokenizer.function is not None:
        return _tokens_of_function(text, tokenizer)
    found = _tokens_of_utf8(encode(text), len(text), tokenizer)
    if found is not None:
        return found
    lowered = text.lower()
    found = _tokens_of_utf8(encode(lowered), len(lowered), tokenizer)
    assert found is not None  # no capital sigma is left
    if len(lowered) == len(text):
        return found
    origin = np.array(origins(text))
    return Tokens(origin[found.starts], origin[found.ends], found.hashes)


def _tokens_of_utf8(utf8: np.ndarray, num_chars: int, tokenizer: Tokenizer) -> Tokens | None:
    most = num_chars // 2 + 2
    starts, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    hashes = np.empty(most, np.uint64)
    count = _tokens(
        utf8, table_of(tokenizer), tokenizer.lowercase, tokenizer.keep_empty, starts, ends, hashes
    )
    if count == UNFINISHED:
        return None
    return Tokens(starts[:count], ends[:count], hashes[:count])


def _tokens_of_function(text: str, tokenizer: Tokenizer) -> Tokens:
    tokens = tokenizer.tokenize(text)
    return Tokens(
        np.array([token.start for token in tokens], np.int64),
        np.array([token.end for token in tokens], np.int64),
        np.array([_hash_of_code_points(_code_points(token.text)) for token in tokens], np.uint64),
    )


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


@kernel
def _hash_of_code_points(codes):
    value = _FNV_START
    for code in codes:
        value = add_to_hash(value, code, False)
    return mix(value)


@kernel_part
def salt_of(n):
    """Returns what tells the hashes of one n from those of another."""
    return np.uint64(n) * _MIX_1


@kernel
def ngram_hashes(hashes, n):
    """Returns the hash of each n-gram, uint64 [k - n + 1], from the hashes of k tokens."""
    count = hashes.size - n + 1
    found = np.empty(max(0, count), np.uint64)
    highest = np.uint64(1)
    for _ in range(n):
        highest *= BASE
    rolling = np.uint64(0)
    for at in range(hashes.size):
        rolling = rolling * BASE + hashes[at]
        if at >= n:
            rolling -= hashes[at - n] * highest
        if at >= n - 1:
            found[at - n + 1] = mix(rolling + salt_of(n))
    return found
