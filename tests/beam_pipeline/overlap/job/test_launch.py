"""The overlap job as a program: what it prints, its exit codes, what it does to its output."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import apache_beam as beam
import pytest

from beam_pipeline.errors import UsageError
from beam_pipeline.jobs import output_folder
from beam_pipeline.jobs.output_folder import TEMP_FOLDER, taken
from beam_pipeline.overlap import DeconConfig
from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import pipeline as overlap_pipeline
from beam_pipeline.overlap.job.launch import output_files
from beam_pipeline.overlap.results.layout import SUCCESS_NAME
from beam_pipeline.overlap.summary import print_summary
from tests.support.dataflow_api import PROJECT, REGION, DataflowApi
from tests.support.dataflow_helpers import IMAGE, do_the_work
from tests.support.dataflow_helpers import dataflow as dataflow
from tests.support.engines import Gcs, stored_objects
from tests.support.overlap_jobs import SHARED, files_below, flags, write_lines
from tests.support.overlap_jobs import corpus as corpus
from tests.support.repository import ROOT
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


def test_the_table_says_what_was_hit(corpus: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(flags(corpus, "--max_details_per_pair=1")) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [row for row in map(cells, out.splitlines()) if len(row) == 5] == [
        ["evaluation set", "n", "instances", "hit", "share"],
        ["music", "5", "3", "1", "33.33 %"],
        ["music", "12", "3", "1", "33.33 %"],
        ["[x]", "5", "1", "0", "0.00 %"],
        ["[x]", "12", "1", "0", "0.00 %"],
    ]
    below = out.splitlines()[-6:]
    assert below[0].startswith("6 texts of 1 training file and 4 rows of 2 evaluation files in ")
    assert below[1].startswith("Without a text: 1 training and 0 evaluation records; ")
    letters = corpus / "out/dead_letter"
    assert below[2] == f"1 dead letter in {letters}: 1 json_not_an_object"
    assert below[3].startswith("Warning: 1 evaluation row with only empty tokens, which ")
    left_out = corpus / "out/stats/overlap_details_left_out.jsonl"
    matches = (len(SHARED.split()) - 4) + (len(SHARED.split()) - 11)
    assert below[0].endswith(f": {matches} matches")
    assert below[4].startswith(
        f"overlap_details has 1 record; {matches - 1} are left out by --max_details_per_pair=1, "
        f"see {left_out}; all would be "
    )
    assert below[5] == f"Next: python -m beam_pipeline.overlap.report {corpus}/out"


def test_nothing_is_said_of_what_is_not_there(corpus: Path, capsys: pytest.CaptureFixture) -> None:
    write_lines(corpus / "in/train.jsonl", {"id": "d", "text": f"but {SHARED} \ud800"})
    write_lines(corpus / "eval/music-1a2b3c/test.jsonl", {"id": "\ud800", "text": SHARED})
    assert main(flags(corpus)) == 0
    out = capsys.readouterr().out
    assert ["music", "5", "1", "1", "100.00 %"] in [cells(line) for line in out.splitlines()]
    for word in ("Without", "dead letters", "Warning", "left out"):
        assert word not in out


def test_both_caps_are_named(corpus: Path, capsys: pytest.CaptureFixture) -> None:
    caps = ["--max_details=0", "--max_details_per_pair=2", "--degenerate=skip"]
    assert main(flags(corpus, *caps)) == 0
    out = capsys.readouterr().out
    assert "0 records; 17 are left out by --max_details_per_pair=2 and --max_details=0" in out
    assert "Warning" not in out


def test_the_next_command_can_be_copied(corpus: Path, capsys: pytest.CaptureFixture) -> None:
    output = corpus / "my out [b]"
    assert main(flags(corpus, f"--output_path={output}")) == 0
    out = capsys.readouterr().out
    assert f"overlap.report '{output}'" in out.splitlines()[-1]
    assert "[b]" in out.partition("evaluation set")[0]  # the title
    config = DeconConfig(input_path="a", decontaminate_source="b", output_path=str(output))
    print_summary(config, str(output), 1.5)  # as often as one likes
    assert capsys.readouterr().out.splitlines()[-1] == out.splitlines()[-1]


def test_help_is_quick_to_read() -> None:
    command = [sys.executable, "-m", "beam_pipeline.overlap", "--help"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--decontaminate_source" in result.stdout and result.stderr == ""


# --- refused, failed, stopped ---------------------------------------------------------------------


def test_what_cannot_be_run_touches_nothing(corpus: Path, capsys: pytest.CaptureFixture) -> None:
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


def test_a_finished_result_is_kept_unless_told(corpus: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(flags(corpus)) == 0
    line = error_of(capsys, 2, flags(corpus))
    assert f"--output_path={corpus}/out holds a finished result: choose" in line
    assert main(flags(corpus, "--overwrite", "--ngram_length=7")) == 0
    assert "music-n7.jsonl" in os.listdir(corpus / "out/clean")


def test_what_a_worker_finds_wrong_is_one_line(corpus: Path, capsys: pytest.CaptureFixture) -> None:
    write_lines(corpus / "in/train.jsonl", {"body": "a"}, {"body": "b"})
    line = error_of(capsys, 1, flags(corpus))
    assert "none of 2 records of 1 training files has a text in the field 'text'" in line
    assert not (corpus / "out" / SUCCESS_NAME).exists()
    assert not (corpus / "out" / TEMP_FOLDER).exists()


def test_a_runner_that_did_nothing_is_found_out(
    corpus: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(pipeline: beam.Pipeline, *others: object) -> None:
        _ = pipeline | beam.Create([1])

    monkeypatch.setattr(overlap_pipeline, "build", build)
    line = error_of(capsys, 1, flags(corpus))
    assert f"the runner ended without an error, yet {corpus}/out has no .SUCCESS" in line


def test_ctrl_c_is_130(
    corpus: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(overlap_pipeline, "build", stop)
    assert main(flags(corpus)) == 130
    assert capsys.readouterr().err == "stopped; the output holds no finished result\n"


@pytest.mark.slow
def test_sigterm_tidies_up(corpus: Path) -> None:
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


@pytest.mark.slow
def test_several_processes_write_the_same(corpus: Path) -> None:
    assert main(flags(corpus)) == main(
        flags(corpus, f"--output_path={corpus}/again", "--processes=2")
    )
    one, other = (files_below(corpus / name) for name in ("out", "again"))
    assert set(one) == set(other) and SUCCESS_NAME in one
    for name in one:
        if not name.startswith("progress/"):
            assert one[name] == other[name], name


# --- the output folder ----------------------------------------------------------------------------

OURS = (
    "stats/overlap_stats.jsonl",
    "stats/overlap_stats_by_train_path.jsonl",
    "stats/overlap_details.jsonl.gz",
    "stats/overlap_details_left_out.jsonl",
    "stats/overlap_matches.parquet",
    "stats/overlap_ngrams.jsonl.gz",
    "stats/overlap_coverage.jsonl",
    "stats/overlap_boilerplate.jsonl",
    "clean/gsm8k.jsonl",
    "clean/gsm8k-n15.jsonl",
    "dead_letter/dead_letter_00000-of-00001.parquet",
    "progress/progress-00001.jsonl",
    "progress/progress-00001-00002.jsonl",
    "progress/progress-00001-00002-pass-00003.jsonl",
    "progress/progress_summary.json",
    "progress/input_files.jsonl",
    "tmp/overlap_instances-00000-of-00003.jsonl.gz",
)
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


def fill(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


@pytest.mark.parametrize("skip_existing", [False, True])
@pytest.mark.parametrize("is_finished", [False, True])
def test_a_run_removes_what_is_ours_and_keeps_what_it_goes_on_from(
    tmp_path: Path, skip_existing: bool, is_finished: bool
) -> None:
    fill(tmp_path, OURS + WORK + FOREIGN + ((SUCCESS_NAME,) if is_finished else ()))
    with taken(str(tmp_path), is_finished, files=output_files(skip_existing)):
        left = {name for name in files_below(tmp_path) if not name.startswith(TEMP_FOLDER)}
    assert left == {*FOREIGN, *(WORK if skip_existing else ())}


def test_success_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, (*OURS, SUCCESS_NAME))
    delete, removed = output_folder.delete_files, []
    monkeypatch.setattr(output_folder, "delete_files", lambda paths: removed.append(paths))
    with taken(str(tmp_path), True, files=output_files(False)):
        pass
    assert removed[0] == [str(tmp_path / SUCCESS_NAME)]
    assert {str(Path(path).relative_to(tmp_path)) for path in removed[1]} == set(OURS)
    delete(removed[0])


def test_all_that_a_run_writes_is_known_as_ours(corpus: Path) -> None:
    """What a later run has to remove."""
    several = ["--num_shards=2", "--max_details=1", "--max_document_frequency=5"]
    assert main(flags(corpus, *several)) == 0
    assert len(files_below(corpus / "out")) > 15
    with taken(f"{corpus}/out", True, files=output_files(False)):
        pass
    assert files_below(corpus / "out") == {}


def test_who_writes_the_output_is_named_with_our_flag(tmp_path: Path) -> None:
    with taken(str(tmp_path), False, files=output_files(False)):
        with pytest.raises(UsageError, match=f"^--output_path={tmp_path} is being written by"):
            with taken(str(tmp_path), False, files=output_files(False)):
                pytest.fail("the folder was taken twice")


# --- gs:// ----------------------------------------------------------------------------------------


def test_input_and_output_on_gs(corpus: Path, gcs: Gcs, capsys: pytest.CaptureFixture) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(corpus, bucket)
    assert main(flags(bucket)) == 0
    out = capsys.readouterr().out
    assert ["music", "12", "3", "1", "33.33 %"] in [cells(line) for line in out.splitlines()]
    assert out.splitlines()[-1] == f"Next: python -m beam_pipeline.overlap.report {bucket}/out"
    line = error_of(capsys, 2, flags(bucket))
    assert f"--output_path={bucket}/out holds a finished result" in line
    with taken(f"{bucket}/out", True, files=output_files(False)):
        line = error_of(capsys, 2, flags(bucket, "--overwrite"))
        assert f"--output_path={bucket}/out is being written by process" in line


@pytest.mark.parametrize("flag", ["input_path", "decontaminate_source", "output_path"])
def test_dataflow_does_not_see_local_paths(
    capsys: pytest.CaptureFixture, flag: str, corpus: Path
) -> None:
    given = {
        "input_path": "gs://b/in",
        "decontaminate_source": "x=gs://b/eval",
        "output_path": "gs://b/out",
    }
    given[flag] = "x=here" if flag == "decontaminate_source" else "here"
    line = error_of(
        capsys,
        2,
        [
            *(f"--{name}={value}" for name, value in given.items()),
            *("--runner=DataflowRunner", "--project=p", "--region=r", "--temp_location=gs://b/t"),
            "--sdk_container_image=i:1",
        ],
    )
    assert f"--{flag}=here is on this machine, where Dataflow's workers do not see it" in line


@pytest.mark.slow
def test_a_job_on_dataflow_is_waited_for(
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
    assert ["music", "12", "3", "1", "33.33 %"] in [cells(line) for line in out.splitlines()]
    names = {name.partition("/")[0] for name in stored_objects(f"{bucket}/out")}
    assert names == {"stats", "clean", "progress", "tmp", "dead_letter", SUCCESS_NAME}


def test_lists_of_rules_are_replaced_with_the_result(corpus: Path, capsys) -> None:
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


def test_the_summary_names_what_was_not_looked_up_or_counted(
    corpus: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    few = ["--min_tokens=6", "--degenerate=skip"]
    again = {"id": "o1", "text": "nobody has written this yet, says one of them"}
    write_lines(corpus / "eval/other.jsonl", {"id": "o0", "text": SHARED}, again)
    assert main([*flags(corpus), *few]) == 0
    said = capsys.readouterr().out
    skipped = "Not looked up: 1 evaluation row"
    assert f"{skipped} with only empty tokens, because of --degenerate=skip\n" in said
    assert (
        f"{skipped} with fewer tokens, because of --min_tokens=6, see {corpus}/out/stats/" in said
    )


def test_matches_of_boilerplate_are_not_among_the_matches(
    corpus: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    dropped = write_lines(corpus / "drop.jsonl", {"ngram": "every good boy does fine"})
    assert main([*flags(corpus), f"--drop_ngrams={dropped}"]) == 0
    said = capsys.readouterr().out
    assert " s: 16 matches\n" in said and "Boilerplate is not counted: 1 matches, see " in said
