"""Files of whole runs; brute force over random corpora is in job/test_job.py."""

import gzip
from pathlib import Path

import pyarrow.parquet as pq

from beam_pipeline.overlap.job import scanning
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.results import layout, outputs
from beam_pipeline.overlap.results.rules import PUBLISHED
from tests.support.overlap_hits import EvalRow, Options, TrainRow
from tests.support.overlap_jobs import read_lines
from tests.support.overlap_runs import check, flags_of, run, write_rows

DEFAULT = TOKENIZERS["default"]


def run_and_check(
    folder: Path, rows: list[EvalRow], training: list[TrainRow], options: Options, *flags: str
) -> Path:
    corpus = write_rows(folder, rows, training)
    run(corpus, folder / "out", *flags_of(options), *flags)
    check(corpus, folder / "out", options)
    return folder / "out"


def test_nothing_in_common_gives_empty_files(tmp_path: Path) -> None:
    rows = [EvalRow("arc", "e.jsonl", 0, "1", "one two three")]
    training = [TrainRow("c.jsonl", 4, None, "four five"), TrainRow("d.jsonl", 0, None, "")]
    output = run_and_check(tmp_path, rows, training, Options((2, 3), DEFAULT))
    members = [path.read_bytes() for path in output.rglob("*.gz")]
    assert len(members) == 3
    for member in members:  # which gzip itself takes; it refuses a file of no bytes
        assert member[:2] == b"\x1f\x8b" and gzip.decompress(member) == b""


def test_published_rules_at_their_limits(tmp_path: Path) -> None:
    """Rows of 40 tokens of which k are copied, as many as the limits of the rules have."""
    rows, training = [], []
    for copied in (10, 11, 12, 13, 31, 32, 40):
        words = [f"w{copied}x{at}" for at in range(40)]
        rows.append(EvalRow("arc", "e.jsonl", copied, str(copied), " ".join(words)))
        training.append(TrainRow("c.jsonl", copied, None, " ".join(words[:copied])))
    for copied in (21, 22):  # 14 and 15 of 21 8-grams; of 28 tokens
        words = [f"p{copied}x{at}" for at in range(28)]
        rows.append(EvalRow("palm", "p.jsonl", copied, str(copied), " ".join(words)))
        training.append(TrainRow("c.jsonl", 50 + copied, None, " ".join(words[:copied])))
    rows.append(EvalRow("short", "s.jsonl", 0, "s", "only four tokens here"))
    training.append(TrainRow("c.jsonl", 99, None, "there are only four tokens here"))
    options = Options((8, 11, 13), DEFAULT, rules=tuple(PUBLISHED.values()))
    output = run_and_check(tmp_path, rows, training, options)

    def ids(rule: str, verdict: str, dataset: str = "arc") -> list[int]:
        records = read_lines(output / f"rules/{rule}/{dataset}.{verdict}.jsonl")
        return [record["eval_row"] for record in records]

    assert ids("gpt3", "clean") == [10, 11, 12] and ids("gpt3", "dirty") == [13, 31, 32, 40]
    # PaLM: 24 of 33 8-grams are 72.7 %; 14 of 21 are 66.7 %, 15 are 71.4 %.
    assert ids("palm", "dirty") == [31, 32, 40]
    assert (ids("palm", "clean", "palm"), ids("palm", "dirty", "palm")) == ([21], [22])
    # Llama 2: 10 tokens are no match; 11 of 40 are 27.5 %, 31 are 77.5 %, 32 are 80 %.
    assert ids("llama2", "clean") == [10]
    assert ids("llama2", "between") == [11, 12, 13, 31] and ids("llama2", "dirty") == [32, 40]
    short = [line for line in read_lines(output / layout.RULES) if line["eval_dataset"] == "short"]
    assert [line["num_dirty"] for line in short] == [1, 1, 1]
    assert [line["num_dirty_by_short_texts"] for line in short] == [1, 1, 1]


def test_row_groups_have_one_size_and_dead_letters_the_rows_of_their_files(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(outputs, "_ROWS_PER_GROUP", 7)
    monkeypatch.setattr(scanning, "WORK_UNIT_BYTES", 60)
    training = [TrainRow("c.jsonl", at, None, "a b c") for at in range(20)]
    corpus = write_rows(tmp_path, [EvalRow("arc", "e.jsonl", 0, "1", "a b")], training)
    path = tmp_path / "train/c.jsonl"
    lines = path.read_text().splitlines()
    for at in (3, 8, 17):
        lines[at] = "{"
    path.write_text("\n".join(lines))
    run(corpus, tmp_path / "out", "--ngram_length=2")
    letters = pq.read_table(tmp_path / "out" / layout.DEAD_LETTERS).to_pylist()
    assert [letter["row"] for letter in letters] == [3, 8, 17]
    assert letters[0] == {"file": str(path), "row": 3, "reason": "json_invalid", "value": "{"}
    file = pq.ParquetFile(tmp_path / "out" / layout.MATCHES)
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    assert sizes == [7, 7, 3]
