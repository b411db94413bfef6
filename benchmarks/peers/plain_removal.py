"""Peer: a loop over lines that is given the rows and spans of the contaminated documents.

    python -m benchmarks.peers.plain_removal --input_path=corpus --remove=split \\
        --documents=result/stats/overlap_documents.parquet --output=clean

What one would write in an hour: only the lines of contaminated documents are parsed, all others are
written as they were read. Cuts are at the spans and at 200 characters beside them, whatever the
tokens there; pieces under 200 characters are dropped. The compression has the job's levels.
"""

import argparse
import gzip
import io
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pyarrow.parquet as pq
import zstandard

_LEVEL = 1
_BUFFER_BYTES = 1 << 20
_MARGIN, _MIN_PIECE, _MAX_PIECES = 200, 200, 10
_MASK = "⟦removed⟧"
Spans = list[dict[str, int]]


def pieces_of(text: str, spans: Spans, remove: str) -> list[str]:
    """Returns what remains of a text."""
    if remove == "document":
        return []
    margin = _MARGIN if remove == "split" else 0
    pieces, at = [], 0
    for span in spans:
        pieces.append(text[at : max(at, span["start"] - margin)])
        at = span["end"] + margin
    pieces.append(text[at:])
    if remove == "mask":
        return [_MASK.join(pieces)]
    pieces = [piece for piece in pieces if piece]
    return [p for p in pieces if len(p) >= _MIN_PIECE] if len(pieces) <= _MAX_PIECES else []


def kept(lines: BinaryIO, spans_of: dict[int, Spans], remove: str) -> Iterator[bytes]:
    """Yields the lines of a file that remain, and those of the pieces."""
    for row, line in enumerate(lines):
        if row not in spans_of:
            yield line
            continue
        record = orjson.loads(line)
        identifier = record["id"]
        for number, piece in enumerate(pieces_of(record["text"], spans_of[row], remove)):
            record["text"] = piece
            if remove == "split":
                record["id"] = f"{identifier}-{number}"
            yield orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def _source(path: Path) -> Any:
    if path.suffix == ".zst":
        return io.BufferedReader(zstandard.open(path, "rb"), _BUFFER_BYTES)
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def _target(path: Path) -> Any:
    if path.suffix == ".zst":
        compressed = zstandard.open(path, "wb", zstandard.ZstdCompressor(_LEVEL))
        return io.BufferedWriter(compressed, _BUFFER_BYTES)
    return gzip.open(path, "wb", _LEVEL) if path.suffix == ".gz" else open(path, "wb")


def main() -> None:
    parser = argparse.ArgumentParser(description="Removes what is listed, line by line.")
    parser.add_argument("--input_path", required=True, type=Path)
    parser.add_argument("--documents", required=True, type=Path, help="with their spans")
    parser.add_argument("--remove", required=True, choices=("document", "split", "mask"))
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    spans_of: defaultdict[str, dict[int, Spans]] = defaultdict(dict)
    documents = pq.read_table(args.documents, columns=["train_path", "train_row", "spans"])
    for document in documents.to_pylist():
        spans_of[Path(document["train_path"]).name][document["train_row"]] = document["spans"]
    args.output.mkdir(parents=True)
    for path in sorted(args.input_path.iterdir()):
        with _source(path) as lines, _target(args.output / path.name) as target:
            for line in kept(lines, spans_of[path.name], args.remove):
                target.write(line)


if __name__ == "__main__":
    main()
