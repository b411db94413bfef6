"""The texts of the overlap bench, and the files that hold them; see `overlap_corpus`.

Words follow Zipf's law, the lengths of documents a lognormal law; some documents look like program
code, and half of them have words beyond ASCII. A block of text or a row of an evaluation set
depends only on the seed and its position. The first block has `NUM_PLANTED` passages of the first
rows.
"""

import functools
import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from benchmarks.overlap_corpus import BLOCK_MB, EVALUATION_ROWS

NUM_PLANTED = 50
TINY_DOCUMENTS = 20  # of a file of no MB
_WORDS = 50_000
_ZIPF_SHIFT = 2.7  # as in English: the first words are less common than 1/rank
_DOCUMENT_WORDS, _DOCUMENT_SIGMA, _MAX_WORDS = 280, 1.0, 30_000
_EVALUATION_WORDS = (40, 140)
_PLANTED_WORDS = 30
_SHARE_OF_CODE = 0.05
# Of documents, and of their words: a single such letter, for example a curly quote, makes Python
# store a whole document in wider characters.
_DOCUMENTS_BEYOND_ASCII, _WORDS_BEYOND_ASCII = 0.5, 0.04
_BYTES_A_WORD = 5.97  # with the following separator
_PROSE = ([" ", ", ", ". ", "; ", "\n\n"], [0.86, 0.07, 0.055, 0.005, 0.01])
_CODE = ([" ", "_", "(", ") {\n    ", ".", " = ", ");\n"], [0.3, 0.25, 0.1, 0.05, 0.1, 0.1, 0.1])
_ROW_GROUP_ROWS = 8_192
_SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "text", "source")])


class Texts:
    """Texts by seed; each block and each set has a separate random stream."""

    def __init__(self, seed: int):
        self._seed = seed

    def evaluation(self, num_rows: int) -> list[str]:
        """Returns the texts of an evaluation set; a small one is the beginning of a large one."""
        texts: list[str] = []
        while len(texts) < num_rows:
            rng = self._rng(1, len(texts))
            counts = rng.integers(*_EVALUATION_WORDS, EVALUATION_ROWS, endpoint=True)
            texts += self._joined(rng, counts, np.zeros(EVALUATION_ROWS, bool)).to_pylist()
        return texts[:num_rows]

    def documents(self, block: int) -> list[dict[str, Any]]:
        rng = self._rng(2, block)
        num_words = round(BLOCK_MB * 1e6 / _BYTES_A_WORD)
        lengths = rng.lognormal(np.log(_DOCUMENT_WORDS), _DOCUMENT_SIGMA, num_words // 100)
        counts = np.clip(lengths, 10, _MAX_WORDS).astype(np.int64)
        counts = counts[: np.searchsorted(np.cumsum(counts), num_words) + 1]
        texts = self._joined(rng, counts, rng.random(len(counts)) < _SHARE_OF_CODE).to_pylist()
        if block == 0:
            self._plant(texts)
        return [
            {"id": f"{block}-{row}", "text": text, "source": f"site{row % 997}"}
            for row, text in enumerate(texts)
        ]

    def _plant(self, texts: list[str]) -> None:
        """Puts passages of the first evaluation rows into documents, evenly over both."""
        questions = self.evaluation(EVALUATION_ROWS)
        for number in range(NUM_PLANTED):
            passage = questions[number * len(questions) // NUM_PLANTED].split(" ")
            document = number * len(texts) // NUM_PLANTED
            planted = " ".join(passage[1 : 1 + _PLANTED_WORDS])
            texts[document] = f"{texts[document]} {planted} {texts[document + 1]}"

    def _joined(
        self, rng: np.random.Generator, counts: np.ndarray, is_code: np.ndarray
    ) -> pa.Array:
        """Returns texts of `counts` words, in code style where `is_code`."""
        total = int(counts.sum())
        ranks = np.arange(_WORDS) + 1 + _ZIPF_SHIFT
        shares = np.cumsum(1 / ranks)
        words = np.searchsorted(shares, rng.random(total) * shares[-1])
        follows = rng.choice(len(_PROSE[0]), total, p=_PROSE[1])
        code = np.repeat(is_code, counts)
        follows[code] = len(_PROSE[0]) + rng.choice(len(_CODE[0]), code.sum(), p=_CODE[1])
        ends = np.cumsum(counts)
        variants = 2 * np.repeat(rng.random(len(counts)) < _DOCUMENTS_BEYOND_ASCII, counts)
        starts_sentence = np.append(True, np.isin(follows[:-1], (2, 4)))
        starts_sentence[ends[:-1]] = True
        variants += starts_sentence
        follows[ends - 1] = len(_PROSE[0]) + len(_CODE[0])  # nothing
        after = [*_PROSE[0], *_CODE[0], ""]
        pieces = pc.binary_join_element_wise(
            self._vocabulary.take(pa.array(words + _WORDS * variants)),
            pa.array(after).take(pa.array(follows)),
            "",
        )
        bounds = pa.array(np.append(0, ends), pa.int32())
        return pc.binary_join(pa.ListArray.from_arrays(bounds, pieces), "")

    @functools.cached_property
    def _vocabulary(self) -> pa.Array:
        """All words, commonest first: plain and capitalised, then those with non-ASCII letters."""
        rng = self._rng(0)
        letters = [list("bcdfghklmnprstvw"), list("aeiou")]
        words: dict[str, None] = {}
        while len(words) < _WORDS:
            # The more common a word, the shorter it is.
            length = 2 + int(rng.random() * (3 + len(words).bit_length() // 3))
            draws = rng.integers(80, size=length)  # a multiple of both numbers of letters
            word = [letters[at % 2][draw % len(letters[at % 2])] for at, draw in enumerate(draws)]
            words["".join(word)] = None
        beyond = list("éèüñøłжшяδλ中文字")
        variants = [
            word[:-1] + beyond[int(rng.random() * len(beyond))] if is_beyond else word
            for word, is_beyond in zip(words, rng.random(_WORDS) < _WORDS_BEYOND_ASCII, strict=True)
        ]
        both = ([*some, *(word.capitalize() for word in some)] for some in (words, variants))
        return pa.array([word for some in both for word in some])

    def _rng(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *stream])


def _lines(records: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)


def _opened(path: Path) -> Any:
    if path.suffix == ".zst":
        return zstandard.open(path, "wb", zstandard.ZstdCompressor(3))
    return gzip.open(path, "wb", 6) if path.suffix == ".gz" else open(path, "wb")


def write_training(output: str | Path, first_mb: int, last_mb: int, seed: int) -> None:
    """Writes whole blocks of documents from the range of MB, in the format of the file's name.

    If `last_mb` is 0, the file has TINY_DOCUMENTS.
    """
    texts = Texts(seed)
    numbers = range(first_mb // BLOCK_MB, last_mb // BLOCK_MB)
    blocks = (texts.documents(number) for number in numbers)
    if last_mb == 0:
        blocks = iter([texts.documents(0)[:TINY_DOCUMENTS]])
    write_documents(Path(output), blocks)


def write_documents(path: Path, blocks: Iterable[list[dict[str, Any]]]) -> None:
    """Writes blocks of documents, in the format of the file's name."""
    if path.suffix == ".parquet":
        with pq.ParquetWriter(path, _SCHEMA, compression="zstd") as writer:
            for records in blocks:
                writer.write_table(pa.Table.from_pylist(records, _SCHEMA), _ROW_GROUP_ROWS)
    else:
        with _opened(path) as file:
            for records in blocks:
                file.write(_lines(records))


def write_evaluation(output: str | Path, num_rows: int, seed: int) -> None:
    """Writes an evaluation set as JSON lines."""
    rows = enumerate(Texts(seed).evaluation(num_rows))
    Path(output).write_bytes(_lines({"id": f"q{row}", "text": text} for row, text in rows))
