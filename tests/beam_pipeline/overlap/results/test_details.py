"""Details to the byte: lines, sizes, compact ones, and what is written beside them."""

import gzip
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.documents.batch import encode
from beam_pipeline.overlap.job import gathering
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.results import details, match_files, matches
from beam_pipeline.overlap.results.counts import UnitSize
from beam_pipeline.overlap.results.layout import DETAILS, MATCHES
from beam_pipeline.overlap.results.output_files import json_strings, json_value
from tests.support.helpers import quick_and_slow
from tests.support.overlap_hits import EvalRow, Options, Records, TrainRow
from tests.support.overlap_reference import expected_outputs
from tests.support.overlap_runs import check, flags_of, run, write_rows

TEMPLATE = 'which of these two scenarios \u0130 \ud800 is "odd"\\'
ROWS = sorted(
    EvalRow(f"set{at % 2}", f"e/{at % 2}{at % 3}.jsonl", at, f"id {at // 2}", text)
    for at, text in enumerate(f"{TEMPLATE} {at} x\x01" for at in range(40))
)
DOCUMENTS = [
    TrainRow("c \xe9.jsonl", 1, None, " ".join(row.text for row in ROWS)),
    TrainRow("c \xe9.jsonl", 5, "id \udfff", f"{TEMPLATE.upper()}! " * 50),
    TrainRow("c \xe9.jsonl", 9, "", "nothing"),
    TrainRow("d.jsonl", 0, "3", ROWS[7].text),
]
OPTIONS = Options((3, 5), TOKENIZERS["default"])


def lines_in(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)


def lines_of(records: Records) -> list[bytes]:
    """Returns the lines of details, each value as JSON by itself."""
    lines = []
    for record in records:
        fields = (f'"{name}":'.encode() + json_value(value) for name, value in record.items())
        lines.append(b"{" + b",".join(fields) + b"}\n")
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("at_a_time", quick_and_slow([1, 50, 1 << 18], [50]))
def test_a_template_of_all_rows_gives_the_bytes_of_the_reference(
    tmp_path: Path, monkeypatch, at_a_time: int
) -> None:
    """Cut between documents, and between the evaluation rows of one."""
    monkeypatch.setattr(matches, "_PLACES_AT_A_TIME", at_a_time)
    monkeypatch.setattr(match_files, "_GROUP_BYTES", at_a_time)
    monkeypatch.setattr(details, "_LINE_BYTES_AT_A_TIME", 10 * at_a_time)
    sizes, check_room = [], gathering.check_room

    def kept(found: Sequence[UnitSize], *given: Any) -> None:
        sizes.extend(found)
        check_room(found, *given)

    monkeypatch.setattr(gathering, "check_room", kept)
    corpus, output = write_rows(tmp_path, ROWS, DOCUMENTS), tmp_path / "out"
    run(corpus, output, *flags_of(OPTIONS), "--num_shards=2")
    check(corpus, output, OPTIONS)
    lines = lines_in(output / DETAILS)
    assert lines == lines_of(expected_outputs(corpus.rows, corpus.training, OPTIONS)[DETAILS])
    assert sum(size.num_matches for size in sizes) == len(lines)
    assert sum(size.details.num_bytes for size in sizes) == sum(map(len, lines))
    assert max(size.details.max_bytes for size in sizes) == max(map(len, lines))
    table = pq.read_table(output / MATCHES)
    num_places = (
        len(table[f"{side}_offsets"].combine_chunks().values) for side in ("eval", "train")
    )
    assert sum(size.num_places for size in sizes) == sum(num_places)


def test_strings_as_json_are_those_of_one_by_one() -> None:
    rng = random.Random(0)
    characters = [chr(code) for code in range(0x82)] + ["\u2028", "\U0001f600", "\xe9"]
    for odd in ([], ["\ud800"]):
        texts = ["".join(rng.choices(characters + odd, k=rng.randrange(40))) for _ in range(300)]
        strings = pa.array(list(map(encode, texts)), pa.large_binary())
        wanted = list(map(json_value, texts))
        assert json_strings(strings).to_pylist() == wanted
