"""The command training.evaluate: what it prints, writes and refuses; the models are fakes."""

import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from beam_pipeline.errors import ProbelineError, UsageError
from tests.support.evaluation_helpers import (
    EXTENT,
    Network,
    Stored,
    Uniform,
    evaluate_stored,
    pings,
)
from tests.support.evaluation_helpers import stored as stored
from tests.support.probe_rows_on_disk import CROP, Mixed, RowSpec, write_dataset
from training.evaluate import main
from training.evaluation.examples import open_splits
from training.tokens.tokenizer import VOCABULARY_SIZE

PICTURES = ("rtt_predictions.png", "rtt_calibration.png")
BRIEF = (
    *("--num_contexts=24", "--num_rtt=300", "--num_train_contexts=40", "--batch_size=4"),
    "--checkpoint=runs/first",
)
Capsys = pytest.CaptureFixture[str]
Fake = Callable[[Any], None]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Makes `training.maxtext.predictor.load_predictor` return a model, or raise an error."""

    def set_predictor(predictor: Any) -> None:
        def load_predictor(checkpoint: str) -> Any:
            if isinstance(predictor, Exception):
                raise predictor
            return predictor

        module = types.ModuleType("training.maxtext.predictor")
        module.load_predictor = load_predictor
        monkeypatch.setitem(sys.modules, "training.maxtext.predictor", module)

    return set_predictor


def run_main(data: Path, output: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    code = main([f"--data={data}", f"--output={output}", *BRIEF, *flags])
    return code, json.loads((output / "evaluation.json").read_bytes())


def the_error(capsys: Capsys) -> str:
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), captured.err
    assert captured.out == ""
    return lines[0]


def test_command(stored: Stored, tmp_path: Path, fake: Fake, capsys: Capsys) -> None:
    fake(Network())
    code, results = run_main(stored.folder, tmp_path / "one")
    assert code == 0
    out = capsys.readouterr().out
    for text in ("by kind", "by timestamp mode", "Median errors", "Calibration", "does not beat"):
        assert text in out
    assert "nan" not in out and "a fake, step 700" in out
    assert results["checkpoint"] == "runs/first"
    assert results["model"] == {
        "description": "a fake",
        "step": 700,
        "crop_size": CROP,
        "fixed_order_share": 0.0,
        "log_rtt": False,
        "vocab_size": VOCABULARY_SIZE,
    }
    assert results["data"]["split"] == "test"
    assert results["data"]["fingerprint"] == stored.split.shards.fingerprint
    assert results["options"]["num_contexts"] == 24
    assert results["conclusions"] == [line[2:] for line in out.splitlines() if line[:2] == "- "]
    direct = evaluate_stored(Network(), stored)
    assert {**json.loads(json.dumps(direct.to_json())), "checkpoint": "runs/first"} == results
    for name in PICTURES:
        image = imread(tmp_path / "one" / name)
        assert image.shape[0] > 400 and image.shape[1] > 1000
        assert 0.5 < (image[..., :3] == 1).all(axis=2).mean() < 0.99, name
    other = evaluate_stored(Network(), stored, seed=1).to_json()
    assert other["loss"] != results["loss"]


def test_default_split(stored: Stored, tmp_path: Path) -> None:
    folder = str(stored.folder)
    for data in (folder, f"{folder}/", f"{folder}/test", f"{folder}/test/"):
        split, train = open_splits(data)
        assert (split.shards.split, train.shards.split) == ("test", "train")
    assert open_splits(f"{folder}/train")[0].shards.split == "train"
    shard = open_splits(f"{folder}/test/*00001-of*")[0].shards
    assert shard.split == "test" and shard.chosen == [1]
    with pytest.raises(ProbelineError):
        open_splits(str(tmp_path))


def test_default_output(
    stored: Stored, tmp_path: Path, fake: Fake, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(Uniform())
    monkeypatch.chdir(tmp_path)
    brief = [flag for flag in BRIEF if "checkpoint" not in flag]
    assert main([f"--data={stored.folder}", "--checkpoint=gs://bucket/run", *brief]) == 0
    names = {*PICTURES, "evaluation.json"}
    assert {path.name for path in (tmp_path / "evaluation").iterdir()} == names
    assert main([f"--data={stored.folder}/train", "--checkpoint=run", *brief]) == 0
    results = json.loads((tmp_path / "run/evaluation-train/evaluation.json").read_bytes())
    assert results["data"]["split"] == "train"
    assert results["data"]["fingerprint"] == results["baselines"]["fingerprint"]
    assert "not held out" in capsys.readouterr().out


@pytest.mark.slow
def test_no_queries(tmp_path: Path, mixed: Mixed, capsys: Capsys, fake: Fake) -> None:
    fake(Uniform())
    run = pings(60, 0, 5)
    run["rtt"] = -1
    rows = [RowSpec("10.0.0.1", run), RowSpec("10.0.0.2", run)]
    failed = write_dataset(tmp_path / "failed", rows, test_rows=rows)
    working = [RowSpec("10.0.0.3", pings(60, 1, 5))]
    untold = write_dataset(tmp_path / "untold", rows, test_rows=working)
    for folder, has_queries, has_baselines in (
        (failed, False, False),
        (untold, True, False),
        (mixed["compact"], True, True),
    ):
        output = tmp_path / f"out of {folder.name}"
        code, results = run_main(folder, output)
        assert code == 0
        out = capsys.readouterr().out
        assert "nan" not in out and "none" in out
        assert bool(results["rtt"]["queries"]) == has_queries
        assert (results["calibration"] is not None) == has_queries
        methods = {error["method"] for error in results["rtt"]["errors"]}
        assert len(methods) == (4 if has_baselines else 1 if has_queries else 0)
        assert all((output / name).stat().st_size > 5000 for name in PICTURES)
    # No destination comes twice in `mixed`, and its test split is one row.
    assert {error["group"] for error in results["rtt"]["errors"]} == {"all", "first"}
    assert results["data"]["rows"] == 1 and results["data"]["batch_size"] < EXTENT.batch_size
    assert not results["loss"]["kinds"][0]["name"].isspace()


class NoNumbers(Uniform):
    def log_p(self, inputs, positions, segmentation):
        return np.full((*inputs.shape, VOCABULARY_SIZE), np.nan)


class OtherTokens(Uniform):
    def log_p(self, inputs, positions, segmentation):
        return np.zeros((*inputs.shape, 300))


@pytest.mark.parametrize(
    ("predictor", "words"),
    [
        (NoNumbers(), "nan"),
        (OtherTokens(), "[4, 256, 300]"),
        (UsageError("runs/first has no checkpoint: give a run's folder"), "has no checkpoint"),
    ],
)
def test_unsuitable_model(
    predictor: Any, words: str, stored: Stored, tmp_path: Path, fake: Fake, capsys: Capsys
) -> None:
    fake(predictor)
    assert main([f"--data={stored.folder}", f"--output={tmp_path}", *BRIEF]) == 2
    assert words in the_error(capsys)


def test_invalid_arguments(
    stored: Stored, tmp_path: Path, fake: Fake, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(Uniform())
    empty = write_dataset(tmp_path / "empty", stored.train_rows[:2])
    untrained = write_dataset(tmp_path / "untrained", [], test_rows=stored.train_rows[:2])
    (tmp_path / "file").write_text("")
    data = f"--data={stored.folder}"
    for flags, words in (
        ([f"--data={tmp_path}/nothing"], "is not a finished dataset"),
        ([f"--data={empty}"], f"{empty}/test has no rows"),
        ([f"--data={untrained}"], f"{untrained}/train has no rows"),
        ([data, f"--output={tmp_path}/file"], "cannot write into"),
        ([data, "--output=gs://bucket/there"], "local folders only"),
        ([data, "--num_contexts=0"], "--num_contexts=0 is under 1"),
    ):
        assert main([*BRIEF, *flags]) == 2
        assert words in the_error(capsys)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main([*BRIEF, data]) == 2
    assert "pip install 'probeline[maxtext,report]'" in the_error(capsys)
