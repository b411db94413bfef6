"""Details to the byte: lines, caps, quotas, and what is told of what they leave out."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from beam_pipeline.overlap.ngrams.matching import Match
from beam_pipeline.overlap.results import details
from beam_pipeline.overlap.results.details import (
    MATCHES_SCHEMA,
    PAIRS,
    ExpandedUnit,
    count_details,
    expand_unit,
    quotas,
)
from beam_pipeline.overlap.results.match_files import MatchColumns, ScannedUnit, write_match_file
from beam_pipeline.overlap.results.output_files import GzipMember, json_line
from beam_pipeline.storage.files import atomic_write
from tests.support.overlap_gathering import batch_of, read_records, rows_of, scanned_unit
from tests.support.overlap_reference import EvalRow, TrainRow

ROWS = [
    EvalRow("arc", "/e/1", 0, "a", "One two\n\u2028three"),
    EvalRow("gsm", "/e/2", 5, "b\ud800", 'a \ud800 "b" \U0001f600'),
    EvalRow("arc", "/e/3", 9, "a", "İ"),
]
DOCUMENTS = [
    TrainRow("/c", 2, None, "ONE two"),
    TrainRow("/c", 3, "id \udfff", "\udfff\\"),
    TrainRow("/c", 7, "", ""),
]


def match_of(document: int, number: int, n: int, start: int) -> Match:
    return Match(document, number, n, f"g{start} \ud800", [(start, 5), (7, 9)], [(1, 4)])


MATCHES = [
    match_of(0, 0, 1, 0), match_of(0, 0, 1, 4), match_of(0, 0, 2, 0), match_of(0, 1, 1, 3),
    match_of(0, 2, 1, 0),
    match_of(1, 0, 2, 0), match_of(1, 1, 1, 2), match_of(1, 1, 1, 3), match_of(1, 1, 5, 1),
    match_of(2, 2, 2, 0),
]  # fmt: skip


@pytest.fixture
def unit(tmp_path: Path) -> ScannedUnit:
    """Three documents and ten matches in two match files; 100 is added to the rows."""
    files = []
    for number in range(2):
        path = str(tmp_path / f"matches-{number}")
        scanned = [(batch_of(DOCUMENTS), MATCHES[number::2])]
        files.append((path, write_match_file(path, str(tmp_path / "t"), scanned)))
    return scanned_unit("/c é", files, 100)


def expand(tmp_path: Path, unit: ScannedUnit, *caps: int | None, keep=None) -> ExpandedUnit:
    temp = str(tmp_path / "t")
    return expand_unit(unit, str(tmp_path / "unit"), temp, rows_of(ROWS), keep, *caps)


def detail_of(match: Match) -> dict:
    row, document = ROWS[match.row], DOCUMENTS[match.document]
    record = {
        "eval_dataset": row.dataset,
        "eval_path": row.path,
        "eval_row": row.row,
        "eval_text": row.text,
        "eval_instance_id": row.id,
        "ngram": match.ngram,
        "eval_offsets": [list(place) for place in match.eval_places],
        "n": match.n,
        "train_path": "/c é",
        "train_row": document.row + 100,
        "train_text": document.text,
        "train_ngram": match.ngram,
        "train_offsets": [list(place) for place in match.train_places],
    }
    return record if document.id is None else {**record, "train_doc_id": document.id}


def lines_in(path: str | None) -> list[bytes]:
    return (
        [] if path is None else gzip.decompress(Path(path).read_bytes()).splitlines(keepends=True)
    )


def test_details_have_their_fields_in_order(tmp_path: Path, unit: ScannedUnit) -> None:
    expanded = expand(tmp_path, unit)
    lines = lines_in(expanded.details_path)
    wanted = [detail_of(match) for match in MATCHES]
    assert [json.loads(line) for line in lines] == wanted
    assert [list(json.loads(line)) for line in lines] == [list(record) for record in wanted]
    assert expanded.num_records == len(lines) == 10
    assert expanded.num_bytes == sum(map(len, lines))
    assert expanded.num_left_out == 0 and expanded.pairs_left_out_path is None


def test_the_estimate_is_exact(tmp_path: Path, unit: ScannedUnit) -> None:
    lines = lines_in(expand(tmp_path, unit).details_path)
    size = count_details(unit, rows_of(ROWS))
    assert size == (10, sum(map(len, lines)), 10)
    assert count_details(unit, rows_of(ROWS), None, 2) == (*size[:2], 8)
    assert count_details(unit, rows_of(ROWS), lambda some: some.lengths == 2) == (
        3, sum(len(line) for line in lines if json.loads(line)["n"] == 2), 3
    )  # fmt: skip


def test_texts_are_forgotten_when_they_are_many(
    tmp_path: Path, unit: ScannedUnit, monkeypatch
) -> None:
    wanted = lines_in(expand(tmp_path, unit).details_path)
    monkeypatch.setattr(details, "_TEXT_BYTES_IN_MEMORY", 1)
    assert lines_in(expand(tmp_path, unit).details_path) == wanted


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_a_pair_keeps_its_smallest_records(tmp_path: Path, unit: ScannedUnit, most: int) -> None:
    expanded = expand(tmp_path, unit, most)
    of_pair: dict[tuple, list[Match]] = {}
    for match in MATCHES:
        of_pair.setdefault((match.document, match.row), []).append(match)
    kept = [match for pair in of_pair.values() for match in pair[:most]]
    found = [json.loads(line) for line in lines_in(expanded.details_path)]
    assert found == [detail_of(match) for match in kept]
    left_out = {key: len(pair) - most for key, pair in of_pair.items() if len(pair) > most}
    path = expanded.pairs_left_out_path
    assert ([] if path is None else read_records(path)) == [
        {
            "eval_dataset": ROWS[number].dataset,
            "eval_path": ROWS[number].path,
            "eval_row": ROWS[number].row,
            "train_path": "/c é",
            "train_row": DOCUMENTS[document].row + 100,
            "num_left_out": count,
        }
        for (document, number), count in left_out.items()
    ]
    assert expanded.num_records + sum(left_out.values()) == 10


@pytest.mark.parametrize("quota", [0, 1, 4, 10, 99])
def test_a_quota_keeps_the_first_records(tmp_path: Path, unit: ScannedUnit, quota: int) -> None:
    expanded = expand(tmp_path, unit, None, quota)
    found = [json.loads(line) for line in lines_in(expanded.details_path)]
    assert found == [detail_of(match) for match in MATCHES[:quota]]
    assert expanded.num_left_out == max(0, 10 - quota)
    assert (expanded.details_path is None) == (quota == 0)


def test_both_caps_at_once(tmp_path: Path, unit: ScannedUnit) -> None:
    size = count_details(unit, rows_of(ROWS), None, 1)
    expanded = expand(tmp_path, unit, 1, 4)
    assert (size.num_kept, expanded.num_records, expanded.num_left_out) == (6, 4, 2)


def test_caps_leave_all_else_as_it_is(tmp_path: Path, unit: ScannedUnit) -> None:
    def others(expanded: ExpandedUnit) -> list[bytes]:
        paths = (expanded.instances_path, expanded.matches_path, expanded.hits_path)
        return [Path(path).read_bytes() for path in paths if path is not None]

    wanted = others(expand(tmp_path, unit))
    assert len(wanted) == 3
    assert others(expand(tmp_path, unit, 0)) == others(expand(tmp_path, unit, None, 0)) == wanted


def test_quotas_add_up_to_the_cap() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        kept = [rng.randrange(5) for _ in range(rng.randrange(8))]
        cap = rng.randrange(20)
        written = [min(*pair) for pair in zip(kept, quotas(kept, cap), strict=True)]  # type: ignore[type-var]
        everything = [unit for unit, count in enumerate(kept) for _ in range(count)]
        assert [unit for unit, count in enumerate(written) for _ in range(count)] == everything[
            :cap
        ]
    assert quotas([1, 2], None) == [None, None]
    assert quotas([], 3) == []


def test_instances_of_a_document_are_grouped_by_set_and_n(
    tmp_path: Path, unit: ScannedUnit
) -> None:
    found = [json.loads(line) for line in lines_in(expand(tmp_path, unit).instances_path)]
    assert [
        (r["train_row"], r["eval_dataset"], r["n"], r["instance_ids"], r["train_doc_id"])
        for r in found
    ] == [
        (102, "arc", 1, ["a"], "/c é"),
        (102, "arc", 2, ["a"], "/c é"),
        (102, "gsm", 1, ["b\ud800"], "/c é"),
        (103, "arc", 2, ["a"], "id \udfff"),
        (103, "gsm", 1, ["b\ud800"], "id \udfff"),
        (103, "gsm", 5, ["b\ud800"], "id \udfff"),
        (107, "arc", 2, ["a"], ""),
    ]
    assert {record["train_path"] for record in found} == {"/c é"}
    assert list(found[0]) == [
        "eval_dataset", "n", "instance_ids", "train_path", "train_doc_id", "train_row"
    ]  # fmt: skip


@pytest.mark.parametrize("at_a_time", [1, 4, 1 << 14])
def test_the_table_of_matches_has_no_texts(
    tmp_path: Path, unit: ScannedUnit, monkeypatch, at_a_time: int
) -> None:
    monkeypatch.setattr(details, "_MATCHES_AT_A_TIME", at_a_time)
    expanded = expand(tmp_path, unit)
    table = pq.read_table(expanded.matches_path)
    assert table.schema.equals(MATCHES_SCHEMA) and len(table) == 10
    assert table.slice(6, 1).to_pylist() == [
        {
            "eval_dataset": "gsm",
            "eval_path": "/e/2",
            "eval_row": 5,
            "instance_id": "b\\ud800",
            "train_path": "/c é",
            "train_row": 103,
            "train_doc_id": "id \\udfff",
            "n": 1,
            "eval_offsets": [{"start": 2, "end": 5}, {"start": 7, "end": 9}],
            "train_offsets": [{"start": 1, "end": 4}],
        }
    ]
    assert table.column("train_doc_id").to_pylist()[0] is None
    assert table.column("train_doc_id").to_pylist()[-1] == ""


def test_hits_are_rows_and_n(tmp_path: Path, unit: ScannedUnit) -> None:
    path = expand(tmp_path, unit).hits_path
    assert path is not None
    hits = np.frombuffer(Path(path).read_bytes(), PAIRS)
    assert hits.tolist() == sorted({(match.row, match.n) for match in MATCHES})


def test_what_is_filtered_is_in_no_file(tmp_path: Path, unit: ScannedUnit) -> None:
    def keep(columns: MatchColumns) -> np.ndarray:
        return columns.lengths == 5

    expanded = expand(tmp_path, unit, keep=keep)
    assert expanded.num_records == 1
    assert len(pq.read_table(expanded.matches_path)) == len(lines_in(expanded.instances_path)) == 1
    nothing = expand(tmp_path, unit, keep=lambda columns: columns.lengths == 99)
    assert nothing == ExpandedUnit(unit)


# --- lines and files ----------------------------------------------------------------------------


def test_lines_are_json_whatever_is_in_them() -> None:
    assert json_line({"a": "é\u2028", "b": [1, 0.5]}) == '{"a":"é\u2028","b":[1,0.5]}\n'.encode()
    assert json_line({"a": "é\ud800"}) == b'{"a":"\\u00e9\\ud800"}\n'
    for value in ("\ud800", "\x00\x1f\x7f", '\\"', "\U0001f600", 2**63, None):
        assert json.loads(json_line([value])) == [value]
    assert orjson.loads(json_line(["\u2028\U0001f600"])) == ["\u2028\U0001f600"]


def test_members_one_after_another_are_one_gzip_file(tmp_path: Path) -> None:
    rng, path = random.Random(0), tmp_path / "x.gz"
    chunks = [rng.randbytes(rng.randrange(3 << 20)) for _ in range(3)]
    with open(path, "wb") as stream:
        for chunk in chunks:
            with GzipMember(stream) as member:
                for at in range(0, len(chunk), 100_000):
                    member.write(chunk[at : at + 100_000])
    assert gzip.decompress(path.read_bytes()) == b"".join(chunks)
    assert path.read_bytes()[4:8] == bytes(4)  # no time


def test_a_file_that_fails_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("before")
    with pytest.raises(KeyError):
        with atomic_write(str(tmp_path / "x"), str(tmp_path / "t")) as stream:
            stream.write(b"half")
            raise KeyError
    assert (tmp_path / "x").read_text() == "before"
    with atomic_write(str(tmp_path / "x"), str(tmp_path / "t")) as stream:
        stream.write(b"after")
        assert (tmp_path / "x").read_text() == "before"
    assert (tmp_path / "x").read_text() == "after"
