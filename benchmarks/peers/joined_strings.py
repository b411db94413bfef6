"""Peer: n-grams joined to strings, looked up in sets of those of the evaluation rows.

    python -m benchmarks.peers.joined_strings --input_path=a.jsonl.zst --evaluation=e.jsonl \\
        --ngram_length=13 --output=found.json

The one-hour solution: lower, re.split, join, `in`. It finds the same n-grams as the job, with their
occurrences and documents, but no offsets, details or instances. The output is {"lengths",
"num_read", "num_documents", "ngrams": [[n, n-gram, occurrences, documents]]}.
"""

import argparse
import gzip
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import orjson
import zstandard

_SEPARATORS = re.compile(rf"[\s{re.escape(string.punctuation)}]+")


def texts(path: Path) -> Iterator[str]:
    """Yields the texts of a file of JSON lines."""
    with _opened(path) as lines:
        for line in lines:
            text = orjson.loads(line).get("text")
            if text is not None:
                yield text


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".zst":
        return zstandard.open(path, "rt", encoding="utf-8", newline="\n")  # type: ignore[return-value]
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="\n")
    return open(path, encoding="utf-8", newline="\n")


def tokens_of(text: str) -> list[str]:
    """Cuts a text as the job's default tokeniser does."""
    return _SEPARATORS.split(text.lower())


def ngrams_of(tokens: list[str], n: int) -> Iterator[str]:
    for at in range(len(tokens) - n + 1):
        yield " ".join(tokens[at : at + n])


def sets_of(rows: Iterable[str], lengths: list[int]) -> dict[int, set[str]]:
    """Returns the n-grams of the evaluation rows by n; a row of fewer tokens is one n-gram."""
    sets: dict[int, set[str]] = {}
    for row in rows:
        tokens = tokens_of(row)
        for n in {min(n, len(tokens)) for n in lengths}:
            sets.setdefault(n, set()).update(ngrams_of(tokens, n))
    return sets


def main() -> None:
    parser = argparse.ArgumentParser(description="Looks joined strings up in a set.")
    parser.add_argument("--input_path", required=True, action="append", type=Path)
    parser.add_argument("--evaluation", required=True, type=Path)
    parser.add_argument("--ngram_length", required=True, action="append", type=int)
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    sets = sets_of(texts(args.evaluation), args.ngram_length)
    occurrences: Counter[tuple[int, str]] = Counter()
    documents: Counter[tuple[int, str]] = Counter()
    num_read = num_documents = 0
    for path in args.input_path:
        for text in texts(path):
            num_read += 1
            tokens = tokens_of(text)
            found = []
            for n, wanted in sets.items():
                for at in range(len(tokens) - n + 1):
                    ngram = " ".join(tokens[at : at + n])
                    if ngram in wanted:
                        found.append((n, ngram))
            if found:
                num_documents += 1
                occurrences.update(found)
                documents.update(set(found))
    ngrams = [[*key, count, documents[key]] for key, count in sorted(occurrences.items())]
    result = {
        "lengths": args.ngram_length,
        "num_read": num_read,
        "num_documents": num_documents,
        "ngrams": ngrams,
    }
    args.output.write_bytes(orjson.dumps(result))


if __name__ == "__main__":
    main()
