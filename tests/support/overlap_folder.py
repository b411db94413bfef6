"""A finished output of the overlap job, made by plain loops: for tests of what reads one.

Give evaluation sets and training files as lists of (id, text); every shared n-gram is written, to
every file that the job writes, with the fields that it writes.
"""

import gzip
import json
import string
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline import __version__
from beam_pipeline.dataset.dead_letters import DeadLetter, to_parquet
from beam_pipeline.overlap.job.config import flag_fields
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS, effective_lengths
from beam_pipeline.overlap.results.contaminated import DOCUMENTS_SCHEMA, TRAIN_FILES_SCHEMA
from beam_pipeline.overlap.results.expansion import MATCHES_SCHEMA
from beam_pipeline.overlap.results.layout import DEAD_LETTERS
from beam_pipeline.overlap.results.row_overlaps import merge_spans
from tests.support.overlap_hits import ngrams

Texts = Sequence[tuple[str | None, str]]


class Row(NamedTuple):
    """A row of an evaluation set, with the n-grams at each effective n and where they stand."""

    eval_dataset: str
    eval_path: str
    eval_row: int
    instance_id: str
    text: str
    num_tokens: int
    by_length: dict[int, dict[str, list[list[int]]]]


def eval_path(name: str) -> str:
    """Returns the path that an evaluation set has in an output."""
    return f"eval/{name}/test.jsonl"


def write_output(
    folder: Path,
    sets: Mapping[str, Texts],
    training: Mapping[str, Texts],
    lengths: Sequence[int],
    max_details: int | None = None,
    left_out: Iterable[dict[str, Any]] | None = None,
    boilerplate: Iterable[dict[str, Any]] = (),
    dead_letters: Mapping[str, int] | None = None,
    max_details_per_pair: int | None = None,
    rules: Iterable[dict[str, Any]] = (),
    **options: Any,
) -> Path:
    """Writes an output.

    Args:
      max_details, max_details_per_pair: no limit if None.
      left_out, boilerplate, rules: lines of the files of these names.
      dead_letters: how many there are, by reason.
      options: other options of the run, as its summary tells them; `details` decides which files
        have texts.
    """
    rows = [row for name, texts in sets.items() for row in _rows(name, texts, lengths)]
    details = [d for path, texts in training.items() for d in _details(path, texts, rows)]
    _write_stats(folder, sets, rows, details, lengths)
    _write_by_train_path(folder, details)
    _write_coverage(folder, rows, details)
    _write_matches(folder, rows, details)
    _write_documents(folder, training, details)
    caps = {"max_details": max_details, "max_details_per_pair": max_details_per_pair}
    given = {name: -1 if value is None else value for name, value in caps.items()} | options
    has_caps = any(value is not None for value in caps.values())
    lines = list(_kept(details, max_details_per_pair))[:max_details]
    if given.get("details") == "none":
        lines = []
    if given.get("details") == "compact":
        _write_texts(folder, rows, details, lines)
        lines = [{k: v for k, v in d.items() if not k.endswith("_text")} for d in lines]
    _write_lines(folder / "stats/overlap_details.jsonl.gz", lines)
    if left_out is not None:
        _write_lines(folder / "stats/overlap_details_left_out.jsonl", left_out)
    if boilerplate:
        _write_lines(folder / "stats/overlap_boilerplate.jsonl", boilerplate)
    if rules:
        _write_lines(folder / "stats/overlap_rules.jsonl", rules)
    _write_dead_letters(folder, dead_letters or {})
    options = {
        **_defaults(),
        "input_path": ["corpus"],
        "decontaminate_source": [f"eval/{name}" for name in sets],
        "ngram_length": sorted(lengths),
        **given,
    }
    counts = {
        "train_rows": sum(map(len, training.values())),
        "eval_rows": sum(map(len, sets.values())),
        "degenerate_eval_rows": sum(not row.text.strip(string.punctuation) for row in rows),
        "dead_letters": dead_letters or {},
        "matches": len(details),
        "details": len(lines),
        "details_left_out": (len(details) - len(lines)) * has_caps,
    }
    _write_summary(folder, len(sets), len(training), options, counts)
    (folder / ".SUCCESS").touch()
    return folder


def _write_dead_letters(folder: Path, counts: Mapping[str, int]) -> None:
    letters = [
        DeadLetter("train/bad.jsonl", number, reason, "{")
        for reason, count in counts.items()
        for number in range(count)
    ]
    if letters:
        (folder / "dead_letter").mkdir()
        (folder / DEAD_LETTERS).write_bytes(to_parquet(letters))


def _write_summary(
    folder: Path, num_sets: int, num_files: int, options: dict[str, Any], counts: dict[str, Any]
) -> None:
    summary = {
        "num_eval_files": num_sets,
        "num_train_files": num_files,
        "num_shards": 1,
        "max_parallelism": 0,
        "outputs": ["stats/overlap_stats.jsonl"],
        "ngram_lengths": options["ngram_length"],
        "tokenizer": "default",
        "started_at": "2026-11-23T13:08:42.735241+00:00",
        "options": options,
        "versions": {"probeline": __version__, "unicode": "15.0.0"},
        "counts": counts,
    }
    (folder / "progress").mkdir()
    (folder / "progress/progress_summary.json").write_text(json.dumps(summary))


def _defaults() -> dict[str, Any]:
    return {item.name: item.default for item in flag_fields() if item.default is not MISSING}


def _pair(detail: Mapping[str, Any]) -> tuple:
    return *_key(detail), detail["train_path"], detail["train_row"]


def _kept(details: Sequence[dict[str, Any]], per_pair: int | None) -> Iterable[dict[str, Any]]:
    kept: Counter[tuple] = Counter()
    for detail in details:
        kept[_pair(detail)] += 1
        if per_pair is None or kept[_pair(detail)] <= per_pair:
            yield detail


def _write_texts(
    folder: Path,
    rows: Sequence[Row],
    details: Sequence[dict[str, Any]],
    lines: Sequence[dict[str, Any]],
) -> None:
    """Writes the texts of all rows that are hit, and of the documents in the details."""
    hit = {_key(detail) for detail in details}
    of_rows = [
        {
            "eval_dataset": row.eval_dataset,
            "eval_path": row.eval_path,
            "eval_row": row.eval_row,
            "eval_text": row.text,
        }
        for row in rows
        if (row.eval_path, row.eval_row) in hit
    ]
    _write_lines(folder / "stats/overlap_eval_texts.jsonl.gz", of_rows)
    names = ("train_path", "train_row", "train_text")
    of_documents = {
        (line["train_path"], line["train_row"]): {name: line[name] for name in names}
        for line in lines
    }
    _write_lines(folder / "stats/overlap_train_texts.jsonl.gz", of_documents.values())


def _write_documents(
    folder: Path, training: Mapping[str, Texts], details: Sequence[dict[str, Any]]
) -> None:
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for detail in details:
        found[detail["train_path"], detail["train_row"]].append(detail)
    documents = []
    for (path, row), of_document in found.items():
        spans = merge_spans((s, e) for detail in of_document for s, e in detail["train_offsets"])
        documents.append(
            {
                "train_path": _in_parquet(path),
                "train_row": row,
                "train_doc_id": _in_parquet(of_document[0].get("train_doc_id")),
                "eval_datasets": sorted({detail["eval_dataset"] for detail in of_document}),
                "spans": [{"start": start, "end": end} for start, end in spans],
                "num_covered_chars": sum(end - start for start, end in spans),
            }
        )
    table = pa.Table.from_pylist(documents, schema=DOCUMENTS_SCHEMA)
    pq.write_table(table, folder / "stats/overlap_documents.parquet", row_group_size=2)
    files = [
        dict.fromkeys(TRAIN_FILES_SCHEMA.names, 0)
        | {"train_path": _in_parquet(path), "num_rows": len(texts), "num_texts": len(texts)}
        for path, texts in training.items()
    ]
    table = pa.Table.from_pylist(files, schema=TRAIN_FILES_SCHEMA)
    pq.write_table(table, folder / "stats/overlap_train_files.parquet")


def _rows(name: str, texts: Texts, lengths: Sequence[int]) -> Iterable[Row]:
    for number, (given, text) in enumerate(texts):
        tokens = TOKENIZERS["default"].tokenize(text)
        by_length = {n: ngrams(tokens, n) for n in effective_lengths(tuple(lengths), len(tokens))}
        yield Row(name, eval_path(name), number, str(given), text, len(tokens), by_length)


def _details(path: str, texts: Texts, rows: Sequence[Row]) -> Iterable[dict[str, Any]]:
    for train_row, (doc_id, text) in enumerate(texts):
        tokens = TOKENIZERS["default"].tokenize(text)
        for row in rows:
            for n, own in row.by_length.items():
                theirs = ngrams(tokens, n)
                for ngram, places in own.items():
                    if ngram in theirs:
                        yield {
                            "eval_dataset": row.eval_dataset,
                            "eval_path": row.eval_path,
                            "eval_row": row.eval_row,
                            "eval_text": row.text,
                            "eval_instance_id": row.instance_id,
                            "ngram": ngram,
                            "eval_offsets": places,
                            "n": n,
                            "train_path": path,
                            "train_row": train_row,
                            "train_text": text,
                            "train_ngram": ngram,
                            "train_offsets": theirs[ngram],
                            **({} if doc_id is None else {"train_doc_id": doc_id}),
                        }


def _key(line: Mapping[str, Any]) -> tuple[str, int]:
    return line["eval_path"], line["eval_row"]


def _write_stats(
    folder: Path,
    sets: Mapping[str, Texts],
    rows: Sequence[Row],
    details: Sequence[dict[str, Any]],
    lengths: Sequence[int],
) -> None:
    ids = {(row.eval_path, row.eval_row): row.instance_id for row in rows}
    lines = []
    for name in sets:
        hit: dict[int, set[str]] = {n: set() for n in lengths}
        for detail in details:
            if detail["eval_dataset"] == name:
                hit.setdefault(detail["n"], set()).add(ids[_key(detail)])
        all_ids = {row.instance_id for row in rows if row.eval_dataset == name}
        lines += [
            {
                "eval_dataset": name,
                "n": n,
                "num_instances": len(all_ids),
                "instance_ids": sorted(hit[n]),
            }
            for n in sorted(hit)
        ]
    _write_lines(folder / "stats/overlap_stats.jsonl", lines)


def _write_by_train_path(folder: Path, details: Sequence[dict[str, Any]]) -> None:
    hit: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for detail in details:
        place = (detail["train_path"], detail["eval_dataset"], detail["n"])
        hit[place].add(f"{detail['eval_dataset']}-{detail['eval_row']}")
    lines = [
        {
            "train_path": path,
            "eval_dataset": name,
            "n": n,
            "num_instances": len(ids),
            "instance_ids": sorted(ids),
        }
        for (path, name, n), ids in sorted(hit.items())
    ]
    _write_lines(folder / "stats/overlap_stats_by_train_path.jsonl", lines)


def _write_coverage(folder: Path, rows: Sequence[Row], details: Sequence[dict[str, Any]]) -> None:
    found: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for detail in details:
        found[*_key(detail), detail["n"]].append(detail)
    lines, ngram_lines = [], []
    for row in rows:
        tokens = TOKENIZERS["default"].tokenize(row.text)
        for n in row.by_length:
            hits = found.get((row.eval_path, row.eval_row, n))
            if not hits:
                continue
            places = {tuple(place) for hit in hits for place in hit["eval_offsets"]}
            covered = sum(
                any(start <= token.start and token.end <= end for start, end in places)
                for token in tokens
            )
            spans = merge_spans((start, end) for start, end in places)
            begun = [token.start for token in tokens[: len(tokens) - n + 1]]
            num_shared = sum(any(start == at for start, _ in places) for at in begun)
            head = {
                "eval_dataset": row.eval_dataset,
                "instance_id": row.instance_id,
                "eval_path": row.eval_path,
                "eval_row": row.eval_row,
                "n": n,
            }
            documents = Counter(hit["ngram"] for hit in hits)
            occurrences = Counter(dict.fromkeys(documents, 0))
            for hit in hits:
                occurrences[hit["ngram"]] += len(hit["train_offsets"])
            ngrams_of_row = [
                [ngram, occurrences[ngram], documents[ngram]]
                for ngram in row.by_length[n]
                if ngram in documents
            ]
            ngram_lines.append({**head, "overlapping_ngram_counts": ngrams_of_row})
            lines.append(
                {
                    **head,
                    "num_train_documents": len({(h["train_path"], h["train_row"]) for h in hits}),
                    "spans": spans,
                    "longest_span": max((end - start for start, end in spans), default=0),
                    "num_tokens": row.num_tokens,
                    "num_covered_tokens": covered,
                    "coverage": covered / row.num_tokens,
                    "longest_run": covered,
                    "num_informative_ngrams": len(begun),
                    "num_shared_ngrams": num_shared,
                    "ngram_coverage": num_shared / len(begun),
                }
            )
    _write_lines(folder / "stats/overlap_coverage.jsonl", lines)
    _write_lines(folder / "stats/overlap_ngrams.jsonl.gz", ngram_lines)


def _write_matches(folder: Path, rows: Sequence[Row], details: Sequence[dict[str, Any]]) -> None:
    ids = {(row.eval_path, row.eval_row): row.instance_id for row in rows}
    lines = [
        {name: _in_parquet(detail.get(name)) for name in MATCHES_SCHEMA.names}
        | {"instance_id": _in_parquet(ids[_key(detail)])}
        for detail in details
    ]
    table = pa.Table.from_pylist(lines, schema=MATCHES_SCHEMA)
    pq.write_table(table, folder / "stats/overlap_matches.parquet", row_group_size=1_000)


def _in_parquet(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [{"start": start, "end": end} for start, end in value]
    return value


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Writes JSON lines; a lone surrogate is an escape. Of a .gz each line is a member."""
    path.parent.mkdir(exist_ok=True)
    data = [json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines]
    if path.suffix == ".gz":
        data = [gzip.compress(line, mtime=0) for line in data or [b""]]
    path.write_bytes(b"".join(data))
