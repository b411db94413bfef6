"""N-grams that a file of the user, or the frequency within sources, keeps from counting."""

import json
from pathlib import Path

import pytest

from beam_pipeline.errors import UsageError
from beam_pipeline.overlap import DeconConfig
from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.results.layout import BOILERPLATE, BOILERPLATE_SCORES
from tests.support.overlap_corpus import Corpus, make_corpus
from tests.support.overlap_hits import EvalRow, Options, TrainRow
from tests.support.overlap_jobs import write_lines
from tests.support.overlap_reference import expected_outputs
from tests.support.overlap_runs import check, flags_of, outputs_of, run, summary_of

NGRAMS = ["a b", "b a", "é a", "a ", " a", "σας b", "no such thing", "a", "b 世界", "x"]
DEFAULT = TOKENIZERS["default"]


@pytest.mark.parametrize("seed", [5, 23])
def test_dropped_ngrams_do_not_count(tmp_path: Path, seed: int) -> None:
    corpus = make_corpus(tmp_path, seed, num_files=4)
    path = write_lines(tmp_path / "drop.jsonl", *({"ngram": ngram} for ngram in NGRAMS))
    options = Options((1, 2), DEFAULT, drop_ngrams=tuple(NGRAMS))
    run(corpus, tmp_path / "out", *flags_of(options), f"--drop_ngrams={path}", "--num_shards=2")
    check(corpus, tmp_path / "out", options)
    scores = outputs_of(tmp_path / "out")[BOILERPLATE_SCORES]
    assert summary_of(tmp_path / "out")["counts"]["boilerplate_hits"] == len(scores) > 0


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
    one, two = outputs_of(tmp_path / "one"), outputs_of(tmp_path / "two")
    assert one == two


# --- sources --------------------------------------------------------------------------------------

QUOTE, LICENSE, LEAK = "fame of all", "terms of use", "who won it"
SOURCES = {
    "books": [QUOTE, QUOTE, LICENSE],
    "code": [LICENSE, LICENSE, QUOTE, QUOTE],
    "web": [LEAK, LEAK, LEAK, QUOTE],
}


@pytest.mark.parametrize(
    ("min_sources", "boilerplate"),
    [(0, [QUOTE, LICENSE, LEAK]), (1, [QUOTE, LICENSE, LEAK]), (2, [QUOTE]), (3, [])],
)
def test_an_ngram_is_boilerplate_in_so_many_sources(
    tmp_path: Path, min_sources: int, boilerplate: list[str]
) -> None:
    rows = [EvalRow("quiz", "", at, str(at), t) for at, t in enumerate((QUOTE, LICENSE, LEAK))]
    source = write_lines(
        tmp_path / "quiz/test.jsonl", *({"id": row.id, "text": row.text} for row in rows)
    )
    rows = [row._replace(path=str(source)) for row in rows]
    training: list[TrainRow] = []
    for name, texts in SOURCES.items():
        path = write_lines(tmp_path / f"{name}/a.jsonl", *({"text": text} for text in texts))
        training += [TrainRow(str(path), at, None, text) for at, text in enumerate(texts)]
    flags = [f"--input_path={tmp_path}/{name}" for name in SOURCES]
    corpus = Corpus([*flags, f"--decontaminate_source={tmp_path}/quiz"], rows, training, 0)
    options = Options((3,), DEFAULT, max_document_frequency=1, min_boilerplate_sources=min_sources)
    run(corpus, tmp_path / "out", *flags_of(options))
    found, expected = outputs_of(tmp_path / "out"), expected_outputs(rows, training, options)
    by_source = {line["ngram"]: line.pop("documents_by_source") for line in found[BOILERPLATE]}
    assert found == expected and set(by_source) == set(boilerplate)
    for ngram in boilerplate:
        names = {f"{tmp_path}/{name}": texts.count(ngram) for name, texts in SOURCES.items()}
        assert by_source[ngram] == {name: count for name, count in names.items() if count}


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: it is no JSON"),
        ("[]", "line 2: it is no record with an ngram"),
        ('{"n": 3}', "line 2: it is no record with an ngram"),
        ('{"ngram": "a b", "n": 3}', "line 2: n is 3, and 'a b' has 2 tokens"),
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
    assert f"{path} was changed" in capsys.readouterr().err
    assert main([*flags[:-1], "--skip_existing"]) == 2
    assert f"{path}, of --drop_ngrams, is no longer among" in capsys.readouterr().err
    path.unlink()
    assert main([*flags, "--overwrite"]) == 2
    assert f"--drop_ngrams={path} is no file" in capsys.readouterr().err


def test_sources_are_counted_where_there_is_something_to_count() -> None:
    paths = {"input_path": ["a", "b"], "decontaminate_source": "c", "output_path": "d"}
    with pytest.raises(UsageError, match="needs --max_document_frequency"):
        DeconConfig(**paths, min_boilerplate_sources=1)
    with pytest.raises(UsageError, match="=3 is more than there are sources: give 2 at most"):
        DeconConfig(**paths, min_boilerplate_sources=3, max_document_frequency=1)
