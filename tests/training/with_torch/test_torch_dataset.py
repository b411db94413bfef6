"""`build_torch_dataset`: the batches of Grain's path, for any ranks, resumed exactly."""
# pyright: reportMissingImports=false

import itertools
import pickle
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from beam_pipeline.errors import UsageError
from tests.support import documents
from tests.support.batches import Batch, is_same
from tests.support.loader_helpers import (
    RESUMED,
    VARIANTS,
    config_of,
    expected_batches,
    open_iterator,
    refusal_of,
    round_trip,
)
from tests.support.probe_rows_on_disk import Mixed
from tests.support.training_examples import check_training_example
from training import assert_resumes_exactly, build_torch_dataset

NUM = 6
FEEDS: dict[str, dict[str, int]] = {"threads": {"num_threads": 2}, "workers": {"num_workers": 2}}


def taken(batches: Any, num_batches: int = NUM) -> list[Batch]:
    """Returns the first batches of a dataset or a DataLoader, as arrays."""
    found = itertools.islice(batches, num_batches)
    return [{name: values.numpy() for name, values in batch.items()} for batch in found]


def joined(parts: list[list[Batch]]) -> list[Batch]:
    """Returns the global batches that the batches of all ranks make."""
    return [
        {name: np.concatenate([part[name] for part in batch]) for name in batch[0]}
        for batch in zip(*parts, strict=True)
    ]


@pytest.fixture(scope="module")
def rows(mixed: Mixed) -> Path:
    return mixed["compact"]


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(
    ("variant", "feed"),
    [("packed", ""), ("windows", ""), *(("packed", feed) for feed in FEEDS)],
)
def test_batches_are_those_of_grain(rows: Path, variant: str, feed: str) -> None:
    dataset = build_torch_dataset(config_of(rows, **VARIANTS[variant], **FEEDS.get(feed, {})))
    loader = DataLoader(dataset, batch_size=None)
    assert is_same(taken(loader), expected_batches(rows, variant, NUM))


def test_data_that_end(rows: Path) -> None:
    config = config_of(rows, num_epochs=1)
    dataset, expected = build_torch_dataset(config), list(open_iterator(rows, num_epochs=1))
    for _ in range(2):  # each iterator begins anew
        assert is_same(taken(dataset, 1000), expected)
    dataset.load_state_dict(dataset.state_dict())
    assert list(dataset) == []
    assert is_same(taken(dataset, 1000), expected)


@pytest.mark.parametrize("world_size", [2, 8])
def test_ranks_share_the_global_batch(rows: Path, world_size: int) -> None:
    config = config_of(rows)
    datasets = [build_torch_dataset(config, rank, world_size) for rank in range(world_size)]
    parts = [taken(dataset) for dataset in datasets]
    assert {len(batch["inputs"]) for part in parts for batch in part} == {8 // world_size}
    assert is_same(joined(parts), expected_batches(rows, "packed", NUM))
    hosts = [config_of(rows, host_index=i, host_count=world_size) for i in range(world_size)]
    for host, part in zip(hosts, parts, strict=True):
        assert is_same(taken(build_torch_dataset(host)), part)


def _run_rank(rank: int, world_size: int, rows: Path, folder: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", f"file://{folder / 'ranks'}", rank=rank, world_size=world_size
    )
    found = taken(build_torch_dataset(config_of(rows)))
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(found))
    torch.distributed.destroy_process_group()


def test_ranks_of_torch_distributed(rows: Path, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_run_rank, (2, rows, tmp_path), nprocs=2)
    parts = [pickle.loads((tmp_path / f"{rank}.pickle").read_bytes()) for rank in range(2)]
    assert is_same(joined(parts), expected_batches(rows, "packed", NUM))


@pytest.mark.parametrize(
    ("ranks", "host", "parts"),
    [
        ((2, 2), {}, ["host_index is 2", "host_count is 2"]),
        ((1, None), {}, ["rank is 1 and world_size is None"]),
        ((0, 2), {"host_index": 1, "host_count": 2}, ["host 1 of 2", "rank 0 of 2"]),
    ],
)
def test_invalid_ranks(
    rows: Path, ranks: tuple[int, int | None], host: dict[str, int], parts: list[str]
) -> None:
    config = config_of(rows, **host)
    refusal_of(lambda: build_torch_dataset(config, *ranks), *parts, kind=UsageError)


@pytest.mark.parametrize(
    ("loader", "method"), [(DataLoader, "fork"), (StatefulDataLoader, "spawn")]
)
def test_workers_of_the_loader_are_refused(rows: Path, loader: Any, method: str) -> None:
    dataset = build_torch_dataset(config_of(rows))
    options = {"num_workers": 1, "multiprocessing_context": method}
    with pytest.raises(UsageError) as refusal:
        next(iter(loader(dataset, batch_size=None, **options)))
    last = str(refusal.value).strip().splitlines()[-1]  # below the traceback of the worker
    for part in ("num_workers=1", "use num_workers=0 there", "DataConfig(num_workers=…)"):
        assert part in last


@pytest.mark.parametrize("kind", ["endless", "two epochs", "a host of two"])
def test_every_state_resumes(rows: Path, kind: str) -> None:
    config = config_of(rows, **RESUMED[kind])
    assert_resumes_exactly(build_torch_dataset(config), 5)
    assert_resumes_exactly(StatefulDataLoader(build_torch_dataset(config), batch_size=None), 5)


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(
    ("loader", "feed"),
    [(DataLoader, "threads"), (StatefulDataLoader, "threads"), (StatefulDataLoader, "workers")],
)
def test_a_new_process_would_go_on(rows: Path, loader: Any, feed: str, tmp_path: Path) -> None:
    """As a training script does: the state is saved with `torch.save`, all else is made anew."""
    file = tmp_path / "state.pt"

    def begin() -> tuple[Any, Any]:
        dataset = build_torch_dataset(config_of(rows, **FEEDS[feed]))
        batches = loader(dataset, batch_size=None)
        return batches, dataset if loader is DataLoader else batches

    batches, holder = begin()
    found = taken(batches, 2)
    torch.save(holder.state_dict(), file)
    batches, holder = begin()
    holder.load_state_dict(torch.load(file))
    found += taken(batches, NUM - 2)
    assert is_same(found, expected_batches(rows, "packed", NUM))


def test_states_are_those_of_grain(rows: Path) -> None:
    grain, dataset = open_iterator(rows), build_torch_dataset(config_of(rows))
    assert dataset.state_dict() == grain.get_state()
    batches = iter(dataset)
    for _ in range(3):
        next(batches)
        next(grain)
        assert dataset.state_dict() == grain.get_state()
    grain.set_state(round_trip(dataset.state_dict()))
    assert is_same([next(grain)], taken(batches, 1))


def test_states_of_other_runs_are_refused(rows: Path, mixed: Mixed) -> None:
    dataset = build_torch_dataset(config_of(rows))
    state = dataset.state_dict()
    of_rank = build_torch_dataset(config_of(rows), 1, 2).state_dict()
    for other, part in (
        ({**state, "format": 2}, "has format 2, this version reads 3"),
        (build_torch_dataset(config_of(rows, seed=9)).state_dict(), "options of fingerprint"),
        (build_torch_dataset(config_of(mixed["arrow"])).state_dict(), "data of fingerprint"),
        (of_rank, "reshard_states"),
    ):
        refusal_of(lambda state=other: dataset.load_state_dict(state), part)
    assert dataset.state_dict() == state  # and nothing has changed
    loader = StatefulDataLoader(dataset, batch_size=None)
    saved = loader.state_dict()
    saved["dataset_state"]["format"] = 2
    loader.load_state_dict(saved)
    refusal_of(lambda: iter(loader), "has format 2, this version reads 3")


def test_the_example_runs(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").symlink_to(rows)
    example = str(build_torch_dataset.__doc__).partition("Example:\n\n")[2]
    names: dict[str, Any] = {"build_torch_dataset": build_torch_dataset}
    exec(f"from training import DataConfig\n{textwrap.dedent(example)}", names)
    assert names["batch"]["inputs"].shape == (4, 256)


def test_the_example_in_pytorch(mixed: Mixed, tmp_path: Path) -> None:
    check_training_example("torch_training.py", mixed["compact"], tmp_path)


def test_code_of_the_page(mixed: Mixed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").symlink_to(mixed["compact"])
    (block,) = [b for b in documents.blocks("docs/pytorch.md") if "import" in b.text]
    names = {}
    exec(block.text.replace("batch_size=256", "batch_size=8"), names)
    assert {tuple(values.shape) for values in names["batch"].values()} == {(8, 1024)}
    iterator = open_iterator(mixed["compact"], crop_size=1024)
    next(iterator)
    assert names["state"] == iterator.get_state()
