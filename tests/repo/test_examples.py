"""The examples: the notebook, its committed outputs and a new run; training in JAX; sessions."""

import base64
import importlib
import itertools
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from beam_pipeline.dataset.layout import Encoding
from tests.support.repository import ROOT
from tests.support.training_examples import check_training_example
from tests.support.training_runs import MODEL
from tests.support.waiting import HANG_S
from tests.support.warm_python import TRAINING, warm_python

NOTEBOOK = ROOT / "examples" / "first_model.ipynb"
PNG = "image/png"
MAX_PICTURE_BYTES = 300_000
NUM_PICTURES = 4
ABSOLUTE_PATH = re.compile(
    r"(?<![\w.~)…:/])/(?:home|root|tmp|work|usr|Users|opt|var|mnt)\b|[A-Z]:\\"
)


def read(path: Path = NOTEBOOK) -> NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: NotebookNode) -> Iterator[NotebookNode]:
    for cell in code_cells(notebook):
        yield from cell.outputs


def printed(notebook: NotebookNode) -> str:
    """Returns all that was printed, without colours."""
    text = "".join(output.text for output in outputs(notebook) if output.output_type == "stream")
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def pictures(notebook: NotebookNode) -> list[bytes]:
    data = [output.data for output in outputs(notebook) if output.output_type == "display_data"]
    return [base64.b64decode(one[PNG]) for one in data if PNG in one]


def check_outputs(notebook: NotebookNode) -> None:
    """Checks what a run has left: no error, pictures, nothing of the machine."""
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    kinds = {(output.output_type, output.get("name")) for output in outputs(notebook)}
    assert kinds == {("stream", "stdout"), ("display_data", None)}, kinds
    assert all(cell.outputs for cell in cells[1:])

    drawn = pictures(notebook)
    assert len(drawn) == NUM_PICTURES
    assert all(one.startswith(b"\x89PNG") and len(one) > 5000 for one in drawn)
    assert sum(map(len, drawn)) < MAX_PICTURE_BYTES

    assert (found := ABSOLUTE_PATH.search(printed(notebook))) is None, found


def check_figures(notebook: NotebookNode) -> None:
    """Checks what a model that was trained has printed: a loss that falls, errors, calibration."""
    text = printed(notebook)
    losses = re.search(r"first 10 steps ([0-9.]+) bits a token, of the last 50 ([0-9.]+)", text)
    assert losses is not None
    first, last = map(float, losses.groups())
    assert first > 7 and last < 3, "it has learned nothing"

    predicted = re.search(
        r"predicted ([\d.]+) ms, with 80 % between ([\d.]+) and ([\d.]+) ms", text
    )
    assert predicted is not None, "a number is missing or nan"
    middle, low, high = map(float, predicted.groups())
    assert 0 < low < middle < high < 1000
    errors = dict(re.findall(r"^  (model|all RTTs|destination|last RTT) +([\d.]+)%$", text, re.M))
    assert errors.keys() == {"model", "all RTTs", "destination", "last RTT"}
    assert float(errors["last RTT"]) < float(errors["model"]) < 60
    coverage = re.search(r"(\d+)% of the truths lie in the model's central 80 %", text)
    assert coverage is not None and 50 <= int(coverage[1]) <= 100


def test_what_is_committed() -> None:
    check_outputs(read())
    check_figures(read())
    raw = json.loads(NOTEBOOK.read_text())
    assert not ABSOLUTE_PATH.search(json.dumps([cell["source"] for cell in raw["cells"]]))
    assert NOTEBOOK.stat().st_size < 400_000


def shorten(notebook: NotebookNode) -> None:
    """Takes the outputs away and makes the work less, in programs whose imports are done."""
    warm = ", ".join(map(repr, warm_python(*TRAINING)))
    less = {
        "sys.executable,": f"{warm},",
        '    "run_name=first",': f'    "run_name=first", *{MODEL!r},',
        "--num_measurements=1000000": "--num_measurements=100000",
        "--num_probes=2000": "--num_probes=600",
        "steps=600": "steps=60",
        "len(truth) == 80": "len(truth) == 8",
    }
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
        for old in [old for old in less if old in cell.source]:
            cell.source = cell.source.replace(old, less.pop(old))
    assert not less, "the notebook has changed"


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tenth of the measurements, steps and questions, and a small model."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # also where another checkout is installed
    notebook = read(Path(shutil.copy(NOTEBOOK, tmp_path)))
    shorten(notebook)
    ran = [cell.source for cell in notebook.cells]
    # What a run before has left does not get in the way.
    (tmp_path / "first_model" / "rows").mkdir(parents=True)
    (tmp_path / "first_model" / "rows" / "_SUCCESS").touch()
    NotebookClient(
        notebook,
        timeout=HANG_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    assert [cell.source for cell in notebook.cells] == ran
    check_outputs(notebook)
    assert (tmp_path / "first_model" / "rows" / "_SUCCESS").stat().st_size > 0
    assert {path.name for path in tmp_path.iterdir()} == {NOTEBOOK.name, "first_model"}


@pytest.mark.slow
def test_the_example_in_jax(mixed: dict[Encoding, Path], tmp_path: Path) -> None:
    check_training_example("jax_training.py", mixed["compact"], tmp_path)


def test_the_example_of_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the sessions of a list in memory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    sessions = importlib.import_module("sessions")
    runner = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
    sessions.main(["sessions", f"--runner={runner}"])
    times = defaultdict(list)
    for event in sessions.events():
        times[event["user"]].append(event["time_s"])
    expected = []
    for user, seconds in times.items():
        seconds.sort()
        begins = [
            at for at in range(1, len(seconds)) if seconds[at] - seconds[at - 1] >= sessions.PAUSE_S
        ]
        for begin, end in itertools.pairwise([0, *begins, len(seconds)]):
            first, last = seconds[begin], seconds[end - 1]
            expected.append(f"{user}: {end - begin} events from {first} s to {last} s")
    assert len(expected) > 2 * len(times)
    assert sorted((tmp_path / "sessions/sessions.txt").read_text().splitlines()) == sorted(expected)
