"""Documents that share most with a row, and what is shown of both texts."""

import gzip
import json
import tracemalloc
from collections import defaultdict
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.overlap.report import instances as report_instances
from beam_pipeline.overlap.report.instances import DOCUMENTS_PER_ROW, Instance
from beam_pipeline.overlap.report.passages import WHOLE_CHARS, merge_spans, passages
from beam_pipeline.overlap.results.layout import DETAILS, MATCHES
from tests.support.overlap_jobs import read_lines
from tests.support.overlap_report import PLANET, SETS, TRAINING, filler, instances_of, run


def texts_of(instances: list[Instance]) -> dict[tuple, tuple[str, str]]:
    """Returns what is shown of both texts by evaluation row and training row."""
    found = {}
    for one in instances:
        for document in one.documents:
            if document.in_eval is not None and document.in_train is not None:
                key = one.row.eval_dataset, one.row.eval_row, document.train_path
                pieces = document.in_eval, document.in_train
                texts = tuple("".join(piece.text for piece in each) for each in pieces)
                found[*key, document.train_row] = texts
    return found


@pytest.mark.slow
@pytest.mark.parametrize("places_at_a_time", [40, 1 << 20])
def test_documents_that_share_most(tmp_path: Path, monkeypatch, places_at_a_time: int) -> None:
    monkeypatch.setattr(report_instances, "_PLACES_AT_A_TIME", places_at_a_time)
    random, words = Random(4), filler(60, 1).split()
    rows = [(f"r{at}", " ".join(words[at * 10 : at * 10 + 25])) for at in range(4)]
    texts = []
    for _ in range(60):
        cut = sorted(random.sample(range(len(words)), 2))
        texts.append((None, " ".join([filler(3, 2), *words[slice(*cut)], filler(3, 3)])))
    output = run(tmp_path, {"set": rows}, {"t.jsonl": texts})
    matches = pq.read_table(output / MATCHES).to_pylist()
    pq.write_table(pq.read_table(output / MATCHES), output / MATCHES, row_group_size=7)
    spans: dict[int, dict[int, list]] = defaultdict(lambda: defaultdict(list))
    for match in matches:
        places = [(at["start"], at["end"]) for at in match["eval_offsets"]]
        spans[match["eval_row"]][match["train_row"]].append(places)

    def rank(of_document: list) -> tuple[int, int]:
        merged = merge_spans([place for places in of_document for place in places])
        return -sum(end - start for start, end in merged), -len(of_document)

    instances = instances_of(output)
    assert len(instances) == len(rows)
    for instance in instances:
        found = spans[instance.row.eval_row]
        best = sorted(found, key=lambda row: (*rank(found[row]), row))[:DOCUMENTS_PER_ROW]
        assert [document.train_row for document in instance.documents] == best
        for document in instance.documents:
            of_document = found[document.train_row]
            assert document.num_ngrams.total() == len(of_document)
            assert document.eval_spans == merge_spans([p for ps in of_document for p in ps])


def test_pairs_have_their_own_texts_with_caps(tmp_path: Path) -> None:
    caps = ("--max_details_per_pair=3", "--max_details=9")
    full, compact = tmp_path / "full", tmp_path / "compact"
    for folder in (full, compact):
        run(folder, SETS, TRAINING, f"--details={folder.name}", *caps)
    names = "eval_dataset", "eval_row", "train_path", "train_row"
    expected = {
        tuple(line[name] for name in names): (line["eval_text"], line["train_text"])
        for line in read_lines(full / "output" / DETAILS)
    }
    assert texts_of(instances_of(full / "output")) == expected
    in_compact = {
        (*key[:2], key[2].replace("/compact/", "/full/"), key[3]): texts
        for key, texts in texts_of(instances_of(compact / "output", "compact")).items()
    }
    assert in_compact.items() >= expected.items()  # texts of a document serve all of its pairs
    assert {key[2:] for key in in_compact} == {key[2:] for key in expected}
    assert not texts_of(instances_of(full / "output", "none"))


def test_texts_with_lone_surrogates(tmp_path: Path) -> None:
    text = "a\ud800 lone surrogate\udfff and more of it"
    sets, training = {"odd": [("id \udc01", text)]}, {"t.jsonl": [("d \udc00", f"see: {text}!")]}
    (instance,) = instances_of(run(tmp_path, sets, training))
    assert instance.row.instance_id == "id \\udc01"
    assert list(texts_of([instance]).values()) == [(text, f"see: {text}!")]
    assert instance.documents[0].doc_id == "d \\udc00"


def test_details_of_any_size_are_read_in_little_memory(tmp_path: Path) -> None:
    output = run(tmp_path, {"set": [("a", PLANET)]}, {"t.jsonl": [("d", PLANET)] * 20})
    more = filler(40_000)
    texts = [f"{PLANET} {number} {more}" for number in range(20)]
    lines = read_lines(output / DETAILS)
    lines = [{**line, "train_text": texts[line["train_row"]]} for line in lines]
    members = [gzip.compress(f"{json.dumps(line)}\n".encode(), 1) for line in lines]
    assert sum(len(line["train_text"]) for line in lines) > 30 << 20
    (output / DETAILS).write_bytes(b"".join(members))
    del lines, members
    instances_of(output)  # imports and caches do not count
    tracemalloc.start()
    instances = instances_of(output)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    found = texts_of(instances)
    assert len(found) == DOCUMENTS_PER_ROW and peak < 16 << 20
    assert all(texts[key[-1]].startswith(train) for key, (_, train) in found.items())


@given(st.data())
def test_passages_are_the_text_in_order(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([0, 10, WHOLE_CHARS, WHOLE_CHARS + 1, 5_000, 20_000]))
    random = Random(data.draw(st.integers(0, 9)))
    text = "".join(random.choices("ab \u0301\u200d\U0001f600", k=size))
    ends = st.tuples(st.integers(0, size), st.sampled_from([1, 20, 300, 3_000]))
    spans = merge_spans((s, min(size, s + n)) for s, n in data.draw(st.lists(ends, max_size=20)))
    at, shared, num_shown = 0, set(), 0
    for piece in passages(text, spans):
        assert bool(piece.text) != bool(piece.num_omitted)
        assert text[at : at + len(piece.text)] == piece.text
        places = range(at, at + len(piece.text))
        if piece.is_shared:
            shared.update(places)
        else:
            assert not any(start < places.stop and at < end for start, end in spans) or (
                piece.num_omitted
            )
        at += len(piece.text) + piece.num_omitted
        num_shown += len(piece.text)
    assert at == size and num_shown <= max(WHOLE_CHARS, 6 * 1_700)
    covered = {place for start, end in spans for place in range(start, end)}
    assert shared <= covered and (size > WHOLE_CHARS or shared == covered)
    assert bool(shared) == bool(covered)


def test_passages_begin_between_words_or_characters() -> None:
    text = "a\u0301" * 5_000
    # A window would begin and end within a character.
    gap, before, _, after, _ = passages(text, [(4_001, 4_011)])
    assert gap.num_omitted and before.text.startswith("a") and after.text.endswith("\u0301")
    before, first, *_ = passages("seven letters " * 500, [(3_010, 3_020)])
    assert before.num_omitted and first.text.startswith(("seven", "letters"))
