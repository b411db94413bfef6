"""Figures with boilerplate counted are those of a run in which it counts."""

from collections import defaultdict
from pathlib import Path

import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.report.sets import LEVELS
from beam_pipeline.overlap.results.layout import BOILERPLATE_SCORES
from tests.support.overlap_corpus import make_corpus
from tests.support.overlap_report import read_lines, statistics_of

RULES = ("gpt3", "palm", "llama2", "threshold")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 11, 23])
def test_figures_are_those_of_a_run_in_which_boilerplate_counts(tmp_path: Path, seed: int) -> None:
    corpus = make_corpus(tmp_path, seed, num_files=4)
    rules = (f"--rules={','.join(RULES[:-1])}", "--threshold=0.6")
    flags = [*corpus.flags, "--ngram_length=1,2", *rules]
    assert main([*flags, f"--output_path={tmp_path}/all"]) == 0
    cap = "--max_document_frequency=3"
    assert main([*flags, f"--output_path={tmp_path}/some", cap]) == 0
    effects = statistics_of(tmp_path / "some").effects
    found: defaultdict[str, list[list[int]]] = defaultdict(list)
    for one in effects:
        found[one.eval_dataset].append([one.num_instances, one.num_with_boilerplate])
    lines = read_lines(tmp_path / "some" / BOILERPLATE_SCORES)
    assert set(found) == {line["eval_dataset"] for line in lines} and found
    assert any(len(set(pair)) == 2 for pairs in found.values() for pair in pairs)
    figures = [_figures(tmp_path / name) for name in ("some", "all")]
    for name, pairs in found.items():
        assert pairs == [list(pair) for pair in zip(*(one[name] for one in figures), strict=True)]


def _figures(output: Path) -> dict[str, list[int]]:
    """Returns the instances of each set by level of coverage, then by rule, as the results say."""
    sets = {one.name: one for one in statistics_of(output).sets}
    figures = {name: [level.at_any.num_hit for level in one.levels] for name, one in sets.items()}
    assert all(len(of_set) == len(LEVELS) for of_set in figures.values())
    for line in read_lines(output / "stats/overlap_rules.jsonl"):
        dirty = [line["num_dirty"]]
        if line["rule"] == "llama2":
            dirty.append(line["num_dirty"] + line["num_between"])
        figures[line["eval_dataset"]] += dirty
    return figures
