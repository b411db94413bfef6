"""The figures of the overlap report, compared with plain loops and with a run of the job."""

import base64
import functools
import gzip
import json
import tracemalloc
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from beam_pipeline.overlap.report import search_index
from beam_pipeline.overlap.report.page import page
from beam_pipeline.overlap.report.tables import tables_of
from tests.support.overlap_folder import eval_path, write_output
from tests.support.overlap_report import PLANET, SETS, TRAINING, filler, read_lines, statistics_of


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    data = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def rows_of_an_output(folder: Path, num_rows: int) -> list[dict[str, Any]]:
    """Writes an output with random coverage at n of 3 and 5; returns its lines."""
    write_output(folder, {"set": [("a", PLANET)]}, {"t.jsonl": [("d", PLANET)]}, (3, 5))
    random = Random(1)
    lines = []
    for number in range(num_rows):
        key = {"eval_dataset": "set", "eval_path": "eval/set/test.jsonl", "eval_row": number}
        num_tokens = random.choice([2, 4, 40, 100])
        for n in sorted({min(3, num_tokens), min(5, num_tokens)}):
            covered = random.randrange(1, num_tokens + 1)
            line = {
                **key,
                "instance_id": f"i{number // 2}",
                "n": n,
                "num_train_documents": random.randrange(1, 40),
                "num_tokens": num_tokens,
                "num_covered_tokens": covered,
                "coverage": covered / num_tokens,
                "longest_run": covered,
            }
            lines.append(line)
    write_lines(folder / "stats/overlap_coverage.jsonl", lines)
    ngrams = [{**line, "overlapping_ngram_counts": [["a b", 1, 1]]} for line in lines]
    write_lines(folder / "stats/overlap_ngrams.jsonl.gz", ngrams)
    return lines


def test_rows_are_ranked_and_counted_as_plain_loops_do(tmp_path: Path) -> None:
    lines = rows_of_an_output(tmp_path, 3_000)
    by_row: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_row[line["eval_row"]].append(line)

    def rank(row: int) -> tuple:
        of_row = by_row[row]
        covered = max(line["num_covered_tokens"] for line in of_row)
        documents = max(line["num_train_documents"] for line in of_row)
        return -covered, -covered / of_row[0]["num_tokens"], -documents, row

    statistics = statistics_of(tmp_path)
    assert statistics.rows.keys.column("eval_row").to_pylist() == sorted(by_row, key=rank)
    (one,) = statistics.sets
    for level in one.levels:
        for n, hits in zip((3, 5, None), [*level.by_length, level.at_any], strict=True):
            at_n = {
                row: [x for x in of_row if n is None or x["n"] == min(n, x["num_tokens"])]
                for row, of_row in by_row.items()
            }
            found = {
                row: max(line["num_covered_tokens"] for line in at)
                for row, at in at_n.items()
                if at and max(line["coverage"] for line in at) >= level.min_coverage
            }
            instances = {f"i{row // 2}" for row in found}
            assert hits[::2] == (len(instances), sum(found.values()))
    covered = statistics.rows.covered
    assert [one.num_covered_tokens for one in statistics.instances] == covered[:50].tolist()


def test_the_index_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of_an_output(tmp_path, 300)
    whole = statistics_of(tmp_path).index
    assert (whole.num_rows, whole.num_rows_with_words) == (300, 300)
    monkeypatch.setattr(search_index, "MAX_ROWS", 100)
    monkeypatch.setattr(search_index, "MAX_WORD_CHARS", 4_000)
    statistics = statistics_of(tmp_path)
    index = statistics.index
    columns = json.loads(gzip.decompress(base64.b64decode(index.data)))
    ids = statistics.rows.keys.column("instance_id").to_pylist()
    assert columns["instance_id"] == ids[:100] and index.num_rows == 100
    assert 3 < index.num_rows_with_words == len(columns["words"]) < 20
    assert set(columns["words"]) == {"a b"}
    text = page(statistics).decode()
    assert "The 100 rows with most tokens covered, of 300" in text
    assert f"Words are searched in the first {index.num_rows_with_words}," in text


def test_the_documents_that_share_most_are_shown(tmp_path: Path) -> None:
    words = PLANET.split()
    lengths = [4, 9, 3, 12, 5, 9, 3]
    training = {"t.jsonl": [(f"d{size}", " ".join(words[:size])) for size in lengths]}
    write_output(tmp_path, {"set": [("a", PLANET)]}, training, (3,))
    (instance,) = statistics_of(tmp_path).instances
    assert [document.train_row for document in instance.documents] == [3, 1, 5]
    assert [sum(d.num_ngrams.values()) for d in instance.documents] == [10, 7, 7]


def test_details_of_any_size_are_read_in_little_memory(tmp_path: Path) -> None:
    sets, training = {"set": [("a", PLANET)]}, {"t.jsonl": [("d", PLANET)] * 20}
    write_output(tmp_path, sets, training, (3,))
    path = tmp_path / "stats/overlap_details.jsonl.gz"
    texts = [f"{PLANET} {filler(40_000, seed)}" for seed in range(20)]
    lines = [{**line, "train_text": texts[line["train_row"]]} for line in read_lines(path)]
    members = [gzip.compress(f"{json.dumps(line)}\n".encode(), 1) for line in lines]
    assert sum(len(line["train_text"]) for line in lines) > 30 << 20
    path.write_bytes(b"".join(members))
    del lines, members
    statistics_of(tmp_path)  # what is imported and cached does not count
    tracemalloc.start()
    (instance,) = statistics_of(tmp_path).instances
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for document in instance.documents:
        assert document.in_train is not None
        words = "".join(piece.text for piece in document.in_train.pieces)
        assert texts[document.train_row].startswith(words)
    assert len(instance.documents) == 3 and peak < 16 << 20


def shown_texts(output: Path) -> dict[tuple, list[str]]:
    """Returns what is shown of both texts by evaluation row and training row."""
    return {
        (one.eval_dataset, one.eval_row, document.train_path, document.train_row): [
            "".join(piece.text for piece in passages.pieces)
            for passages in (document.in_eval, document.in_train)
            if passages is not None
        ]
        for one in statistics_of(output).instances
        for document in one.documents
    }


@pytest.mark.parametrize(
    "caps",
    [
        *({}, {"max_details_per_pair": 1}, {"max_details_per_pair": 5}, {"max_details": 17}),
        *({"max_details_per_pair": 3, "max_details": 9}, {"max_details_per_pair": 0}),
    ],
)
def test_each_pair_has_its_own_texts_whatever_caps_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caps: dict[str, Any]
) -> None:
    write = functools.partial(pq.write_table)
    monkeypatch.setattr(  # row groups that cut pairs
        pq, "write_table", lambda *a, **options: write(*a, **{**options, "row_group_size": 3})
    )
    full, compact = tmp_path / "full", tmp_path / "compact"
    for folder in (full, compact):
        folder.mkdir()
        write_output(folder, SETS, TRAINING, (3, 5), details=folder.name, **caps)
    lines = read_lines(full / "stats/overlap_details.jsonl.gz")
    expected = {
        (line["eval_dataset"], line["eval_row"], line["train_path"], line["train_row"]): [
            line["eval_text"],
            line["train_text"],
        ]
        for line in lines
    }
    found = shown_texts(full)
    assert {pair: texts for pair, texts in found.items() if texts} == expected
    assert len(found) == 5
    in_details = {pair[2:] for pair in expected}
    assert {pair[2:] for pair, texts in shown_texts(compact).items() if texts} == in_details
    assert all(texts in ([], expected.get(p, texts)) for p, texts in shown_texts(compact).items())


def test_removal_takes_what_the_page_says(tmp_path: Path) -> None:
    from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
    from beam_pipeline.overlap.removal.cutting import Cut, cut_text

    write_output(tmp_path, SETS, TRAINING, (3, 5))
    documents = pq.read_table(tmp_path / "stats/overlap_documents.parquet").to_pylist()
    masked, within = 0, 0
    for document in documents:
        text = TRAINING[document["train_path"]][document["train_row"]][1]
        spans = [(span["start"], span["end"]) for span in document["spans"]]
        cut = Cut(TOKENIZERS["default"], mask="x")
        (rest,) = cut_text(text, spans, cut)
        masked += len(text) - len(rest) + len(spans)
        padded = "y" * 200 + text + "y" * 200  # what the margins are of
        near = {at for start, end in spans for at in range(start, end + 400)}
        within += sum(at >= 200 for at in near if at < len(padded) + 400)
    removal = statistics_of(tmp_path).removal
    assert removal.total == (4, 5, masked, within)
    assert removal.by_file["gs://corpus/part-1.parquet"][:2] == (2, 2)
    assert {name: taken[:2] for name, taken in removal.by_set.items()} == {
        "space": (3, 4),
        "town": (1, 1),
    }
    assert removal.num_texts == {path: len(texts) for path, texts in TRAINING.items()}


def test_the_fifty_files_that_hit_most(tmp_path: Path) -> None:
    write_output(tmp_path, SETS, TRAINING, (3,))
    random = Random(2)
    hits = {f"part-{number:03d}": random.randrange(1, 30) for number in range(300)}
    lines = [
        {
            "train_path": path,
            "eval_dataset": "space",
            "n": n,
            "num_instances": hits[path],
            "instance_ids": [str(i) for i in range(hits[path] if n == 3 else 1)],
        }
        for path in sorted(hits)
        for n in (3, 5)
    ]
    path = tmp_path / "stats/overlap_stats_by_train_path.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    statistics = statistics_of(tmp_path)
    wanted = sorted(hits, key=lambda path: (-hits[path], path))
    assert [(file.path, file.num_hit) for file in statistics.train_files] == [
        (path, hits[path]) for path in wanted
    ]
    text = page(statistics).decode()
    assert "The 50 training files that hit most instances, of 300 with a hit." in text
    files = text[text.index('id="files-table"') :]
    assert wanted[49] in files and wanted[50] not in files


def test_a_folder_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    output = tmp_path / "out[1]*"
    output.mkdir()
    write_output(output, SETS, TRAINING, (3,), dead_letters={"json_invalid": 2})
    assert statistics_of(output).summary.counts["dead_letters"] == {"json_invalid": 2}


@pytest.mark.parametrize("details", ["full", "compact"])
def test_the_report_of_a_real_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, details: str
) -> None:
    """The job's own output gives what the folder made by plain loops gives, in all parts."""
    from beam_pipeline.overlap.__main__ import main

    monkeypatch.chdir(tmp_path)
    odd = ("odd", "a lone \ud800 surrogate and\tmore of it"), ("bare", "!!")
    sets = {**SETS, "odd": odd}
    training = {f"corpus/{Path(path).stem}.jsonl": texts for path, texts in TRAINING.items()}
    training["corpus/odd.jsonl"] = [("d \udfff", f"See: {odd[0][1]}"), ("x", "..."), (None, "red")]
    for path, texts in [
        *((eval_path(name), texts) for name, texts in sets.items()),
        *training.items(),
    ]:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        records = [{"text": text} | ({} if id is None else {"id": id}) for id, text in texts]
        Path(path).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    argv = ["--input_path=corpus", "--output_path=real", "--ngram_length=3,5"]
    argv += [f"--decontaminate_source=eval/{name}" for name in sets]
    cap = 0 if details == "full" else -1  # texts, or none
    assert main([*argv, f"--details={details}", f"--max_details={cap}"]) == 0
    Path("made").mkdir()
    caps = {"max_details": None if cap else 0, "details": details}
    write_output(Path("made"), sets, dict(sorted(training.items())), (3, 5), **caps)
    real, own = statistics_of(Path("real")), statistics_of(Path("made"))
    assert len(real.instances) > 5 and len(real.train_files) == 3
    assert real.instances == own.instances
    assert any(one.documents[0].in_eval for one in real.instances) == bool(cap)
    assert [real.removal, real.num_matches] == [own.removal, own.num_matches]
    assert real.index == own.index
    counts = own.summary.counts
    assert counts == {name: real.summary.counts[name] for name in counts}
    tables = [tables_of(one) for one in (real, own)]
    for name in ("sets", "rows", "train_files", "removal_by_file", "removal_by_set"):
        assert tables[0][name].data.to_pylist() == tables[1][name].data.to_pylist()
