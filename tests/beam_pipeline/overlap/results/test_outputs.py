"""The whole output, record by record equal to brute force, however the work was cut."""

import gzip
import random
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS, Tokenizer
from beam_pipeline.overlap.results import counts, layout, outputs
from beam_pipeline.overlap.results.details import DetailsOptions
from beam_pipeline.overlap.results.expansion import ExpandedUnit
from beam_pipeline.overlap.results.match_files import write_match_file
from beam_pipeline.overlap.results.outputs import Results, join_units, write_outputs
from beam_pipeline.overlap.results.rules import PUBLISHED, threshold_rule
from tests.support.engines import Gcs
from tests.support.helpers import quick_and_slow
from tests.support.overlap_gathering import (
    NOTHING,
    Cut,
    Gathering,
    batch_of,
    read_bytes,
    read_records,
    rows_of,
    scanned_unit,
)
from tests.support.overlap_hits import EvalRow, Options, TrainRow
from tests.support.overlap_reference import expected_outputs

WORDS = ["a", "b", "Σας", "İx", "é", "\U0001f600", "long-word", "", ".", "\ud800", "x\u0307"]


def bytes_of_characters(text: str) -> list[tuple[str, int, int]]:
    """A tokeniser many of whose tokens have one place: the bytes of one character."""
    return [
        (f"{byte:02x}", at, at + 1)
        for at, char in enumerate(text)
        for byte in char.encode("utf-8", "surrogatepass")
    ]


PLAIN = Cut()
BYTES = Tokenizer("test:bytes", function=bytes_of_characters)  # type: ignore[arg-type]


def corpus(seed: int) -> tuple[list[EvalRow], list[TrainRow]]:
    """Returns rows of few words, so that much is shared; ids repeat, and some are odd."""
    rng = random.Random(seed)
    sets = [("arc", "/e/arc.jsonl"), ("b \udc80", "/e/\udc80.json"), ("arc", "/e/b.parquet")]
    rows = []
    for dataset, path in sets:
        for at in range(rng.randrange(1, 5)):
            text = " ".join(rng.choices(WORDS, k=rng.randrange(12)))
            instance = rng.choice(["1", "2", "İ", "\ud800"])
            rows.append(EvalRow(dataset, path, 2 * at, instance, text))
    training = []
    for path in ("gs://c/1.jsonl.gz", "/c/2 \udcff", "/c/0.parquet"):
        for at in range(rng.randrange(8)):
            text = " ".join(rng.choices(WORDS, k=rng.randrange(25)))
            if rng.random() < 0.4:
                text += " " + rng.choice(rows).text.upper()
            doc_id = rng.choice([None, "", "doc", "\udfff"])
            training.append(TrainRow(path, 3 * at + 1, doc_id, text))
    return rows, training


def some_options(seed: int) -> Options:
    rng = random.Random(seed)
    lengths = rng.choice([(1,), (2,), (3, 5), (1, 2, 4), (2, 3, 50)])
    rules = tuple(rule._replace(n=rng.choice(lengths)) for rule in PUBLISHED.values())
    rules += (threshold_rule(lengths[0], rng.choice([0.1, 0.5, 1.0])),)
    return Options(
        lengths,
        rng.choice([*TOKENIZERS.values(), BYTES]),
        max_document_frequency=rng.choice([None, None, 1, 2, 5]),
        max_details_per_pair=rng.choice([None, None, 0, 1, 3]),
        max_details=rng.choice([None, None, 0, 7, 40]),
        skip_degenerate=rng.random() < 0.3,
        rules=rules if seed % 3 else (),
    )


def check(
    folder: Path | str,
    rows: list[EvalRow],
    training: list[TrainRow],
    options: Options,
    cut: Cut = PLAIN,
) -> Gathering:
    found = Gathering(folder, rows, training, options, cut)
    expected = expected_outputs(rows, training, options)
    records = found.records()
    assert sorted(records) == sorted(expected)
    for name, wanted in expected.items():
        assert records[name] == wanted, name
    return found


@pytest.mark.parametrize("seed", quick_and_slow(range(80), range(10)))
def test_every_record_is_that_of_brute_force(tmp_path: Path, monkeypatch, seed: int) -> None:
    monkeypatch.setattr(counts, "ROWS_PER_BUCKET", random.Random(seed).choice([1, 2, 100]))
    monkeypatch.setattr(counts, "_NGRAMS_AT_A_TIME", random.Random(seed).choice([2, 9, 1000]))
    cut = Cut(1 + seed % 3, 1 + seed % 4, seed % 2 == 1)
    check(tmp_path, *corpus(seed), some_options(seed), cut)


@pytest.mark.parametrize("tokenizer", [TOKENIZERS["default"], BYTES])
@pytest.mark.parametrize("most", quick_and_slow([None, 2], [2]))
def test_index_shards_and_small_buckets_change_no_byte(
    tmp_path: Path, monkeypatch, tokenizer: Tokenizer, most: int | None
) -> None:
    options = Options((1, 2, 4), tokenizer, max_document_frequency=most, max_details_per_pair=2)
    rows, training = corpus(5)
    one = Gathering(tmp_path / "one", rows, training, options)
    several = Gathering(tmp_path / "several", rows, training, options, Cut(4, is_relative=True))
    again = Gathering(tmp_path / "again", rows, training, options)
    # The rows of units are made up, so are their counts.
    for name in (name for name in one.names if name != layout.TRAIN_FILES):
        data = read_bytes(f"{one.output}/{name}")
        assert (
            data == read_bytes(f"{several.output}/{name}") == read_bytes(f"{again.output}/{name}")
        )
    monkeypatch.setattr(counts, "ROWS_PER_BUCKET", 1)
    narrow = Gathering(tmp_path / "narrow", rows, training, options)
    assert narrow.names == one.names and narrow.records() == one.records()


def test_how_files_are_cut_into_units_changes_nothing_but_gzip_members(tmp_path: Path) -> None:
    options = Options((1, 3), TOKENIZERS["default"])
    rows, training = corpus(5)
    small, large = (
        Gathering(tmp_path / str(size), rows, training, options, Cut(rows_per_unit=size))
        for size in (1, 100)
    )
    assert len(small.units) > len(large.units)
    made_up = ("tmp/", layout.TRAIN_FILES)
    for name in (name for name in small.names if not name.startswith(made_up)):
        data, other = (read_bytes(f"{run.output}/{name}") for run in (small, large))
        if name.endswith(".gz"):
            data, other = gzip.decompress(data), gzip.decompress(other)
        assert data == other, name


def test_nothing_in_common_gives_empty_files(tmp_path: Path) -> None:
    rows = [EvalRow("arc", "/e", 0, "1", "one two three")]
    training = [TrainRow("/c", 4, None, "four five"), TrainRow("/d", 0, None, "")]
    found = check(tmp_path, rows, training, Options((2, 3), TOKENIZERS["default"]))
    assert found.expanded == [ExpandedUnit(unit) for unit in found.units]
    members = [read_bytes(f"{found.output}/{name}") for name in found.names if ".gz" in name]
    assert len(members) == 3
    for member in members:  # which gzip itself takes; it refuses a file of no bytes
        assert member[:2] == b"\x1f\x8b" and gzip.decompress(member) == b""
    assert read_records(f"{found.output}/clean/arc.jsonl") == [
        {"id": "1", "eval_path": "/e", "eval_row": 0}
    ]


def test_no_training_data_at_all(tmp_path: Path) -> None:
    rows = rows_of([EvalRow("arc", "/e", 0, "1", "one"), EvalRow("gsm", "/f", 0, "1", "one")])
    output = str(tmp_path / "out")
    results = Results([], [], [], (5,), DetailsOptions(max_total=0))
    names = write_outputs(output, str(tmp_path / "t"), rows, results)
    assert [record["num_instances"] for record in read_records(f"{output}/{layout.STATS}")] == [
        1, 1
    ]  # fmt: skip
    assert "tmp/overlap_instances-00000-of-00001.jsonl.gz" in names
    assert read_records(f"{output}/{layout.DETAILS_LEFT_OUT}") == []


def test_an_instance_is_hit_if_one_of_its_rows_is_hit(tmp_path: Path) -> None:
    rows = [
        EvalRow("arc", "/e", 0, "same", "one two three"),
        EvalRow("arc", "/e", 1, "same", "four five six"),
        EvalRow("arc", "/e", 2, "short", "seven"),
        EvalRow("arc", "/e", 3, "clean", "eight nine ten"),
    ]
    training = [TrainRow("/c", 0, None, "zero one two"), TrainRow("/c", 1, None, "seven")]
    found = check(tmp_path, rows, training, Options((2, 3), TOKENIZERS["default"]))
    for list_name, ids in (
        ("arc", ["clean"]),
        ("arc-n2", ["clean"]),
        ("arc-n3", ["same", "same", "clean"]),
    ):
        records = read_records(f"{found.output}/clean/{list_name}.jsonl")
        assert [record["id"] for record in records] == ids


def test_published_rules_at_their_limits(tmp_path: Path) -> None:
    """Rows of 40 tokens of which k are copied, as many as the limits of the rules have."""
    rows, training = [], []
    for copied in (10, 11, 12, 13, 31, 32, 40):
        words = [f"w{copied}x{at}" for at in range(40)]
        rows.append(EvalRow("arc", "/e", copied, str(copied), " ".join(words)))
        training.append(TrainRow("/c", copied, None, " ".join(words[:copied])))
    for copied in (21, 22):  # 14 and 15 of 21 8-grams; of 28 tokens
        words = [f"p{copied}x{at}" for at in range(28)]
        rows.append(EvalRow("palm", "/p", copied, str(copied), " ".join(words)))
        training.append(TrainRow("/c", 50 + copied, None, " ".join(words[:copied])))
    rows.append(EvalRow("short", "/s", 0, "s", "only four tokens here"))
    training.append(TrainRow("/c", 99, None, "there are only four tokens here"))
    options = Options((8, 11, 13), TOKENIZERS["default"], rules=tuple(PUBLISHED.values()))
    found = check(tmp_path, rows, training, options)

    def ids(rule: str, verdict: str, dataset: str = "arc") -> list[int]:
        records = read_records(f"{found.output}/rules/{rule}/{dataset}.{verdict}.jsonl")
        return [record["eval_row"] for record in records]

    assert ids("gpt3", "clean") == [10, 11, 12] and ids("gpt3", "dirty") == [13, 31, 32, 40]
    # PaLM: 24 of 33 8-grams are 72.7 %; 14 of 21 are 66.7 %, 15 are 71.4 %.
    assert ids("palm", "dirty") == [31, 32, 40]
    assert (ids("palm", "clean", "palm"), ids("palm", "dirty", "palm")) == ([21], [22])
    # Llama 2: 10 tokens are no match; 11 of 40 are 27.5 %, 31 are 77.5 %, 32 are 80 %.
    assert ids("llama2", "clean") == [10]
    assert ids("llama2", "between") == [11, 12, 13, 31] and ids("llama2", "dirty") == [32, 40]
    counts = read_records(f"{found.output}/{layout.RULES}")
    short = [line for line in counts if line["eval_dataset"] == "short"]
    assert [line["num_dirty"] for line in short] == [1, 1, 1]
    assert [line["num_dirty_by_short_texts"] for line in short] == [1, 1, 1]


def test_a_row_counts_only_documents_that_share_more_than_boilerplate(tmp_path: Path) -> None:
    rows = [EvalRow("arc", "/e", 0, "1", "click here to win the gold medal")]
    training = [TrainRow("/c", at, None, "Click here.") for at in range(5)]
    training += [TrainRow("/d", 0, "x", "click here: the gold"), TrainRow("/d", 1, "y", "to win")]
    options = Options((2,), TOKENIZERS["default"])
    unfiltered = check(tmp_path / "all", rows, training, options)
    (coverage,) = read_records(f"{unfiltered.output}/{layout.COVERAGE}")
    assert coverage["num_train_documents"] == 7 and coverage["num_covered_tokens"] == 6
    filtered = check(tmp_path / "few", rows, training, replace(options, max_document_frequency=5))
    (coverage,) = read_records(f"{filtered.output}/{layout.COVERAGE}")
    assert coverage["num_train_documents"] == 2 and coverage["num_covered_tokens"] == 4
    assert read_records(f"{filtered.output}/{layout.BOILERPLATE}") == [
        {"ngram": "click here", "n": 2, "documents": 6}
    ]


def test_boilerplate_of_several_buckets_is_listed_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(counts, "ROWS_PER_BUCKET", 1)
    rows = [
        EvalRow("arc", "/e", at, str(at), text) for at, text in enumerate(["b \ud800", "b", "a b"])
    ]
    training = [TrainRow("/c", at, None, "a b \ud800") for at in range(3)]
    options = Options((1,), TOKENIZERS["default"], max_document_frequency=2)
    found = check(tmp_path, rows, training, options)
    assert [line["ngram"] for line in read_records(f"{found.output}/{layout.BOILERPLATE}")] == [
        "a", "b", "\ud800"
    ]  # fmt: skip


def test_empty_tokens_are_n_grams_like_others(tmp_path: Path) -> None:
    rows = [
        EvalRow("arc", "/e", at, str(at), text) for at, text in enumerate(["", "...", "x", "."])
    ]
    training = [
        TrainRow("/c", 0, None, ""),
        TrainRow("/c", 1, None, "a, b."),
        TrainRow("/c", 2, None, "..."),
    ]
    for skip in (False, True):
        options = Options((1, 2), TOKENIZERS["default"], skip_degenerate=skip)
        found = check(tmp_path / str(skip), rows, training, options)
        spans = {
            record["eval_row"]: record["spans"]
            for record in read_records(f"{found.output}/{layout.COVERAGE}")
            if record["n"] == 1
        }
        assert spans == ({} if skip else {0: [[0, 0]], 1: [[0, 0], [3, 3]], 3: [[0, 0], [1, 1]]})
        stats = read_records(f"{found.output}/{layout.STATS}")
        assert {record["num_instances"] for record in stats} == {4}


def test_the_table_of_matches_has_row_groups_of_one_size(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(outputs, "_ROWS_PER_GROUP", 7)
    rows = [EvalRow("arc", "/e", 0, "1", "a b c")]
    training = [TrainRow("/c", at, None, "a b c") for at in range(10)]
    found = check(tmp_path, rows, training, Options((1,), TOKENIZERS["default"]), Cut(1, 4))
    file = pq.ParquetFile(f"{found.output}/{layout.MATCHES}")
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    assert sizes == [7, 7, 7, 7, 2]


def test_dead_letters_get_the_rows_of_their_files(tmp_path: Path) -> None:
    temp, units = str(tmp_path / "temp"), []
    for number, first_row in enumerate((0, 100)):
        batch = batch_of([])._replace(
            num_rows=9, letters=[DeadLetter("/c", at, "json_invalid", "{") for at in (3, 8)]
        )
        path = str(tmp_path / f"matches-{number}")
        summary = write_match_file(path, temp, [(batch, NOTHING), (batch_of([]), NOTHING)])
        units.append(ExpandedUnit(scanned_unit("/c", [(path, summary)], first_row, number)))
    group = join_units(0, reversed(units), str(tmp_path / "group"), temp)
    rows, output = rows_of([EvalRow("arc", "/e", 0, "1", "one")]), str(tmp_path / "out")
    assert layout.DEAD_LETTERS in write_outputs(output, temp, rows, Results([], [group], [], (5,)))
    letters = pq.read_table(f"{output}/{layout.DEAD_LETTERS}").to_pylist()
    assert [letter["row"] for letter in letters] == [3, 8, 103, 108]
    assert letters[0] == {"file": "/c", "row": 3, "reason": "json_invalid", "value": "{"}
    names = write_outputs(str(tmp_path / "none"), temp, rows, Results([], [], [], (5,)))
    assert layout.DEAD_LETTERS not in names


def test_an_output_on_gcs(gcs: Gcs) -> None:
    rows, training = corpus(3)
    rows = [row._replace(dataset=row.dataset.replace("\udc80", "é")) for row in rows]
    options = Options((1, 2), TOKENIZERS["default"], max_document_frequency=4, max_details=20)
    found = check(gcs.make_bucket() + "/run", rows, training, options, Cut(2))
    assert sum(unit.num_details for unit in found.expanded) == 20
