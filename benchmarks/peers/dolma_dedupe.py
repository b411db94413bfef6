"""Peer: dolma's deduplication against a Bloom filter, in a separate Python environment.

    PYTHON benchmarks/peers/dolma_dedupe.py --input_path=corpus.jsonl --evaluation=evals.jsonl \\
        --ngram_length=13 --share=0.5 --output=found.json [--reverse]

As in its project's decontamination, one run fills the filter with the evaluation rows, a second one
looks up the documents, read-only, and marks paragraphs (lines) with a share of their n-grams in the
filter. With `--ngram_length=0` whole paragraphs are looked up. A document is found if a paragraph
is marked. `--reverse` fills the filter with the documents and looks up the rows. The filter has
room for every n-gram at one false positive in 10^15. The output is {"documents" or "rows": ids,
"version"}.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

_NAME = "seen"
_FALSE_POSITIVE_RATE = 1e-15


def config(folder: Path, read_only: bool, args: argparse.Namespace, room: int) -> dict[str, Any]:
    """Returns the configuration of a run on the documents of a folder."""
    paragraphs: dict[str, Any] = {"attribute_name": _NAME}
    if args.ngram_length:
        paragraphs["by_ngram"] = {
            "ngram_length": args.ngram_length,
            "stride": 0,
            "overlap_threshold": args.share or 1e-9,  # 0 marks every paragraph
        }
    return {
        "documents": [f"{folder}/documents/*.gz"],
        "dedupe": {"name": _NAME, "skip_empty": True, "paragraphs": paragraphs},
        "bloom_filter": {
            "file": str(folder.parent / "filter.bin"),
            "read_only": read_only,
            "estimated_doc_count": room,
            "desired_false_positive_rate": _FALSE_POSITIVE_RATE,
        },
    }


def marked(folder: Path) -> list[str]:
    """Returns the ids of the records with a marked paragraph."""
    (path,) = (folder / "attributes" / _NAME).glob("*.gz")
    with gzip.open(path, "rt") as lines:
        records = map(json.loads, lines)
        return [record["id"] for record in records if any(record["attributes"].values())]


def main() -> None:
    parser = argparse.ArgumentParser(description="Decontaminates with dolma dedupe.")
    parser.add_argument("--input_path", required=True, type=Path)
    parser.add_argument("--evaluation", required=True, type=Path)
    parser.add_argument("--ngram_length", required=True, type=int)
    parser.add_argument("--share", type=float, default=0.0, help="of a paragraph's n-grams")
    parser.add_argument("--reverse", action="store_true")
    parser.add_argument("--output", required=True, type=Path)
    args = parser.parse_args()
    sides = [args.evaluation, args.input_path]
    room = sum(len(path.read_bytes().split()) for path in sides) * 2  # of tokens, at most
    if args.reverse:
        sides.reverse()
    with tempfile.TemporaryDirectory() as name:
        for at, path in enumerate(sides):
            folder = Path(name).absolute() / f"side-{at}"
            (folder / "documents").mkdir(parents=True)
            (folder / "documents/all.jsonl.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
            settings = folder / "config.json"
            settings.write_text(json.dumps(config(folder, at == 1, args, room)))
            program = Path(sys.executable).with_name("dolma")
            subprocess.run([program, "-c", settings, "dedupe"], check=True)
        found = marked(folder)
    unit = "rows" if args.reverse else "documents"
    args.output.write_text(json.dumps({unit: found, "version": metadata.version("dolma")}))


if __name__ == "__main__":
    main()
