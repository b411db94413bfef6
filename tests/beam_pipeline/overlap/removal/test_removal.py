"""Clean corpora: what stays is as it was, counts add up, and a second run finds nothing."""

import contextlib
import io
import json
import os
import re
import shutil
from collections import Counter
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.documents.fields import Fields
from beam_pipeline.overlap.attributes import main as write_attributes
from beam_pipeline.overlap.ngrams.token_texts import Tokens
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS, Tokenizer
from beam_pipeline.overlap.removal.cutting import Cut, cut_text, piece_id, reach_into
from beam_pipeline.overlap.removal.rewriting import rewrite_json
from beam_pipeline.overlap.remove import main as remove
from beam_pipeline.overlap.results.layout import DOCUMENTS, TRAIN_FILES
from beam_pipeline.storage.lines import compression_of
from tests.support.overlap_hits import merged, ngrams
from tests.support.properties import num_examples
from tests.support.removal_corpus import (
    AROUND,
    ELEMENTS,
    LINES,
    MASK,
    SHARED,
    Planned,
    find_in,
    plain,
    texts_of,
    write_as,
    write_evaluation,
)


def clean(folder: Path, *flags: str, output: str = "clean") -> int:
    paths = [f"--result_path={folder}/out", f"--output_path={folder}/{output}"]
    return remove([*paths, "--direct_num_workers=1", *flags])


def manifest_of(output: Path) -> dict[str, Any]:
    return orjson.loads((output / "removal_manifest.json").read_bytes())


class Cleaned(NamedTuple):
    """A clean corpus, the mode of its removal, and what the command printed."""

    output: Path
    mode: str
    printed: str


@pytest.fixture(scope="module", params=["document", "split", "mask"])
def cleaned(found: Path, request: pytest.FixtureRequest) -> Cleaned:
    mode, printed = request.param, io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert (
            clean(found, f"--remove={mode}", "--min_piece_chars=20", "--overwrite", output=mode)
            == 0
        )
    return Cleaned(found / mode, mode, printed.getvalue())


def test_clean_corpus_has_no_overlap_left(found: Path, cleaned: Cleaned) -> None:
    mode, folder = cleaned.mode, cleaned.output / "documents"
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    assert names == [
        *("a.jsonl", "b.jsonl.gz", "d.jsonl", "deep/c.json.zst", "e.parquet", "f.json")
    ]
    for name in ("a.jsonl", "b.jsonl.gz", "deep/c.json.zst"):
        lines = plain(folder / name).splitlines(keepends=True)
        assert lines[:3] == LINES[:3] and lines[-1] == LINES[-1]
        assert all(line.endswith(b', "n": 1.5}\r\n') for line in lines[3:-1])
        records = [json.loads(line) for line in lines[3:-1]]
        texts = [record["text"] for record in records]
        if mode == "document":
            assert texts == []
        elif mode == "split":
            ids = [piece_id(7, number, text) for number, text in enumerate(texts)]
            assert [record["id"] for record in records] == ids and len(set(ids)) == len(ids) > 1
            assert texts[0].startswith("word0 word1 ") and texts[1].endswith("word59é")
        else:
            assert texts == [f"{AROUND}. ⟦removed⟧! {AROUND}é"] and records[0]["id"] == 7
    assert (folder / "d.jsonl").read_bytes() == LINES[0]
    source, target = (pq.ParquetFile(path) for path in (found / "in/e.parquet", folder / names[4]))
    assert target.schema_arrow == source.schema_arrow and target.num_row_groups == 2
    assert target.metadata.row_group(0).column(1).compression == "GZIP"
    rows = target.read().to_pylist()
    middle = ["p1"] if mode == "mask" else []
    if mode == "split":
        middle = [piece_id("p1", number, rows[1 + number]["text"]) for number in range(2)]
    assert [row["id"] for row in rows] == ["p0", *middle, "p2", "p3"]
    kept = {"document": [], "split": [], "mask": [b' {"text":"\\u00e9 ' + MASK + b'"} ']}[mode]
    array = b",".join([*ELEMENTS[:2], *kept, ELEMENTS[3]])
    assert (folder / "f.json").read_bytes() == b"\xef\xbb\xbf [%b\n]\n" % array
    find_in(found, f"{mode}/documents", f"again-{mode}")
    assert len(pq.read_table(found / f"again-{mode}" / DOCUMENTS)) == 0


def chars_of(texts: list[str | None]) -> int:
    return sum(len(text) for text in texts if text)


def test_manifest_counts(found: Path, cleaned: Cleaned) -> None:
    manifest = manifest_of(cleaned.output)
    total, of_quiz = Counter[str](), Counter[str]()
    for file in manifest["files"]:
        path = Path(file.pop("path"))
        before = texts_of(path)
        after = texts_of(cleaned.output / "documents" / path.relative_to(found / "in"))
        assert len(before) == file["records_in"] == file["records_kept"] + file["records_removed"]
        assert len(after) == file["records_out"]
        assert chars_of(before) == file["chars_in"] == file["chars_kept"] + file["chars_removed"]
        assert chars_of(after) == file["chars_kept"] + file["mask_chars"]
        own = file.pop("by_evaluation_set").get("quiz", {})
        assert own == {name: file[name] for name in own} and bool(own) == (path.name != "d.jsonl")
        of_quiz.update(own)
        total.update(file)
    counts = manifest["counts"]
    assert counts == total and manifest["by_evaluation_set"] == {"quiz": of_quiz}
    assert counts["records_in"] == 21 and of_quiz["contaminated"] == 5
    kept = of_quiz["contaminated_chars_kept"]
    assert of_quiz["contaminated_chars"] == kept + of_quiz["chars_removed"]
    assert of_quiz["contaminated"] == of_quiz["changed"] + of_quiz["records_removed"]
    assert f"21 records: 16 untouched, {counts['changed']} changed to" in cleaned.printed
    assert f"{counts['chars_kept']:,} kept, {counts['chars_removed']:,} removed" in cleaned.printed


def test_documents_of_less_coverage_stay(found: Path) -> None:
    """The array's one text is mostly shared, that of other files is not."""
    assert clean(found, "--remove=document", "--min_coverage=0.5", output="less") == 0
    for name in ("a.jsonl", "b.jsonl.gz", "deep/c.json.zst"):
        assert plain(found / "less/documents" / name) == plain(found / "in" / name)
    assert texts_of(found / "less/documents/e.parquet") == texts_of(found / "in/e.parquet")
    assert len(texts_of(found / "less/documents/f.json")) == 3
    counts = manifest_of(found / "less")["counts"]
    assert (counts["below_min_coverage"], counts["records_removed"]) == (4, 1)
    assert counts["records_kept"] == counts["records_out"] == 20


@given(
    st.lists(st.sampled_from([b"", b" ", b'{"text": "old"}', b' {"x":"],","text" : "old" }\r'])),
    st.dictionaries(
        st.integers(0, 9), st.lists(st.sampled_from(["", "new", "\u00e9"]), max_size=2)
    ),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([b"", b" ", b"\n"]),
)
@settings(max_examples=num_examples(200))
def test_all_but_changed_texts_is_copied(
    records: list[bytes],
    texts: dict[int, list[str]],
    block_bytes: int,
    is_array: bool,
    space: bytes,
) -> None:
    """Lines may be blank; the blocks of a file are cut anywhere."""
    elements = [record for record in records if record.strip()]
    texts = {row: new for row, new in texts.items() if row < len(elements)}

    def changed(record: bytes, row: int) -> list[bytes]:
        return [record.replace(b"old", json.dumps(text)[1:-1].encode()) for text in texts[row]]

    if is_array:
        parts = [changed(e, row) if row in texts else [e] for row, e in enumerate(elements)]
        data = space + b"[" + b",".join(elements) + (space if not elements else b"") + b"]" + space
        kept = b",".join(chain.from_iterable(parts)) + (space if not elements else b"")
        expected = space + b"[" + kept + b"]" + space
    else:
        data, expected, row = b"\n".join(records) + space, b"", 0
        for line in re.findall(rb"[^\n]*\n|[^\n]+", data):
            if line.strip():
                ending = line[len(line.removesuffix(b"\n")) :]
                new = changed(line.removesuffix(b"\n"), row) if row in texts else None
                line = line if new is None else b"\n".join(new) + ending * bool(new)
                row += 1
            expected += line
    cuts = [0, *range(2, len(data), block_bytes), len(data)]  # the first block has the bracket
    blocks = [data[start:end] for start, end in pairwise(cuts)]
    written: list[bytes] = []
    planned: Any = Planned(dict(texts))

    def write(data: bytes | memoryview) -> None:
        written.append(bytes(data))

    assert rewrite_json(blocks, is_array, write, planned, Fields()) == len(elements)
    assert b"".join(written) == expected


def test_chats_and_other_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A document is dropped for a message by one of some roles; spans are by field."""
    write_evaluation(tmp_path)
    chats = [
        {"id": 1, "messages": [{"role": "user", "content": "hello"}, None], "title": None},
        {"id": 2, "messages": [{"role": "user", "content": "é"}, {"role": "x", "content": SHARED}]},
        {"id": 3, "messages": [{"role": "user", "content": f"{SHARED} 1"}], "title": "one"},
    ]
    lines = [json.dumps(chat, indent=number % 2).encode() for number, chat in enumerate(chats)]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(chats), tmp_path / "in/a.Parquet")
    forms = {"b.ndjson": None, "c.JSONL.xz": "xz", "d.json.bz2": "bzip2", "e.jsonl.zstd": "zstd"}
    forms |= {"f.jsonl": "gzip", "g.json.gz": None}  # compressed, and not, whatever the name says
    for name, compression in forms.items():
        write_as(tmp_path / "in" / name, compression, b"\n".join(lines))
    (tmp_path / "in/readme.txt").touch()
    field = "--text_field=title,messages[role=user|system].content"
    find_in(tmp_path, "in", "out", field, "--eval_text_field=text")
    assert "Warning: 1 file of --input_path not read, since" in capsys.readouterr().err
    warnings = json.loads((tmp_path / "out/progress/progress_summary.json").read_text())["warnings"]
    assert len(warnings) == 1 and "readme.txt has no name of a document" in warnings[0]
    assert clean(tmp_path, "--remove=mask") == 2
    assert "--remove=mask cuts a text that is one field" in capsys.readouterr().err
    assert clean(tmp_path, "--remove=document") == 0
    for name, compression in forms.items():
        path = tmp_path / "clean/documents" / name
        assert plain(path) == b"\n".join(lines[:2]) + b"\n"
        with path.open("rb") as stream:
            assert compression_of(stream) == compression
    assert pq.read_table(tmp_path / "clean/documents/a.Parquet").to_pylist() == [
        {"title": None, **chat} for chat in chats[:2]
    ]
    paths = [f"--result_path={tmp_path}/out", f"--output_path={tmp_path}", "--direct_num_workers=1"]
    assert write_attributes([*paths, "--format=dolma"]) == 2
    assert "Dolma's documents have one text" in capsys.readouterr().err
    assert write_attributes(paths) == 0
    for name in ("a.Parquet", "c.JSONL.xz.parquet"):
        rows = pq.read_table(tmp_path / "attributes/overlap" / name).to_pylist()
        where = {"field": "messages.0.content", "start": 0, "end": len(SHARED)}
        assert [row["field_spans"] for row in rows] == [[], [], [where]]
        assert rows[2]["spans"] == [{"start": 4, "end": 4 + len(SHARED)}]


def test_invalid_removal(found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("in", "out"):
        shutil.copytree(found / name, tmp_path / name)
    for flags, message in (
        ([], "--remove=none: pass document"),
        (
            ["--remove=mask", "--mask_token=Boy"],
            "--mask_token=Boy has a token of an evaluation row",
        ),
        (["--remove=mask", "--mask_token=[x]"], "must be a word"),
    ):
        assert clean(tmp_path, *flags) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "clean/documents/mine").mkdir(parents=True)
    (tmp_path / "clean/documents/mine/x").touch()
    assert clean(tmp_path, "--remove=document") == 2
    assert "that Probeline did not create" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "clean/documents")
    os.utime(tmp_path / "in/b.jsonl.gz", (1, 1))
    assert clean(tmp_path, "--remove=document", f"--input_path={tmp_path}/in") == 1
    error = capsys.readouterr().err
    assert "in/b.jsonl.gz was changed after the overlap job read it: it had" in error
    assert "run the overlap job again with --overwrite, then this one" in error
    assert not (tmp_path / "clean/.SUCCESS").exists()
    of_files = tmp_path / "out" / TRAIN_FILES
    pq.write_table(pq.read_table(of_files).drop("num_text_chars"), of_files)
    assert clean(tmp_path, "--remove=document") == 2
    assert "is not a finished result of this version's overlap job" in capsys.readouterr().err


_SPACES = st.sampled_from(["", " ", "\t\r "])
_ODD_VALUES = [
    *("1e400", "-0.0", "NaN", "-Infinity", "12.345678901234567890123", "9" * 400, "null", "true"),
    *('"\\u00e9\\/é"', '"\\ud800"', '"\\"text\\":"', '[1,  2, {"text":"old"}]', '{"id" :"old"}'),
]
_MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(['"text"', '"id"', '"te\\u0078t"', '"\\ud800"', '"é"', '"n"']),
        st.sampled_from(_ODD_VALUES),
    ),
    max_size=4,
)


@given(
    _MEMBERS,
    _MEMBERS,
    st.permutations(["text", "id"]),
    st.sampled_from(['"a"', '"\\ud800"', "17", "null", "1.0", '{"k":1}']),
    st.booleans(),
    _SPACES,
)
@settings(max_examples=num_examples(1000, 50))
def test_a_changed_record_keeps_every_other_byte(
    before: list[tuple[str, str]],
    after: list[tuple[str, str]],
    order: list[str],
    identifier: str,
    is_nested: bool,
    space: str,
) -> None:
    """The last of several equal keys counts, whatever their spelling."""
    after = [(key, value) for key, value in after if json.loads(key) not in ("text", "id")]

    def record(text: str, name: str) -> str:
        own = {"text": ('"te\\u0078t"', text), "id": ('"id"', name)}
        if is_nested:
            own["id"] = '"meta"', f'[7, {{"n":NaN,{space}"id" :{name}}}]'
        members = [*before, own[order[0]], own[order[1]], *after]
        return "{" + ",".join(f"{space}{key}{space}:{value}" for key, value in members) + " }"

    def name(number: int, text: str) -> str:
        new = piece_id(json.loads(identifier), number, text)
        return identifier if new is None else json.dumps(new)

    texts = ["new", "\u00e9\ud800"]
    planned: Any = Planned({0: texts}, is_split=True)
    written: list[bytes] = []
    line = record('"\\u006fld"', identifier).encode()
    fields = Fields(id="meta.1.id" if is_nested else "id")
    rewrite_json([line], False, lambda data: written.append(bytes(data)), planned, fields)
    expected = [record(json.dumps(text), name(at, text)) for at, text in enumerate(texts)]
    assert b"".join(written).decode().split("\n") == expected


def shared_places(text: str, rows: list[str], length: int, tokenizer: Tokenizer) -> list[list[int]]:
    """Returns the places of all n-grams that a text shares, by brute force."""
    tokens, places = tokenizer.tokenize(text), []
    for own in map(tokenizer.tokenize, rows):
        if n := min(length, len(own)):
            theirs = ngrams(own, n)
            places += [p for gram, at in ngrams(tokens, n).items() if gram in theirs for p in at]
    return merged(places)


_TEXTS = st.lists(
    st.sampled_from(["a", "b", "Σ", "é", "İ", "x", ".", "'", "  ", "世", "ก"]), max_size=25
)


@given(
    _TEXTS.map("".join) | _TEXTS.map(" ".join),
    st.lists(_TEXTS.map(" ".join), max_size=3),
    st.integers(1, 4),
    st.sampled_from(list(TOKENIZERS.values())),
    st.booleans(),
    st.integers(0, 4),
)
def test_no_shared_ngram_remains(
    text: str, rows: list[str], length: int, tokenizer: Tokenizer, is_mask: bool, margin: int
) -> None:
    spans = [(start, end) for start, end in shared_places(text, rows, length, tokenizer)]
    cut = Cut(tokenizer, "⟦removed⟧" if is_mask else None, margin, 1, 100)
    for piece in cut_text(text, spans, cut) if spans else []:
        assert not shared_places(piece, rows, length, tokenizer)


_PLACES = st.lists(st.integers(0, 30), max_size=12)


@given(_PLACES, st.lists(st.integers(0, 4), min_size=12, max_size=12), _PLACES, st.integers(0, 5))
def test_margins_against_a_plain_loop(
    starts: list[int], sizes: list[int], edges: list[int], margin: int
) -> None:
    """Tokens may be empty or lie within each other; margins may overlap."""
    tokens = [(start, start + size) for start, size in zip(sorted(starts), sizes, strict=False)]
    edges = sorted(set(edges))
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    expected = [
        any(
            (start < last + margin and end > first - margin)
            or (start >= first - margin and end <= last + margin)
            for first, last in spans
        )
        for start, end in tokens
    ]
    firsts, ends = np.array(tokens, np.int64).reshape(-1, 2).T
    assert reach_into(Tokens(firsts, ends, firsts), spans, margin).tolist() == expected
