"""docs/array_record_io.md and examples/sessions.py: the code runs, what is said of sinks holds."""

import importlib.util
import itertools
import shlex
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest
from array_record.beam.arrayrecordio import WriteToArrayRecord as WriteWithTheirSink

from beam_pipeline import ReadFromArrayRecord, WriteToArrayRecord
from tests.support import documents
from tests.support.engines import Gcs
from tests.support.helpers import Objects, eager
from tests.support.repository import ROOT

IN_MEMORY = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
WORDS = [b"word %d" % number for number in range(50)]


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in documents.blocks("docs/array_record_io.md"):
        assert "beam.Pipeline()" in block.text
        code = block.text.replace("beam.Pipeline()", f"beam.Pipeline({IN_MEMORY!r})")
        exec(code, {"__name__": "__main__"})
    counted, *groups = capsys.readouterr().out.splitlines()
    assert counted == "3"
    expected = ["('ann', [b'home', b'cart', b'buy'])", "('bob', [b'home'])"]
    assert sorted(groups) == expected
    assert sorted(path.name for path in (tmp_path / "words").iterdir()) == [
        f"all-0000{shard}-of-00002.arrayrecord" for shard in range(2)
    ]


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sessions", ROOT / "examples/sessions.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_sessions_of_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those that a list in memory gives."""
    monkeypatch.chdir(tmp_path)
    sessions = example()
    (command,) = [
        block.text
        for block in documents.blocks("examples/README.md")
        if "sessions.py" in block.text
    ]
    assert command.strip() in (sessions.__doc__ or "")
    python, program, *arguments = shlex.split(command)
    assert (python, program) == ("python", "examples/sessions.py")
    # Workers, here of this process, import the module whose functions they run.
    monkeypatch.setitem(sys.modules, "sessions", sessions)
    sessions.main([*arguments, f"--runner={IN_MEMORY}"])
    times = defaultdict(list)
    for event in sessions.events():
        times[event["user"]].append(event["time_s"])
    expected = []
    for user, of_user in times.items():
        of_user.sort()
        ends = [
            at + 1
            for at, (one, other) in enumerate(itertools.pairwise(of_user))
            if other - one >= sessions.PAUSE_S
        ]
        for start, end in itertools.pairwise([0, *ends, len(of_user)]):
            first, last = of_user[start], of_user[end - 1]
            expected.append(f"{user}: {end - start} events from {first} s to {last} s")
    assert len(expected) > 2 * len(times)
    assert sorted((tmp_path / "sessions/sessions.txt").read_text().splitlines()) == sorted(expected)


def test_the_sink_of_array_record_writes_to_disks_alone(tmp_path: Path, gcs: Gcs) -> None:
    eager(WORDS, WriteWithTheirSink(f"{tmp_path}/w", num_shards=2))
    assert sorted(eager(None, ReadFromArrayRecord(f"{tmp_path}/w*"))) == sorted(WORDS)
    with pytest.raises(Exception, match=r"open\(\) failed: No such file or directory"):
        eager(WORDS, WriteWithTheirSink(f"{gcs.make_bucket()}/w", num_shards=2))


@pytest.mark.parametrize(
    ("record_bytes", "ordered", "times"),
    [(1024, True, 1), (1025, True, 2), (1025, False, 1)],
)
def test_a_record_is_written_so_many_times(
    monkeypatch: pytest.MonkeyPatch, record_bytes: int, ordered: bool, times: int
) -> None:
    """The table of costs, by the bytes of all objects that were ever created."""
    created: dict[str, bytes] = {}

    class Kept(dict):
        def __setitem__(self, path: str, data: bytes) -> None:
            created.setdefault(path, data)
            super().__setitem__(path, data)

    monkeypatch.setattr(Objects, "stored", Kept())
    record = bytes(record_bytes)
    options = {"num_shards": 1, "ordered": ordered, "options": "group_size:1,uncompressed"}
    eager([record] * 3, WriteToArrayRecord("objects://b/w", **options))
    # The file with its final name was renamed: on gs:// the service copies it.
    holding = [path for path, data in created.items() if record in data and "/.temp-" in path]
    assert len(holding) == times
