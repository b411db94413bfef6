"""Small corpora on disk, made at random, with passages that both sides share, and what is in them.

Words are few, so that much is shared by chance, and odd: characters whose lower case is longer or
depends on what follows, lone surrogates, separators beyond ASCII. Records without a text, lines
that are no JSON and texts that are no strings stand between the others. Every format and
compression that is read is written.
"""

import gzip
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from beam_pipeline.documents.fields import document_id
from tests.support.overlap_hits import EvalRow, TrainRow

WORDS = [
    "a", "b", "Σας", "İx", "é", "\U0001f600", "long-word", "", ".", "\ud800", "ΟΔΟΣ", "x\u2028y",
    "世界", "b。界",
]  # fmt: skip
FORMATS = [".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz", ".parquet", ".jsonl", ".jsonl"]
BAD_LINES = ["{", "[1]", "nonsense", '{"id": 1, "text": 5}']


class Corpus(NamedTuple):
    """What was written, and how the job is told of it."""

    flags: list[str]
    rows: list[EvalRow]
    training: list[TrainRow]
    num_letters: int


def make_corpus(folder: Path, seed: int, num_files: int = 3) -> Corpus:
    """Writes evaluation sets and training files below a folder."""
    rng = random.Random(seed)
    rows: list[EvalRow] = []
    training: list[TrainRow] = []
    num_letters = 0
    sources = []
    for name in ["mmlu", "gsm8k", "boolq"][: rng.randrange(1, 4)]:
        of_set = folder / "eval" / f"{name}-dolma-1a2b3c"
        sources.append(str(of_set) if rng.random() < 0.7 else f"{name}={of_set}")
        for path in _paths(of_set, rng, rng.randrange(1, 3)):
            records = [{"id": f"{name}-0", "text": "a b"}, *_records(rng, rng.randrange(6), 14)]
            num_letters += write_documents(path, records, rng)
            rows += [
                EvalRow(name, str(path), row, document_id(record), record["text"])
                for row, record in enumerate(records)
                if isinstance(record, dict) and isinstance(record.get("text"), str)
            ]
    texts = [row.text for row in rows]
    for path in _paths(folder / "train", rng, num_files):
        records = [{"text": "the end"}, *_records(rng, rng.randrange(8), 30)]
        for _ in range(rng.randrange(3)):
            record = {"id": rng.randrange(9), "text": f"x {rng.choice(texts)} b".swapcase()}
            records.insert(rng.randrange(len(records) + 1), record)
        num_letters += write_documents(path, records, rng)
        training += [
            TrainRow(str(path), row, _id(record), record["text"])
            for row, record in enumerate(records)
            if isinstance(record, dict) and isinstance(record.get("text"), str)
        ]
    flags = [f"--input_path={folder / 'train'}"]
    flags += [f"--decontaminate_source={source}" for source in sources]
    return Corpus(flags, rows, training, num_letters)


def _id(record: dict[str, Any]) -> str | None:
    return None if record.get("id") is None else str(record["id"])


def _paths(folder: Path, rng: random.Random, count: int) -> list[Path]:
    folder.mkdir(parents=True)
    return [folder / f"{number}{rng.choice(FORMATS)}" for number in range(count)]


def _records(rng: random.Random, count: int, num_words: int) -> list[Any]:
    """Returns records, and as strings lines that are none."""
    records: list[Any] = []
    for _ in range(count):
        chance = rng.random()
        if chance < 0.1:
            records.append(rng.choice(BAD_LINES))
        elif chance < 0.2:
            records.append(rng.choice([{"id": 3}, {"id": 4, "text": None}]))
        else:
            text = " ".join(rng.choices(WORDS, k=rng.randrange(num_words)))
            records.append(
                {"text": text, **rng.choice([{}, {"id": None}, {"id": rng.randrange(5)}])}
            )
    return records


def write_documents(path: Path, records: list[Any], rng: random.Random) -> int:
    """Writes records as the name of the file says, and returns how many of them are bad.

    What a format cannot hold is made to fit, in the list too.
    """
    if path.name.endswith(".parquet"):
        return _write_parquet(path, records)
    if ".json" in path.suffixes and rng.random() < 0.6:
        records[:] = [json.loads(bad) if bad == BAD_LINES[3] else bad for bad in records]
        records[:] = [{"id": 3} if isinstance(bad, str) else bad for bad in records]
        data = json.dumps(records, indent=rng.choice([None, 1])).encode()
        num_bad = sum(not isinstance(record.get("text") or "", str) for record in records)
    else:
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        data = ("\n".join(lines) + rng.choice(["", "\n", "\r\n"])).encode()
        num_bad = sum(isinstance(record, str) for record in records)
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.compress(data)
    path.write_bytes(data)
    return num_bad


def _write_parquet(path: Path, records: list[Any]) -> int:
    kept: list[dict[str, Any]] = [
        record if isinstance(record, dict) else {"id": 3} for record in records
    ]
    records[:] = [{"id": _id(record), "text": _valid(record.get("text"))} for record in kept]
    table = pa.Table.from_pylist(records, pa.schema([("id", pa.string()), ("text", pa.string())]))
    pq.write_table(table, path, row_group_size=2)
    return 0


def _valid(text: str | None) -> str | None:
    return None if text is None else text.replace("\ud800", "?")
