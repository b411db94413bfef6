"""Match files hold what a scan found, in order, and are read as one in bounded memory."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.ngrams.matching import SharedNgrams
from beam_pipeline.overlap.results import match_files
from beam_pipeline.overlap.results.match_files import (
    ScanSummary,
    letters_path,
    read_blocks,
    read_summary,
    write_match_file,
)
from tests.support.overlap_gathering import NOTHING, batch_of
from tests.support.overlap_hits import TrainRow

TEXTS = [TrainRow("/c", 2 * at, [None, "", "\ud800"][at % 3], f"text {at}") for at in range(20)]


def shared_of(records: list[tuple[int, int, list[int]]]) -> SharedNgrams:
    """Returns records of (document, n-gram, starts of places), each place of 7 code points."""
    documents, ngrams, starts = zip(*records, strict=True) if records else ((), (), ())
    bounds = np.cumsum([0, *map(len, starts)], dtype=np.int64)
    flat = np.array([start for some in starts for start in some], np.uint32)
    one, two = (np.array(each, np.int64) for each in (documents, ngrams))
    return SharedNgrams(one, two, bounds, flat, flat + np.uint32(7), len(records))


@pytest.mark.parametrize("group", [1, 200, 4 << 20])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_match_files_give_back_what_was_found(
    tmp_path: Path, monkeypatch, group: int, num_shards: int
) -> None:
    monkeypatch.setattr(match_files, "_GROUP_BYTES", group)
    for seed in range(5):
        rng, wanted, paths = random.Random(seed), [], []
        for shard in range(num_shards):
            batches = []
            for first in range(0, 20, 5):
                keys = {(rng.randrange(5), rng.randrange(9)) for _ in range(rng.randrange(12))}
                records = [(*key, [rng.randrange(99) for _ in range(3)]) for key in sorted(keys)]
                batches.append((batch_of(TEXTS[first : first + 5]), shared_of(records)))
                wanted += [(TEXTS[first + at], shard, *more) for at, *more in records]
            paths.append(str(tmp_path / f"{seed}-{shard}"))
            summary = write_match_file(paths[-1], str(tmp_path / "t"), batches)
            assert read_summary(paths[-1]) == summary
        for only in (None, 4):
            keep = None if only is None else lambda _, ngrams: ngrams > 4
            found, rows = [], []
            for block in read_blocks(paths, keep):
                assert block.texts is not None and block.ids is not None
                rows += block.rows.tolist()
                for at, document in enumerate(block.documents.tolist()):
                    text, doc_id = (c[document].as_py() for c in (block.texts, block.ids))
                    here = slice(block.bounds[at], block.bounds[at + 1])
                    assert block.ends is not None
                    assert (block.ends[here] == block.starts[here] + 7).all()
                    key = int(block.index_shards[at]), int(block.ngrams[at])
                    starts = block.starts[here].tolist()
                    found.append((int(block.rows[document]), text, doc_id, *key, starts))
            expected = [
                (
                    row.row,
                    row.text.encode(),
                    None if row.id is None else row.id.encode("utf-8", "surrogatepass"),
                    shard,
                    ngram,
                    starts,
                )
                for row, shard, ngram, starts in sorted(wanted, key=lambda w: (w[0].row, w[1:3]))
                if only is None or ngram > only
            ]
            assert found == expected
            assert rows == sorted(set(rows))  # a document is in one block


def test_dead_letters_lie_beside_the_match_file(tmp_path: Path) -> None:
    letters = [DeadLetter("/c", at, reason, "{") for at, reason in enumerate(["b", "a", "a"])]
    batches = [batch_of([])._replace(num_rows=2, letters=letters[:2], num_without_text=0)]
    batches += [batch_of([])._replace(num_rows=3, letters=letters[2:], num_without_text=2)]
    path = str(tmp_path / "matches")
    summary = write_match_file(path, str(tmp_path / "t"), [(batch, NOTHING) for batch in batches])
    assert summary == ScanSummary(5, 0, 2, 0, 0, {"a": 2, "b": 1}) == read_summary(path)
    assert list(read_blocks([path])) == []
    assert pq.read_table(letters_path(path)).to_pylist() == [letter._asdict() for letter in letters]


def test_a_scan_that_fails_leaves_no_match_file(tmp_path: Path) -> None:
    def scanned():
        yield batch_of([])._replace(num_rows=1, letters=[DeadLetter("/c", 0, "a", "{")]), NOTHING
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
        list(read_blocks([str(damaged)]))
    with pytest.raises(ProbelineError, match="other is not a match file of this version"):
        read_summary(str(other))
