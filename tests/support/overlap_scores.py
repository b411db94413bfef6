"""Scores of evaluation rows by brute force, and the lists that are made of them."""

from collections import defaultdict
from collections.abc import Container
from typing import Any

from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from tests.support.overlap_hits import EvalRow, Hit, Options, Records, datasets_of, merged, ngrams


def of_row(rows: list[EvalRow], number: int, n: int) -> dict[str, Any]:
    row = rows[number]
    return {
        "eval_dataset": row.dataset,
        "instance_id": row.id,
        "eval_path": row.path,
        "eval_row": row.row,
        "n": n,
    }


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
        records.append({**of_row(rows, number, n), "overlapping_ngram_counts": counts})
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
                **of_row(rows, number, n),
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


def clean_lists(rows: list[EvalRow], hits: list[Hit], options: Options) -> dict[str, Records]:
    hit_at = {(hit.number, hit.n) for hit in hits}

    def records(dataset: str, hit_numbers: set[int]) -> Records:
        of_set = [number for number, row in enumerate(rows) if row.dataset == dataset]
        dirty = {rows[number].id for number in of_set if number in hit_numbers}
        return [
            {"id": rows[at].id, "eval_path": rows[at].path, "eval_row": rows[at].row}
            for at in of_set
            if rows[at].id not in dirty
        ]

    lists = {}
    for dataset in datasets_of(rows):
        lists[f"clean/{dataset}.jsonl"] = records(dataset, {number for number, _ in hit_at})
        if len(set(options.lengths)) > 1:
            for length in options.lengths:
                hit_numbers = set()
                for number, row in enumerate(rows):
                    effective = min(length, len(options.tokenizer.tokenize(row.text)))
                    if (number, effective) in hit_at:
                        hit_numbers.add(number)
                lists[f"clean/{dataset}-n{length}.jsonl"] = records(dataset, hit_numbers)
    return lists


def rule_outputs(rows: list[EvalRow], scored: Records, options: Options) -> dict[str, Records]:
    """Returns the lists of each rule, and how long they are; from the records of coverage."""
    scores = {(line["eval_path"], line["eval_row"], line["n"]): line for line in scored}
    counts: Records = []
    outputs: dict[str, Records] = {"stats/overlap_rules.jsonl": counts} if options.rules else {}
    for dataset in datasets_of(rows):
        of_set = [row for row in rows if row.dataset == dataset]
        for rule in options.rules:
            worst, worst_long = defaultdict(float), defaultdict(float)
            for row in of_set:
                num_tokens = len(options.tokenizer.tokenize(row.text))
                line = scores.get((row.path, row.row, min(num_tokens, rule.n)), {})
                score = line.get(rule.score, 0.0)
                worst[row.id] = max(worst[row.id], score)
                if num_tokens >= rule.n:
                    worst_long[row.id] = max(worst_long[row.id], score)
            verdicts = {}
            for row_id, score in worst.items():
                verdicts[row_id] = "clean" if score < rule.clean_below else "between"
                if score >= rule.dirty_from:
                    verdicts[row_id] = "dirty"
            dirty = [row_id for row_id, verdict in verdicts.items() if verdict == "dirty"]
            counts.append(
                {
                    "eval_dataset": dataset,
                    "n": rule.n,
                    "score": rule.score,
                    "rule": rule.name,
                    "num_instances": len(worst),
                    **{
                        f"num_{verdict}": list(verdicts.values()).count(verdict)
                        for verdict in ("clean", "between", "dirty")
                    },
                    "num_dirty_by_short_texts": sum(
                        worst_long[row_id] < rule.dirty_from for row_id in dirty
                    ),
                }
            )
            for verdict in ("clean", "between", "dirty"):
                if verdict != "between" or rule.name == "llama2":
                    outputs[f"rules/{rule.name}/{dataset}.{verdict}.jsonl"] = [
                        {
                            "id": row.id,
                            "eval_path": row.path,
                            "eval_row": row.row,
                            "score": worst[row.id],
                        }
                        for row in of_set
                        if verdicts[row.id] == verdict
                    ]
    return outputs
