"""What an overlap run can be told, from a command line and from Python, and what is refused."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
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


def test_a_command_line_is_the_config_of_the_same_names() -> None:
    flags = [
        *("--input-path=more", "--decontaminate_source=x=gs://b/e.jsonl", "--ngram-length=10,5"),
        *("--tokenizer=whitespace", "--text_field=body", "--id_field=key", "--num_shards=3"),
        *("--processes=4", "--limit_test_instances=7", "--skip-existing"),
        *("--index_memory_mb=64", "--degenerate=skip", "--max_details_per_pair=2"),
        *("--eval_text_field=question, doc.choices", "--eval_text_field=answer"),
        *("--eval_id_field=qid", "--eval_fields=each", "--eval_format=lm_eval"),
        *("--max_details=0", "--max_document_frequency=9", "--overwrite"),
    ]
    assert parsed(*flags) == DeconConfig(
        input_path=["in", "more"],
        decontaminate_source=["eval/mmlu-dolma-1a2b3c", "x=gs://b/e.jsonl"],
        output_path="out",
        ngram=NGramConfig([10, 5]),
        tokenizer="whitespace",
        text_field="body",
        id_field="key",
        eval_text_field=["question, doc.choices", "answer"],
        eval_id_field="qid",
        eval_fields="each",
        eval_format="lm_eval",
        num_shards=3,
        processes=4,
        limit_test_instances=7,
        skip_existing=True,
        index_memory_mb=64,
        degenerate="skip",
        max_details_per_pair=2,
        max_details=0,
        max_document_frequency=9,
        overwrite=True,
    )


def test_defaults_are_those_of_the_config() -> None:
    found = parsed()
    assert found == DeconConfig(
        input_path=["in"],
        decontaminate_source=["eval/mmlu-dolma-1a2b3c"],
        output_path="out",
    )
    assert found.ngram.lengths == (15,)
    assert found.max_details == found.max_details_per_pair == -1
    assert not (found.skip_existing or found.overwrite or found.debug)


@pytest.mark.parametrize(
    ("flags", "lengths"),
    [
        (["--ngram_length=5,10,15"], (5, 10, 15)),
        (["--ngram_length=15", "--ngram_length", "5"], (5, 15)),
        (["--ngram-length=7, 3", "--ngram_length=7"], (3, 7)),
    ],
)
def test_several_n(flags: list[str], lengths: tuple[int, ...]) -> None:
    assert parsed(*flags).ngram.lengths == lengths


def test_rules_add_their_lengths() -> None:
    found = parsed("--rules=llama2, gpt3", "--threshold=0.5", "--ngram_length=20,13")
    names = [(rule.name, rule.n, rule.dirty_from) for rule in found.all_rules]
    assert names[0] == ("llama2", 11, 0.8) and names[1][:2] == ("gpt3", 13)
    assert names[2:] == [("threshold", 13, 0.5)]
    assert found.lengths == (11, 13, 20) and found.ngram.lengths == (13, 20)
    assert parsed().all_rules == () and parsed().lengths == (15,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--rules=gpt4", "there is no rule 'gpt4'; give none, or some of gpt3, palm, llama2"),
        ("--rules=palm,", "there is no rule ''"),
        ("--threshold=1.5", "--threshold=1.5 is outside 0 to 1"),
    ],
)
def test_a_rule_that_does_not_exist(given: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parsed(given)


def test_every_field_is_a_flag_with_help() -> None:
    names = [item.name for item in flag_fields()]
    flags = [item.name for item in fields(DeconConfig) if item.metadata]
    cleaning = [item.name for item in fields(RemovalConfig)]
    assert sorted(names) == sorted([*flags, "ngram_length", *cleaning])
    text = make_parser().format_help()
    for item in flag_fields():
        assert f"--{item.name}" in text and item.metadata["help"].endswith(".")
    assert "Default: 15." in text


def test_beams_flags_go_on_and_others_are_refused() -> None:
    _, beam_options = parse([*NEEDED, "--direct-num-workers=3"])
    assert beam_options.view_as(DirectOptions).direct_num_workers == 3
    assert beam_options.view_as(StandardOptions).runner == IN_MEMORY_RUNNER
    with pytest.raises(UsageError, match=r"--ngram_lenght is neither .* mean --ngram_length\?"):
        parsed("--ngram_lenght=3")


@pytest.mark.parametrize("missing", ["input_path", "decontaminate_source", "output_path"])
def test_what_is_needed_is_named(missing: str) -> None:
    with pytest.raises(UsageError, match=f"required: --{missing}; --help lists the flags"):
        parse([flag for flag in NEEDED if not flag.startswith(f"--{missing}")])


# --- from Python ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, tuple])
def test_one_path_or_several(kind: Callable) -> None:
    one = config()
    assert (one.input_paths, one.sources) == (("in",), ("eval/mmlu",))
    several = config(input_path=kind("ab"), decontaminate_source=kind(["y=a", "e/x-dolma", "y=b"]))
    assert several.input_paths == ("a", "b")
    assert several.sources == ("y=a", "e/x-dolma", "y=b")
    assert several.datasets == ["y", "x"]


@pytest.mark.parametrize("given", [15, [15], (15, 15)])
def test_one_n_or_several(given: Any) -> None:
    assert NGramConfig(given).lengths == NGramConfig(ngram_length=given).lengths == (15,)


def test_what_marins_classes_have_is_taken_and_said_once() -> None:
    with pytest.warns(
        UserWarning, match=r"^stride=1, overlap_threshold=1e-06 has no effect: "
    ) as one:
        ngram = NGramConfig(ngram_length=[5, 10], overlap_threshold=1e-6, stride=1)
    with pytest.warns(
        UserWarning, match="^attribute_name=x, false_positive_rate=1e-20, mode=t "
    ) as two:
        given = config(ngram=ngram, attribute_name="x", false_positive_rate=1e-20, mode="t")
    assert len(one) == len(two) == 1
    assert given.ngram.lengths == (5, 10)


def test_steps_stand_for_their_output() -> None:
    step = build_overlap_step("x", "in", "eval/mmlu", "gs://b/mmlu-dolma-1a2b3c")
    given = config(input_path=[step, "more"], decontaminate_source=[step.config, step])
    assert given.input_paths == ("gs://b/mmlu-dolma-1a2b3c", "more")
    assert given.datasets == ["mmlu"]
    assert config(input_path=step).input_paths == ("gs://b/mmlu-dolma-1a2b3c",)


def test_a_name_in_the_output_of_a_step_stands_for_its_path() -> None:
    step = build_overlap_step("x", "in", "eval/mmlu", "gs://b/corpus")
    part, whole = SimpleNamespace(step=step, name="en"), SimpleNamespace(step=step, name=None)
    given = config(input_path=[part, whole], decontaminate_source=part)
    assert given.input_paths == ("gs://b/corpus/en", "gs://b/corpus") and given.datasets == ["en"]


def test_no_ngram_is_the_default_as_in_marin() -> None:
    assert config(ngram=None) == config()


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        config().num_shards = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"input_path": []}, "--input_path is empty"),
        ({"input_path": ["a", ""]}, "--input_path is empty"),
        ({"input_path": ["a", 7]}, "--input_path=7 is a int: give a string"),
        ({"decontaminate_source": ()}, "--decontaminate_source is empty"),
        ({"decontaminate_source": "mmlu="}, "--decontaminate_source=mmlu= has no path"),
        ({"output_path": ""}, "--output_path is empty"),
        ({"output_path": ["out"]}, "--output_path=['out'] is a list: give a string"),
        ({"ngram": 15}, "ngram=15 is no NGramConfig: give NGramConfig(15)"),
        ({"tokenizer": "bert"}, "--tokenizer=bert is none of default, "),
        ({"tokenizer": "no.such:function"}, "--tokenizer=no.such:function cannot be imported"),
        ({"text_field": ""}, "--text_field is empty"),
        ({"id_field": None}, "--id_field=None is a NoneType"),
        ({"eval_text_field": "a,,b"}, "--eval_text_field=a,,b has an empty name"),
        ({"eval_text_field": ["a", 7]}, "--eval_text_field=7 is a int: give a string"),
        ({"eval_fields": "each"}, "--eval_fields=each needs the fields"),
        ({"eval_fields": "each", "eval_text_field": "a/b"}, "evaluation set 'mmlu:a/b' cannot"),
        ({"num_shards": -1}, "--num_shards=-1 is outside 0 to 10000"),
        ({"num_shards": "3"}, "--num_shards='3' is not an integer"),
        ({"processes": 1.5}, "--processes=1.5 is not an integer"),
        ({"processes": True}, "--processes=True is not an integer"),
        ({"limit_test_instances": -1}, "--limit_test_instances=-1 is outside 0 to "),
        ({"index_memory_mb": -1}, "--index_memory_mb=-1 is outside 0 to "),
        ({"degenerate": "drop"}, "--degenerate=drop: give emit or skip"),
        ({"max_details": -2}, "--max_details=-2 is outside -1 to "),
        ({"max_details_per_pair": -2}, "--max_details_per_pair=-2 is outside -1 to "),
        ({"max_document_frequency": -1}, "--max_document_frequency=-1 is outside 0 to "),
        ({"skip_existing": "false"}, "--skip_existing='false': give True or False"),
        ({"overwrite": 1}, "--overwrite=1: give True or False"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(values: dict, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        config(**values)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "--ngram_length is empty"),
        (0, "--ngram_length=0 is outside 1 to "),
        ([5, 2**31], "--ngram_length=2147483648 is outside 1 to 2147483647"),
        ("15", "--ngram_length='15' is not an integer"),
    ],
)
def test_an_n_that_cannot_be(given: Any, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        NGramConfig(given)
    assert message in str(refusal.value)


@pytest.mark.parametrize("given", ["5,x", "", "5;6"])
def test_an_n_on_the_command_line_that_is_no_number(given: str) -> None:
    with pytest.raises(UsageError, match=f"--ngram_length={given}: give whole numbers"):
        parsed(f"--ngram_length={given}")


def test_two_lists_of_untouched_instances_need_two_names() -> None:
    sources = ["mmlu=a", "mmlu-n10=b"]
    assert config(decontaminate_source=sources, ngram=NGramConfig(10)).datasets[1] == "mmlu-n10"
    with pytest.raises(UsageError, match=r"would be called mmlu-n10\.jsonl: give .* NAME=PATH"):
        config(decontaminate_source=sources, ngram=NGramConfig([10, 15]))


# --- how much runs at a time ----------------------------------------------------------------------


def bounded(processes: int, *flags: str) -> PipelineOptions:
    options = PipelineOptions([*flags])
    bound_parallelism(options, processes)
    runners.use_cores(options, at_most=2)
    return options


@pytest.mark.parametrize(
    ("processes", "flags", "expected"),
    [
        (0, [], (1, "in_memory")),
        (0, ["--direct_num_workers=0"], (2, "multi_processing")),
        (1, [], (1, "in_memory")),
        (4, [], (4, "multi_processing")),
        (4, ["--direct_num_workers=3"], (3, "multi_processing")),
    ],
)
def test_processes_in_memory_are_processes(
    monkeypatch: pytest.MonkeyPatch, processes: int, flags: list[str], expected: tuple[int, str]
) -> None:
    monkeypatch.setattr(runners, "can_fork", lambda: True)
    direct = bounded(processes, f"--runner={IN_MEMORY_RUNNER}", *flags).view_as(DirectOptions)
    assert (direct.direct_num_workers, direct.direct_running_mode) == expected


def test_processes_on_other_runners_are_what_those_have() -> None:
    workers = bounded(4, "--runner=DataflowRunner").view_as(WorkerOptions)
    assert workers.max_num_workers == 4
    given = bounded(4, "--runner=DataflowRunner", "--max_num_workers=9").view_as(WorkerOptions)
    assert given.max_num_workers == 9
    for flags, parallelism in (([], 4), (["--parallelism=2"], 2)):
        flink = bounded(4, "--runner=PortableRunner", *flags).view_as(FlinkRunnerOptions)
        assert flink.parallelism == parallelism
    with pytest.raises(UsageError, match="--processes=4: PrismRunner has no such setting"):
        bounded(4, "--runner=PrismRunner")
