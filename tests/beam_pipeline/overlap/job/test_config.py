"""Options of an overlap run, from a command line and from Python."""

from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    PipelineOptions,
    WorkerOptions,
)

from beam_pipeline.errors import UsageError
from beam_pipeline.jobs import beam_options as runners
from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER
from beam_pipeline.overlap import DeconConfig, NGramConfig, build_overlap_step
from beam_pipeline.overlap.job.launch import bound_parallelism


def config(**values: Any) -> DeconConfig:
    needed = {"input_path": "in", "decontaminate_source": "eval/mmlu", "output_path": "out"}
    return DeconConfig(**{**needed, **values})


# --- from Python ----------------------------------------------------------------------------------


def test_step_as_path() -> None:
    step = build_overlap_step("x", "in", "eval/mmlu", "gs://b/mmlu-dolma-1a2b3c")
    given = config(input_path=[step, "more"], decontaminate_source=[step.config, step])
    assert given.input_paths == ("gs://b/mmlu-dolma-1a2b3c", "more")
    assert given.datasets == ["mmlu"]
    part, whole = SimpleNamespace(step=step, name="en"), SimpleNamespace(step=step, name=None)
    given = config(input_path=[part, whole], decontaminate_source=part)
    assert given.input_paths == (f"{step.config.output_path}/en", step.config.output_path)
    assert given.datasets == ["en"]


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"input_path": ["a", ""]}, "--input_path is empty"),
        ({"decontaminate_source": "mmlu="}, "--decontaminate_source=mmlu="),
        ({"output_path": ["out"]}, "--output_path=['out']"),
        ({"ngram": 15}, "ngram=15"),
        ({"eval_text_field": "a,,b"}, "--eval_text_field=a,,b"),
        ({"eval_fields": "each"}, "--eval_fields=each"),
        ({"processes": 1.5}, "--processes=1.5"),
        ({"rules": "gpt4"}, "--rules=gpt4"),
        ({"threshold": 1.5}, "--threshold=1.5"),
        ({"skip_existing": "false"}, "--skip_existing='false'"),
        ({"decontaminate_source": ["m=a", "m-n10=b"], "ngram": NGramConfig([10, 15])}, "m-n10."),
    ],
)
def test_invalid_option(values: dict, flag: str) -> None:
    with pytest.raises(UsageError) as refusal:
        config(**values)
    assert flag in str(refusal.value) and "\n" not in str(refusal.value)


# --- how much runs at a time ----------------------------------------------------------------------


def bounded(processes: int, *flags: str) -> PipelineOptions:
    options = PipelineOptions([*flags])
    bound_parallelism(options, processes)
    runners.use_cores(options, at_most=2)
    return options


def test_processes_on_every_runner() -> None:
    for flags, num_workers in (([], 4), (["--direct_num_workers=3"], 3)):
        direct = bounded(4, f"--runner={IN_MEMORY_RUNNER}", *flags).view_as(DirectOptions)
        assert direct.direct_num_workers == num_workers
    workers = bounded(4, "--runner=DataflowRunner").view_as(WorkerOptions)
    assert workers.max_num_workers == 4
    given = bounded(4, "--runner=DataflowRunner", "--max_num_workers=9").view_as(WorkerOptions)
    assert given.max_num_workers == 9
    for flags, parallelism in (([], 4), (["--parallelism=2"], 2)):
        flink = bounded(4, "--runner=PortableRunner", *flags).view_as(FlinkRunnerOptions)
        assert flink.parallelism == parallelism
    with pytest.raises(UsageError, match="--processes=4: PrismRunner has no such setting"):
        bounded(4, "--runner=PrismRunner")
