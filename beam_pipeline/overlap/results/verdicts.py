"""The verdict on each evaluation row: hit, clean or not looked up, or as a rule has it.

  HITS, rows left out, rows whose n-grams are all boilerplate
       → RowVerdicts → counts and lists of clean rows and of rows not looked up
       → the score of each row by a rule → overlap_rules, and a list for each set and verdict
       → the scores of each field of a row → overlap_fields

A row that was not looked up has no other verdict. A row without a hit has a score of 0.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from beam_pipeline.documents.batch import decode
from beam_pipeline.overlap.evaluation import EvaluationRow, EvaluationRows
from beam_pipeline.overlap.evaluation_sources import name_with_field
from beam_pipeline.overlap.ngrams.token_texts import TokenTexts
from beam_pipeline.overlap.results import layout
from beam_pipeline.overlap.results.output_files import (
    column_of,
    json_fields,
    json_floats,
    json_line,
    json_numbers,
    json_strings,
    record_lines,
)
from beam_pipeline.overlap.results.rules import SHORT_TOKENS, Rule

# Why a row is not looked up, in order of precedence.
REASONS = ("no words", "too short", "boilerplate")
_NO_WORDS, _TOO_SHORT, _BOILERPLATE = range(len(REASONS))
_COUNTS = ("num_rows", "num_hit", "num_hit_short", "num_clean", "num_not_looked_up")
_ROWS_AT_A_TIME = 1 << 16
type Lines = Iterable[bytes | memoryview]


def left_out(texts: TokenTexts, min_tokens: int, skip_degenerate: bool) -> np.ndarray:
    """Returns for each row the index in REASONS, before boilerplate is known; -1 is none."""
    num_tokens = np.diff(texts.firsts)
    # Each token is followed by a space.
    num_letters = np.diff(texts.bounds[texts.firsts]) - num_tokens
    reasons = np.where(num_tokens < min_tokens, _TOO_SHORT, -1)
    reasons[(num_letters == 0) & (skip_degenerate | (num_tokens == 0))] = _NO_WORDS
    return reasons


class RowVerdicts:
    """The verdicts on the rows of all evaluation sets.

    Args:
      left_out: of `left_out`.
      bare: records with `number` and `n` of rows whose n-grams are all boilerplate.
      hits: HITS.
    """

    def __init__(
        self,
        rows: EvaluationRows,
        num_tokens: np.ndarray,
        left_out: np.ndarray,
        bare: np.ndarray,
        hits: np.ndarray,
        lengths: Sequence[int],
    ):
        self.rows, self.lengths = rows, lengths
        self._num_tokens, self._bare, self.hits = num_tokens, bare, hits
        self._is_left_out = left_out >= 0
        self._of_set = rows.set_numbers()
        self.is_looked_up = self.at(None)[1]
        self._reasons = np.where(self._is_left_out, left_out, _BOILERPLATE)
        self._is_short = num_tokens < SHORT_TOKENS

    def at(self, length: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns whether each row is hit, and looked up, at a configured n; None is any n."""
        num_rows = len(self._num_tokens)
        if length is None:
            num_bare = np.bincount(self._bare["number"], minlength=num_rows)
            num_lengths = np.ones(num_rows, np.int64)  # distinct n of the row
            for shorter in self.lengths[:-1]:
                num_lengths += shorter < self._num_tokens
            hit, is_bare = self.hits["number"], num_bare >= num_lengths
        else:
            at = np.minimum(self._num_tokens, length)
            hit, bare = (
                each["number"][each["n"] == at[each["number"]]] for each in (self.hits, self._bare)
            )
            is_bare = np.zeros(num_rows, bool)
            is_bare[bare] = True
        is_hit = np.zeros(num_rows, bool)
        is_hit[hit] = True
        return is_hit, is_hit | ~(self._is_left_out | is_bare)

    def _by_set(self, is_one: np.ndarray) -> list[np.ndarray]:
        """Returns the numbers of some rows, ascending, for each set."""
        numbers = np.flatnonzero(is_one)
        numbers = numbers[np.argsort(self._of_set[numbers], kind="stable")]
        sets = np.arange(1, len(self.rows.datasets))
        return np.split(numbers, np.searchsorted(self._of_set[numbers], sets))

    def lines(self) -> dict[str, Lines]:
        """Returns the lines of the files about the three verdicts, by name."""
        lines: dict[str, Lines] = {}
        by_length: dict[int | None, list[tuple[np.ndarray, ...]]] = {}
        for length in (None, *self.lengths):
            is_hit, is_looked_up = self.at(length)
            is_clean, is_row = is_looked_up & ~is_hit, np.ones(len(is_hit), bool)
            masks = is_row, is_hit, is_hit & self._is_short, is_clean, ~is_looked_up
            by_length[length] = list(zip(*map(self._by_set, masks), strict=True))
        counts: list[dict[str, Any]] = []
        names = iter(layout.clean_list_names(self.rows.datasets, tuple(self.lengths)))
        for number, dataset in enumerate(self.rows.datasets):
            for length, found in by_length.items():
                if length is None or len(self.lengths) > 1:
                    clean = row_lines(self.rows, found[number][_COUNTS.index("num_clean")])
                    lines[f"{layout.CLEAN_FOLDER}/{next(names)}"] = clean
                numbers = dict(zip(_COUNTS, map(len, found[number]), strict=True))
                counts.append({"eval_dataset": dataset, "n": length, **numbers})
        lines[layout.VERDICTS] = map(json_line, counts)
        numbers = np.flatnonzero(~self.is_looked_up)
        if len(numbers):
            lines[layout.NOT_LOOKED_UP] = self._not_looked_up(numbers)
        return lines

    def _not_looked_up(self, numbers: np.ndarray) -> Iterator[memoryview]:
        for at in range(0, len(numbers), _ROWS_AT_A_TIME):
            some = numbers[at : at + _ROWS_AT_A_TIME]
            reasons = [REASONS[reason].encode() for reason in self._reasons[some].tolist()]
            fields = json_fields(self.rows.take(some, with_texts=False), *EvaluationRow._fields)
            fields["num_tokens"] = json_numbers(self._num_tokens[some])
            yield record_lines(
                {**fields, "reason": json_strings(pa.array(reasons, pa.large_binary()))}
            )

    def num_not_looked_up(self) -> dict[str, int]:
        """Returns the number of rows by reason."""
        reasons = self._reasons[~self.is_looked_up].tolist()
        return {REASONS[reason]: count for reason, count in sorted(Counter(reasons).items())}

    # --- rules ------------------------------------------------------------------------------------

    def rule_lines(self, rules: Sequence[Rule]) -> dict[str, Lines]:
        """Returns the lines of each file about rules, by name."""
        if not rules:
            return {}
        lines: dict[str, Lines] = {}
        by_set: list[list[dict[str, Any]]] = []
        for rule in rules:
            scores, verdicts = self._scored(rule)
            is_dirty = verdicts["dirty"]
            by_short = is_dirty & (self._num_tokens < rule.n)
            verdicts |= {"dirty_by_short_texts": by_short, "not_looked_up": ~self.at(rule.n)[1]}
            found = {verdict: self._by_set(mask) for verdict, mask in verdicts.items()}
            by_set.append([])
            for number, dataset in enumerate(self.rows.datasets):
                num_rows = int((self._of_set == number).sum())
                record = {"eval_dataset": dataset, "rule": rule.name, "n": rule.n}
                record |= {"score": rule.score, "num_rows": num_rows}
                record |= {f"num_{verdict}": len(each[number]) for verdict, each in found.items()}
                by_set[-1].append(record)
                for verdict in rule.verdicts:
                    name = layout.rule_list_name(rule.name, dataset, verdict)
                    lines[name] = row_lines(self.rows, found[verdict][number], score=scores)
        records = (record for of_set in zip(*by_set, strict=True) for record in of_set)
        return {layout.RULES: map(json_line, records), **lines}

    def _scored(self, rule: Rule) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the score of each row, and whether it has each verdict."""
        found = self.hits[self.hits["n"] == np.minimum(self.hits["num_tokens"], rule.n)]
        shares = found["num_covered_tokens"] / found["num_tokens"]
        if rule.score == "ngram_coverage":
            shares = found["num_shared_places"] / found["num_informative_places"]
        scores = np.zeros(len(self._num_tokens))
        scores[found["number"]] = shares
        is_clean, is_dirty = scores < rule.clean_below, scores >= rule.dirty_from
        masks = {"clean": is_clean, "between": ~(is_clean | is_dirty), "dirty": is_dirty}
        is_looked_up = self.at(rule.n)[1]
        return scores, {verdict: mask & is_looked_up for verdict, mask in masks.items()}


def row_lines(
    rows: EvaluationRows, numbers: np.ndarray, **scores: np.ndarray
) -> Iterator[memoryview]:
    """Yields lines {id, eval_path, eval_row, …} of evaluation rows with ascending numbers.

    `scores` are further fields, with a value for each row of all sets.
    """
    for at in range(0, len(numbers), _ROWS_AT_A_TIME):
        some = numbers[at : at + _ROWS_AT_A_TIME]
        table = rows.take(some, with_texts=False)
        fields = {
            "id": json_strings(column_of(table, "instance_id")),
            **json_fields(table, "eval_path", "eval_row"),
            **{name: json_floats(values[some]) for name, values in scores.items()},
        }
        yield record_lines(fields)


# --- fields -------------------------------------------------------------------------------------


def _best(hits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ascending numbers of texts, with coverage and n-gram coverage at the best n."""
    numbers, of_hit = np.unique(hits["number"], return_inverse=True)
    coverage, ngram_coverage = np.zeros((2, len(numbers)))
    np.maximum.at(coverage, of_hit, hits["num_covered_tokens"] / hits["num_tokens"])
    shares = hits["num_shared_places"] / hits["num_informative_places"]
    np.maximum.at(ngram_coverage, of_hit, shares)
    return numbers, coverage, ngram_coverage


def field_records(
    rows: EvaluationRows, fields: Sequence[str], hits: np.ndarray
) -> Iterator[dict[str, Any]]:
    """Yields a record for each evaluation row with a hit in some field.

    With --eval_fields=each the texts of a field are an evaluation set of their own, `SET:FIELD`.
    """
    # By index of the evaluation set, path and row.
    found: dict[tuple[int, str, int], dict[str, Any]] = {}
    numbers, *scores = _best(hits)
    columns = (column.to_pylist() for column in rows.take(numbers, with_texts=False).columns)
    for dataset, path, row, instance_id, *shares in zip(
        *columns, *(each.tolist() for each in scores), strict=True
    ):
        eval_dataset, eval_path = decode(dataset), decode(path)
        place = rows.datasets.index(eval_dataset)
        field = fields[place % len(fields)]
        record = found.setdefault(
            (place // len(fields), eval_path, row),
            {
                "eval_dataset": eval_dataset.removesuffix(name_with_field("", field)),
                "instance_id": decode(instance_id),
                "eval_path": eval_path,
                "eval_row": row,
                "fields_hit": [],
                "coverage": {},
                "ngram_coverage": {},
            },
        )
        record["fields_hit"].append(field)
        record["coverage"][field], record["ngram_coverage"][field] = shares
    for key in sorted(found):
        yield found[key]
