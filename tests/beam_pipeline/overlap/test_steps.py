"""The overlap job from Python, and as a step that an executor runs."""

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
    build_proofpile_step,
    run_train_test_overlap,
)
from beam_pipeline.overlap.job import launch
from tests.support.overlap_jobs import SHARED, read_lines, write_lines


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


def test_a_run_takes_beams_options_and_raises_our_errors(
    paths: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    used, run = [], launch.run

    def spy(config: DeconConfig, beam_options: PipelineOptions) -> str | None:
        used.append(beam_options.view_as(DirectOptions))
        return run(config, beam_options)

    with pytest.raises(ProbelineError, match="with a text in the field 'body'") as failure:
        run_train_test_overlap(DeconConfig(**paths, text_field="body"))
    assert "\n" not in str(failure.value) and "while running" not in str(failure.value)
    monkeypatch.setattr(launch, "run", spy)
    options = PipelineOptions(["--direct_num_workers=2", "--direct_running_mode=multi_threading"])
    run_train_test_overlap(DeconConfig(**paths), options)
    (direct,) = used
    assert (direct.direct_num_workers, direct.direct_running_mode) == (2, "multi_threading")
    assert options.view_as(StandardOptions).runner is None
    assert stats_of(paths["output_path"]) == [hit(15)]
    with pytest.raises(UsageError, match="holds a finished result"):
        run_train_test_overlap(DeconConfig(**paths), ["--direct_num_workers=2"])


# --- as a step ------------------------------------------------------------------------------------


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
    assert build_proofpile_step(**paths).config == DeconConfig(
        **paths, ngram=NGramConfig((5, 10, 15))
    )
    given = {**paths, "ngram": NGramConfig(13), "tokenizer": "whitespace"}
    assert build_proofpile_step(**given).config == DeconConfig(**given)
    step = ExecutorStep(
        name="tmp/train_test_overlap/proofpile",
        fn=run_train_test_overlap,
        config=config,
        description="Run dedupe train-test overlap on Proofpile",
    )
    assert step.fn(step.config) == paths["output_path"]
    assert stats_of(paths["output_path"]) == [hit(5), hit(10), hit(15)]
