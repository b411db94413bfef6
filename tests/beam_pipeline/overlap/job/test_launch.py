"""The overlap job as a program: what it prints, its exit codes, what it does to its output."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from beam_pipeline.jobs.output_folder import TEMP_FOLDER, taken
from beam_pipeline.overlap import remove
from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job.launch import output_files
from beam_pipeline.overlap.results.layout import SUCCESS_NAME, SUMMARY
from tests.support.dataflow_api import PROJECT, REGION, DataflowApi
from tests.support.dataflow_helpers import IMAGE, do_the_work
from tests.support.dataflow_helpers import dataflow as dataflow
from tests.support.engines import Gcs, stored_objects
from tests.support.overlap_jobs import SHARED, flags, read_lines, write_lines
from tests.support.overlap_jobs import corpus as corpus
from tests.support.repository import ROOT, files_below
from tests.support.waiting import HANG_S
from tests.support.warm_python import warm_python


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


def test_refused_command_leaves_the_output(corpus: Path, capsys: pytest.CaptureFixture) -> None:
    """Not even an earlier result that may be replaced."""
    assert main(flags(corpus)) == 0
    before = files_below(corpus / "out")
    for more, message in (
        (["--ngram_length=0"], "--ngram_length=0 is outside 1 to 2147483647"),
        (["--input_path=nowhere"], "--input_path=nowhere matches no file of documents"),
        (["--decontaminate_source=nowhere"], "--decontaminate_source=nowhere matches no file"),
        (["--streaming"], "--streaming: the input is bounded"),
        (["--max_detail=3"], "did you mean --max_details?"),
        (["--processes=3", "--runner=PrismRunner"], "PrismRunner has no such setting"),
    ):
        assert message in error_of(capsys, 2, flags(corpus, "--overwrite", *more))
        assert files_below(corpus / "out") == before, more


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


@pytest.mark.slow
def test_sigterm(corpus: Path) -> None:
    write_lines(corpus / "in/more.jsonl", *({"text": f"{n} {SHARED}"} for n in range(30_000)))
    process = subprocess.Popen(
        [*warm_python(), "-m", "beam_pipeline.overlap", *flags(corpus)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    lock = corpus / "out" / TEMP_FOLDER / "lock"
    while process.poll() is None and not (corpus / "out" / "progress").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, errors
    assert errors == "stopped; the output holds no finished result\n"
    assert not lock.exists() and not (corpus / "out" / SUCCESS_NAME).exists()
    # A thread of the worker may have made a file after that; the next run removes it.
    assert main(flags(corpus)) == 0
    assert not lock.parent.exists()


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


@pytest.mark.parametrize("skip_existing", [False, True])
def test_overwrite_removes_own_files_only(corpus: Path, skip_existing: bool) -> None:
    caps = ["--num_shards=2", "--max_details=1", "--max_document_frequency=5"]
    assert main(flags(corpus, *caps)) == 0
    assert len(files_below(corpus / "out")) > 15
    for name in WORK + FOREIGN:
        path = corpus / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
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


@pytest.mark.slow
def test_dataflow_job(
    dataflow: DataflowApi, corpus: Path, gcs: Gcs, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(corpus, bucket)
    dataflow.worker = lambda job: do_the_work(Path(sys.executable), tmp_path / "work", job)
    service = [
        *("--runner=DataflowRunner", f"--project={PROJECT}", f"--region={REGION}"),
        *(f"--temp_location={bucket}/temp", f"--dataflow_endpoint={dataflow.endpoint}"),
        *(f"--sdk_container_image={IMAGE}", "--processes=7"),
    ]
    assert main(flags(bucket, *service)) == 0
    out, err = capsys.readouterr()
    (job,) = dataflow.jobs
    assert job.environment.worker_pools[0].autoscaling_settings.max_num_workers == 7
    assert f"Dataflow job {job.id}" in err
    shown = [cells(line) for line in out.splitlines()]
    assert ["music", "12", "3", "3", "1", "0", "2", "0", "33.33 %"] in shown
    names = {name.partition("/")[0] for name in stored_objects(f"{bucket}/out")}
    assert names == {"stats", "clean", "progress", "tmp", "dead_letter", SUCCESS_NAME}


def test_rule_lists_are_replaced(corpus: Path, capsys) -> None:
    assert main(flags(corpus, "--rules=gpt3,llama2", "--threshold=0.5")) == 0
    shown = capsys.readouterr().out
    assert "llama2" in shown and "threshold" in shown
    lists = sorted(name for name in files_below(corpus / "out") if name.startswith("rules/"))
    assert len(lists) == 2 * (2 + 3 + 2) and "rules/llama2/music.between.jsonl" in lists
    summary = json.loads((corpus / "out/progress/progress_summary.json").read_text())
    assert set(lists) < set(summary["outputs"]) and summary["ngram_lengths"] == [5, 11, 12, 13]
    dirty = (corpus / "out/rules/gpt3/music.dirty.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in dirty] == ["m0"]
    assert main(flags(corpus, "--overwrite")) == 0
    names = files_below(corpus / "out")
    assert not [name for name in names if "rules" in name]


def test_rows_that_share_an_id(corpus: Path, capsys: pytest.CaptureFixture) -> None:
    rows = [{"id": 0, "text": SHARED}, {"id": 0, "text": "nobody has"}, {"id": 1, "text": "a"}]
    write_lines(corpus / "eval/other.jsonl", *rows, {"id": 1, "text": "a"})
    assert main(flags(corpus)) == 0
    shown, said = capsys.readouterr()
    assert "rows of one set with different texts share an id, for 1 ids: " in said
    assert ["[x]", "5", "4", "2", "1", "0", "3", "0", "25.00 %"] in map(cells, shown.splitlines())
    clean = read_lines(corpus / "out/clean/[x].jsonl")
    assert [row["eval_row"] for row in clean] == [1, 2, 3]
    stats = read_lines(corpus / "out/stats/overlap_stats.jsonl")
    ids = {id for line in stats for id in line["instance_ids"] if line["eval_dataset"] == "[x]"}
    assert ids == {"0"}


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
    assert main(flags(corpus, "--preset=precise", "--overwrite")) == 0
    assert not json.loads((corpus / "out" / SUMMARY).read_text())["warnings"]
    assert remove.main([*given, "--overwrite"]) == 0


def test_summary_of_boilerplate(corpus: Path, capsys: pytest.CaptureFixture) -> None:
    dropped = write_lines(corpus / "drop.jsonl", {"ngram": "every good boy does fine"})
    assert main([*flags(corpus), f"--drop_ngrams={dropped}"]) == 0
    said = capsys.readouterr().out
    assert " s: 16 matches\n" in said and "Boilerplate is not counted: 1 matches, see " in said
