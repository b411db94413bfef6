"""N-grams that --drop_ngrams keeps from counting."""

from pathlib import Path

import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.results.layout import BOILERPLATE
from tests.support.overlap_corpus import make_corpus
from tests.support.overlap_hits import Options
from tests.support.overlap_jobs import read_lines, write_lines
from tests.support.overlap_runs import check, flags_of, run

NGRAMS = ["a b", "b a", "é a", "a ", " a", "σας b", "no such thing", "a", "b 世界", "x"]
DEFAULT = TOKENIZERS["default"]


def test_dropped_ngrams_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Those of a list, and those that another run found to be boilerplate."""
    corpus = make_corpus(tmp_path, 23, num_files=4)
    run(corpus, tmp_path / "one", *flags_of(Options((1, 2), DEFAULT, max_document_frequency=3)))
    frequent = tmp_path / "one" / BOILERPLATE
    found = [line["ngram"] for line in read_lines(frequent)]
    assert len(found) > 1
    listed = write_lines(tmp_path / "drop.jsonl", *({"ngram": ngram} for ngram in NGRAMS))
    options = Options((1, 2), DEFAULT, drop_ngrams=(*NGRAMS, *found))
    capsys.readouterr()
    dropped = [f"--drop_ngrams={path}" for path in (frequent, listed)]
    run(corpus, tmp_path / "two", *flags_of(options), *dropped, "--num_shards=2")
    check(corpus, tmp_path / "two", options)
    assert "Boilerplate is not counted: " in capsys.readouterr().out


def test_a_run_with_other_ngrams_is_another(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    corpus = make_corpus(tmp_path, 5)
    path = tmp_path / "drop.jsonl"
    flags = [*corpus.flags, f"--output_path={tmp_path}/out", f"--drop_ngrams={path}"]
    for line, message in (
        ("{", "line 2: it is not JSON"),
        ('{"ngram": "a b", "n": 3}', "line 2: n is 3, but 'a b' has 2 tokens"),
    ):
        path.write_text('{"ngram": "a b", "n": 2}\n' + line)
        assert main([*flags, "--direct_num_workers=1"]) == 1
        assert f"--drop_ngrams={path}: {message}" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    write_lines(path, {"ngram": "a"})
    assert main(flags) == main([*flags, "--skip_existing"]) == 0
    write_lines(path, {"ngram": "a b"})
    capsys.readouterr()
    assert main([*flags, "--skip_existing"]) == 2
    assert f"{path}, of --drop_ngrams, was 15 bytes of " in capsys.readouterr().err
    path.unlink()
    assert main([*flags, "--overwrite"]) == 2
    assert f"--drop_ngrams={path} is no file" in capsys.readouterr().err
