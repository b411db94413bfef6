"""The figures of report.json, compared with plain loops over the result files."""

import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.removal.cutting import Cut, cut_text
from beam_pipeline.overlap.removal.options import RemovalConfig
from beam_pipeline.overlap.report import contents as module
from beam_pipeline.overlap.report.contents import MARGIN_CHARS, Report, read_contents
from beam_pipeline.overlap.report.output import Output
from beam_pipeline.overlap.results.layout import COVERAGE, REPORT
from tests.support.overlap_corpus import make_corpus
from tests.support.overlap_jobs import read_lines, write_lines
from tests.support.overlap_report import TRAINING, contents_of
from tests.support.overlap_runs import run as run_corpus


def copied(output: Path, folder: Path) -> Path:
    """Returns a copy of an output without report.json, as an older version left it."""
    shutil.copytree(output, folder / "copy")
    (folder / "copy" / REPORT).unlink()
    return folder / "copy"


def figures(lines: Sequence[dict[str, Any]], stats: Sequence[dict[str, Any]], lengths: list[int]):
    """Returns, by set, level and n (None for any), rows hit and tokens covered; and the rows.

    Loops over the lines of overlap_coverage; rows come by tokens covered, coverage and documents.
    """
    by_row: dict[tuple, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_row[line["eval_dataset"], line["eval_path"], line["eval_row"]].append(line)
    names = {line["eval_dataset"] for line in stats}
    found = {}
    for name in names:
        for level in module.LEVELS:
            for n in [*lengths, None]:
                num_rows = tokens = 0
                for key, of_row in by_row.items():
                    at = [x for x in of_row if n is None or x["n"] == min(n, x["num_tokens"])]
                    covered = max((line["num_covered_tokens"] for line in at), default=0)
                    if key[0] == name and covered and covered / at[0]["num_tokens"] >= level:
                        num_rows += 1
                        tokens += covered
                found[name, level, n] = (num_rows, tokens)

    def rank(key: tuple) -> tuple:
        covered, documents = (
            max(line[name] for line in by_row[key])
            for name in ("num_covered_tokens", "num_train_documents")
        )
        return -covered, -covered / by_row[key][0]["num_tokens"], -documents

    return found, sorted(by_row, key=rank), by_row


def check_figures(report: Report, output: Path) -> None:
    """Compares sets and rows with plain loops."""
    lines, stats = (read_lines(output / f"stats/overlap_{n}.jsonl") for n in ("coverage", "stats"))
    found, ranked, by_row = figures(lines, stats, report.lengths)
    verdicts = read_lines(output / "stats/overlap_verdicts.jsonl")
    looked_up = {
        (line["eval_dataset"], line["n"]): line["num_rows"] - line["num_not_looked_up"]
        for line in verdicts
    }
    got = {}
    for one in report.sets:
        for level in one.levels:
            at_all = zip([*report.lengths, None], [*level.by_length, level.at_any], strict=True)
            for n, hits in at_all:
                got[one.name, level.min_coverage, n] = (hits.num_hit, hits.covered_tokens)
                assert hits.num_looked_up == looked_up[one.name, n]
    assert got == found and report.num_rows == len(ranked)
    keys = [(row.eval_dataset, row.eval_path, row.eval_row) for row in report.rows]
    assert keys == ranked[: len(keys)] and len(keys) == min(len(ranked), module.MAX_ROWS)
    for row, key in zip(report.rows, keys, strict=True):
        lines_of_row = {line["n"]: line for line in by_row[key]}
        expected = [
            (n, *(line[name] for name in ("num_covered_tokens", "longest_run")))
            for n in report.lengths
            if (line := lines_of_row.get(min(n, row.num_tokens)))
        ]
        assert [(s.n, s.num_covered_tokens, s.longest_run) for s in row.scores] == expected
        assert row.coverage == max(score.coverage for score in row.scores)


def test_figures_of_random_coverage(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 70)
    old, random, lines = copied(output, tmp_path), Random(1), []
    for number in range(1_500):
        num_tokens = random.choice([2, 4, 40, 100])
        for n in sorted({min(3, num_tokens), min(5, num_tokens)}):
            covered = random.randrange(1, num_tokens + 1)
            line = {"eval_dataset": ("space", "town")[number % 2], "eval_row": number, "n": n}
            line |= {"eval_path": f"{number % 7}"}
            line |= {"instance_id": f"i{number // 2}", "num_tokens": num_tokens}
            line |= {"num_covered_tokens": covered, "longest_run": random.randrange(9)}
            lines.append(line | {"num_train_documents": random.randrange(1, 40)})
    write_lines(old / COVERAGE, *lines)
    check_figures(contents_of(old), old)


def test_figures_of_a_run_with_lone_surrogates(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, 11, num_files=4)
    run_corpus(corpus, tmp_path / "out", "--ngram_length=1,2", "--rules=palm")
    report = read_contents(Output(str(tmp_path / "out")), [1, 2, 8])
    check_figures(report, tmp_path / "out")
    assert len(report.verdicts) == len(report.sets)


def test_report_json_equals_what_the_result_files_give(output: Path, tmp_path: Path) -> None:
    written = msgspec.json.decode((output / REPORT).read_bytes(), type=Report)
    old = Output(str(copied(output, tmp_path)))
    assert written == read_contents(old, [3, 5, 11])
    (tmp_path / "copy" / REPORT).write_text('{"version": 0}')
    assert written == read_contents(old, [11, 5, 3])
    assert written.verdicts and written.boilerplate and written.removal.total.num_documents


def test_training_files_and_boilerplate_are_ranked_and_bounded(
    output: Path, tmp_path: Path
) -> None:
    old, random = copied(output, tmp_path), Random(2)
    hits = {f"part-{number:03d}": random.randrange(1, 30) for number in range(300)}
    lines = [
        {
            "train_path": path,
            "eval_dataset": "space",
            "n": n,
            "instance_ids": [str(i) for i in range(hits[path] if n == 3 else 1)],
        }
        for path in sorted(hits)
        for n in (3, 5)
    ]
    write_lines(old / "stats/overlap_stats_by_train_path.jsonl", *lines)
    ngrams = [{"ngram": f"n {at}", "n": 2, "documents": random.randrange(20)} for at in range(90)]
    write_lines(old / "stats/overlap_boilerplate.jsonl", *ngrams)
    report = contents_of(old)
    wanted = sorted(hits, key=lambda path: (-hits[path], path))[:50]
    found = [(file.path, file.num_hit, file.by_set) for file in report.train_files]
    assert found == [(path, hits[path], {"space": hits[path]}) for path in wanted]
    assert (report.num_train_files, report.num_boilerplate) == (300, 90)
    expected = sorted(ngrams, key=lambda one: (-one["documents"], one["ngram"]))[:50]
    assert [msgspec.structs.asdict(one) for one in report.boilerplate] == expected


def test_removal_takes_what_the_report_says(output: Path) -> None:
    documents = pq.read_table(output / "stats/overlap_documents.parquet").to_pylist()
    masked, within = 0, 0
    for document in documents:
        text = TRAINING[Path(document["train_path"]).name][document["train_row"]][1]
        spans = [(span["start"], span["end"]) for span in document["spans"]]
        (rest,) = cut_text(text, spans, Cut(TOKENIZERS["default"], mask="x"))
        masked += len(text) - len(rest) + len(spans)
        near = {at for start, end in spans for at in range(start, end + 2 * MARGIN_CHARS)}
        within += sum(at >= MARGIN_CHARS for at in near)
    removal = contents_of(output).removal
    total = removal.total
    assert (total.num_documents, total.num_spans) == (4, sum(len(d["spans"]) for d in documents))
    assert (total.num_shared_chars, total.num_margin_chars) == (masked, within)
    by_file = {Path(one.name).name: (one.num_documents, one.num_texts) for one in removal.by_file}
    assert by_file == {"part-0.jsonl": (2, 3), "part-1.jsonl": (2, 2)}
    assert {one.name: one.num_documents for one in removal.by_set} == {"space": 3, "town": 1}
    assert RemovalConfig().margin_chars == MARGIN_CHARS
