"""Overlap runs through the command line, their outputs, and the comparison with brute force."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.results.layout import EVAL_TOKENS, REPORT, TRAIN_FILES
from beam_pipeline.overlap.results.rules import THRESHOLD
from tests.support.overlap_corpus import Corpus
from tests.support.overlap_hits import EvalRow, Options, TrainRow, own_ngrams
from tests.support.overlap_jobs import write_lines
from tests.support.overlap_reference import INSTANCES, expected_outputs
from tests.support.repository import files_below


def write_rows(folder: Path, rows: list[EvalRow], training: list[TrainRow]) -> Corpus:
    """Writes rows to the files that they name below a folder; lines between have no text."""
    rows = [row._replace(path=f"{folder}/{row.path}") for row in rows]
    training = [row._replace(path=f"{folder}/train/{row.path}") for row in training]
    files: dict[str, dict[int, Any]] = defaultdict(dict)
    for row in (*rows, *training):
        files[row.path][row.row] = {"id": row.id, "text": row.text}
    for path, records in files.items():
        write_lines(Path(path), *(records.get(at, {}) for at in range(max(records) + 1)))
    sources = dict.fromkeys(f"--decontaminate_source={row.dataset}={row.path}" for row in rows)
    return Corpus([f"--input_path={folder}/train", *sources], rows, training, 0)


def outputs_of(folder: Path) -> dict[str, list[dict]]:
    """Returns the records of each file of an output, as the reference has them."""
    found: dict[str, list[dict]] = {}
    for pattern in ("stats/*.*", "clean/*.*", "rules/*/*.*", "tmp/*.*"):
        for path in sorted(folder.glob(pattern)):
            name = str(path.relative_to(folder))
            if name in (TRAIN_FILES, EVAL_TOKENS, REPORT):
                continue
            if name.endswith(".parquet"):
                found[name] = pq.read_table(path).to_pylist()
                continue
            data = path.read_bytes()
            if name.startswith("tmp/overlap_instances-"):
                name = INSTANCES
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            found.setdefault(name, []).extend(map(json.loads, data.splitlines()))
    return found


def files_of(folder: Path) -> dict[str, Any]:
    """Returns the bytes of all files but those of progress, and the summary without its time."""
    found = files_below(folder).items()
    files: dict[str, Any] = {name: data for name, data in found if "/progress-" not in name}
    if (name := "progress/progress_summary.json") in files:
        files[name] = summary_of(folder)
        del files[name]["started_at"]
        for option in ("output_path", "skip_existing", "overwrite"):
            del files[name]["options"][option]
    return files


def summary_of(folder: Path) -> dict[str, Any]:
    return orjson.loads((folder / "progress" / "progress_summary.json").read_bytes())


def run(corpus: Corpus, output: Path | str, *flags: str) -> None:
    assert main([*corpus.flags, f"--output_path={output}", *flags]) == 0


def check(corpus: Corpus, output: Path, options: Options) -> None:
    """Compares all files of an output with brute force, and its counts with each other."""
    assert outputs_of(output) == expected_outputs(corpus.rows, corpus.training, options)
    counts = summary_of(output)["counts"]
    files = pq.read_table(output / TRAIN_FILES)
    sums = {name: sum(files.column(name).to_pylist()) for name in files.column_names[3:]}
    assert sums["num_rows"] == counts["train_rows"]
    assert sums["num_texts"] == counts["train_texts"]
    assert sums["num_text_chars"] == sum(len(row.text) for row in corpus.training)
    assert sums["num_without_text"] == counts["train_without_text"]
    assert counts["train_texts"] == len(corpus.training)
    assert counts["eval_rows"] == len(corpus.rows)
    num_hits = len(pq.read_table(output / "stats/overlap_matches.parquet"))
    assert counts["matches"] == num_hits or (
        options.max_document_frequency,
        options.drop_ngrams,
        options.max_eval_rows,
    )
    own, tokenize = own_ngrams(corpus.rows, options), options.tokenizer.tokenize
    sizes = [len(tokenize(row.text)) for row in corpus.training]
    lengths = {n for _, n in own}
    assert counts["train_ngrams"] == sum(max(0, size - n + 1) for size in sizes for n in lengths)
    assert sum(counts["dead_letters"].values()) == corpus.num_letters
    letters = output / "dead_letter" / "dead_letter_00000-of-00001.parquet"
    assert letters.exists() == bool(corpus.num_letters)
    if corpus.num_letters:
        assert len(pq.read_table(letters)) == corpus.num_letters
    assert (output / ".SUCCESS").exists()
    assert not (output / ".probeline-temp").exists()


def flags_of(options: Options) -> list[str]:
    flags = [f"--ngram_length={n}" for n in options.lengths]
    flags += [f"--tokenizer={options.tokenizer.name}"]
    flags += ["--degenerate=skip"] if options.skip_degenerate else []
    for name in ("max_document_frequency", "max_details_per_pair", "max_details", "min_tokens"):
        if (value := getattr(options, name)) is not None:
            flags.append(f"--{name}={value}")
    if published := [rule.name for rule in options.rules if rule.name != THRESHOLD]:
        flags.append(f"--rules={','.join(published)}")
    own = [rule for rule in options.rules if rule.name == THRESHOLD]
    return [*flags, *(f"--threshold={rule.dirty_from}" for rule in own)]
