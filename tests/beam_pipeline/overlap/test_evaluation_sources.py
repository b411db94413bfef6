"""The names and paths of evaluation sets."""

from pathlib import Path

import pytest

from beam_pipeline.errors import UsageError
from beam_pipeline.overlap.evaluation_sources import (
    EvaluationSource,
    dataset_name,
    parse_evaluation_source,
)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("gs://bucket/evals/mmlu-dolma-1a2b3c", "mmlu"),
        ("gs://bucket/evals/mmlu-dolma-1a2b3c/", "mmlu"),
        ("gs://bucket/evals/mmlu-dolma-1a2b3c/part-0.jsonl.gz", "mmlu"),
        ("gs://bucket/evals/mmlu-dolma-1a2b3c/*.jsonl", "mmlu"),
        ("gs://bucket/evals/mmlu-dolma-1a2b3c/**/x[0-9]/*.json", "mmlu"),
        ("gs://bucket/evals/gsm8k*/main.parquet", "evals"),
        ("gs://bucket", "bucket"),
        ("/evals/gsm8k-main-abcdef", "gsm8k-main"),
        ("/evals/gsm8k-main-abcdefa", "gsm8k-main-abcdefa"),
        ("/evals/gsm8k-abcdeg", "gsm8k-abcdeg"),
        ("/evals/gsm8k-dolma-v2", "gsm8k-dolma-v2"),
        ("/evals/gsm8k-1a2b3c-4d5e6f", "gsm8k-1a2b3c"),
        ("/evals/gsm8k-1a2b3c-dolma", "gsm8k-1a2b3c"),
        ("/evals/-dolma", "-dolma"),
        ("/evals/-1a2b3c", "-1a2b3c"),
        ("/evals/gsm8k.test", "gsm8k.test"),
        ("/evals/gsm8k/test.jsonl.zst", "gsm8k"),
    ],
)
def test_name_of_a_folder(path: str, name: str) -> None:
    assert dataset_name(path) == name


def test_name_of_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "arc-dolma-0a1b2c").mkdir()
    monkeypatch.chdir(tmp_path / "arc-dolma-0a1b2c")
    assert dataset_name("test.jsonl") == dataset_name(".") == dataset_name("*.json") == "arc"
    assert dataset_name("sub/../x/") == "x"


def test_name_of_an_existing_folder_with_wildcards(tmp_path: Path) -> None:
    assert dataset_name(f"{tmp_path}/arc[1]") == tmp_path.name
    (tmp_path / "arc[1]-dolma").mkdir()
    assert dataset_name(f"{tmp_path}/arc[1]-dolma") == "arc[1]"


@pytest.mark.parametrize("path", ["/", "/test.jsonl", "/*.jsonl"])
def test_path_without_a_folder_needs_a_name(path: str) -> None:
    with pytest.raises(UsageError, match=r"no folder .*NAME=/"):
        dataset_name(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mmlu=gs://b/x", EvaluationSource("mmlu", "gs://b/x")),
        ("my set=/e/a=b.jsonl", EvaluationSource("my set", "/e/a=b.jsonl")),
        ("/e/lang=en/x.jsonl", EvaluationSource("lang=en", "/e/lang=en/x.jsonl")),
        ("gs://b/lang=en", EvaluationSource("lang=en", "gs://b/lang=en")),
        ("/e/mmlu-dolma-1a2b3c", EvaluationSource("mmlu", "/e/mmlu-dolma-1a2b3c")),
    ],
)
def test_given_name(text: str, expected: EvaluationSource) -> None:
    assert parse_evaluation_source(text) == expected


@pytest.mark.parametrize(("text", "problem"), [("=/e/x", "no name"), ("mmlu=", "no path")])
def test_source_without_name_or_path(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_evaluation_source(text)
    with pytest.raises(UsageError, match="no path"):
        parse_evaluation_source("")
