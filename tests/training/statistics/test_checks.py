"""The checks of `analyze_padding`: each fails on a dataset with that fault."""

from collections.abc import Callable
from pathlib import Path

import pytest

from beam_pipeline.errors import ProbelineError
from tests.support.damaged_dataset import DamagedDataset
from tests.support.dataset_analysis import BRIEF, analyse, failed, results
from training.analyze_padding import main
from training.dataset import DataConfig, build_dataset
from training.statistics import checks
from training.statistics.collector import collect
from training.tokens.example_faults import Tally, context_fault, time_fault
from training.tokens.tokenizer import Measurement


@pytest.mark.slow
def test_damaged_record(copy: DamagedDataset, tmp_path: Path) -> None:
    shard, at = copy.replace(copy.single(), b"no row at all", index=False)
    code, figures = analyse(copy.folder, tmp_path / "out", "--max_rows=1000")
    assert code == 1
    # The lane whose only row it is has nothing to give.
    assert failed(figures) == {"schema", "batch_padding"}
    check = next(check for check in figures["checks"] if check["name"] == "schema")
    assert f"{shard} record {at}" in check["measured"]


def test_no_readable_row(copy: DamagedDataset, tmp_path: Path) -> None:
    for shard in copy.shards[:3]:
        copy.write(shard, [b"nothing"] * len(copy.read(shard)))
    copy.stamp(index=False)
    code, figures = analyse(copy.folder, tmp_path / "out")
    assert code == 1
    assert failed(figures) == {"schema", "batch_padding"}
    assert results(figures)["examples"] == "not applicable"


def options(**changed: object) -> Callable[[DamagedDataset], object]:
    return lambda copy: copy.manifest(lambda values: values["options"].update(changed))


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        pytest.param(options(max_row_size_mb=0.01), "row_size", marks=pytest.mark.slow),
        pytest.param(options(max_row_size_mb=8), "row_count", marks=pytest.mark.slow),  # no split
        pytest.param(lambda c: c.replace(c.hot()[1]), "row_count", marks=pytest.mark.slow),
        (options(measurement_encoding="compact"), "schema"),
    ],
)
def test_fault_of_a_dataset(
    damage: Callable[[DamagedDataset], None], name: str, copy: DamagedDataset, tmp_path: Path
) -> None:
    damage(copy)
    code, figures = analyse(copy.folder, tmp_path / "out")
    assert code == 1
    assert name in failed(figures)
    assert failed(figures) == {name} or name == "schema"


@pytest.mark.parametrize(
    ("limit", "name"),
    [("MAX_CONTEXT_PADDING", "context_padding"), ("MAX_BATCH_PADDING", "batch_padding")],
)
def test_too_much_padding(
    limit: str,
    name: str,
    compact_dataset: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(checks, limit, 0.0)
    assert main([str(compact_dataset), *BRIEF]) == 1
    assert f"1 FAILED ({name})" in capsys.readouterr().out


def test_unexpected_shape(small_dataset: Path) -> None:
    batch = next(iter(build_dataset(DataConfig(str(small_dataset), batch_size=8, pack=False))))
    assert len(collect(batch, (8, 1024)).segments) == 8
    with pytest.raises(ProbelineError, match=r"int32 \[8, 1024\]"):
        collect(batch, (8, 512))


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


def test_few_faults_are_kept() -> None:
    tally = Tally()
    tally.take(None, 100)
    for number in range(50):
        tally.take(f"fault {number}")
    assert (tally.num_checked, tally.num_faults, len(tally.faults)) == (150, 50, 5)
