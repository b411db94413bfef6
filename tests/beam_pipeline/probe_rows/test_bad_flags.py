"""Flags that cannot be meant: one line, before anything is read or written."""

import os
import socket
from pathlib import Path

import pytest

from beam_pipeline.errors import UsageError
from beam_pipeline.jobs import running
from beam_pipeline.jobs.beam_options import check_job_server
from beam_pipeline.main import main
from beam_pipeline.probe_rows import launch
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.sources.inputs import MeasurementFile
from beam_pipeline.storage.matching import FileVersion

NOT_UTF_8 = os.fsdecode(b"\xff")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--max_row_size_mb=--", "-- is not a value"),
        ("--num-shards=--", "-- is not a value"),
        ("--output=", "--output is empty"),
        ("--input=", "--input is empty"),
        ("--output=o\0", "NUL character"),
        ("--input=i\0", "NUL character"),
        (f"--output=o{NOT_UTF_8}", r"--output=o\\udcff is not UTF-8"),
        (f"--input=i{NOT_UTF_8}", r"--input=i\\udcff is not UTF-8"),
        (f"--columns=rtt={NOT_UTF_8}", "is not COLUMN=NAME"),
        ("--output=file:///tmp/o", "local path without file://"),
        ("--input=file:///tmp/i", "local path without file://"),
        ("--output=s3://b/o", r"pip install 'apache-beam\[aws\]'"),
        ("--output=hdfs://b/o", r"pip install 'apache-beam\[hadoop\]'"),
        ("--input=azfs://a/b/i", r"pip install 'apache-beam\[azure\]'"),
        ("--output=http://b/o", "http:// is not supported"),
        ("--direct_num_workers=-1", "0 for all cores"),
        ("--runner=InteractiveRunner", "for notebooks"),
        ("--type_check_strictness=ALL_REQUIRED", "leave them out"),
        ("--runtime_type_check", "leave them out"),
        ("--profile_cpu", "need --profile_location"),
    ],
)
def test_one_line_with_the_flag(flag: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refusal:
        parse(["--input=i", "--output=o", flag])
    assert flag.partition("=")[0].replace("-", "_").strip("_") in str(refusal.value)
    assert "\n" not in str(refusal.value) and str(refusal.value).isprintable()


def test_a_job_server_that_does_not_answer_is_one_line_at_once(tmp_path: Path) -> None:
    """Beam alone tries for five minutes. Nothing of the output is touched before."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{listening.getsockname()[1]}"
        given = ["--input=i", f"--output={tmp_path}/o", f"--job_endpoint={endpoint}"]
        runners = ["PortableRunner", "FlinkRunner"]
        for _, beam_options in (parse([*given, f"--runner={name}"]) for name in runners):
            with pytest.raises(
                UsageError, match=f"--job_endpoint={endpoint}: no job server is lis"
            ):
                check_job_server(beam_options)
        assert main([*given, "--runner=PortableRunner"]) == 2
        listening.listen()
        check_job_server(parse([*given, "--runner=PortableRunner"])[1])
    for flags, message in (
        (["--runner=PortableRunner"], "needs --job_endpoint: give HOST:PORT"),
        (
            ["--runner=SparkRunner", "--job_endpoint=nowhere"],
            "--job_endpoint=nowhere: no job server",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            check_job_server(parse(["--input=i", "--output=o", *flags])[1])
    check_job_server(parse(["--input=i", "--output=o", "--runner=FlinkRunner"])[1])
    assert os.listdir(tmp_path) == []


def test_a_job_server_that_cannot_be_downloaded() -> None:
    error = RuntimeError("Unable to fetch remote job server jar at https://…: HTTP Error 404")
    assert "start one and give --job_endpoint" in running.unexpected(error)


def test_more_shards_than_rows_are_refused() -> None:
    files = [MeasurementFile(FileVersion("a", 10, 1), "parquet", (2000, 1000))]
    launch._check_num_shards(3000, files)
    with pytest.raises(UsageError, match="--num_shards=99999 for 3000 rows"):
        launch._check_num_shards(99_999, files)
    launch._check_num_shards(1000, [files[0]._replace(row_group_rows=(1,))])
    launch._check_num_shards(99_999, [*files, files[0]._replace(input_format="atlas_json")])
