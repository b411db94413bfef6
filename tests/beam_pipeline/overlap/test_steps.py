"""The overlap job from Python, and as a step that an executor runs."""

import pickle
import subprocess
import sys
from enum import StrEnum, auto
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions

from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.overlap import (
    DeconConfig,
    ExecutorStep,
    NGramConfig,
    build_overlap_step,
    build_proofpile_step,
    run_train_test_overlap,
)
from beam_pipeline.overlap.job import launch
from tests.support.overlap_jobs import SHARED, read_lines, write_lines
from tests.support.repository import ROOT


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Any]:
    """A training file, an evaluation set with one hit, and a place for the results."""
    write_lines(tmp_path / "in/train.jsonl", {"id": "d0", "text": SHARED}, {"text": "no"})
    write_lines(tmp_path / "music-dolma/test.jsonl", {"id": "m0", "text": SHARED})
    return {
        "input_path": str(tmp_path / "in"),
        "decontaminate_source": str(tmp_path / "music-dolma"),
        "output_path": str(tmp_path / "out"),
    }


def stats_of(output: str) -> list[dict[str, Any]]:
    return read_lines(Path(output) / "stats/overlap_stats.jsonl")


def hit(n: int) -> dict[str, Any]:
    return {"eval_dataset": "music", "n": n, "num_instances": 1, "instance_ids": ["m0"]}


# --- as a function --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["options", "flags"])
def test_beams_options_are_taken_and_left_as_they_were(
    paths: dict[str, Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    used, run = [], launch.run

    def spy(config: DeconConfig, beam_options: PipelineOptions) -> str | None:
        used.append(beam_options.view_as(DirectOptions))
        return run(config, beam_options)

    monkeypatch.setattr(launch, "run", spy)
    flags = ["--direct_num_workers=2", "--direct_running_mode=multi_threading"]
    options = PipelineOptions(flags)
    run_train_test_overlap(DeconConfig(**paths), options if kind == "options" else flags)
    (direct,) = used
    assert (direct.direct_num_workers, direct.direct_running_mode) == (2, "multi_threading")
    assert options.view_as(StandardOptions).runner is None
    assert stats_of(paths["output_path"]) == [hit(15)]


def test_what_a_worker_finds_wrong_is_our_error(paths: dict[str, Any]) -> None:
    with pytest.raises(
        ProbelineError, match="no record with a text in the field 'body'"
    ) as failure:
        run_train_test_overlap(DeconConfig(**paths, text_field="body"))
    assert "\n" not in str(failure.value) and "while running" not in str(failure.value)
    run_train_test_overlap(DeconConfig(**paths))
    with pytest.raises(UsageError, match="holds a finished result"):
        run_train_test_overlap(DeconConfig(**paths))


# --- as a step ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_step_runs_wherever_it_was_pickled_to(paths: dict[str, Any]) -> None:
    step = build_overlap_step("overlap/music", **paths, ngram=NGramConfig(6), max_details=0)
    assert step.name == "overlap/music" and step.fn is run_train_test_overlap
    assert step.config == DeconConfig(**paths, ngram=NGramConfig(6), max_details=0)
    assert step.description == f"N-grams that music share with {paths['input_path']}"
    script = (
        "import pickle, sys; step = pickle.load(sys.stdin.buffer); "
        "assert 'apache_beam' not in sys.modules; print(step.fn(step.config))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(step), cwd=ROOT, capture_output=True
    )
    assert result.stdout.decode().splitlines()[-1] == paths["output_path"], result.stderr.decode()
    assert stats_of(paths["output_path"]) == [hit(6)]


def test_the_step_for_proofpile_has_its_own_n(paths: dict[str, Any]) -> None:
    step = build_proofpile_step(**paths)
    assert step == ExecutorStep(
        "train_test_overlap/proofpile",
        run_train_test_overlap,
        DeconConfig(**paths, ngram=NGramConfig((5, 10, 15))),
        step.description,
    )
    other = build_proofpile_step(**paths, ngram=NGramConfig(13), tokenizer="whitespace").config
    assert (other.ngram.lengths, other.tokenizer) == ((13,), "whitespace")
    assert step.fn(step.config) == paths["output_path"]
    assert stats_of(paths["output_path"]) == [hit(5), hit(10), hit(15)]


class DeconMode(StrEnum):
    TRAIN_TEST_OVERLAP = auto()


def test_a_step_as_marin_writes_it_runs(paths: dict[str, Any]) -> None:
    """With its classes' fields; a stand-in for the steps that made the inputs."""
    downloaded = SimpleNamespace(config=SimpleNamespace(output_path=paths["input_path"]))
    sets = [SimpleNamespace(config=SimpleNamespace(output_path=paths["decontaminate_source"]))]
    with pytest.warns(UserWarning) as warnings:
        config = DeconConfig(
            input_path=downloaded,  # pyright: ignore[reportArgumentType]
            output_path=paths["output_path"],
            decontaminate_source=sets,  # pyright: ignore[reportArgumentType]
            attribute_name="ngram_overlap",
            estimated_doc_count=1_000_000,
            false_positive_rate=1e-20,
            ngram=NGramConfig(ngram_length=[5, 10, 15], overlap_threshold=1e-6, stride=0),
            processes=1,
            mode=DeconMode.TRAIN_TEST_OVERLAP,
            text_field="text",
        )
    without_effect = (
        "overlap_threshold=1e-06",
        "attribute_name=ngram_overlap, estimated_doc_count",
    )
    for warning, names in zip(warnings, without_effect, strict=True):
        assert str(warning.message).startswith(names) and "has no effect" in str(warning.message)
    step = ExecutorStep(
        name="tmp/train_test_overlap/proofpile",
        fn=run_train_test_overlap,
        config=config,
        description="Run dedupe train-test overlap on Proofpile",
    )
    assert step.fn(step.config) == paths["output_path"]
    assert stats_of(paths["output_path"]) == [hit(5), hit(10), hit(15)]
