"""The overlap job as a program: what it prints, its exit codes, what it does to its output."""

import json
import re
from pathlib import Path

import pytest

from beam_pipeline.jobs.output_folder import TEMP_FOLDER, taken
from beam_pipeline.overlap import remove
from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job.launch import output_files
from beam_pipeline.overlap.results.layout import SUMMARY
from tests.support.overlap_jobs import SHARED, flags, write_lines
from tests.support.repository import files_below


def error_of(capsys: pytest.CaptureFixture, code: int, arguments: list[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("error: "), err
    return err


# --- what a person sees ---------------------------------------------------------------------------


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def test_summary_table(corpus: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(flags(corpus, "--max_details_per_pair=1")) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [row for row in map(cells, out.splitlines()) if len(row) == 9][1:] == [
        ["music", "5", "3", "3", "1", "0", "2", "0", "33.33 %"],
        ["music", "12", "3", "3", "1", "0", "2", "0", "33.33 %"],
        ["[x]", "5", "1", "1", "0", "0", "1", "0", "0.00 %"],
        ["[x]", "12", "1", "1", "0", "0", "1", "0", "0.00 %"],
    ]
    below = out.splitlines()[-6:]
    assert "[x]" in out  # which is not markup
    matches = (len(SHARED.split()) - 4) + (len(SHARED.split()) - 11)
    assert below[0].startswith("6 texts of 1 training file and 4 rows of 2 evaluation files in ")
    assert below[0].endswith(f": {matches} matches")
    assert below[1].startswith("Without a text: 1 training and 0 evaluation records; ")
    assert below[2] == f"1 dead letter in {corpus / 'out/dead_letter'}: 1 json_not_an_object"
    assert below[3].startswith("Warning: 1 evaluation row with only empty tokens, which ")
    assert below[4].startswith(f"overlap_details has 1 record; {matches - 1} are left out by --max")
    assert below[5] == f"Next: python -m beam_pipeline.overlap.report {corpus}/out"


# --- refused, failed, stopped ---------------------------------------------------------------------


def test_refused_command_leaves_the_output(finished: Path, capsys: pytest.CaptureFixture) -> None:
    """Not even an earlier result that may be replaced."""
    before = files_below(finished / "out")
    for more, message in (
        (["--input_path=nowhere"], "--input_path=nowhere matches no file of documents"),
        (["--streaming"], "--streaming: the input is bounded"),
        (["--processes=3", "--runner=PrismRunner"], "PrismRunner has no such setting"),
    ):
        assert message in error_of(capsys, 2, flags(finished, "--overwrite", *more))
        assert files_below(finished / "out") == before, more


def test_a_corpus_without_texts_says_why(corpus: Path, capsys: pytest.CaptureFixture) -> None:
    """By dead letters, of which the first is shown, or by the fields that there are."""
    path = write_lines(corpus / "other/a.jsonl", {"content": "a"})
    only = [f"--input_path={path}", *flags(corpus)[1:]]
    error = error_of(capsys, 1, only)
    assert error.endswith(f"name the field with --text_field; {path} has content\n")
    path.write_bytes('{"text": "a"}'.encode("utf-16"))
    error = error_of(capsys, 1, only)
    assert "a text in the field 'text': 1 utf8_invalid; the first is row 0 of" in error
    assert f"{path}, utf8_invalid: \\xff\\xfe{{" in error and "--text_field" not in error


# --- the output folder ----------------------------------------------------------------------------

WORK = ("tmp/work/0123/part.parquet", "tmp/work/0123/index")
FOREIGN = (
    "notes.txt",
    "overlap_stats.jsonl",
    "stats/overlap_stats.jsonl.bak",
    "stats/mine.jsonl",
    "stats/deeper/overlap_stats.jsonl",
    "clean/README",
    "dead_letter/mine.parquet",
    "progress/notes",
    "tmp/mine",
    "tmp/working/file",
)


def test_overwrite_removes_own_files_only(corpus: Path) -> None:
    """Lists of rules, details left out and boilerplate too; work to resume from only if asked."""
    caps = ["--num_shards=2", "--max_details=1", "--max_document_frequency=5"]
    assert main(flags(corpus, *caps, "--rules=gpt3,llama2", "--threshold=0.5")) == 0
    names = set(files_below(corpus / "out"))
    lists = {name for name in names if name.startswith("rules/")}
    assert len(lists) == 2 * (2 + 3 + 2) and "rules/llama2/music.between.jsonl" in lists
    summary = json.loads((corpus / "out" / SUMMARY).read_text())
    assert lists < set(summary["outputs"]) and summary["ngram_lengths"] == [5, 11, 12, 13]
    for name in WORK + FOREIGN:
        path = corpus / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    for skip_existing in (True, False):
        with taken(f"{corpus}/out", True, files=output_files(skip_existing)):
            left = files_below(corpus / "out")
        left = {name for name in left if not name.startswith((TEMP_FOLDER, "tmp/work/"))}
        assert left == set(FOREIGN)
        assert (corpus / "out" / WORK[0]).exists() == skip_existing


# --- gs:// ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["input_path", "decontaminate_source", "output_path"])
def test_local_path_on_dataflow(capsys: pytest.CaptureFixture, flag: str) -> None:
    given = dict.fromkeys(("input_path", "decontaminate_source", "output_path"), "gs://b/in")
    paths = [f"--{name}={value}" for name, value in (given | {flag: "here"}).items()]
    service = ["--runner=DataflowRunner", "--project=p", "--region=r", "--temp_location=gs://b/t"]
    line = error_of(capsys, 2, [*paths, *service, "--sdk_container_image=i:1"])
    assert f"--{flag}=here is on this machine, where Dataflow's workers do not see it" in line


def test_short_rows_are_named_and_removal_waits(
    corpus: Path, capsys: pytest.CaptureFixture
) -> None:
    write_lines(corpus / "eval/other.jsonl", {"id": "o0", "text": "nothing"})
    assert main(flags(corpus)) == 0
    (warning,) = json.loads((corpus / "out" / SUMMARY).read_text())["warnings"]
    assert "5 of 6 contaminated documents" in warning and "id o0 of [x] in 5 documents" in warning
    given = [f"--result_path={corpus}/out", f"--output_path={corpus}/clean", "--remove=document"]
    assert remove.main(given) == 2
    assert "pass --allow_short_rows" in capsys.readouterr().err
    assert remove.main([*given, "--allow_short_rows"]) == 0
