"""Folders named like globs: written, added to, read and replaced like all others."""

from pathlib import Path

import pytest

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.inspect import __main__ as inspect
from beam_pipeline.main import main
from beam_pipeline.probe_rows.launch import sort_inputs
from beam_pipeline.probe_rows.options import Options
from beam_pipeline.verify import __main__ as verify
from tests.support.array_record_files import Objects
from tests.support.helpers import measurements_table
from tests.support.job_runs import FLAGS, write_input

_TABLE = measurements_table(200, seed=8)


def use(days: list[str], output: str) -> None:
    """Does all that can be done with a dataset's name; a folder beside it would match the glob."""
    for day, flags in zip(days, (FLAGS, ["--append"]), strict=True):
        assert main([f"--input={day}", f"--output={output}", *flags]) == 0
    assert open_dataset(output).manifest.counts.measurements == _TABLE.num_rows
    assert open_dataset(f"{output}/train").path == output
    assert verify.main([output]) == 0 and inspect.main([output, f"--compare={output}"]) == 0
    assert main([f"--input={output}", f"--output={output} copy", *FLAGS]) == 0
    assert main([f"--input={days[0]}", f"--output={output}", "--overwrite", *FLAGS]) == 0
    assert open_dataset(output).manifest.counts.measurements == 100


@pytest.mark.parametrize("name", ["o[1] *?", pytest.param("**", marks=pytest.mark.slow)])
def test_on_this_machine(tmp_path: Path, name: str) -> None:
    (tmp_path / "o1 xy").mkdir()
    parts = {"a[b": _TABLE.slice(0, 100), "c*": _TABLE.slice(100)}
    days = [str(write_input(tmp_path / day, part).parent) for day, part in parts.items()]
    use(days, str(tmp_path / name))
    assert list((tmp_path / "o1 xy").iterdir()) == []


def test_other_filesystems_of_beam_have_no_datasets() -> None:
    """Their files are read by Beam alone, globs or not."""
    paths = [f"{Objects.scheme()}://b/{name}" for name in ("x", "*")]
    assert sort_inputs(Options(input=tuple(paths), output="o")) == ([], paths)
