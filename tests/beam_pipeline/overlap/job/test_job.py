"""Whole overlap runs through the command line: equal, record by record, to brute force."""

import functools
import gzip
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow.parquet as pq
import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import gathering, scanning
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.results.layout import EVAL_TOKENS, TRAIN_FILES
from benchmarks.engine_servers import Flink
from tests.support.engines import Gcs, stored_objects
from tests.support.helpers import quick_and_slow
from tests.support.overlap_corpus import Corpus, make_corpus
from tests.support.overlap_reference import INSTANCES, Options, expected_outputs, own_ngrams
from tests.support.repository import ROOT
from tests.support.warm_python import warm_python

# Beam's workers end with an exception when Flink, which is done, closes a stream.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def lines_of(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def outputs_of(folder: Path) -> dict[str, list[dict]]:
    """Returns the records of each file of an output, as the reference has them."""
    found: dict[str, list[dict]] = {}
    for kind in ("stats", "clean", "tmp"):
        for path in sorted((folder / kind).glob("*.*")):
            name = str(path.relative_to(folder))
            if name in (TRAIN_FILES, EVAL_TOKENS):
                continue
            if name.endswith(".parquet"):
                found[name] = pq.read_table(path).to_pylist()
                continue
            data = path.read_bytes()
            if name.startswith("tmp/overlap_instances-"):
                name = INSTANCES
            records = lines_of(gzip.decompress(data) if path.suffix == ".gz" else data)
            found.setdefault(name, []).extend(records)
    return found


def files_of(folder: Path) -> dict[str, Any]:
    """Returns the bytes of all files but those of progress, and the summary without its time."""
    files: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "progress-" not in path.name
    }
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
    assert sums["num_without_text"] == counts["train_without_text"]
    assert counts["train_texts"] == len(corpus.training)
    assert counts["eval_rows"] == len(corpus.rows)
    num_hits = len(pq.read_table(output / "stats/overlap_matches.parquet"))
    assert counts["matches"] == num_hits or (options.max_document_frequency, options.drop_ngrams)
    own, tokenize = own_ngrams(corpus.rows, options), options.tokenizer.tokenize
    sizes = [len(tokenize(row.text)) for row in corpus.training]
    lengths = {n for _, n in own}
    assert counts["train_ngrams"] == sum(max(0, size - n + 1) for size in sizes for n in lengths)
    assert sum(counts["dead_letters"].values()) == corpus.num_letters
    for side in ("train_rows", "train_texts", "train_without_text"):
        assert counts[side] >= 0
    letters = output / "dead_letter" / "dead_letter_00000-of-00001.parquet"
    assert letters.exists() == bool(corpus.num_letters)
    if corpus.num_letters:
        assert len(pq.read_table(letters)) == corpus.num_letters
    assert (output / ".SUCCESS").exists()
    assert not (output / ".probeline-temp").exists()


# By seed: the flags of the job that are options of the reference, too, and those that are not.
CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({"lengths": (2,)}, []),
    ({"lengths": (1, 3)}, ["--num_shards=3"]),
    ({"lengths": (13,)}, []),
    ({"lengths": (2,), "tokenizer": TOKENIZERS["no_lowercase"]}, []),
    ({"lengths": (2, 5), "skip_degenerate": True}, []),
    ({"lengths": (2,), "max_details_per_pair": 1}, []),
    ({"lengths": (2,), "max_details": 3}, ["--num_shards=2"]),
    ({"lengths": (1, 2), "max_document_frequency": 2}, []),
    (
        {"lengths": (2,), "max_document_frequency": 1, "max_details": 2, "max_details_per_pair": 1},
        [],
    ),
    ({"lengths": (3,), "tokenizer": TOKENIZERS["whitespace_lower"], "max_details": 0}, []),
    ({"lengths": (1, 2), "max_eval_rows_per_ngram": 1}, ["--num_shards=2"]),
    ({"lengths": (1, 2), "min_tokens": 3}, []),
    ({"lengths": (1, 3), "tokenizer": TOKENIZERS["multilingual"]}, []),
    (
        {
            "lengths": (1, 2),
            "max_eval_rows_per_ngram": 2,
            "min_tokens": 2,
            "max_document_frequency": 2,
            "skip_degenerate": True,
        },
        [],
    ),
]


SLOW_SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in (4, 6, 7)]


def flags_of(options: Options) -> list[str]:
    flags = [f"--ngram_length={n}" for n in options.lengths]
    flags += [f"--tokenizer={options.tokenizer.name}"]
    flags += ["--degenerate=skip"] if options.skip_degenerate else []
    flags += [f"--min_boilerplate_sources={n}"] if (n := options.min_boilerplate_sources) else []
    for name in (
        *("max_document_frequency", "max_details_per_pair", "max_details"),
        *("max_eval_rows_per_ngram", "min_tokens"),
    ):
        if (value := getattr(options, name)) is not None:
            flags.append(f"--{name}={value}")
    return flags


def compare_with_brute_force(seed: int, folder: Path, monkeypatch, *flags: str) -> None:
    monkeypatch.setattr(scanning, "WORK_UNIT_BYTES", [40, 150, 64 << 20][seed % 3])
    corpus = make_corpus(folder, seed)
    settings, job_flags = CASES[seed % len(CASES)]
    options = Options(**{"tokenizer": TOKENIZERS["default"], **settings})
    run(corpus, folder / "out", *flags_of(options), *job_flags, *flags)
    check(corpus, folder / "out", options)


# The others differ in one option, which a case of these has among several.
@pytest.mark.parametrize("seed", quick_and_slow(range(len(CASES)), (1, 2, 3, 4, 8, 9, 12, 13)))
def test_a_run_finds_what_brute_force_finds(seed: int, tmp_path: Path, monkeypatch) -> None:
    compare_with_brute_force(seed, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 200, 25))
def test_many_more_runs_find_what_brute_force_finds(
    first: int, tmp_path: Path, monkeypatch
) -> None:
    for seed in range(first, first + 25):
        compare_with_brute_force(seed, tmp_path / str(seed), monkeypatch)


@pytest.mark.parametrize("seed", [1, 8, *SLOW_SEEDS])
def test_prism_finds_what_brute_force_finds(
    seed: int, tmp_path: Path, monkeypatch, prism: str
) -> None:
    flags = ["--runner=PrismRunner", f"--prism_location={prism}", "--environment_type=LOOPBACK"]
    compare_with_brute_force(seed, tmp_path, monkeypatch, *flags)


@pytest.mark.parametrize("seed", [8, *SLOW_SEEDS])
def test_flink_finds_what_brute_force_finds(
    seed: int, tmp_path: Path, monkeypatch, flink: Flink
) -> None:
    compare_with_brute_force(seed, tmp_path, monkeypatch, *flink.flags())


@pytest.mark.slow
def test_several_processes_write_the_same_bytes(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, 3, num_files=5)
    run(corpus, tmp_path / "one", "--ngram_length=2")
    run(corpus, tmp_path / "two", "--ngram_length=2", "--processes=2")
    one, two = files_of(tmp_path / "one"), files_of(tmp_path / "two")
    for files in (one, two):
        del files["progress/progress_summary.json"]
    assert one == two


FEW = ["--ngram_length=1,2", "--max_document_frequency=3", "--max_details=4"]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, dict[str, Any]]:
    """A corpus, and what a run of it with the flags FEW writes."""
    folder = tmp_path_factory.mktemp("once")
    corpus = make_corpus(folder, 11, num_files=4)
    run(corpus, folder / "out", *FEW)
    return corpus, files_of(folder / "out")


@pytest.mark.parametrize("step", ["finish", "expand", "write_evaluation_rows", "count_ngrams"])
def test_a_step_that_is_repeated_changes_nothing(
    once: tuple[Corpus, dict[str, Any]], tmp_path: Path, monkeypatch, step: str
) -> None:
    """As when a worker is lost after its work and before its answer."""
    corpus, wanted = once
    function = getattr(gathering, step)

    @functools.wraps(function)
    def twice(*args, **kwargs):
        if isinstance(result := function(*args, **kwargs), Iterator):
            list(result)
        return function(*args, **kwargs)

    monkeypatch.setattr(gathering, step, twice)
    run(corpus, tmp_path / "twice", *FEW)
    again = files_of(tmp_path / "twice")
    assert {name: wanted[name] for name in wanted if "tmp/work/" not in name} == {
        name: again[name] for name in again if "tmp/work/" not in name
    }
    assert not (tmp_path / "twice" / ".probeline-temp").exists()


@pytest.mark.parametrize("num_shards", [2, 5])
def test_several_index_shards_write_the_same_bytes(tmp_path: Path, num_shards: int) -> None:
    corpus = make_corpus(tmp_path, 11, num_files=4)
    run(corpus, tmp_path / "one", "--ngram_length=1,2")
    run(corpus, tmp_path / "more", "--ngram_length=1,2", f"--num_shards={num_shards}")
    one, more = files_of(tmp_path / "one"), files_of(tmp_path / "more")
    for files in (one, more):
        del files["progress/progress_summary.json"]
    assert one == more
    summary = summary_of(tmp_path / "more")
    assert summary["num_shards"] == num_shards
    assert summary["counts"] == summary_of(tmp_path / "one")["counts"]


def test_objects_are_read_and_written(tmp_path: Path, gcs: Gcs) -> None:
    corpus = make_corpus(tmp_path / "in", 7, num_files=4)
    bucket = gcs.make_bucket()
    gcs.upload(tmp_path / "in", f"{bucket}/in")
    local = str(tmp_path / "in")
    flags = [flag.replace(local, f"{bucket}/in") for flag in corpus.flags]
    assert main([*flags, f"--output_path={bucket}/out", "--ngram_length=2", "--num_shards=2"]) == 0
    run(corpus, tmp_path / "out", "--ngram_length=2", "--num_shards=2")
    written = stored_objects(f"{bucket}/out")
    expected = files_of(tmp_path / "out")
    assert set(written) - {name for name in written if "progress-" in name} == set(expected)
    name = "stats/overlap_details.jsonl.gz"
    there = gzip.decompress(written[name]).replace(f"{bucket}/in".encode(), local.encode())
    assert there == gzip.decompress(expected[name])


# --- killed, and gone on with -------------------------------------------------------------------

# Runs `main` in a process that kills itself when a function is called for the n-th time, and says
# which work units it reads.
SCRIPT = """
import os, signal, sys
from beam_pipeline.overlap.job import gathering, preparing, scanning
from beam_pipeline.storage import files
scanning.WORK_UNIT_BYTES = 150
name, after = sys.argv[1], int(sys.argv[2])
module, _, function = name.partition(".")
module = globals()[module]
original, calls = getattr(module, function), []
def killing(*args, **kwargs):
    calls.append(0)
    if len(calls) == after:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(module, function, killing)
read_work_unit = scanning.read_work_unit
def reading(unit, *args):
    print("read", unit.name, flush=True)
    return read_work_unit(unit, *args)
scanning.read_work_unit = reading
from beam_pipeline.overlap.__main__ import main
sys.exit(main(sys.argv[3:]))
"""

UNHARMED = ("files.rename", 0)
KILLS = [
    ("scanning.write_match_file", 6),
    ("files.rename", 9),
    ("gathering.write_outputs", 1),
    *(
        pytest.param(kill, marks=pytest.mark.slow)
        for kill in (
            ("preparing.write_rows", 1),
            ("preparing.build_index", 2),
            ("scanning.write_match_file", 1),
            ("files.rename", 3),
            ("gathering.count_unit", 2),
            ("gathering.expand_unit", 3),
            ("gathering.remove_folder", 1),
        )
    ),
]


def in_a_process(corpus: Corpus, output: Path, kill: tuple[str, int], *flags: str):
    command = [*warm_python(), "-c", SCRIPT, kill[0], str(kill[1])]
    return subprocess.run(
        [*command, *corpus.flags, f"--output_path={output}", *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def units_read(done: subprocess.CompletedProcess) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith("read ")]


class Whole(NamedTuple):
    """A run that nobody disturbed."""

    corpus: Corpus
    flags: list[str]
    files: dict[str, bytes]
    units_read: list[str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    corpus, flags = make_corpus(folder, 21, num_files=4), ["--ngram_length=1,2", "--num_shards=2"]
    done = in_a_process(corpus, folder / "out", UNHARMED, *flags)
    assert done.returncode == 0, done.stderr
    return Whole(corpus, flags, files_of(folder / "out"), units_read(done))


def match_files_in(output: Path) -> list[Path]:
    return [path for path in output.glob("tmp/work/*/*-pass-*") if ".letters." not in path.name]


@pytest.mark.slow
@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: f"{kill[0]}-{kill[1]}")
def test_a_killed_run_is_gone_on_with(whole: Whole, tmp_path: Path, kill: tuple[str, int]) -> None:
    output = tmp_path / "out"
    killed = in_a_process(whole.corpus, output, kill, *whole.flags)
    assert killed.returncode == -9, killed.stderr
    # What comes after .SUCCESS only tidies up.
    assert (output / ".SUCCESS").exists() == (kill[0] == "gathering.remove_folder")
    match_files = match_files_in(output)
    flags = [*whole.flags, "--skip_existing", "--overwrite"]
    again = in_a_process(whole.corpus, output, UNHARMED, *flags)
    assert again.returncode == 0, again.stderr
    assert files_of(output) == whole.files
    assert len(units_read(again)) == len(whole.units_read) - len(match_files)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["--ngram_length=3", "--tokenizer=whitespace", "corpus", "none"])
def test_match_files_of_other_options_are_not_used(tmp_path: Path, change: str) -> None:
    corpus = make_corpus(tmp_path / "in", 21, num_files=4)
    flags = ["--ngram_length=2", "--tokenizer=default"]
    killed = in_a_process(corpus, tmp_path / "out", ("gathering.count_unit", 1), *flags)
    assert killed.returncode == -9
    if change == "corpus":
        path = next((tmp_path / "in" / "eval").rglob("0.*"))
        path.unlink()
        path.with_name("0.jsonl").write_text('{"text": "b a b a"}\n')
    elif change != "none":
        flags.append(change)
    in_a_process(corpus, tmp_path / "anew", UNHARMED, *flags)
    again = in_a_process(corpus, tmp_path / "out", UNHARMED, *flags, "--skip_existing")
    assert again.returncode == 0, again.stderr
    assert files_of(tmp_path / "out") == files_of(tmp_path / "anew")
    assert bool(units_read(again)) == (change != "none")


@pytest.mark.slow
def test_a_run_without_skip_existing_begins_anew(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, 21)
    killed = in_a_process(corpus, tmp_path / "out", ("gathering.count_unit", 1), "--ngram_length=2")
    again = in_a_process(corpus, tmp_path / "out", UNHARMED, "--ngram_length=2")
    assert units_read(again) == units_read(killed) != []


@pytest.mark.slow
def test_match_files_are_kept_if_details_were_left_out(tmp_path: Path) -> None:
    """So that a run that counts first can write them without reading the training data again."""
    corpus = make_corpus(tmp_path, 21)
    in_a_process(corpus, tmp_path / "out", UNHARMED, "--ngram_length=2", "--max_details=0")
    counts = summary_of(tmp_path / "out")["counts"]
    assert counts["details"] == 0 and counts["details_left_out"] > 0
    flags = ["--ngram_length=2", "--skip_existing", "--overwrite"]
    again = in_a_process(corpus, tmp_path / "out", UNHARMED, *flags)
    assert again.returncode == 0 and units_read(again) == []
    in_a_process(corpus, tmp_path / "anew", UNHARMED, "--ngram_length=2")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "anew")
    details = (tmp_path / "out" / "stats" / "overlap_details.jsonl.gz").read_bytes()
    assert len(gzip.decompress(details)) == counts["detail_bytes"]
