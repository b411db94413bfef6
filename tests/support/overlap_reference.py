"""What an overlap run must write, by brute force: every n-gram of every pair of texts.

  evaluation rows and training rows → the records of each file of the output, by its name

Plain Python, a loop over all pairs, written to be seen to be right. The tests of the parts, and
those of whole runs on all runners, compare with it.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Container, Mapping
from typing import Any

from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from tests.support.overlap_hits import (
    EvalRow,
    Hit,
    Options,
    Records,
    TrainRow,
    all_hits,
    datasets_of,
    merged,
    ngrams,
    own_ngrams,
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
    if options.max_eval_rows is not None:
        rows_with = Counter(
            (n, g) for (_, n), own in own_ngrams(rows, options).items() for g in own
        )
        dropped |= {key for key, count in rows_with.items() if count > options.max_eval_rows}
    found = {
        key: len(documents)
        for key, documents in documents_with.items()
        if key in dropped or len(documents) > most
    }
    boilerplate = {*found, *dropped}
    hits = [hit for hit in every_hit if (hit.n, hit.ngram) not in boilerplate]
    scores = coverage(rows, hits, options.tokenizer, boilerplate)
    left_out = not_looked_up(rows, options, boilerplate)
    is_long = {n: len(options.tokenizer.tokenize(row.text)) >= 8 for n, row in enumerate(rows)}
    of_documents = [hit for hit in hits if is_long[hit.number] or options.short_rows_contaminate]
    outputs = {
        "stats/overlap_stats.jsonl": stats(rows, hits, options.lengths),
        "stats/overlap_stats_by_train_path.jsonl": stats_by_train_path(rows, hits),
        "stats/overlap_matches.parquet": [match_record(rows, hit) for hit in hits],
        "stats/overlap_documents.parquet": contaminated(rows, of_documents),
        "stats/overlap_ngrams.jsonl.gz": ngram_counts(rows, hits, options.tokenizer),
        "stats/overlap_coverage.jsonl": scores,
        INSTANCES: overlap_instances(rows, hits),
        **verdicts(rows, hits, options, left_out, is_long),
        **rule_outputs(rows, scores, options, left_out),
        **details(rows, hits, options),
    }
    if options.max_document_frequency is not None or dropped or options.max_eval_rows:
        outputs["stats/overlap_boilerplate.jsonl"] = [
            {"ngram": ngram, "n": n, "documents": count}
            for (n, ngram), count in sorted(found.items())
        ]
    return outputs


def not_looked_up(
    rows: list[EvalRow], options: Options, boilerplate: Container
) -> dict[tuple[int, int | None], str]:
    """Returns why a row is not looked up at a configured n; the n None is all of them."""
    own, reasons = own_ngrams(rows, options), {}
    for number, row in enumerate(rows):
        tokens = options.tokenizer.tokenize(row.text)
        for length in options.lengths:
            n = min(length, len(tokens))
            if (number, n) not in own:
                has_words = any(token.text for token in tokens)
                reasons[number, length] = "too short" if has_words else "no words"
                if options.min_tokens and not options.skip_degenerate and tokens:
                    reasons[number, length] = "too short"
            elif all((n, ngram) in boilerplate for ngram in own[number, n]):
                reasons[number, length] = "boilerplate"
        found = [reasons.get((number, length)) for length in options.lengths]
        if all(found):
            reasons[number, None] = str(found[0])
    return reasons


def stats(rows: list[EvalRow], hits: list[Hit], lengths: tuple[int, ...]) -> Records:
    records = []
    for dataset in datasets_of(rows):
        found = defaultdict(set)
        for hit in hits:
            if rows[hit.number].dataset == dataset:
                found[hit.n].add(rows[hit.number].id)
        for n in sorted({*lengths, *found}):
            ids = {row.id for row in rows if row.dataset == dataset}
            record = {"eval_dataset": dataset, "n": n, "num_instances": len(ids)}
            records.append({**record, "instance_ids": sorted(found[n])})
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
    names = ("eval_dataset", "instance_id", "eval_path", "train_path", "train_doc_id")
    detail = {**of_row(rows[hit.number]), **of_document(hit.train), "n": hit.n}
    detail |= {name: escaped(detail[name]) for name in names}
    for side, places in (("eval", hit.eval_places), ("train", hit.train_places)):
        detail[f"{side}_offsets"] = [{"start": start, "end": end} for start, end in places]
    return detail


def of_document(train: TrainRow) -> dict[str, Any]:
    return {"train_path": train.path, "train_row": train.row, "train_doc_id": train.id}


def contaminated(rows: list[EvalRow], hits: list[Hit]) -> Records:
    """Returns a record for each training row that has something in common."""
    by_document = defaultdict(list)
    for hit in hits:
        by_document[hit.train].append(hit)
    records = []
    for train, found in by_document.items():
        spans = merged([place for hit in found for place in hit.train_places])
        covered = sum(end - start for start, end in spans)
        names = {rows[hit.number].dataset for hit in found}
        records.append(
            {
                **{name: escaped(value) for name, value in of_document(train).items()},
                "eval_datasets": sorted(map(escaped, names)),
                "spans": [{"start": start, "end": end} for start, end in spans],
                "num_covered_chars": covered,
            }
        )
    return records


def escaped(value: Any) -> Any:
    """Returns a text without lone surrogates, which Parquet does not take; other values as is."""
    if not isinstance(value, str):
        return value
    return "".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in value)


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


# --- scores -------------------------------------------------------------------------------------


def of_row(row: EvalRow) -> dict[str, Any]:
    names = ("eval_dataset", "instance_id", "eval_path", "eval_row")
    return dict(zip(names, (row.dataset, row.id, row.path, row.row), strict=True))


def by_row_and_n(hits: list[Hit]) -> list[tuple[int, int, list[Hit]]]:
    found = defaultdict(list)
    for hit in hits:
        found[hit.number, hit.n].append(hit)
    return [(number, n, found[number, n]) for number, n in sorted(found)]


def ngram_counts(rows: list[EvalRow], hits: list[Hit], tokenizer: Tokenizer) -> Records:
    records = []
    for number, n, of_pair in by_row_and_n(hits):
        counts = []
        for ngram in ngrams(tokenizer.tokenize(rows[number].text), n):  # as they come in the text
            with_it = [hit for hit in of_pair if hit.ngram == ngram]
            if with_it:
                occurrences = sum(len(hit.train_places) for hit in with_it)
                counts.append([ngram, occurrences, len(with_it)])
        records.append({**of_row(rows[number]), "n": n, "overlapping_ngram_counts": counts})
    return records


def coverage(
    rows: list[EvalRow], hits: list[Hit], tokenizer: Tokenizer, boilerplate: Container
) -> Records:
    records = []
    for number, n, of_pair in by_row_and_n(hits):
        tokens = tokenizer.tokenize(rows[number].text)
        own = [" ".join(token.text for token in tokens[at : at + n]) for at in range(len(tokens))]
        own = own[: len(tokens) - n + 1]
        shared = {hit.ngram for hit in of_pair}
        covered = set()
        for at, ngram in enumerate(own):
            if ngram in shared:
                covered.update(range(at, at + n))
        marks = "".join("x" if at in covered else " " for at in range(len(tokens)))
        num_shared = sum(ngram in shared for ngram in own)
        num_informative = sum((n, ngram) not in boilerplate for ngram in own)
        spans = merged([place for hit in of_pair for place in hit.eval_places])
        records.append(
            {
                **of_row(rows[number]),
                "n": n,
                "num_train_documents": len({(hit.train.path, hit.train.row) for hit in of_pair}),
                "spans": spans,
                "longest_span": max(end - start for start, end in spans),
                "num_tokens": len(tokens),
                "num_covered_tokens": len(covered),
                "coverage": len(covered) / len(tokens),
                "longest_run": max(map(len, marks.split())),
                "num_informative_ngrams": num_informative,
                "num_shared_ngrams": num_shared,
                "ngram_coverage": num_shared / num_informative,
            }
        )
    return records


def verdicts(
    rows: list[EvalRow],
    hits: list[Hit],
    options: Options,
    left_out: Mapping[tuple[int, int | None], str],
    is_long: Mapping[int, bool],
) -> dict[str, Records]:
    """Returns the lists of clean rows and of rows not looked up, and the counts of all three."""
    hit_at = {(hit.number, hit.n) for hit in hits}
    tokens = [len(options.tokenizer.tokenize(row.text)) for row in rows]
    counts: Records = []
    lists: dict[str, Records] = {"stats/overlap_verdicts.jsonl": counts}
    for dataset in datasets_of(rows):
        of_set = [number for number, row in enumerate(rows) if row.dataset == dataset]
        for length in (None, *options.lengths):
            hit = {
                number
                for number in of_set
                for n in (options.lengths if length is None else [length])
                if (number, min(n, tokens[number])) in hit_at
            }
            not_there = {number for number in of_set if (number, length) in left_out}
            clean = [number for number in of_set if number not in hit | not_there]
            name = f"clean/{dataset}{'' if length is None else f'-n{length}'}.jsonl"
            if length is None or len(set(options.lengths)) > 1:
                lists[name] = [
                    {"id": rows[at].id, "eval_path": rows[at].path, "eval_row": rows[at].row}
                    for at in clean
                ]
            counts.append(
                {
                    "eval_dataset": dataset,
                    "n": length,
                    "num_rows": len(of_set),
                    "num_hit": len(hit),
                    "num_hit_short": sum(not is_long[number] for number in hit),
                    "num_clean": len(clean),
                    "num_not_looked_up": len(not_there),
                }
            )
    if any(length is None for _, length in left_out):
        lists["stats/overlap_not_looked_up.jsonl"] = [
            {**of_row(row), "num_tokens": tokens[number], "reason": left_out[number, None]}
            for number, row in enumerate(rows)
            if (number, None) in left_out
        ]
    return lists


def rule_outputs(
    rows: list[EvalRow],
    scored: Records,
    options: Options,
    left_out: Mapping[tuple[int, int | None], str],
) -> dict[str, Records]:
    """Returns the lists of each rule, and how long they are; from the records of coverage."""
    scores = {(line["eval_path"], line["eval_row"], line["n"]): line for line in scored}
    counts: Records = []
    outputs: dict[str, Records] = {"stats/overlap_rules.jsonl": counts} if options.rules else {}
    for dataset in datasets_of(rows):
        for rule in options.rules:
            listed: dict[str, Records] = {"clean": [], "between": [], "dirty": []}
            num_rows = num_short = 0
            for number, row in enumerate(rows):
                if row.dataset != dataset:
                    continue
                num_rows += 1
                num_tokens = len(options.tokenizer.tokenize(row.text))
                line = scores.get((row.path, row.row, min(num_tokens, rule.n)), {})
                score = line.get(rule.score, 0.0)
                verdict = "clean" if score < rule.clean_below else "between"
                if score >= rule.dirty_from:
                    verdict = "dirty"
                if (number, rule.n) not in left_out:
                    place = {"id": row.id, "eval_path": row.path, "eval_row": row.row}
                    listed[verdict].append({**place, "score": score})
                    num_short += verdict == "dirty" and num_tokens < rule.n
            counts.append(
                {
                    "eval_dataset": dataset,
                    "n": rule.n,
                    "score": rule.score,
                    "rule": rule.name,
                    "num_rows": num_rows,
                    **{f"num_{verdict}": len(found) for verdict, found in listed.items()},
                    "num_dirty_by_short_texts": num_short,
                    "num_not_looked_up": num_rows - sum(map(len, listed.values())),
                }
            )
            for verdict, found in listed.items():
                if verdict != "between" or rule.name == "llama2":
                    outputs[f"rules/{rule.name}/{dataset}.{verdict}.jsonl"] = found
    return outputs
