"""A row and a context of it: what is shown is what the dataset and training hold."""

import importlib
import re
import shlex
from pathlib import Path

import duckdb
import numpy as np
import pytest

from beam_pipeline.dataset.layout import ENCODINGS, Encoding
from tests.support.inspect_command import said
from tests.support.inspected import day_of_pings, many_probes
from tests.support.probe_rows_on_disk import (
    RowSpec,
    make_measurements,
    write_dataset,
)
from tests.support.repository import ROOT


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_row(encoding: Encoding, tmp_path: Path, capsys, wide) -> None:
    test = [RowSpec("9.9.9.9", day_of_pings(50, 9))]
    write_dataset(tmp_path / "rows", many_probes(3, 0), encoding, 2, test)
    text = said(capsys, str(tmp_path / "rows"), "--row=test:0")
    assert "Row test:0 is row 0 of probe 9.9.9.9 (test/test_shard_0000" in text
    assert "50 measurements of 5 destinations" in text and f", {encoding}," in text
    run = test[0].run
    fraction = "" if encoding == "compact" else rf"\.{int(run['event_time'][0]) % 10**6:06d}"
    shown = np.datetime64(int(run["event_time"][0]), "us").item().strftime("%Y-%m-%d %H:%M:%S")
    assert re.search(rf"^ +0 +{shown}{fraction} +198\.51\.100\.", text, re.MULTILINE)
    assert re.search(r"^ +49 ", text, re.MULTILINE) and not re.search(r"^ +10 ", text, re.MULTILINE)
    assert text.count("failed ") >= 1
    assert said(capsys, str(tmp_path / "rows"), "--row=0") == said(
        capsys, str(tmp_path / "rows"), "--row=train:0"
    )


def test_context_equals_that_of_training(alike: Path, capsys, wide) -> None:
    from training.rows.row_source import ProbeRowDataSource
    from training.sampler import ProbeRowSampler

    row = ProbeRowDataSource(str(alike / "test"))[7]
    context = ProbeRowSampler(seed=5).contexts(row)[2]
    text = said(capsys, str(alike), "--context=5,test:7,2")
    assert f"timestamp mode {context.mode}; {context.num_measurements} of a window" in text
    tokens = [*context.example["inputs"].tolist(), int(context.example["targets"][-1])]
    lines = [line for line in text.splitlines() if line.startswith("    start")]
    shown = [word for line in lines for word in line.split()]
    assert len(shown) == len(tokens) == 1025
    assert [int(word) + 11 for word in shown if word.isdecimal()] == [t for t in tokens if t > 10]
    assert shown.count("start") == tokens.count(0) == context.num_measurements
    measurements = re.findall(r"^ *\d+ (\S+) +→ (\S+) +(failed|[\d.]+ ms)", text, re.MULTILINE)
    assert len(measurements) in (len(lines), len(lines) - 1)  # the last one is cut
    assert {source for source, _, _ in measurements} == {row["src_addr"]}


def test_context_of_a_small_row(tmp_path: Path, capsys) -> None:
    write_dataset(tmp_path / "rows", [RowSpec("192.0.2.1", make_measurements(9, 1))], "compact")
    text = said(capsys, str(tmp_path / "rows"), "--context=1,0,0")
    assert "small row train:0" in text and text.count("192.0.2.1 ") >= 9


def test_colours_of_tokens(alike: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    text = said(capsys, str(alike), "--context=5,test:7,2")
    for color, token in (("36", "src4"), ("34", "dst4"), ("32", "rtt")):
        assert f"\x1b[{color}m{token}\x1b[0m" in text


@pytest.mark.slow
def test_commands_of_the_docs(tmp_path: Path, monkeypatch, capsys, wide) -> None:
    text = (ROOT / "docs" / "inspect.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    for block in reversed(blocks):  # the second one makes what the first one shows
        for line in block.replace("\\\n", " ").splitlines():
            python, dash, module, *arguments = shlex.split(line, comments=True)
            assert (python, dash) == ("python", "-m")
            assert (
                importlib.import_module(
                    f"{module}.__main__" if module.endswith("inspect") else module
                ).main(arguments)
                == 0
            ), line
    shown = capsys.readouterr().out
    assert "57.113.1.191, has 17 % of the measurements of train" in shown  # as in the picture
    assert "Row train:12 is row 0 of probe" in shown
    assert "Context 1 of 10 that row train:60 gives in epoch 0 with seed 7" in shown
    assert 300_000 < (tmp_path / "report.html").stat().st_size < 500_000
    query = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    ((row, probe),) = duckdb.execute(query).fetchall()
    assert f"of probe {probe} (" in said(capsys, "rows", f"--row={row}")
