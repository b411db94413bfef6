"""The checklist of the analysis: each check fails where something is wrong."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.damaged_dataset import DamagedDataset, edit
from tests.support.padding_analysis import BRIEF, analyse, failed, results
from training.analyze_padding import main
from training.dataset import DataConfig, build_dataset
from training.padding import checklist
from training.tokens.example_faults import (
    BATCH_KEYS,
    Tally,
    context_fault,
    decoded,
    position_fault,
    segments_of,
    shape_fault,
    target_fault,
    time_fault,
)
from training.tokens.kinds import parse
from training.tokens.tokenizer import Measurement


@pytest.mark.slow
def test_a_damaged_record(copy: DamagedDataset, tmp_path: Path) -> None:
    shard, at = copy.replace(copy.single(), b"no row at all", index=False)
    code, figures = analyse(copy.folder, tmp_path / "out", "--max_rows=1000")
    assert code == 1
    # The lane whose only row it is has nothing to give.
    assert failed(figures) == {"schema", "batch_padding"}
    check = next(check for check in figures["checks"] if check["name"] == "schema")
    assert f"{shard} record {at}" in check["measured"]


def test_no_row_can_be_read(copy: DamagedDataset, tmp_path: Path) -> None:
    for shard in copy.shards[:3]:
        copy.write(shard, [b"nothing"] * len(copy.read(shard)))
    copy.stamp(index=False)
    code, figures = analyse(copy.folder, tmp_path / "out")
    assert code == 1
    assert failed(figures) == {"schema", "batch_padding"}
    assert results(figures)["shapes"] == "not applicable"


@pytest.mark.slow
def test_a_row_out_of_order(copy: DamagedDataset, tmp_path: Path) -> None:
    def change(lists: dict[str, list]) -> None:
        lists["event_time"][1:-1] = lists["event_time"][1:-1][::-1]

    record = copy.hot()[1]
    copy.replace(record, edit(record, change))
    code, figures = analyse(copy.folder, tmp_path / "out", "--max_rows=1000")
    assert code == 1
    assert "row_order" in failed(figures)
    # Differences of time cannot be negative: an absolute time takes their place.
    assert failed(figures) <= {"row_order", "context_order"}


@pytest.mark.slow
def test_rows_larger_than_the_limit(copy: DamagedDataset, tmp_path: Path) -> None:
    copy.manifest(lambda values: values["options"].update(max_row_size_mb=0.01))
    code, figures = analyse(copy.folder, tmp_path / "out")
    assert code == 1
    assert failed(figures) == {"row_size"}


@pytest.mark.slow
def test_rows_that_need_no_split(copy: DamagedDataset, tmp_path: Path) -> None:
    copy.manifest(lambda values: values["options"].update(max_row_size_mb=8))
    code, figures = analyse(copy.folder, tmp_path / "out")
    assert code == 1
    assert failed(figures) == {"row_count"}


@pytest.mark.slow
def test_a_row_is_missing(copy: DamagedDataset, tmp_path: Path) -> None:
    copy.replace(copy.hot()[1])
    code, figures = analyse(copy.folder, tmp_path / "out")
    assert code == 1
    assert failed(figures) == {"row_count"}


def test_another_encoding_than_the_manifest_says(copy: DamagedDataset, tmp_path: Path) -> None:
    copy.manifest(lambda values: values["options"].update(measurement_encoding="compact"))
    code, figures = analyse(copy.folder, tmp_path / "out")
    assert code == 1
    assert "schema" in failed(figures)


@pytest.mark.parametrize(
    ("bound", "name"),
    [("MAX_CONTEXT_PADDING", "context_padding"), ("MAX_BATCH_PADDING", "batch_padding")],
)
def test_a_bound_that_cannot_be_kept(
    bound: str,
    name: str,
    compact_dataset: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(checklist, bound, 0.0)
    assert main([str(compact_dataset), *BRIEF]) == 1
    assert f"1 FAILED ({name})" in capsys.readouterr().out


@pytest.fixture(scope="session")
def batch(small_dataset: Path) -> dict[str, np.ndarray]:
    """Eight examples of a small row each, all partly padded."""
    return next(iter(build_dataset(DataConfig(str(small_dataset), batch_size=8, pack=False))))


def _shift_targets(batch: dict[str, np.ndarray]) -> None:
    batch["targets"] = batch["inputs"].copy()


def _fill_padding(batch: dict[str, np.ndarray]) -> None:
    batch["inputs"][batch["inputs_segmentation"] == 0] = 3


def _move_positions(batch: dict[str, np.ndarray]) -> None:
    batch["inputs_position"] = batch["targets_position"] = batch["inputs_position"] + 1


def _reverse_segments(batch: dict[str, np.ndarray]) -> None:
    for side in ("inputs", "targets"):
        batch[f"{side}_segmentation"] = batch[f"{side}_segmentation"][:, ::-1]


def _skip_a_segment(batch: dict[str, np.ndarray]) -> None:
    for side in ("inputs", "targets"):
        batch[f"{side}_segmentation"] = batch[f"{side}_segmentation"] * 2


@pytest.mark.parametrize(
    ("damage", "find", "words"),
    [
        (_shift_targets, target_fault, "the next input is"),
        (_fill_padding, target_fault, "padding is not zero"),
        (_move_positions, target_fault, "padding is not zero"),
        (_move_positions, position_fault, "from 0"),
        (_reverse_segments, position_fault, "padding at the end"),
        (_skip_a_segment, position_fault, "numbered"),
    ],
)
def test_faults_of_examples(
    damage: Callable[[dict], None],
    find: Callable[[dict], str | None],
    words: str,
    batch: dict[str, np.ndarray],
) -> None:
    assert find(batch) is None
    damaged = {name: values.copy() for name, values in batch.items()}
    damage(damaged)
    assert words in (find(damaged) or "")


def test_faults_of_shapes(batch: dict[str, np.ndarray]) -> None:
    assert sorted(batch) == sorted(BATCH_KEYS)
    assert shape_fault(batch, 8, 1024) is None
    assert shape_fault(batch, 8, 512) is not None
    wide = batch | {"inputs": batch["inputs"].astype(np.int64)}
    assert shape_fault(wide, 8, 1024) == "inputs is int64 [8, 1024]"
    assert shape_fault({"inputs": batch["inputs"]}, 8, 1024) == "the arrays are inputs"


def test_faults_of_decoding(batch: dict[str, np.ndarray]) -> None:
    longest = int((batch["inputs_segmentation"] > 0).sum(axis=1).argmax())
    tokens = next(segments_of(batch, longest))
    measurements, fault = decoded(tokens)
    assert fault is None and len(measurements) > 5
    segment = parse(batch["targets"], batch["targets_segmentation"]).segments[longest]
    num_whole, end = segment["num_measurements"] - 1, segment["whole_tokens"]
    assert num_whole == len(measurements) - 1 and len(decoded(tokens[:end])[0]) == num_whole
    assert "not MEASUREMENT_START" in (decoded(tokens[1:])[1] or "")
    assert len(parse(batch["targets"][:0], batch["targets_segmentation"][:0]).segments) == 0


def test_faults_of_contexts() -> None:
    def at(*seconds: int | None) -> list[Measurement]:
        return [Measurement(src_addr="192.0.2.1", event_time=second) for second in seconds]

    assert time_fault(at(5, None, 5, 7)) is None
    assert time_fault(at(5, None, 4)) == "second 4 comes after 5"
    good: tuple[str, int, int] = ("192.0.2.1", 5, 9)
    assert context_fault(at(5, 9, None), *good, "full") is None
    assert context_fault(at(5, None, None), *good, "full") is not None
    assert context_fault(at(None, None), *good, "none") is None
    assert context_fault(at(None, 6), *good, "none") is not None
    assert context_fault(at(10), *good, None) is not None
    assert context_fault(at(5), "192.0.2.2", 5, 9, None) is not None


def test_a_tally_keeps_a_few_faults() -> None:
    tally = Tally()
    tally.take(None, 100)
    for number in range(50):
        tally.take(f"fault {number}")
    assert (tally.num_checked, tally.num_faults, len(tally.faults)) == (150, 50, 5)
