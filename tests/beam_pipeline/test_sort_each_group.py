"""SortEachGroup: every group comes out in order, small ones without storage, others in files."""

import random
import struct
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.typehints.decorators import TypeCheckError
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline import sort_each_group
from beam_pipeline.errors import ProbelineError
from beam_pipeline.sort_each_group import Pair, SortEachGroup, SortedGroup, sort_pairs
from benchmarks.engine_servers import Flink
from tests.support.helpers import eager


def pairs_of(count: int, seed: int = 0, value_bytes: int = 20) -> list[Pair]:
    """Returns pairs in random order, every tenth of them with the sort key of another."""
    rng = random.Random(seed)
    keys = [struct.pack(">Q", number - number % 10 // 9) for number in range(count)]
    pairs = [(key, rng.randbytes(value_bytes)) for key in keys]
    rng.shuffle(pairs)
    return pairs


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# --- the function ---------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=300))),
    st.sampled_from([1, 300, 2_000, 100_000]),
)
def test_any_pairs_are_sorted_in_any_memory(tmp_path_factory, pairs, memory_bytes) -> None:
    group = sort_pairs(iter(pairs), str(tmp_path_factory.mktemp("files")), memory_bytes)
    assert len(group) == len(pairs)
    assert list(group) == sorted(pairs)
    assert list(SortedGroup.decode(group.encode())) == sorted(pairs)  # as another worker reads it


def test_a_group_that_fits_touches_no_storage(tmp_path: Path) -> None:
    pairs = pairs_of(1000)
    group = sort_pairs(pairs, str(tmp_path / "files"), 1000 * (8 + 20 + 160))
    assert group.files == [] and list(group) == sorted(pairs)
    assert not (tmp_path / "files").exists()
    one_more = [*pairs, (b"x", b"")]
    assert sort_pairs(one_more, str(tmp_path / "files"), 1000 * (8 + 20 + 160)).files


def test_a_group_of_any_size_takes_the_same_memory(tmp_path: Path) -> None:
    """Both while it is sorted and while it is iterated; here the pairs take 40 times as much."""
    memory_bytes = 400_000
    count = 40 * memory_bytes // (8 + 600 + 160)

    def arriving() -> Iterator[Pair]:
        rng = random.Random(1)
        for _ in range(count):
            yield rng.randbytes(8), rng.randbytes(600)

    tracemalloc.start()
    try:
        group = sort_pairs(arriving(), str(tmp_path), memory_bytes)
        sorting = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        total = sum(1 for _ in group)
        iterating = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == count
    # A file that is written has a buffer of 1 MiB, whatever the memory.
    assert sorting < 2 * memory_bytes + (2 << 20)
    assert iterating < 2 * memory_bytes + (1 << 20)


def test_more_files_than_can_be_merged_are_merged_before(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sort_each_group, "MAX_FAN_IN", 3)
    pairs = pairs_of(400)
    group = sort_pairs(pairs, str(tmp_path), 2_000)
    assert len(group.files) <= 3
    assert list(group) == sorted(pairs)
    assert sorted(map(str, files_below(tmp_path))) == sorted(file.path for file in group.files)


@pytest.mark.parametrize("damage", ["length far off", "value", "cut"])
def test_a_file_that_was_changed_is_an_error(tmp_path: Path, damage: str) -> None:
    group = sort_pairs(pairs_of(200), str(tmp_path), 20_000)
    path = Path(group.files[0].path)
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[-5:]
    else:
        data[{"length far off": 7, "value": 40}[damage]] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ProbelineError, match=r"sorted-\w+ changed after it was written"):
        list(group)


# --- the transform --------------------------------------------------------------------------------


def grouped(elements: list[tuple[str, Pair]]) -> dict[str, list[Pair]]:
    groups: dict[str, list[Pair]] = defaultdict(list)
    for key, pair in elements:
        groups[key].append(pair)
    return {key: sorted(pairs) for key, pairs in groups.items()}


class Listed(beam.PTransform):
    """Sorts; reads each group twice, in another stage."""

    def __init__(self, sort: SortEachGroup):
        super().__init__()
        self._sort = sort

    def expand(self, elements):
        sorted_groups = elements | "Sort each group" >> self._sort | beam.Reshuffle()
        return sorted_groups | beam.MapTuple(
            lambda key, group: (key, list(group), list(group) == list(group))
        )


MANY = [(f"user {number % 97}", pair) for number, pair in enumerate(pairs_of(600))]
GIANT = [("giant", pair) for pair in pairs_of(2_000, seed=1)]


def test_one_giant_group_among_many_small_ones(tmp_path: Path) -> None:
    sort = SortEachGroup(str(tmp_path / "temp"), memory_bytes=30_000)
    found = eager(MANY + GIANT, Listed(sort))
    assert all(is_same for *_, is_same in found)
    assert {key: pairs for key, pairs, _ in found} == grouped(MANY + GIANT)
    assert len(found) == len(grouped(MANY + GIANT))
    assert files_below(tmp_path)
    sort.remove_temporary_files()
    assert files_below(tmp_path) == []
    sort.remove_temporary_files()  # again, or without any file: nothing happens


def test_what_is_not_bytes_is_refused(tmp_path: Path) -> None:
    """When the pipeline is built, or when it runs if it does not know the types."""
    pairs = [("k", (b"", 1))]
    with pytest.raises(TypeCheckError, match="'Check types' requires"):
        eager(pairs, SortEachGroup(str(tmp_path)))
    untyped = beam.Map(lambda element: element).with_output_types(Any)
    with pytest.raises(Exception, match="sorts values of bytes by keys of bytes, not"):
        eager(pairs, untyped | SortEachGroup(str(tmp_path)))


def check_sorting(folder: Path, flags: list[str]) -> None:
    """Sorts on another runner, into text."""
    sort = SortEachGroup(str(folder / "temp"), memory_bytes=30_000)
    with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
        _ = (
            pipeline
            | beam.Create(MANY + GIANT)
            | sort
            | beam.Reshuffle()
            | beam.MapTuple(lambda key, group: f"{key}: {[(k.hex(), v.hex()) for k, v in group]}")
            | beam.io.WriteToText(f"{folder}/sorted", num_shards=1, shard_name_template="")
        )
    expected = [
        f"{key}: {[(k.hex(), v.hex()) for k, v in pairs]}"
        for key, pairs in grouped(MANY + GIANT).items()
    ]
    assert sorted((folder / "sorted").read_text().splitlines()) == sorted(expected)
    assert files_below(folder / "temp")
    sort.remove_temporary_files()
    assert not files_below(folder / "temp")


def test_prism_sorts(tmp_path: Path, prism: str) -> None:
    check_sorting(tmp_path, ["--runner=PrismRunner", f"--prism_location={prism}"])


def test_flink_sorts(tmp_path: Path, flink: Flink) -> None:
    check_sorting(tmp_path, flink.flags())
