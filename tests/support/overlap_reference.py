"""What an overlap run must write, by brute force: every n-gram of every pair of texts.

  evaluation rows and training rows → the records of each file of the output, by its name

Plain Python, a loop over all pairs, written to be seen to be right. The tests of the parts, and
those of whole runs on all runners, compare with it.
"""

import math
from collections import defaultdict
from typing import Any

from tests.support.overlap_hits import (
    EvalRow,
    Hit,
    Options,
    Records,
    TrainRow,
    all_hits,
    datasets_of,
    merged,
)
from tests.support.overlap_scores import (
    clean_lists,
    coverage,
    ngram_counts,
    rule_outputs,
)

INSTANCES = "tmp/overlap_instances.jsonl.gz"  # all of its files


def expected_outputs(
    rows: list[EvalRow], training: list[TrainRow], options: Options
) -> dict[str, Records]:
    """Returns the records of each file by its name; the files of instances are one.

    Args:
      rows: in the order of the evaluation sets as given, paths and rows.
      training: in any order.
    """
    every_hit = all_hits(rows, training, options)
    documents_with = defaultdict(set)
    for hit in every_hit:
        documents_with[hit.n, hit.ngram].add((hit.train.path, hit.train.row))
    most = math.inf if options.max_document_frequency is None else options.max_document_frequency
    dropped = {(ngram.count(" ") + 1, ngram) for ngram in options.drop_ngrams}
    found = {
        key: len(documents)
        for key, documents in documents_with.items()
        if key in dropped or len(documents) > most
    }
    boilerplate = {*found, *dropped}
    hits = [hit for hit in every_hit if (hit.n, hit.ngram) not in boilerplate]
    scores = coverage(rows, hits, options.tokenizer, boilerplate)
    outputs = {
        "stats/overlap_stats.jsonl": stats(rows, hits, options.lengths),
        "stats/overlap_stats_by_train_path.jsonl": stats_by_train_path(rows, hits),
        "stats/overlap_matches.parquet": [match_record(rows, hit) for hit in hits],
        "stats/overlap_documents.parquet": contaminated(rows, hits),
        "stats/overlap_ngrams.jsonl.gz": ngram_counts(rows, hits, options.tokenizer),
        "stats/overlap_coverage.jsonl": scores,
        INSTANCES: overlap_instances(rows, hits),
        **clean_lists(rows, hits, options),
        **rule_outputs(rows, scores, options),
        **details(rows, hits, options),
    }
    if options.max_document_frequency is not None or dropped:
        outputs["stats/overlap_boilerplate.jsonl"] = [
            {"ngram": ngram, "n": n, "documents": count}
            for (n, ngram), count in sorted(found.items())
        ]
    if options.min_tokens is not None:
        outputs["stats/overlap_short_rows.jsonl"] = [
            {
                "eval_dataset": row.dataset,
                "instance_id": row.id,
                "eval_path": row.path,
                "eval_row": row.row,
                "num_tokens": num_tokens,
            }
            for row in rows
            if (num_tokens := len(options.tokenizer.tokenize(row.text))) < options.min_tokens
        ]
    return outputs


def ids_of(rows: list[EvalRow], dataset: str) -> set[str]:
    return {row.id for row in rows if row.dataset == dataset}


def stats(rows: list[EvalRow], hits: list[Hit], lengths: tuple[int, ...]) -> Records:
    records = []
    for dataset in datasets_of(rows):
        found = defaultdict(set)
        for hit in hits:
            if rows[hit.number].dataset == dataset:
                found[hit.n].add(rows[hit.number].id)
        for n in sorted({*lengths, *found}):
            records.append(
                {
                    "eval_dataset": dataset,
                    "n": n,
                    "num_instances": len(ids_of(rows, dataset)),
                    "instance_ids": sorted(found[n]),
                }
            )
    return records


def stats_by_train_path(rows: list[EvalRow], hits: list[Hit]) -> Records:
    records = []
    for path in sorted({hit.train.path for hit in hits}):
        of_path = [hit for hit in hits if hit.train.path == path]
        for record in stats(rows, of_path, ()):
            records.append({"train_path": path, **record})
    return records


def overlap_instances(rows: list[EvalRow], hits: list[Hit]) -> Records:
    order = datasets_of(rows)
    found = defaultdict(set)
    for hit in hits:
        row = rows[hit.number]
        place = (hit.train.path, hit.train.row, order.index(row.dataset), hit.n)
        found[place, hit.train].add(row.id)
    return [
        {
            "eval_dataset": order[dataset],
            "n": n,
            "instance_ids": sorted(ids),
            "train_path": path,
            "train_doc_id": path if train.id is None else train.id,
            "train_row": train_row,
        }
        for ((path, train_row, dataset, n), train), ids in sorted(
            found.items(), key=lambda item: item[0][0]
        )
    ]


def match_record(rows: list[EvalRow], hit: Hit) -> dict[str, Any]:
    row = rows[hit.number]
    return {
        "eval_dataset": escaped(row.dataset),
        "eval_path": escaped(row.path),
        "eval_row": row.row,
        "instance_id": escaped(row.id),
        "train_path": escaped(hit.train.path),
        "train_row": hit.train.row,
        "train_doc_id": None if hit.train.id is None else escaped(hit.train.id),
        "n": hit.n,
        "eval_offsets": [{"start": start, "end": end} for start, end in hit.eval_places],
        "train_offsets": [{"start": start, "end": end} for start, end in hit.train_places],
    }


def contaminated(rows: list[EvalRow], hits: list[Hit]) -> Records:
    """Returns a record for each training row that has something in common."""
    of_document = defaultdict(list)
    for hit in hits:
        of_document[hit.train].append(hit)
    records = []
    for train, found in of_document.items():
        spans = merged([place for hit in found for place in hit.train_places])
        covered = sum(end - start for start, end in spans)
        names = {rows[hit.number].dataset for hit in found}
        records.append(
            {
                "train_path": escaped(train.path),
                "train_row": train.row,
                "train_doc_id": None if train.id is None else escaped(train.id),
                "eval_datasets": sorted(map(escaped, names)),
                "spans": [{"start": start, "end": end} for start, end in spans],
                "num_covered_chars": covered,
            }
        )
    return records


def escaped(text: str) -> str:
    """Returns a text without lone surrogates, which Parquet does not take."""
    return "".join(f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char for char in text)


def detail_record(rows: list[EvalRow], hit: Hit) -> dict[str, Any]:
    row = rows[hit.number]
    record = {
        "eval_dataset": row.dataset,
        "eval_path": row.path,
        "eval_row": row.row,
        "eval_text": row.text,
        "eval_instance_id": row.id,
        "ngram": hit.ngram,
        "eval_offsets": hit.eval_places,
        "n": hit.n,
        "train_path": hit.train.path,
        "train_row": hit.train.row,
        "train_text": hit.train.text,
        "train_ngram": hit.ngram,
        "train_offsets": hit.train_places,
    }
    return record if hit.train.id is None else {**record, "train_doc_id": hit.train.id}


def details(rows: list[EvalRow], hits: list[Hit], options: Options) -> dict[str, Records]:
    """Returns the details, and what was left out of them, if there is a cap."""
    kept, over = [], defaultdict(int)
    of_pair = defaultdict(int)
    for hit in hits:
        pair = (hit.train, hit.number)
        of_pair[pair] += 1
        if options.max_details_per_pair is None or of_pair[pair] <= options.max_details_per_pair:
            kept.append(hit)
        else:
            over[pair] += 1
    of_path = defaultdict(int)
    if options.max_details is not None:
        for hit in kept[options.max_details :]:
            of_path[hit.train.path] += 1
        kept = kept[: options.max_details]
    outputs = {"stats/overlap_details.jsonl.gz": [detail_record(rows, hit) for hit in kept]}
    if options.max_details_per_pair is not None or options.max_details is not None:
        outputs["stats/overlap_details_left_out.jsonl"] = [
            {
                "eval_dataset": rows[number].dataset,
                "eval_path": rows[number].path,
                "eval_row": rows[number].row,
                "train_path": train.path,
                "train_row": train.row,
                "num_left_out": count,
            }
            for (train, number), count in over.items()
        ] + [{"train_path": path, "num_left_out": count} for path, count in of_path.items()]
    return outputs
