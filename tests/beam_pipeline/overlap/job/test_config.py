"""Options of an overlap run, from a command line and from Python."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    PipelineOptions,
    StandardOptions,
    WorkerOptions,
)

from beam_pipeline.errors import UsageError
from beam_pipeline.jobs import beam_options as runners
from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER
from beam_pipeline.overlap import DeconConfig, NGramConfig, build_overlap_step
from beam_pipeline.overlap.job.config import flag_fields, make_parser, parse
from beam_pipeline.overlap.job.launch import bound_parallelism
from beam_pipeline.overlap.removal.options import RemovalConfig

NEEDED = ["--input_path=in", "--decontaminate_source=eval/mmlu-dolma-1a2b3c", "--output_path=out"]


def config(**values: Any) -> DeconConfig:
    needed = {"input_path": "in", "decontaminate_source": "eval/mmlu", "output_path": "out"}
    return DeconConfig(**{**needed, **values})


def parsed(*flags: str) -> DeconConfig:
    return parse([*NEEDED, *flags])[0]


# --- a command line -------------------------------------------------------------------------------


def test_flags_are_config_fields() -> None:
    flags = [
        *("--input-path=more", "--decontaminate_source=x=gs://b/e.jsonl", "--ngram-length=10, 5"),
        *("--tokenizer=whitespace", "--num_shards=3", "--skip-existing", "--degenerate=skip"),
        *("--eval_text_field=question, doc.choices", "--eval_text_field=answer"),
    ]
    assert parsed(*flags) == DeconConfig(
        input_path=["in", "more"],
        decontaminate_source=["eval/mmlu-dolma-1a2b3c", "x=gs://b/e.jsonl"],
        output_path="out",
        ngram=NGramConfig([10, 5]),
        tokenizer="whitespace",
        eval_text_field=["question, doc.choices", "answer"],
        num_shards=3,
        skip_existing=True,
        degenerate="skip",
    )


def test_rules_add_their_lengths() -> None:
    found = parsed("--rules=llama2, gpt3", "--threshold=0.5", "--ngram_length=20,13")
    names = [(rule.name, rule.n, rule.dirty_from) for rule in found.all_rules]
    assert names[0] == ("llama2", 11, 0.8) and names[1][:2] == ("gpt3", 13)
    assert names[2:] == [("threshold", 13, 0.5)]
    assert found.lengths == (11, 13, 20) and found.ngram.lengths == (13, 20)
    assert parsed().all_rules == () and parsed().lengths == (15,)


def test_flags_have_help() -> None:
    names = [item.name for item in flag_fields()]
    flags = [item.name for item in fields(DeconConfig) if item.metadata]
    cleaning = [item.name for item in fields(RemovalConfig)]
    assert sorted(names) == sorted([*flags, "ngram_length", *cleaning])
    text = make_parser().format_help()
    for item in flag_fields():
        assert f"--{item.name}" in text and item.metadata["help"].endswith(".")
    assert "Default: 15." in text


def test_unknown_flag() -> None:
    _, beam_options = parse([*NEEDED, "--direct-num-workers=3"])
    assert beam_options.view_as(DirectOptions).direct_num_workers == 3
    assert beam_options.view_as(StandardOptions).runner == IN_MEMORY_RUNNER
    with pytest.raises(UsageError, match=r"--ngram_lenght is neither .* mean --ngram_length\?"):
        parsed("--ngram_lenght=3")


# --- from Python ----------------------------------------------------------------------------------


def test_several_paths() -> None:
    one = config()
    assert (one.input_paths, one.sources) == (("in",), ("eval/mmlu",))
    several = config(input_path=("a", "b"), decontaminate_source=["y=a", "e/x-dolma", "y=b"])
    assert several.input_paths == ("a", "b")
    assert several.sources == ("y=a", "e/x-dolma", "y=b")
    assert several.datasets == ["y", "x"]


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
        ({"tokenizer": "bert"}, "--tokenizer=bert"),
        ({"eval_text_field": "a,,b"}, "--eval_text_field=a,,b"),
        ({"eval_fields": "each"}, "--eval_fields=each"),
        ({"num_shards": -1}, "--num_shards=-1"),
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


@pytest.mark.parametrize("given", [[], 0, [5, 2**31], "15"])
def test_invalid_ngram_length(given: Any) -> None:
    with pytest.raises(UsageError, match=r"^--ngram_length"):
        NGramConfig(given)
    with pytest.raises(UsageError, match=r"^--ngram_length=5,x: "):
        parsed("--ngram_length=5,x")


# --- how much runs at a time ----------------------------------------------------------------------


def test_processes_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "can_fork", lambda: True)
    for processes, flags, workers in (
        (0, [], 1),
        (0, ["--direct_num_workers=0"], 2),
        (4, [], 4),
        (4, ["--direct_num_workers=3"], 3),
    ):
        direct = bounded(processes, f"--runner={IN_MEMORY_RUNNER}", *flags).view_as(DirectOptions)
        mode = "multi_processing" if workers > 1 else "in_memory"
        assert (direct.direct_num_workers, direct.direct_running_mode) == (workers, mode)


def bounded(processes: int, *flags: str) -> PipelineOptions:
    options = PipelineOptions([*flags])
    bound_parallelism(options, processes)
    runners.use_cores(options, at_most=2)
    return options


def test_processes_on_other_runners() -> None:
    workers = bounded(4, "--runner=DataflowRunner").view_as(WorkerOptions)
    assert workers.max_num_workers == 4
    given = bounded(4, "--runner=DataflowRunner", "--max_num_workers=9").view_as(WorkerOptions)
    assert given.max_num_workers == 9
    for flags, parallelism in (([], 4), (["--parallelism=2"], 2)):
        flink = bounded(4, "--runner=PortableRunner", *flags).view_as(FlinkRunnerOptions)
        assert flink.parallelism == parallelism
    with pytest.raises(UsageError, match="--processes=4: PrismRunner has no such setting"):
        bounded(4, "--runner=PrismRunner")
