"""Whole overlap runs through the command line: equal, record by record, to brute force."""

import functools
import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import config, gathering, scanning
from beam_pipeline.overlap.job import pipeline as overlap_pipeline
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS, tokenizer_named
from beam_pipeline.overlap.results import counts, match_files, row_overlaps
from beam_pipeline.overlap.results.layout import DOCUMENTS, MATCHES, NOT_LOOKED_UP
from beam_pipeline.overlap.results.rules import PUBLISHED, threshold_rule
from benchmarks.engine_servers import Flink
from tests.support.engines import Gcs, stored_objects
from tests.support.helpers import quick_and_slow
from tests.support.overlap_corpus import make_corpus
from tests.support.overlap_hits import EvalRow, Options, TrainRow
from tests.support.overlap_runs import check, files_of, flags_of, outputs_of, run, write_rows

# Beam's workers end with an exception when Flink, which is done, closes a stream.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def bytes_of_characters(text: str) -> list[tuple[str, int, int]]:
    """A tokenizer many of whose tokens have one place: the bytes of one character."""
    return [
        (f"{byte:02x}", at, at + 1)
        for at, char in enumerate(text)
        for byte in char.encode("utf-8", "surrogatepass")
    ]


BYTES = f"{__name__}:bytes_of_characters"


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
    ({"lengths": (1, 2), "max_document_frequency": 1}, ["--num_shards=2"]),
    ({"lengths": (1, 2), "min_tokens": 3}, []),
    ({"lengths": (1, 3), "tokenizer": TOKENIZERS["multilingual"]}, []),
    (
        {"lengths": (1, 2), "min_tokens": 2, "max_document_frequency": 2, "skip_degenerate": True},
        [],
    ),
    ({"lengths": (1, 3), "tokenizer": tokenizer_named(BYTES), "max_document_frequency": 5}, []),
    ({"lengths": (1, 2), "rules": (threshold_rule(1, 0.5),)}, ["--num_shards=2"]),
    ({"lengths": (3, 5), "max_details_per_pair": 0, "max_document_frequency": 2}, []),
]


def compare_with_brute_force(seed: int, folder: Path, monkeypatch, *flags: str) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(scanning, "WORK_UNIT_BYTES", [40, 150, 64 << 20][seed % 3])
    monkeypatch.setattr(counts, "ROWS_PER_BUCKET", rng.choice([1, 2, 100]))
    monkeypatch.setattr(counts, "_NGRAMS_AT_A_TIME", rng.choice([2, 9, 1000]))
    monkeypatch.setattr(match_files, "_GROUP_BYTES", rng.choice([1, 200, 4 << 20]))
    monkeypatch.setattr(row_overlaps, "_TOKENS_AT_A_TIME", rng.choice([1, 1000]))
    corpus = make_corpus(folder, seed)
    settings, job_flags = CASES[seed % len(CASES)]
    options = Options(**{"tokenizer": TOKENIZERS["default"], **settings})
    run(corpus, folder / "out", *flags_of(options), *job_flags, *flags)
    check(corpus, folder / "out", options)


def test_the_precise_preset_finds_what_brute_force_finds(tmp_path: Path, monkeypatch) -> None:
    precise = config.PRESETS["precise"]
    monkeypatch.setitem(config.PRESETS, "precise", precise._replace(max_eval_rows=2))
    numbered = [[f"w{at}x{n}" for n in range(at % 13)] for at in range(40)]
    rows = [f"word{at % 7} {' '.join(words)} end" for at, words in enumerate(numbered)]
    rows += ["the end"] * 3
    evaluation = [EvalRow("arc", "e.jsonl", at, str(at), text) for at, text in enumerate(rows)]
    texts = [
        *rows[:24],
        "‘word1’ – w9x0 w9x1 w9x2, w9x3 w9x4 w9x5; w9x6 w9x7 w9x8 end.",
        "word5 end; the end",
    ]
    training = [TrainRow("c.jsonl", at, None, f"so {text} it") for at, text in enumerate(texts)]
    corpus = write_rows(tmp_path, evaluation, training)
    options = Options(
        (1, 5, 8),
        TOKENIZERS[precise.tokenizer],
        max_eval_rows=2,
        short_rows_contaminate=False,
        rules=(PUBLISHED["palm"],),
    )
    flags = ["--preset=precise", "--ngram_length=1,5", "--rules=palm", "--num_shards=2"]
    run(corpus, tmp_path / "out", *flags)
    check(corpus, tmp_path / "out", options)
    found = outputs_of(tmp_path / "out")
    assert {line["reason"] for line in found[NOT_LOOKED_UP]} == {"boilerplate"}
    assert 0 < len(found[DOCUMENTS]) < len({line["train_row"] for line in found[MATCHES]})


# The others differ in one option, which a case of these has among several.
@pytest.mark.parametrize("seed", quick_and_slow(range(len(CASES)), (1, 2, 8, 9, 12, 13, 14, 15)))
def test_a_run_finds_what_brute_force_finds(seed: int, tmp_path: Path, monkeypatch) -> None:
    compare_with_brute_force(seed, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("first", [119, 136])
def test_many_more_runs_find_what_brute_force_finds(
    first: int, tmp_path: Path, monkeypatch
) -> None:
    for seed in range(first, first + 17):  # with work units of the other sizes
        compare_with_brute_force(seed, tmp_path / str(seed), monkeypatch)


@pytest.mark.parametrize("seed", [1, 8])
def test_prism_finds_what_brute_force_finds(
    seed: int, tmp_path: Path, monkeypatch, prism: str
) -> None:
    flags = ["--runner=PrismRunner", f"--prism_location={prism}", "--environment_type=LOOPBACK"]
    compare_with_brute_force(seed, tmp_path, monkeypatch, *flags)


def test_flink_finds_what_brute_force_finds(tmp_path: Path, monkeypatch, flink: Flink) -> None:
    compare_with_brute_force(8, tmp_path, monkeypatch, *flink.flags())


def test_steps_that_are_repeated_change_nothing(tmp_path: Path, monkeypatch) -> None:
    """As when a worker is lost after its work and before its answer."""
    corpus = make_corpus(tmp_path, 11, num_files=4)
    flags = ["--ngram_length=1,2", "--max_document_frequency=3", "--max_details=4"]
    run(corpus, tmp_path / "once", *flags)
    for step in ("write_results", "expand", "write_evaluation_rows", "count_ngrams"):
        monkeypatch.setattr(gathering, step, done_twice(getattr(gathering, step)))
    run(corpus, tmp_path / "twice", *flags)
    once, twice = (
        {name: data for name, data in files_of(folder).items() if "tmp/work/" not in name}
        for folder in (tmp_path / "once", tmp_path / "twice")
    )
    assert once == twice and len(once) > 10
    assert not (tmp_path / "twice" / ".probeline-temp").exists()


def done_twice(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def twice(*args, **kwargs):
        if isinstance(result := function(*args, **kwargs), Iterator):
            list(result)
        return function(*args, **kwargs)

    return twice


def test_objects_are_read_and_written(
    tmp_path: Path, gcs: Gcs, monkeypatch, capsys: pytest.CaptureFixture
) -> None:
    """And a finished result is returned, unless an object has been written again."""
    corpus = make_corpus(tmp_path / "in", 7, num_files=4)
    bucket = gcs.make_bucket()
    gcs.upload(tmp_path / "in", f"{bucket}/in")
    local = str(tmp_path / "in")
    flags = [flag.replace(local, f"{bucket}/in") for flag in corpus.flags]
    flags += [f"--output_path={bucket}/out", "--ngram_length=2", "--num_shards=2"]
    assert main(flags) == 0
    run(corpus, tmp_path / "out", "--ngram_length=2", "--num_shards=2")
    written = stored_objects(f"{bucket}/out")
    expected = files_of(tmp_path / "out")
    assert set(written) - {name for name in written if "progress-" in name} == set(expected)
    name = "stats/overlap_details.jsonl.gz"
    there = gzip.decompress(written[name]).replace(f"{bucket}/in".encode(), local.encode())
    assert there == gzip.decompress(expected[name])
    monkeypatch.setattr(overlap_pipeline, "build", lambda *_: pytest.fail("the job ran"))
    assert main([*flags, "--skip_existing"]) == 0
    gcs.upload(tmp_path / "in/train", f"{bucket}/in/train")  # a new generation
    assert main([*flags, "--skip_existing"]) == 2
    assert ", of --input_path, was " in capsys.readouterr().err


# Flags, and the digest of the files that earlier versions wrote for a fixed corpus.
GOLDEN = {
    "a231270a789d8ce3f628f37d251355b3": [
        *("--ngram_length=1,3", "--max_document_frequency=3", "--rules=palm,llama2"),
    ],
    "ef7a592427a384b4fc169ad5e922a282": [
        *("--ngram_length=2", "--details=compact", "--max_details=9", "--num_shards=2"),
    ],
}


def digest_of(folder: Path) -> str:
    """Returns a digest of the files, of tables their values: Parquet's bytes vary with pyarrow."""
    digest = hashlib.blake2b(digest_size=16)
    for pattern in ("stats/*.*", "clean/*.*", "rules/*/*.*", "tmp/*.*"):
        for path in sorted(folder.glob(pattern)):
            if path.name in ("overlap_train_files.parquet", "report.json"):  # times of files
                continue
            data = path.read_bytes()
            if path.suffix == ".parquet":
                data = json.dumps(pq.read_table(path).to_pylist()).encode()
            digest.update(f"{path.relative_to(folder)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


@pytest.mark.parametrize(("digest", "golden"), GOLDEN.items())
def test_golden_bytes(
    digest: str, golden: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(make_corpus(Path(), 11, num_files=3), "out", *golden)
    assert digest_of(Path("out")) == digest
