"""A small corpus with contaminated documents in each format, and the search for them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.overlap.__main__ import main as find
from beam_pipeline.overlap.removal.cutting import piece_id
from beam_pipeline.overlap.removal.rewriting import compressed
from beam_pipeline.overlap.removal.training_files import Documents
from beam_pipeline.storage.lines import decompressed
from tests.support.overlap_jobs import SHARED, write_lines

AROUND = " ".join(f"word{number}" for number in range(60))
CONTAMINATED = {"text": f"{AROUND}. {SHARED.title()}! {AROUND}\u00e9", "id": 7, "n": 1.5}
MASK = json.dumps("⟦removed⟧").encode().strip(b'"')
LINES = [
    b'{"id": "a", "text": "nothing to see", "more": [1, 2.50]}\n',
    b"\n",
    b"no json at all\n",
    json.dumps(CONTAMINATED).encode() + b"\r\n",
    b'  {"id":"c",  "text":"last one"}',
]

ELEMENTS = [b'{"text": "x"}', b"\n 7", b' {"text":"\\u00e9 %b"} ' % SHARED.encode(), b"{}"]


class Planned:
    """Stands in for `Changes`: the texts that replace "old" in some rows; None keeps a row."""

    new_id = staticmethod(piece_id)

    def __init__(self, texts: Mapping[int, list[str] | None], is_split: bool = False):
        self._texts, self.is_split = texts, is_split

    def within(self, first_row: int, stop_row: int) -> Documents:
        rows = [row for row in sorted(self._texts) if first_row <= row < stop_row]
        return Documents(np.array(rows, np.int64), np.zeros(0), pa.array([]), pa.array([]))

    def texts(self, documents: Documents, index: int, text: str) -> list[str] | None:
        assert text == "old"
        return self._texts[int(documents.rows[index])]


def write_corpus(folder: Path) -> None:
    (folder / "in/deep").mkdir(parents=True)
    (folder / "in/a.jsonl").write_bytes(b"".join(LINES))
    write_compressed(folder / "in/b.jsonl.gz", b"".join(LINES))
    write_compressed(folder / "in/deep/c.json.zst", b"".join(LINES))
    (folder / "in/d.jsonl").write_bytes(LINES[0])
    (folder / "in/f.json").write_bytes(b"\xef\xbb\xbf [%b\n]\n" % b",".join(ELEMENTS))
    texts = ["one", f"{AROUND} {SHARED} {AROUND}", None, "two"]
    table = pa.table({"id": ["p0", "p1", "p2", "p3"], "text": texts, "x": [1, 2, 3, None]})
    pq.write_table(table, folder / "in/e.parquet", row_group_size=2, compression="gzip")
    write_evaluation(folder)


def write_evaluation(folder: Path) -> None:
    """Writes the evaluation set of `find_in`."""
    write_lines(folder / "eval/quiz.jsonl", {"id": "q", "text": SHARED})


def write_compressed(path: Path, data: bytes) -> None:
    """Writes a file that is compressed as its name says."""
    write_as(path, {".gz": "gzip", ".zst": "zstd"}.get(path.suffix), data)


def write_as(path: Path, compression: Any, data: bytes) -> None:
    """Writes a file that is compressed, whatever its name says."""
    with path.open("wb") as file, compressed(file, compression) as write:
        write(data)


def find_in(folder: Path, corpus: str, output: str, *more: str) -> None:
    sets = f"--decontaminate_source=quiz={folder}/eval/quiz.jsonl"
    flags = [f"--input_path={folder}/{corpus}", sets, f"--output_path={folder}/{output}"]
    assert find([*flags, *more, "--ngram_length=8", "--overwrite", "--direct_num_workers=1"]) == 0


def texts_of(path: Path) -> list[str | None]:
    """Returns the text of each record of a file, None for one without."""
    if path.suffix == ".parquet":
        return pq.read_table(path).column("text").to_pylist()
    data = plain(path).decode("utf-8-sig")
    if data.lstrip().startswith("["):
        return list(map(_text_of, json.loads(data)))
    return [_text_of(_parsed(line)) for line in data.split("\n") if line.strip()]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _text_of(record: Any) -> str | None:
    return record.get("text") if isinstance(record, dict) else None


def plain(path: Path) -> bytes:
    with path.open("rb") as stream:
        return decompressed(stream).read()
