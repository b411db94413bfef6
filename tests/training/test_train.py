"""`python -m training.train`: real MaxText, on one host and on pods of processes."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.probe_rows_on_disk import (
    RowSpec,
    damage_record,
    ipv4_probe,
    make_measurements,
    write_dataset,
)
from tests.support.repository import ROOT
from tests.support.training_runs import CROP, GLOBAL_BATCH, MODEL, STEPS, Ended, TrainingRun
from tests.support.waiting import HANG_S
from tests.support.warm_python import TRAINING, warm_python
from training.dataset import DataConfig, build_dataset
from training.tokens.tokenizer import FIRST_BYTE

pytest.importorskip("maxtext", reason="needs MaxText: pip install '.[maxtext]'")


@pytest.fixture(scope="session")
def thousand_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 rows of 5 to 60 measurements, small and large at a crop of 128."""
    sizes = np.random.default_rng(0).integers(5, 60, 1100)
    rows = [RowSpec(ipv4_probe(i), make_measurements(int(size), i)) for i, size in enumerate(sizes)]
    folder = tmp_path_factory.mktemp("thousand") / "rows"
    return write_dataset(folder, rows[:1000], "compact", 4, rows[1000:])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, thousand_rows: Path) -> TrainingRun:
    """A run on one host that nothing interrupted."""
    run = TrainingRun(tmp_path_factory.mktemp("whole") / "run", thousand_rows)
    (ended,) = run.run()
    assert ended.code == 0, ended.output
    return run


def assert_same(
    run: TrainingRun, whole: TrainingRun, *, rtol: float = 0.0, num_stops: int = 0
) -> None:
    """Every step of `run`, each time that it ran, had the batch and the loss of `whole`.

    Args:
      num_stops: MaxText logs a loss during the next step: of a step that has its checkpoint it is
        lost, if the run is stopped then.
    """
    expected = whole.fed()
    fed = run.fed()
    assert sorted(fed) == sorted(expected) == list(range(STEPS))
    for step, batches in fed.items():
        assert batches
        for batch in batches:
            np.testing.assert_array_equal(batch, expected[step][0], f"step {step}")
    losses, expected_losses = run.losses(), whole.losses()
    unlogged = set(range(STEPS)) - set(losses)
    assert len(unlogged) <= num_stops
    assert unlogged <= set(run.checkpoint_steps())
    for step, values in losses.items():
        np.testing.assert_allclose(values, expected_losses[step][0], rtol=rtol, err_msg=str(step))


def error_of(ended: Ended) -> str:
    """Returns the one line that says what is wrong."""
    (line,) = [line for line in ended.output.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.slow
def test_a_thousand_rows_and_some_steps(whole: TrainingRun):
    losses = whole.losses()
    assert sorted(losses) == list(range(STEPS))
    assert all(math.isfinite(loss) for (loss,) in losses.values())
    assert losses[STEPS - 1][0] < losses[0][0]
    batch = whole.fed()[0][0]
    assert batch.shape == (GLOBAL_BATCH, CROP)
    assert (whole.run_folder / "run_config.yml").exists()


@pytest.mark.slow
def test_the_weight_of_rtts_changes_the_step_and_not_the_loss_before(
    tmp_path: Path, thousand_rows: Path, whole: TrainingRun
):
    run = TrainingRun(tmp_path / "run", thousand_rows, "network_rtt_weight=1")
    (ended,) = run.run("steps=2")
    assert ended.code == 0, ended.output
    (first,), (second,) = (run.losses()[step] for step in (0, 1))
    assert first == pytest.approx(whole.losses()[0][0], rel=1e-6)
    assert abs(second - whole.losses()[1][0]) > 1e-4


@pytest.mark.slow
def test_the_parameters_change(whole: TrainingRun):
    from training.maxtext.predictor import load_predictor

    batch = whole.fed()[0][0]
    positions = np.tile(np.arange(CROP, dtype=np.int32), (GLOBAL_BATCH, 1))
    predictions = []
    for step in (whole.checkpoint_steps()[0], STEPS - 1):
        checkpoint = whole.run_folder / "checkpoints" / str(step)
        predictor = load_predictor(os.path.relpath(checkpoint))
        assert (predictor.crop_size, predictor.step) == (CROP, step + 1)
        values = predictor(batch.astype(np.int32), positions, np.ones_like(positions))
        np.testing.assert_allclose(np.exp(values).sum(axis=-1), 1, atol=1e-4)
        predictions.append(values)
    of_bytes = predictions[0][..., FIRST_BYTE:].reshape(-1, 256)
    of_bytes = of_bytes - of_bytes.mean(axis=1, keepdims=True)
    pairs = of_bytes[:, :-1].ravel(), of_bytes[:, 1:].ravel()
    assert np.corrcoef(*pairs)[0, 1] > 0.2  # the first weights of near bytes are alike
    # Branches of the first half of a context, of one token each, against contexts of their own.
    half = CROP // 2
    tokens = np.tile(batch[0].astype(np.int32), (3, 1))
    tokens[:, half] = (20, 30, 40)
    segmentation = np.where(np.arange(CROP) <= half, 1, 0).astype(np.int32) + 0 * tokens
    expected = predictor(tokens, positions[:3], segmentation)[:, half]
    branched = np.concatenate([tokens[:1], tokens[:, half][None]], axis=1)
    numbers = np.concatenate([segmentation[:1], [[-1, -2, -3]]], axis=1, dtype=np.int32)
    numbers[0, half] = 0
    places = np.concatenate([positions[:1], np.full((1, 3), half, np.int32)], axis=1)
    np.testing.assert_allclose(predictor(branched, places, numbers)[0, CROP:], expected, atol=1e-4)
    assert np.abs(predictions[1] - predictions[0]).max() > 0.01


@pytest.mark.slow
def test_a_run_is_evaluated(tmp_path: Path, thousand_rows: Path, whole: TrainingRun):
    from training import evaluate

    arguments = {
        "checkpoint": os.path.relpath(whole.run_folder),
        "data": thousand_rows,
        "output": tmp_path,
        "num_contexts": 16,
        "num_rtt": 8,
        "num_train_contexts": 16,
        "num_train_rows": 50,
    }
    assert evaluate.main([f"--{name}={value}" for name, value in arguments.items()]) == 0
    evaluation = json.loads((tmp_path / "evaluation.json").read_text())
    assert evaluation["model"]["step"] == STEPS
    assert 0 < evaluation["loss"]["overall"]["bits"] < 10
    assert {path.suffix for path in tmp_path.iterdir()} >= {".json", ".png"}


@pytest.mark.slow
def test_resume_after_sigterm(tmp_path: Path, thousand_rows: Path, whole: TrainingRun):
    more = f"network_cache_dir={tmp_path / 'cache'}", "enable_tensorboard=true"
    for attempt in range(3):  # JAX misses a SIGTERM in the milliseconds in which it asks for one
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        run = TrainingRun(tmp_path / f"run-{attempt}", thousand_rows, *more)
        (ended,) = run.stop_at(4, signal.SIGTERM)
        if ended.code == 143:
            break
    assert ended.code == 143, ended.output
    last = run.checkpoint_steps()[-1]
    assert last >= 4
    assert f"stopped with {last + 1} of {STEPS} steps; the same command continues" in ended.output
    (ended,) = run.run()
    assert ended.code == 0, ended.output
    assert sum(len(batches) for batches in run.fed().values()) == STEPS  # no step ran twice
    assert_same(run, whole, num_stops=1)
    check_metrics(run, ended.output, last + 1)
    (again,) = run.run()
    assert again.code == 0
    assert f"{STEPS} steps are done" in again.output
    (wider,) = run.run("base_emb_dim=48", f"steps={STEPS + 1}")
    assert wider.code == 2 and "base_emb_dim=48 (it has 32)" in error_of(wider)
    items = run.run_folder / "checkpoints" / str(STEPS - 1) / "items"
    max(items.rglob("d/*"), key=lambda path: path.stat().st_size).unlink()
    (cut,) = run.run(f"steps={STEPS + 1}")
    assert cut.code == 1 and "cannot be restored: copy the checkpoint again" in error_of(cut)
    assert sum(len(batches) for batches in run.fed().values()) == STEPS


def check_metrics(run: TrainingRun, said: str, first: int) -> None:
    """Checks the feed's figures in the file, in TensorBoard and in the last line.

    Args:
      first: the first step of the second process. The first step of a process has no figures.
    """
    lines = (run.folder / "metrics-0.jsonl").read_text().splitlines()
    figures = {int(line["step"]): line for line in map(json.loads, lines)}
    assert len(figures) >= STEPS - 1  # the last one before the signal may be lost
    names = ("real_tokens_per_sec", "waiting_share", "cache_gigabytes", "cache_hit_share")
    for step, line in figures.items():
        found = [line[f"feed/{name}"] for name in names if f"feed/{name}" in line]
        if step in (0, first):
            assert found == []
            continue
        tokens_per_s, waiting, gigabytes, hits = found
        assert tokens_per_s > 0 and 0 <= waiting <= 1 and gigabytes > 0
        assert hits == (0 if step < first else 1)
    events = b"".join(path.read_bytes() for path in run.run_folder.rglob("events.*"))
    assert all(f"feed/{name}".encode() in events for name in names)
    expected = (
        rf"{STEPS} steps are done; checkpoints are in \S+; from step {first}: [\d,]+ real tokens a "
        r"second, waited for data [\d.]+% of \d+ s, [\d.e-]+ TFLOP/s per device"
    )
    assert re.search(f"^{expected}$", said, re.M), said  # a CPU has no known peak


@pytest.mark.slow
def test_pods_of_any_size_go_on_with_each_other(
    tmp_path: Path, thousand_rows: Path, whole: TrainingRun
):
    """Ended, preempted, ended."""
    run = TrainingRun(tmp_path / "run", thousand_rows)
    for hosts, steps in ((1, 4), (2, None), (1, STEPS)):
        if steps is None:
            ends = run.stop_at(6, signal.SIGTERM, hosts=hosts)
        else:
            ends = run.run(f"steps={steps}", hosts=hosts)
        assert {end.code for end in ends} == {0 if steps else 143}, ends
        last = run.checkpoint_steps()[-1]
        assert last == steps - 1 if steps else last >= 6
        folder = run.run_folder / "checkpoints" / str(last) / "iter"
        files = sorted(path.name for path in folder.iterdir() if path.name.startswith("process"))
        assert files == [f"process_{index}-of-{hosts}.json" for index in range(hosts)]
        lanes = [json.loads((folder / file).read_text())["first_lane"] for file in files]
        assert lanes == [index * GLOBAL_BATCH // hosts for index in range(hosts)]
    # Sums over devices come in another order.
    assert_same(run, whole, rtol=2e-5, num_stops=2)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_no_host_waits_for_one_that_ended(
    tmp_path: Path, thousand_rows: Path, number: signal.Signals, code: int
):
    run = TrainingRun(tmp_path / "run", thousand_rows)
    ends = run.stop_at(4, number, hosts=2, first=1)
    assert [end.code for end in ends] == [1, code], ends
    assert "\nerror: another host has ended" in ends[0].output and "Traceback" not in str(ends)


STAGES = "network_curriculum=64x5"


@pytest.fixture(scope="module")
def curriculum(
    tmp_path_factory: pytest.TempPathFactory, thousand_rows: Path
) -> tuple[TrainingRun, Ended]:
    """A run of two stages on one host that nothing interrupted, and how it ended."""
    run = TrainingRun(tmp_path_factory.mktemp("curriculum") / "run", thousand_rows, STAGES)
    (ended,) = run.run()
    assert ended.code == 0, ended.output
    return run, ended


@pytest.mark.slow
def test_a_curriculum_grows_the_crops_and_resumes(
    tmp_path: Path, thousand_rows: Path, curriculum: tuple[TrainingRun, Ended]
):
    straight, ended = curriculum
    told = re.findall(r"(.*); from step (\d+): .* waited for data .* of (\d+) s", ended.output)
    assert [line[:2] for line in told[:2]] == [
        ("trained on crops of 64", "0"),
        ("trained on crops of 128", "5"),
    ]
    assert told[2][0].startswith(f"{STEPS} steps are done") and told[2][1] == "0"
    of_stages = sum(int(seconds) for _, _, seconds in told[:2])
    assert abs(int(told[2][2]) - of_stages) <= 1  # rounded
    shapes = [straight.fed()[step][0].shape for step in range(STEPS)]
    assert shapes == [(2 * GLOBAL_BATCH, 64)] * 5 + [(GLOBAL_BATCH, 128)] * (STEPS - 5)
    stopped = TrainingRun(tmp_path / "stopped", thousand_rows, STAGES)
    (ended,) = stopped.stop_at(7, signal.SIGKILL)
    assert ended.code == -signal.SIGKILL
    (ended,) = stopped.run()
    assert ended.code == 0, ended.output
    assert_same(stopped, straight, num_stops=1)


@pytest.mark.slow
def test_positions_of_a_stage(
    curriculum: tuple[TrainingRun, Ended], monkeypatch: pytest.MonkeyPatch
):
    from training.maxtext import predictor

    run, _ = curriculum
    inputs = run.fed()[0][0].astype(np.int32)
    positions = np.tile(np.arange(64, dtype=np.int32), (len(inputs), 1))
    first, last = run.checkpoint_steps()[0], STEPS - 1

    def predict(step: int) -> np.ndarray:
        checkpoint = str(run.run_folder / "checkpoints" / str(step))
        return predictor.load_predictor(checkpoint)(inputs, positions, np.ones_like(positions))

    found = [predict(step) for step in (first, last)]
    monkeypatch.setattr(predictor, "rope_base", lambda config, _: config.rope_max_timescale)
    with_last_positions = [predict(step) for step in (first, last)]
    assert np.abs(found[0] - with_last_positions[0]).max() > 1e-4
    np.testing.assert_array_equal(found[1], with_last_positions[1])


# Of training/configs and of `TrainingRun`.
RECIPE: Any = {
    "repeat_share": 0.2,
    "random_source_share": 1.0,
    "fixed_order_share": 1.0,
    "log_rtt": True,
}


@pytest.mark.slow
def test_a_mixture_goes_on_with_other_weights_on_other_hosts(tmp_path: Path, thousand_rows: Path):
    """Its batches are those of `build_dataset` alone, given the same weights at the same steps."""
    rows = [RowSpec(ipv4_probe(5000 + i), make_measurements(40, i)) for i in range(32)]
    other = write_dataset(tmp_path / "rows", rows, "arrow", 1)
    expected: list[np.ndarray] = []
    state = None
    run = TrainingRun(tmp_path / "run", thousand_rows)
    for weight, steps, hosts in ((0.25, 6, 1), (2.0, STEPS, 2)):
        mixture = {f"{thousand_rows}/train": 1.0, str(other): weight}
        config = DataConfig(mixture, GLOBAL_BATCH, CROP, mixed_rows=256, **RECIPE)
        iterator = iter(build_dataset(config))
        if state is not None:
            iterator.set_state(state)
        expected += [next(iterator)["inputs"] for _ in range(len(expected), steps)]
        state = iterator.get_state()
        text = ";".join(f"{name},{share}" for name, share in mixture.items())
        ends = run.run(f"network_train_files={text}", f"steps={steps}", hosts=hosts)
        assert [end.code for end in ends] == [0] * hosts, ends
    fed = run.fed()
    assert sorted(fed) == list(range(STEPS))
    for step, (inputs,) in fed.items():
        np.testing.assert_array_equal(inputs, expected[step], f"step {step}")


@pytest.mark.slow
def test_a_damaged_row_ends_the_run_or_is_skipped_until_the_data_end(tmp_path: Path):
    rows = [RowSpec(ipv4_probe(i), make_measurements(20, i)) for i in range(64)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact", 1)
    for position in range(0, 64, 3):
        damage_record(dataset, 0, position, 40, b"\xff" * 40)
    run = TrainingRun(tmp_path / "run", dataset)
    (ended,) = run.run()
    assert ended.code == 1, ended.output
    assert "train_shard_00000-of-00001.arrayrecord record" in error_of(ended)
    (ended,) = run.run("network_on_bad_row=skip", "num_epoch=1", "steps=1000")
    assert ended.code == 0, ended.output
    assert "the data ended, after num_epoch=1; the last checkpoint has" in ended.output
    assert run.checkpoint_steps()


@pytest.mark.slow
def test_a_cpu_needs_no_named_config(tmp_path: Path, thousand_rows: Path):
    """With evaluation, pictures and lines for debugging."""
    place = (f"base_output_directory={tmp_path}", "run_name=test", f"max_target_length={CROP}")
    heads = ("base_num_query_heads=4", "base_num_kv_heads=4", "per_device_batch_size=2")
    workers = ("grain_worker_count=-1", "grain_ram_budget_mb=500")
    splits = {"train": "train", "eval": "test"}
    data = (f"network_{name}_files={thousand_rows / split}" for name, split in splits.items())
    shown = ("grain_debug_mode=true", f"grain_visualization_dir={tmp_path / 'pictures'}")
    result = subprocess.run(
        [
            *(*warm_python(*TRAINING), "-m", "training.train", *data, *place, *MODEL),
            *(*heads, *workers, *shown),
            *("hardware=cpu", "steps=2", "eval_interval=1"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr
    assert "2 steps are done" in result.stdout
    said = result.stdout + result.stderr
    assert "grain_ram_budget_mb=500: 1 workers" in said
    assert "Completed eval after train step" in said
    assert f"step 0: [2, {CROP}]" in said
    assert (tmp_path / "test" / "checkpoints" / "1").is_dir()
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {"padding-host0.png", "modes-host0.png", "decoded-host0.txt"} <= names
