"""The index and its candidates; mapped files. Brute force is in test_matching.py."""

import os
import random
import re
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.documents.batch import text_buffers
from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.ngrams import matching, token_batches
from beam_pipeline.overlap.ngrams.arrays import hand_pages_back, map_file
from beam_pipeline.overlap.ngrams.index import (
    BYTES_PER_PLACE,
    INDEX_BYTES_PER_PLACE,
    Index,
    IndexShard,
    build_index,
    open_index,
    write_index,
)
from beam_pipeline.overlap.ngrams.matching import find_candidates
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS, Tokenizer
from tests.support.overlap_hits import LENGTH, colliding_texts, ngrams

DEFAULT = TOKENIZERS["default"]
WORDS = ["a", "b", "Σας", "İx", "é", "\U0001f600", "long-word", "", ".", "\ud800"]


def made_up(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


def scanned(index: Index, training: list[str], tokenizer: Tokenizer) -> set[tuple]:
    """Returns (document, first token, n, evaluation row, its first token) of each candidate."""
    found = find_candidates(index, tokenizer, *text_buffers(training))
    assert found.documents.tolist() == sorted(found.documents.tolist())
    return {
        (document, at, n, int(index.rows[which]), int(index.tokens[which]))
        for document, at, n, key in zip(*(column.tolist() for column in found[:4]))
        for which in range(index.bounds[key], index.bounds[key + 1])
        if index.place_lengths[which] == n
    }


def test_index_shards_partition_the_index() -> None:
    """An n-gram of many rows, which makes a shard larger than its share, is in one of them."""
    rng = random.Random(5)
    texts = [made_up(rng, 20) for _ in range(8)]
    texts += ["the same three words again and again"] * 100
    training = [made_up(rng, 40) for _ in range(8)]
    shards = [
        build_index([text_buffers(texts)], (1, 3), DEFAULT, IndexShard(number, 7))
        for number in range(7)
    ]
    found = [scanned(shard, training, DEFAULT) for shard in shards]
    whole = build_index([text_buffers(texts)], (1, 3), DEFAULT)
    assert set.union(*found) == scanned(whole, training, DEFAULT)
    assert sum(map(len, found)) == len(set.union(*found))
    for name in ("keys", "rows", "tokens", "place_lengths"):
        joined = np.concatenate([getattr(shard, name) for shard in shards])
        assert np.array_equal(joined, getattr(whole, name))


def test_tokens_and_candidates_beyond_the_buffers(monkeypatch) -> None:
    training = ["a b " * 50, "Σ a b " * 20, "x", "a", "b a b", "a b a"]
    index = build_index([text_buffers(["a b a"])], (1, 2, 3), DEFAULT)
    expected = scanned(index, training, DEFAULT)
    monkeypatch.setattr(matching, "_CANDIDATES_AT_A_TIME", 3)
    monkeypatch.setattr(token_batches, "_TOKENS_AT_A_TIME", 16)
    assert len(expected) > 300 and scanned(index, training, DEFAULT) == expected


@pytest.mark.parametrize("shortest", range(1, 12))
def test_candidates_at_any_distance_from_a_window(shortest: int) -> None:
    """Only windows at multiples of the stride are checked."""
    copied = [f"w{number}" for number in range(40)]
    index = build_index([text_buffers([" ".join(copied)])], (shortest, 3 * shortest), DEFAULT)
    for before in range(2 * shortest):
        training = " ".join([f"x{number}" for number in range(before)] + copied + ["y"])
        found = scanned(index, [training], DEFAULT)
        places = [(n, at) for n in (shortest, 3 * shortest) for at in range(40 - n + 1)]
        assert found == {(0, before + at, n, 0, at) for n, at in places}


def test_false_candidates_are_few() -> None:
    """A filter that let everything through would pass the other tests."""
    rng = random.Random(1)
    words = [f"w{number}" for number in range(5000)]
    texts = [" ".join(rng.choices(words, k=50)) for _ in range(200)]
    training = [" ".join(rng.choices(words, k=2000)) for _ in range(20)]
    index = build_index([text_buffers(texts)], (3,), DEFAULT)
    found = scanned(index, training, DEFAULT)
    wanted = {gram for text in texts for gram in ngrams(DEFAULT.tokenize(text), 3)}
    there = sum(
        len(places)
        for text in training
        for gram, places in ngrams(DEFAULT.tokenize(text), 3).items()
        if gram in wanted
    )
    assert len({(document, at) for document, at, *_ in found}) == there


def test_memory_of_building_an_index() -> None:
    words = np.random.default_rng(0).integers(0, 1 << 40, (4000, 132))
    texts = [text_buffers([" ".join(map(str, row)) for row in words.tolist()])]
    build_index([text_buffers(["a b c"])], (13,), DEFAULT)  # tables of the tokenizer
    tracemalloc.start()
    index = build_index(texts, (13,), DEFAULT)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    batch_bytes = 16 << 20  # of tokens
    assert peak_bytes < len(index.rows) * BYTES_PER_PLACE + batch_bytes
    size = sum(array.nbytes for array in vars(index).values())
    assert size < len(index.rows) * INDEX_BYTES_PER_PLACE


# --- the file -----------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    index = build_index([text_buffers(["one two three four", "two three"])], (2, 3), DEFAULT)
    path = tmp_path / "index"
    with open(path, "wb") as stream:
        write_index(index, stream, "fingerprint")
    return path


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-70], lambda data: b"x" + data, lambda data: b""]
)
def test_damaged_index_file(file: Path, damage) -> None:
    with pytest.raises(ProbelineError, match="made from other inputs or options"):
        open_index(str(file), "another")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ProbelineError, match="remove it and run again"):
        open_index(str(file), "fingerprint")


def test_hash_collision_is_one_key() -> None:
    one, other = colliding_texts()
    index = build_index([text_buffers([one])], (LENGTH,), DEFAULT)
    assert scanned(index, [other], DEFAULT) == {(0, 0, LENGTH, 0, 0)}


# --- mapped files ---------------------------------------------------------------------------------


def mapped_kib(path: Path) -> int:
    """Returns how much of a file is in this process's memory."""
    with open(f"/proc/{os.getpid()}/smaps") as lines:
        of_file = re.search(rf"{re.escape(str(path))}\n(?:.+\n)*?Rss: +(\d+) kB", lines.read())
    assert of_file is not None
    return int(of_file[1])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_are_handed_back_and_keep_their_contents(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(np.arange(1 << 20, dtype=np.int64).tobytes())
    numbers = np.frombuffer(map_file(str(path)), np.int64)
    total = int(numbers.sum())
    assert mapped_kib(path) == 8192
    hand_pages_back()
    assert mapped_kib(path) == 0
    assert int(numbers.sum()) == total == (1 << 20) * ((1 << 20) - 1) // 2
