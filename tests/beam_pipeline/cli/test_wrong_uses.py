"""What a person can type wrongly within the first hour, and what that person then reads.

tests/golden/wrong_uses.tsv has a line per use: the command after `probeline`, its exit code, which
of three things the answer says (v: the value seen, l: the limit, c: the cure), and its last line.
WRITE_WRONG_USES=1 writes codes and answers anew; judge those that changed.
"""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from beam_pipeline.cli.probeline import main
from tests.support.overlap_jobs import write_lines
from tests.support.repository import ROOT

TABLE = ROOT / "tests/golden/wrong_uses.tsv"
WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with measurements, a dataset, an overlap result and files of other kinds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["probeline"])
    for path in ("corpus.jsonl", "eval.jsonl", "docs/a.jsonl"):
        write_lines(tmp_path / path, {"text": WORDS})
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").write_text("hello\n")
    (tmp_path / "bad.parquet").write_text("not Parquet")
    (tmp_path / "pings.csv").write_text("time,src,dst,rtt\n1767225600,192.0.2.1,198.51.100.1,9\n")
    (tmp_path / "text_times.csv").write_text("event_time,src_addr,dst_addr,rtt\nnoon,::1,::2,9\n")
    assert main(shlex.split("generate --output data --num_measurements 600 --num_probes 6")) == 0
    assert main(shlex.split("rows --input data --output rows --direct_num_workers=1")) == 0
    assert main(shlex.split("rows --input data --output mixed --direct_num_workers=1")) == 0
    (tmp_path / "mixed/more.csv").write_text((tmp_path / "pings.csv").read_text())
    paths = "--input_path corpus.jsonl --decontaminate_source eval.jsonl --output_path overlap"
    assert main(shlex.split(f"overlap {paths} --direct_num_workers=1")) == 0
    return tmp_path


@pytest.mark.slow
def test_wrong_uses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    expected = [line.split("\t") for line in TABLE.read_text().splitlines()]
    found = []
    for command, _, says, _ in expected:
        try:
            code = main(shlex.split(command))
        except SystemExit as ended:  # --help
            code = ended.code
        shown = capsys.readouterr()
        lines = (shown.err.strip() or shown.out.strip()).splitlines()
        answer = re.sub(r"\d+\.\d+ s.*", "… s", lines[-1]).replace(str(folder), "FOLDER")
        assert "Traceback" not in shown.err, command
        found.append([command, str(code), says, answer])
    if os.environ.get("WRITE_WRONG_USES") == "1":
        TABLE.write_text("".join("\t".join(line) + "\n" for line in found))
    assert len(expected) >= 120
    assert found == expected
