"""Flags that cannot be meant: one line, before anything is read or written."""

import os

import pytest

from beam_pipeline.errors import UsageError
from beam_pipeline.probe_rows import launch
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.sources.inputs import InputFile
from beam_pipeline.storage.matching import FileVersion

NOT_UTF_8 = os.fsdecode(b"\xff")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--max_row_size_mb=--", "-- is no value"),
        ("--num-shards=--", "-- is no value"),
        ("--output=", "--output is empty"),
        ("--input=", "--input is empty"),
        ("--output=o\0", "NUL character"),
        ("--input=i\0", "NUL character"),
        (f"--output=o{NOT_UTF_8}", r"--output=o\\udcff is not UTF-8"),
        (f"--input=i{NOT_UTF_8}", r"--input=i\\udcff is not UTF-8"),
        (f"--columns=rtt={NOT_UTF_8}", "is not COLUMN=NAME"),
        ("--output=file:///tmp/o", "local path without file://"),
        ("--input=file:///tmp/i", "local path without file://"),
        ("--output=http://b/o", "nothing here reads or writes http://"),
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


def test_more_shards_than_rows_are_refused() -> None:
    files = [InputFile(FileVersion("a", 10, 1), "parquet", (2000, 1000))]
    launch._check_num_shards(3000, files)
    with pytest.raises(UsageError, match="--num_shards=99999 for 3000 rows"):
        launch._check_num_shards(99_999, files)
    launch._check_num_shards(1000, [files[0]._replace(row_group_rows=(1,))])
    launch._check_num_shards(99_999, [*files, files[0]._replace(input_format="atlas_json")])
