"""The findings of a contender of the overlap bench, and the size of the searched text.

The digest is of the n-grams by evaluation row, with their occurrences and documents. A peer that
does not report n-grams has no digest.
"""

import gzip
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from beam_pipeline.documents.batch import DocumentBatch, decode
from beam_pipeline.documents.files import cut_into_work_units, match_documents
from beam_pipeline.documents.reading import read_texts
from beam_pipeline.overlap.results.layout import MATCHES, NGRAMS, SUMMARY
from benchmarks.peers.joined_strings import ngrams_of, tokens_of

Found = tuple[int, int, str, int, int]  # evaluation row, n, n-gram, occurrences, documents


def size(paths: list[str]) -> dict[str, int]:
    """Counts the texts of some files and their UTF-8 bytes."""
    num_texts = text_bytes = 0
    for path in paths:
        for batch in batches(path):
            num_texts += len(batch.rows)
            text_bytes += len(batch.utf8)
    return {"num_texts": num_texts, "text_bytes": text_bytes}


def batches(path: str) -> Iterator[DocumentBatch]:
    """Yields the texts of a file or a folder."""
    for file in match_documents([path]):
        for unit in cut_into_work_units(file):
            yield from read_texts(unit)


def ngrams(output: str, evaluation: str) -> dict[str, Any]:
    """Summarises the output of a run.

    Returns:
      {"num_read", "num_documents", "num_ngrams", "digest"}; for the job also "num_passes" and
      "num_indexed" n-grams, for a peer everything else that it reports.
    """
    path = Path(output)
    return read_job(path) if path.is_dir() else read_peer(path, Path(evaluation))


def read_job(output: Path) -> dict[str, Any]:
    """Summarises an output folder of the job."""
    told = orjson.loads((output / SUMMARY).read_bytes())
    matches = pq.read_table(output / MATCHES, columns=["train_path", "train_row"])
    documents = matches.group_by(matches.column_names).aggregate([])
    found: list[Found] = []
    with gzip.open(output / NGRAMS) as lines:
        for line in lines:
            row = orjson.loads(line)
            counts = row["overlapping_ngram_counts"]
            found += [(row["eval_row"], row["n"], *count) for count in counts]
    return {
        "num_read": told["counts"]["train_texts"],
        "num_documents": documents.num_rows,
        "num_passes": told["num_shards"],
        "num_indexed": told["counts"]["eval_ngrams"],
        **summary(found),
    }


def read_peer(output: Path, evaluation: Path) -> dict[str, Any]:
    """Summarises an output file of a peer, its n-grams assigned to evaluation rows."""
    told = orjson.loads(output.read_bytes())
    told_ngrams = told.pop("ngrams", None)
    if told_ngrams is None:
        return told
    counts = {
        (n, ngram): (occurrences, documents) for n, ngram, occurrences, documents in told_ngrams
    }
    return {**told, **summary(_by_row(counts, told.pop("lengths"), evaluation))}


def _by_row(
    counts: dict[tuple[int, str], tuple[int, int]], lengths: list[int], evaluation: Path
) -> Iterator[Found]:
    for batch in batches(str(evaluation)):
        for at, row in enumerate(batch.rows):
            tokens = tokens_of(decode(batch.text_bytes(at)))
            for n in {min(n, len(tokens)) for n in lengths}:
                for ngram in sorted(set(ngrams_of(tokens, n))):
                    if (n, ngram) in counts:
                        yield int(row), n, ngram, *counts[n, ngram]


def summary(found: Iterable[Found]) -> dict[str, Any]:
    """Returns the number and the digest of the findings."""
    ordered = sorted(found)
    digest = hashlib.blake2b(orjson.dumps(ordered), digest_size=16).hexdigest()
    return {"num_ngrams": len(ordered), "digest": digest}
