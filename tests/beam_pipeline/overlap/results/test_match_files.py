"""Match files hold what a scan found, in order, and are read in bounded memory."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.documents.batch import DocumentBatch, decode
from beam_pipeline.overlap.ngrams.matching import Match, Places
from beam_pipeline.overlap.results import match_files
from beam_pipeline.overlap.results.match_files import (
    MatchColumns,
    ScanSummary,
    UnitMatch,
    crc_of,
    letters_path,
    read_columns,
    read_matches,
    read_summary,
    write_match_file,
)
from tests.support.overlap_gathering import batch_of
from tests.support.overlap_reference import TrainRow

NGRAMS = ["a b", "İ Σ", "\ud800", "", " ", "\U0001f600 x"]


def some_places(rng: random.Random) -> Places:
    starts = sorted(rng.sample(range(1000), rng.randrange(1, 4)))
    return [(start, start + rng.randrange(5)) for start in starts]


def made_up(seed: int, num_documents: int = 30) -> tuple[list[DocumentBatch], list[list[Match]]]:
    """Returns batches of documents, some without a match, and the matches of each batch."""
    rng = random.Random(seed)
    batches, found = [], []
    row = 0
    for _ in range(num_documents // 5):
        documents = []
        for _ in range(5):
            row += rng.randrange(1, 4)
            text = "".join(rng.choices("ab \udfff\U0001f600", k=rng.randrange(50)))
            documents.append(TrainRow("/c", row, rng.choice([None, "", "\ud800id"]), text))
        matches = {}
        for _ in range(rng.randrange(40)):
            places = some_places(rng)
            key = (rng.randrange(5), rng.randrange(3), rng.choice([1, 5]), places[0][0])
            matches[key] = Match(*key[:3], rng.choice(NGRAMS), places, some_places(rng))
        batches.append(batch_of(documents))
        found.append([matches[key] for key in sorted(matches)])
    return batches, found


def wanted(batches: list[DocumentBatch], found: list[list[Match]]) -> list[UnitMatch]:
    return [
        UnitMatch(
            int(batch.rows[match.document]),
            batch.ids[match.document],
            decode(batch.text_bytes(match.document)),
            *match[1:],
        )
        for batch, matches in zip(batches, found, strict=True)
        for match in matches
    ]


def columns_of(matches: list[UnitMatch]) -> list[tuple]:
    return [
        (m.row, m.number, m.n, m.eval_places[0][0], crc_of(m.ngram), len(m.train_places))
        for m in matches
    ]


def rows_in(columns: list[MatchColumns]) -> list[tuple]:
    return [row for some in columns for row in zip(*(column.tolist() for column in some))]


@pytest.mark.parametrize("group", [1, 3, 1 << 14])
def test_a_match_file_gives_back_what_was_found(tmp_path: Path, monkeypatch, group: int) -> None:
    monkeypatch.setattr(match_files, "_GROUP_MATCHES", group)
    for seed in range(10):
        batches, found = made_up(seed)
        path = str(tmp_path / f"matches-{seed}")
        summary = write_match_file(path, str(tmp_path / "t"), zip(batches, map(iter, found)))
        expected = wanted(batches, found)
        assert list(read_matches([path])) == expected
        assert rows_in(list(read_columns([path]))) == columns_of(expected)
        assert read_summary(path) == summary == ScanSummary(
            num_rows=sum(batch.num_rows for batch in batches),
            num_texts=30,
            num_without_text=sum(batch.num_rows for batch in batches) - 30,
            text_bytes=sum(len(batch.utf8) for batch in batches),
            letters={},
            num_matches=len(expected),
        )  # fmt: skip


@pytest.mark.parametrize("group", [1, 4, 1 << 14])
@pytest.mark.parametrize("num_index_shards", [1, 2, 5])
def test_the_match_files_of_several_index_shards_are_read_as_one(
    tmp_path: Path, monkeypatch, group: int, num_index_shards: int
) -> None:
    monkeypatch.setattr(match_files, "_GROUP_MATCHES", group)
    rng = random.Random(num_index_shards)
    for seed in range(4):
        batches, found = made_up(seed)
        shard_of = {id(match): rng.randrange(num_index_shards) for some in found for match in some}
        paths = []
        for number in range(num_index_shards):
            of_shard = [[m for m in some if shard_of[id(m)] == number] for some in found]
            paths.append(str(tmp_path / f"matches-{seed}-{number}"))
            write_match_file(paths[-1], str(tmp_path / "t"), zip(batches, of_shard, strict=True))
        expected = wanted(batches, found)
        assert list(read_matches(paths)) == expected

        taken = list(read_columns(paths))
        assert sorted(rows_in(taken)) == sorted(columns_of(expected))
        documents = [set(columns.rows.tolist()) for columns in taken]
        assert sum(map(len, documents)) == len(set().union(*documents))

        def keep(columns: MatchColumns) -> np.ndarray:
            return (columns.numbers != 1) & (columns.occurrences > 1)

        kept = [m for m in expected if m.number != 1 and len(m.train_places) > 1]
        assert list(read_matches(paths, keep)) == kept
        assert sorted(rows_in(list(read_columns(paths, keep)))) == sorted(columns_of(kept))


def test_matches_at_one_place_are_ordered_by_their_n_grams(tmp_path: Path) -> None:
    """As a tokeniser of the user's may make them; the scan finds them in any order."""
    places = [(0, 1)]
    batch = batch_of([TrainRow("/c", 7, None, "x")])
    matches = [Match(0, 0, 1, ngram, places, places) for ngram in ("b", "a", "c")]
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    write_match_file(one, str(tmp_path), [(batch, matches[:2])])
    write_match_file(other, str(tmp_path), [(batch, matches[2:])])
    assert [match.ngram for match in read_matches([other, one])] == ["a", "b", "c"]
    assert list(read_matches([one, other])) == list(read_matches([other, one]))


def test_a_text_is_stored_once(tmp_path: Path) -> None:
    batch = batch_of([TrainRow("/c", 0, None, "x y"), TrainRow("/c", 1, None, "")])
    matches = [
        Match(document, n, 1, "x", [(0, 1)], [(0, 1)]) for document in (0, 1) for n in (0, 1)
    ]
    write_match_file(str(tmp_path / "matches"), str(tmp_path), [(batch, matches)])
    table = pq.read_table(tmp_path / "matches")
    assert table.schema.names == match_files.SCHEMA.names
    assert table.column("text").to_pylist() == [b"x y", None, b"", None]


@pytest.mark.parametrize(("name", "limit"), [("_GROUP_BYTES", 1000), ("_GROUP_MATCHES", 2)])
def test_row_groups_are_cut_by_bytes_and_by_matches(
    tmp_path: Path, monkeypatch, name: str, limit: int
) -> None:
    monkeypatch.setattr(match_files, name, limit)
    batch = batch_of([TrainRow("/c", at, None, "x" * 600) for at in range(6)])
    matches = [Match(document, 0, 1, "x", [(0, 1)], [(0, 1)]) for document in range(6)]
    write_match_file(str(tmp_path / "matches"), str(tmp_path), [(batch, matches)])
    assert pq.ParquetFile(tmp_path / "matches").num_row_groups == 3
    assert len(list(read_matches([str(tmp_path / "matches")]))) == 6


def test_dead_letters_lie_beside_the_match_file(tmp_path: Path) -> None:
    letters = [DeadLetter("/c", at, reason, "{") for at, reason in enumerate(["b", "a", "a"])]
    batches = [batch_of([])._replace(num_rows=2, letters=letters[:2], num_without_text=0)]
    batches += [batch_of([])._replace(num_rows=3, letters=letters[2:], num_without_text=2)]
    path = str(tmp_path / "matches")
    summary = write_match_file(path, str(tmp_path / "t"), [(batch, []) for batch in batches])
    assert summary == ScanSummary(5, 0, 2, 0, 0, {"a": 2, "b": 1}) == read_summary(path)
    assert list(read_matches([path])) == list(read_columns([path])) == []
    assert pq.read_table(letters_path(path)).to_pylist() == [letter._asdict() for letter in letters]


def test_no_letters_no_file_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    batches, found = made_up(1)
    for name in ("one", "other"):
        write_match_file(
            str(tmp_path / name), str(tmp_path / "t"), zip(batches, found, strict=True)
        )
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other", "t"]
    assert list((tmp_path / "t").iterdir()) == []


def test_a_scan_that_fails_leaves_no_match_file(tmp_path: Path) -> None:
    def scanned():
        yield batch_of([])._replace(num_rows=1, letters=[DeadLetter("/c", 0, "a", "{")]), []
        raise ProbelineError("cannot read /c")

    with pytest.raises(ProbelineError, match=r"^cannot read /c$"):
        write_match_file(str(tmp_path / "matches"), str(tmp_path / "t"), scanned())
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_what_is_no_match_file_is_refused_in_one_line(tmp_path: Path) -> None:
    damaged, other = tmp_path / "damaged", tmp_path / "other"
    damaged.write_bytes(b"PAR1")
    pq.write_table(pa.table({"a": [1]}), other)
    with pytest.raises(
        ProbelineError, match=r"cannot read the match file .*damaged: .*; remove it"
    ):
        list(read_matches([str(damaged)]))
    with pytest.raises(ProbelineError, match="other is not a match file of this version"):
        read_summary(str(other))


_MANY_MATCHES = """
import json, sys
from pathlib import Path
from beam_pipeline.overlap.ngrams.matching import Match
from beam_pipeline.overlap.results.counts import count_unit
from beam_pipeline.overlap.results.details import expand_unit
from beam_pipeline.overlap.results.match_files import read_matches, write_match_file
from tests.support.overlap_gathering import batch_of, rows_of, scanned_unit
from tests.support.overlap_reference import EvalRow, TrainRow

folder, num_documents = sys.argv[1], int(sys.argv[2])
rows = rows_of([EvalRow("e", "/e", at, str(at), "x" * 500) for at in range(100)])

def scanned():
    for first in range(0, num_documents, 100):
        texts = [TrainRow("/c", row, None, f"{row} " * 2000) for row in range(first, first + 100)]
        yield batch_of(texts), (
            Match(document, number, 3, f"{document} {number}", [(0, 5)], [(7, 12)])
            for document in range(100)
            for number in range(10)
        )

def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10

small = scanned_unit("/c", [(f"{folder}/small", None)])
write_match_file(small.paths[0], folder, [next(scanned())])
list(read_matches(small.paths)), count_unit(small.paths)
expand_unit(small, f"{folder}/small-unit", folder, rows)
before = peak()
large = scanned_unit("/c", [(f"{folder}/0", None), (f"{folder}/1", None)])
for path in large.paths:
    write_match_file(path, folder, scanned())
num_matches = sum(1 for _ in read_matches(large.paths))
counts = count_unit(large.paths)
expanded = expand_unit(large, f"{folder}/unit", folder, rows)
num_counted = int(counts.ngrams["documents"].sum())
print(json.dumps([num_matches, num_counted, expanded.num_records, peak() - before]))
"""


@pytest.mark.slow
def test_two_hundred_thousand_matches_need_little_memory(tmp_path: Path) -> None:
    """10,000 documents of some 10 KB, of two match files: 200 MB of text, 2 GB of details."""
    command = [sys.executable, "-c", _MANY_MATCHES, str(tmp_path), "10000"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    num_matches, num_counted, num_records, grown_mib = json.loads(result.stdout)
    assert num_matches == num_counted == num_records == 200_000
    assert grown_mib < 200
