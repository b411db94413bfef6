"""N-grams that --drop_ngrams keeps from counting."""

import json
from pathlib import Path

import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.results.layout import BOILERPLATE
from tests.support.overlap_corpus import make_corpus
from tests.support.overlap_hits import Options
from tests.support.overlap_jobs import write_lines
from tests.support.overlap_runs import check, flags_of, outputs_of, run

NGRAMS = ["a b", "b a", "é a", "a ", " a", "σας b", "no such thing", "a", "b 世界", "x"]
DEFAULT = TOKENIZERS["default"]


@pytest.mark.parametrize("seed", [5, 23])
def test_dropped_ngrams_do_not_count(tmp_path: Path, seed: int) -> None:
    corpus = make_corpus(tmp_path, seed, num_files=4)
    path = write_lines(tmp_path / "drop.jsonl", *({"ngram": ngram} for ngram in NGRAMS))
    options = Options((1, 2), DEFAULT, drop_ngrams=tuple(NGRAMS))
    run(corpus, tmp_path / "out", *flags_of(options), f"--drop_ngrams={path}", "--num_shards=2")
    check(corpus, tmp_path / "out", options)


def test_a_runs_own_boilerplate_is_dropped_by_another(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, 23, num_files=4)
    frequent = Options((1, 2), DEFAULT, max_document_frequency=3)
    run(corpus, tmp_path / "one", *flags_of(frequent))
    path = tmp_path / "one" / BOILERPLATE
    found = tuple(json.loads(line)["ngram"] for line in path.read_text().splitlines())
    assert found
    options = Options((1, 2), DEFAULT, drop_ngrams=found)
    run(corpus, tmp_path / "two", *flags_of(options), f"--drop_ngrams={path}")
    check(corpus, tmp_path / "two", options)
    assert outputs_of(tmp_path / "one") == outputs_of(tmp_path / "two")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: it is not JSON"),
        ("[]", "line 2: it is not a record with an ngram"),
        ('{"ngram": "a b", "n": 3}', "line 2: n is 3, but 'a b' has 2 tokens"),
    ],
)
def test_a_file_that_holds_no_ngrams(
    tmp_path: Path, capsys: pytest.CaptureFixture, line: str, message: str
) -> None:
    corpus = make_corpus(tmp_path, 5)
    (tmp_path / "drop").write_text('{"ngram": "a b", "n": 2}\n' + line)
    flags = [*corpus.flags, f"--output_path={tmp_path}/out", "--direct_num_workers=1"]
    assert main([*flags, f"--drop_ngrams={tmp_path}/drop"]) == 1
    assert not (tmp_path / "out").exists()
    err = capsys.readouterr().err
    assert f"--drop_ngrams={tmp_path}/drop: {message}" in err


def test_a_run_with_other_ngrams_is_another(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    corpus = make_corpus(tmp_path, 5)
    path = write_lines(tmp_path / "drop.jsonl", {"ngram": "a"})
    flags = [*corpus.flags, f"--output_path={tmp_path}/out", f"--drop_ngrams={path}"]
    assert main(flags) == main([*flags, "--skip_existing"]) == 0
    write_lines(path, {"ngram": "a b"})
    capsys.readouterr()
    assert main([*flags, "--skip_existing"]) == 2
    assert f"{path}, of --drop_ngrams, was 15 bytes of " in capsys.readouterr().err
    assert main([*flags[:-1], "--skip_existing"]) == 2
    assert f"{path}, of --drop_ngrams, was 15 bytes of " in capsys.readouterr().err
    path.unlink()
    assert main([*flags, "--overwrite"]) == 2
    assert f"--drop_ngrams={path} is no file" in capsys.readouterr().err
    path.mkdir()
    assert main([*flags, "--overwrite"]) == 2
    assert f"{path} is not a regular file" in capsys.readouterr().err
