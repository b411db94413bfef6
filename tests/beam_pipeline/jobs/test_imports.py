"""What the imports of a job on this machine leave out, and that nothing else is different."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipeline.jobs import program
from beam_pipeline.jobs.beam_options import beam_parser
from tests.support.overlap_jobs import SHARED, write_lines

RUN = """
import importlib.util, json, sys
from beam_pipeline.jobs.program import OPTIONAL
from beam_pipeline.overlap.__main__ import main
assert main() == 0
loaded = [name for name in OPTIONAL if name in sys.modules]
from beam_pipeline.jobs.beam_options import beam_parser
flags = sorted(name for flag in beam_parser().flags for name in flag.option_strings)
for name in OPTIONAL:
    if importlib.util.find_spec(name):
        importlib.import_module(name)
print(json.dumps([loaded, flags]))
"""


def test_a_run_on_this_machine_imports_nothing_optional_and_knows_all_flags(tmp_path: Path) -> None:
    texts = write_lines(tmp_path / "texts.jsonl", {"id": 1, "text": SHARED})
    flags = f"--input_path={texts}", f"--decontaminate_source=a={texts}"
    command = [sys.executable, "-c", RUN, *flags, f"--output_path={tmp_path / 'out'}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    loaded, flags = json.loads(done.stdout.splitlines()[-1])
    assert loaded == []
    assert flags == sorted(name for flag in beam_parser().flags for name in flag.option_strings)


@pytest.mark.parametrize(
    "argument", ["--output=gs://bucket/rows", "--runner=FlinkRunner", "--tokenizer=module:function"]
)
def test_a_command_line_that_may_need_all_gets_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    (tmp_path / "left_out.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(program, "OPTIONAL", ("left_out",))
    with (
        pytest.raises(ModuleNotFoundError),
        program.lean_imports(["--output=rows", "--array_record_options=group_size:1,zstd:3"]),
    ):
        importlib.import_module("left_out")
    with program.lean_imports(["--output=rows", argument]):
        importlib.import_module("left_out")
    del sys.modules["left_out"]
