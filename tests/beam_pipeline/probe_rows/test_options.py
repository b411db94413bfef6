"""Flags: one spelling or the other, Beam's own passed on, the in-memory runner by default."""

from dataclasses import fields

import pytest
from apache_beam.options.pipeline_options import DirectOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import worker_handlers

from beam_pipeline.errors import UsageError
from beam_pipeline.jobs import beam_options as runners
from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER, use_cores
from beam_pipeline.jobs.running import new_pipeline
from beam_pipeline.probe_rows.launch import inline_bytes
from beam_pipeline.probe_rows.options import (
    DEFAULT_RECORD_OPTIONS,
    Options,
    make_parser,
    parse,
)

NEEDED = ["--input=a", "--output=b"]


def test_dashes_and_underscores_are_one() -> None:
    one, _ = parse([*NEEDED, "--num-shards=3", "--max-row-size-mb", "2"])
    other, _ = parse([*NEEDED, "--num_shards=3", "--max_row_size_mb", "2"])
    assert one == other and one.num_shards == 3 and one.max_row_size_mb == 2


def test_a_value_keeps_its_dashes() -> None:
    options, _ = parse(["--input", "my-data/--odd", "--output=b-c"])
    assert options.output == "b-c"


def test_input_may_be_given_again() -> None:
    assert parse([*NEEDED, "--input=c"])[0].input == ("a", "c")


@pytest.mark.parametrize("flags", [[], ["--runner=DirectRunner"]])
def test_the_default_runner_is_in_memory(flags: list[str]) -> None:
    _, beam_options = parse([*NEEDED, *flags])
    assert beam_options.view_as(StandardOptions).runner == IN_MEMORY_RUNNER


def test_beams_flags_go_on() -> None:
    _, beam_options = parse([*NEEDED, "--direct-num-workers=3", "--runner=PrismRunner"])
    assert beam_options.view_as(DirectOptions).direct_num_workers == 3
    assert beam_options.view_as(StandardOptions).runner == "PrismRunner"


@pytest.mark.parametrize("can_fork", [True, False])
@pytest.mark.parametrize(
    ("flags", "at_most", "as_processes", "as_threads"),
    [
        ([], 9, (4, "multi_processing"), (1, "in_memory")),
        ([], 3, (3, "multi_processing"), (1, "in_memory")),
        ([], 1, (1, "in_memory"), (1, "in_memory")),
        ([], 0, (1, "in_memory"), (1, "in_memory")),
        (["--direct_num_workers=0"], 9, (4, "multi_processing"), (1, "in_memory")),
        (["--direct_num_workers=1"], 9, (1, "in_memory"), (1, "in_memory")),
        (["--direct-num-workers=6"], 2, (6, "multi_processing"), (6, "multi_threading")),
        (
            ["--direct_num_workers=2", "--direct_running_mode=multi_threading"],
            *(9, (2, "multi_threading"), (2, "multi_threading")),
        ),
        (
            ["--direct_running_mode=multi_processing"],
            *(9, (4, "multi_processing"), (1, "multi_processing")),
        ),
    ],
)
def test_a_job_takes_the_cores_that_it_has_work_for(
    monkeypatch: pytest.MonkeyPatch,
    can_fork: bool,
    flags: list[str],
    at_most: int,
    as_processes: tuple[int, str],
    as_threads: tuple[int, str],
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr(runners, "can_fork", lambda: can_fork)
    _, options = parse([*NEEDED, *flags])
    use_cores(options, at_most)
    direct = options.view_as(DirectOptions)
    expected = as_processes if can_fork else as_threads
    assert (direct.direct_num_workers, direct.direct_running_mode) == expected


def test_no_timer_of_beam_cuts_a_stream_between_workers() -> None:
    """At 1 ms, one run in six with four threads lost elements or could not decode them."""
    new_pipeline(parse(NEEDED)[1])
    assert worker_handlers.DATA_BUFFER_TIME_LIMIT_MS > 365 * 86_400_000


def test_flags_of_a_job_server_are_not_ours_to_judge() -> None:
    parse([*NEEDED, "--runner=PortableRunner", "--fasterCopy=true"])
    with pytest.raises(UsageError, match="--fasterCopy is neither"):
        parse([*NEEDED, "--fasterCopy=true"])


def test_small_payloads_travel_inline_where_that_is_cheap() -> None:
    cloud = ["--project=p", "--region=r", "--temp_location=gs://b/t"]
    for output, flags, expected in (
        ("rows", [], 0),
        ("rows", ["--runner=PrismRunner"], 0),
        ("gs://b/rows", [], 65536),
        ("gs://b/rows", ["--runner=DataflowRunner", *cloud], 65536),
        ("gs://b/rows", ["--runner=FlinkRunner"], 0),
        ("rows", ["--runner=PortableRunner"], 0),
        ("rows", ["--inline_bytes=5"], 5),
    ):
        options, beam_options = parse(["--input=x", f"--output={output}", *flags])
        assert inline_bytes(options, beam_options) == expected


def test_every_field_is_a_flag_with_help() -> None:
    text = make_parser().format_help()
    for item in fields(Options):
        assert f"--{item.name}" in text and item.metadata["help"].endswith(".")


def test_help_exits_with_0(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(["--help"])
    assert stopped.value.code == 0
    assert "--input" in capsys.readouterr().out


def test_options_of_array_record_say_nothing_of_tfrecord() -> None:
    tfrecord = [*NEEDED, "--output_format=tfrecord"]
    with pytest.raises(
        UsageError, match="uncompressed has no effect with --output_format=tfrecord"
    ):
        parse([*tfrecord, "--array_record_options=group_size:4,uncompressed"])
    given, _ = parse([*tfrecord, f"--array_record_options={DEFAULT_RECORD_OPTIONS}"])
    assert given.dataset_options().array_record_options == ""


def test_shards_are_arrayrecord_of_arrow_unless_told() -> None:
    default = parse(NEEDED)[0].dataset_options()
    assert (default.output_format, default.record_encoding) == ("arrayrecord", "arrow_ipc")
    flags = ["--output-format=tfrecord", "--record-encoding=tf_example"]
    other = parse([*NEEDED, *flags])[0].dataset_options()
    assert (other.output_format, other.record_encoding) == ("tfrecord", "tf_example")
    assert (default.shard_suffix, other.shard_suffix) == (".arrayrecord", ".tfrecord")


@pytest.mark.parametrize("flag", ["--output_format=parquet", "--record_encoding=json"])
def test_unknown_formats_are_refused_in_one_line(flag: str) -> None:
    with pytest.raises(UsageError, match="invalid choice") as refusal:
        parse([*NEEDED, flag])
    assert "\n" not in str(refusal.value)
