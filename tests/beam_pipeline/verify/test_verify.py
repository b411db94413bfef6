"""Every promise of a dataset is broken once, alone: its check must say so, at the right record.

A damage changes a copy of a good dataset and stamps its checksums and counts anew, as a faulty
writer would have; it returns where the fault is, and only the check aimed at may fail.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_pipeline.dataset.layout import DatasetOptions
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.verify import __main__ as verify
from beam_pipeline.verify.across import (
    ENDS,
    FACTS,
    AllRows,
    collisions,
    one_split,
    row_indices,
    row_order,
    underfull,
)
from beam_pipeline.verify.dataset import PROMISES
from beam_pipeline.verify.dataset import verify as verify_dataset
from tests.support.damaged_dataset import (
    NUM_DEAD_LETTERS,
    NUM_MEASUREMENTS,
    NUM_SHARDS,
    TIED,
    DamagedDataset,
    Where,
    edit,
    encoding_not_that_of_the_options,
    first_row_missing,
    found_by,
    in_both_splits,
    in_the_wrong_shard,
    in_the_wrong_split,
    one_batch,
    out_of_order,
    row_missing,
    row_twice,
)

# --- good datasets ------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["arrow", "compact"])
def test_good_dataset(encoding: str, request, capsys) -> None:
    dataset: Path = request.getfixturevalue(f"{encoding}_dataset")
    capsys.readouterr()
    assert verify.main([str(dataset)]) == 0
    out, err = capsys.readouterr()
    assert f"keeps every promise: {NUM_MEASUREMENTS:,} measurements" in out
    assert out.count(" ok") == len(PROMISES) and err == ""
    report = verify_dataset(open_dataset(str(dataset)))
    assert report.checks["dead_letters"].num_checked == NUM_DEAD_LETTERS
    assert report.checks["rtt"].num_checked == NUM_MEASUREMENTS
    assert report.checks["files"].num_checked == 2 * NUM_SHARDS + 2
    num_rows = report.checks["probe_rows"].num_checked
    assert num_rows == report.checks["index"].num_checked > 15  # some probes are split


def test_stamping_is_not_damage(copy: DamagedDataset) -> None:
    copy.stamp()
    assert verify.main([str(copy.folder)]) == 0


# --- between records ----------------------------------------------------------------------------


def rows_exchanged(copy: DamagedDataset) -> Where:
    _, second, third, *_ = copy.hot()
    split = copy.find(second)[0].split("/")[0]
    copy.replace(second)
    copy.replace(third)
    later = edit(second, row_index=2)
    copy.place(later, split)
    copy.place(edit(third, row_index=1), split)
    return copy.find(later)


def ends_of_rows_exchanged(copy: DamagedDataset) -> Where:
    first, second, *_ = copy.rows(TIED)
    head = one_batch(one_batch(first).to_pydict()["measurements"][0]).to_pylist()[-1]
    tail = one_batch(one_batch(second).to_pydict()["measurements"][0]).to_pylist()[0]

    def put(at: int, measurement: dict[str, Any]) -> Callable[[dict[str, list]], None]:
        def change(lists: dict[str, list]) -> None:
            for name, value in measurement.items():
                lists[name][at] = value

        return change

    copy.replace(first, edit(first, put(-1, tail)))
    return copy.replace(second, edit(second, put(0, head)))


BETWEEN: dict[Any, str] = {
    in_the_wrong_split: "placement",
    in_both_splits: "placement",
    in_the_wrong_shard: "placement",
    out_of_order: "placement",
    row_twice: "probe_rows",
    row_missing: "probe_rows",
    first_row_missing: "probe_rows",
    rows_exchanged: "probe_rows",
    ends_of_rows_exchanged: "probe_rows",
}


@pytest.mark.parametrize("damage", BETWEEN, ids=lambda damage: damage.__name__)
def test_faults_between_records(
    damage: Callable[[DamagedDataset], Where], copy: DamagedDataset, capsys
) -> None:
    where = damage(copy)
    found = found_by(capsys, copy.folder)
    assert set(found) == {BETWEEN[damage]}
    assert where in found[BETWEEN[damage]]


def rows_of_one_probe(*facts: dict[str, int], ends: list | None = None) -> AllRows:
    table = np.zeros(len(facts), FACTS)
    for at, fact in enumerate(facts):
        for name, value in {"position": at, "num_bytes": 8 << 20, "ends": -1, **fact}.items():
            table[at][name] = value
    return AllRows(table, np.array(ends or [], ENDS), {(0, 0): "shard", (1, 0): "other"})


OPTIONS = DatasetOptions("compact", 8, 0.9, 0, 1000, 0, "")


def test_two_probes_of_one_src_id() -> None:
    rows = rows_of_one_probe({"src_addr_crc32": 1}, {"src_addr_crc32": 2, "row_index": 1})
    assert [fault[:2] for fault in collisions(rows, OPTIONS)] == [("shard", 1)]


def test_a_probe_in_two_splits() -> None:
    rows = rows_of_one_probe({"split": 0}, {"split": 1, "row_index": 1})
    assert [fault.record for fault in one_split(rows, OPTIONS)] == [1]


def test_compact_rows_limited_by_span() -> None:
    later = {"row_index": 1, "first_timestamp": 2**32 * 1_000_000, "last_timestamp": 2**62}
    early = {"num_bytes": 5000}
    assert list(underfull(rows_of_one_probe(early, later), OPTIONS)) == []
    later["first_timestamp"] -= 1
    assert [f.record for f in underfull(rows_of_one_probe(early, later), OPTIONS)] == [0]


def test_gaps_at_unreadable_records() -> None:
    rows = rows_of_one_probe({"row_index": 1}, {"row_index": 3})
    assert [fault.record for fault in row_indices(rows)] == [0, 1]
    assert list(row_indices(rows, is_complete=False)) == []


def test_ties_between_rows_are_ordered_by_all_columns() -> None:
    ends = [((0, 0, 0.0), (1, 5, 2.0)), ((1, 5, 1.0), (9, 9, 9.0))]
    facts = {"ends": 0}, {"ends": 1, "row_index": 1}
    assert [f.record for f in row_order(rows_of_one_probe(*facts, ends=ends), OPTIONS)] == [1]
    ends[1] = ((1, 5, 2.0), (9, 9, 9.0))
    assert list(row_order(rows_of_one_probe(*facts, ends=ends), OPTIONS)) == []


# --- the command --------------------------------------------------------------------------------


def test_unfinished_dataset(copy: DamagedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    copy.manifest(lambda values: values["options"].pop("split_seed"))
    for _ in range(2):
        capsys.readouterr()
        assert verify.main([str(copy.folder)]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and err.count("\n") == 1
        assert str(copy.folder) in err
        (copy.folder / "_SUCCESS").unlink(missing_ok=True)


def test_max_faults(copy: DamagedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    encoding_not_that_of_the_options(copy)
    num_records = sum(len(copy.read(shard)) for shard in copy.shards)
    found = found_by(capsys, copy.folder, "--max-faults=2")
    assert len(found["encoding"]) == 2
    assert verify.main([str(copy.folder), "--max_faults", "2"]) == 1
    assert f"encoding: and {num_records - 2} more; --max_faults=" in capsys.readouterr().out
    found = found_by(capsys, copy.folder, f"--max_faults={num_records}")
    assert len(set(found["encoding"])) == num_records
