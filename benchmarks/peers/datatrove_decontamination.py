"""Peer: datatrove's n-gram decontamination, in a separate Python environment.

    PYTHON benchmarks/peers/datatrove_decontamination.py --input_path=a.jsonl.zst \\
        --evaluation=e.jsonl --ngram_length=13 --output=found.json

Uses its reader, its filter and its index format. Its indexing step requires lighteval and tasks
from a server, so only that step's text hashing function is used. The tokeniser cuts at spaces, to
which datatrove's normalisation converts punctuation; the default, spaCy's, is many times slower. A
document is dropped at its first hit; nothing else is reported. The output is
{"num_read", "num_documents", "documents": ids dropped, "version"}.
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
from datatrove.data import Document  # pyright: ignore[reportMissingImports]
from datatrove.pipeline.decont.n_grams import (  # pyright: ignore[reportMissingImports]
    NGramsDecontConfig,
    NGramsDecontFilter,
    NGramsDecontIndexer,
)
from datatrove.pipeline.readers import JsonlReader  # pyright: ignore[reportMissingImports]
from datatrove.utils.word_tokenizers import WordTokenizer  # pyright: ignore[reportMissingImports]


class SplitTokenizer(WordTokenizer):
    def word_tokenize(self, text: str) -> list[str]:
        return text.split()

    # Also abstract in the base class, but never called for n-grams.

    def sent_tokenize(self, text: str) -> list[str]:
        raise NotImplementedError("n-grams need no sentences")

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        raise NotImplementedError("n-grams need no sentences")


def write_index(folder: str, step: NGramsDecontFilter, evaluation: Path) -> None:
    """Writes the hashes of the n-grams of evaluation rows as a file of NGramsDecontIndexer."""
    hashes: set[int] = set()
    for document in read(evaluation):
        hashes.update(NGramsDecontIndexer.compute_hashes(step, document.text))
    np.array(list(hashes), np.uint64).tofile(f"{folder}/evaluation.index.hashes")


def read(path: Path) -> Iterator[Document]:
    """Yields the documents of a file of JSON lines."""
    return JsonlReader(str(path.parent), glob_pattern=path.name).run()


def main() -> None:
    parser = argparse.ArgumentParser(description="Decontaminates with datatrove.")
    parser.add_argument("--input_path", required=True, action="append", type=Path)
    parser.add_argument("--evaluation", required=True, type=Path)
    parser.add_argument("--ngram_length", required=True, type=int)
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    num_read = 0
    dropped: Counter[str] = Counter()  # by id, which a user's documents may share

    def documents() -> Iterator[Document]:
        nonlocal num_read
        for path in args.input_path:
            for document in read(path):
                num_read += 1
                dropped[document.id] += 1
                yield document

    with tempfile.TemporaryDirectory() as folder:
        config = NGramsDecontConfig(n_grams=args.ngram_length)
        step = NGramsDecontFilter(folder, config, language=SplitTokenizer())
        write_index(folder, step, args.evaluation)
        for kept in step.run(documents()):
            dropped[kept.id] -= 1
    result = {
        "num_read": num_read,
        "num_documents": dropped.total(),
        "documents": [name for name, count in dropped.items() if count],
        "version": metadata.version("datatrove"),
    }
    args.output.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
