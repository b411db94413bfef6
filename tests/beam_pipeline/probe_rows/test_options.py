"""Flags of the job: spellings, flags of Beam, the cores it takes, and one line for a bad flag."""

import os
import socket
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import DirectOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import worker_handlers

from beam_pipeline.errors import UsageError
from beam_pipeline.jobs import beam_options as runners
from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER, check_job_server, use_cores
from beam_pipeline.jobs.local_runner import local_workers
from beam_pipeline.main import main
from beam_pipeline.probe_rows.options import DEFAULT_RECORD_OPTIONS, parse

NEEDED = ["--input=i", "--output=o"]
NOT_UTF_8 = os.fsdecode(b"\xff")


def test_dashes_and_underscores_are_one() -> None:
    given = ["--input", "my-data/--odd", "--output=b-c", "--input=c"]
    one, _ = parse([*given, "--num-shards=3", "--max-row-size-mb", "2"])
    other, _ = parse([*given, "--num_shards=3", "--max_row_size_mb", "2"])
    assert one == other and one.num_shards == 3 and one.max_row_size_mb == 2
    assert one.input == ("my-data/--odd", "c") and one.output == "b-c"


def test_flags_of_beam_are_passed_on() -> None:
    for flags in ([], ["--runner=DirectRunner"]):
        _, beam_options = parse([*NEEDED, *flags])
        assert beam_options.view_as(StandardOptions).runner == IN_MEMORY_RUNNER
    _, beam_options = parse([*NEEDED, "--direct-num-workers=3", "--runner=PrismRunner"])
    assert beam_options.view_as(DirectOptions).direct_num_workers == 3
    assert beam_options.view_as(StandardOptions).runner == "PrismRunner"
    parse([*NEEDED, "--runner=PortableRunner", "--fasterCopy=true"])
    with pytest.raises(UsageError, match="--fasterCopy is neither"):
        parse([*NEEDED, "--fasterCopy=true"])


@pytest.mark.parametrize("can_fork", [True, False])
@pytest.mark.parametrize(
    ("flags", "at_most", "as_processes", "as_threads"),
    [
        ([], 16, (4, "multi_processing"), (4, "multi_processing")),
        ([], 3, (3, "multi_processing"), (1, "in_memory")),
        ([], 0, (1, "in_memory"), (1, "in_memory")),
        (["--direct-num-workers=6"], 2, (6, "multi_processing"), (6, "multi_threading")),
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
    with local_workers(parse(NEEDED)[1]):
        pass
    assert worker_handlers.DATA_BUFFER_TIME_LIMIT_MS > 365 * 86_400_000


def test_array_record_options_of_tfrecord() -> None:
    tfrecord = [*NEEDED, "--output_format=tfrecord"]
    with pytest.raises(UsageError, match="has no effect with --output_format=tfrecord"):
        parse([*tfrecord, "--array_record_options=group_size:4,uncompressed"])
    given, _ = parse([*tfrecord, f"--array_record_options={DEFAULT_RECORD_OPTIONS}"])
    assert given.dataset_options().array_record_options == ""


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--input=i\0", "NUL character"),
        ("--array_record_options=zstd:99", "--array_record_options=zstd:99"),
        (f"--columns=rtt={NOT_UTF_8}", r"--columns=rtt=\\udcff is not UTF-8"),
        ("--runner=InteractiveRunner", "for notebooks"),
    ],
)
def test_one_line_with_the_flag(flag: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refusal:
        parse([*NEEDED, flag])
    assert flag.partition("=")[0].replace("-", "_").strip("_") in str(refusal.value)
    assert "\n" not in str(refusal.value) and str(refusal.value).isprintable()


def test_unreachable_job_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beam alone tries for five minutes. Nothing of the output is touched before."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{listening.getsockname()[1]}"
        given = ["--input=i", f"--output={tmp_path}/o", f"--job_endpoint={endpoint}"]
        with pytest.raises(UsageError, match=f"--job_endpoint={endpoint}: no job server"):
            check_job_server(parse([*given, "--runner=FlinkRunner"])[1])
        assert main([*given, "--runner=PortableRunner"]) == 2
        listening.listen()
        monkeypatch.setattr(runners, "_READY_S", 0.1)
        with pytest.raises(UsageError, match="what listens there is no job server"):
            check_job_server(parse([*given, "--runner=PortableRunner"])[1])
    with pytest.raises(UsageError, match="needs --job_endpoint: give HOST:PORT"):
        check_job_server(parse([*NEEDED, "--runner=PortableRunner"])[1])
    check_job_server(parse([*NEEDED, "--runner=FlinkRunner"])[1])
    assert os.listdir(tmp_path) == []
