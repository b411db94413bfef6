"""The removal as a job: the files of a finished result, each written anew, and a manifest.

files of the result → one element each → CleanedFile → manifest, `.SUCCESS` last

The manifest proves that nothing was lost: records and characters in are those kept and those
removed, for each file and each evaluation set.
"""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import orjson
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList

from beam_pipeline import __version__
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.jobs import dataflow, output_folder, running
from beam_pipeline.jobs.beam_options import check_job_server, use_cores
from beam_pipeline.jobs.local_workers import forked_workers
from beam_pipeline.jobs.monitoring import logged
from beam_pipeline.jobs.output_folder import JobRun, OutputFiles
from beam_pipeline.overlap.documents.evaluation import EvaluationRows, match_evaluation, write_rows
from beam_pipeline.overlap.documents.json import Fields
from beam_pipeline.overlap.job.config import DeconConfig
from beam_pipeline.overlap.ngrams.token_kernels import empty_token, token_batches, tokens_of
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer, tokenizer_named
from beam_pipeline.overlap.removal.cutting import Cut
from beam_pipeline.overlap.removal.options import RemovalOptions
from beam_pipeline.overlap.removal.rewriting import CleanedFile, CleanFile, clean_file
from beam_pipeline.overlap.results import layout
from beam_pipeline.storage.files import exists, is_folder, is_local, read_file
from beam_pipeline.storage.many_files import write_guarded
from beam_pipeline.storage.matching import FileVersion
from beam_pipeline.storage.parquet import open_parquet, read_row_groups

DOCUMENTS_FOLDER, MANIFEST, SUCCESS = "documents", "removal_manifest.json", ".SUCCESS"
_SUMS = ("records_in", "untouched", "contaminated", "dropped", "changed", "records_out")


def run(options: RemovalOptions, beam_options: PipelineOptions) -> str | None:
    """Writes a clean corpus and returns its folder; None if only a template was written.

    Raises:
      UsageError: the result is not finished, or the options do not suit it.
      ProbelineError: a file was changed since it was scanned, or cannot be written.
    """
    check_job_server(beam_options)
    job = dataflow.job_of(beam_options)
    if job is not None:
        running.check_paths_are_shared(
            [("result_path", options.result_path), ("output_path", options.output_path)]
        )
    summary = read_result(options.result_path)
    plans = plan_files(options, summary["options"]["input_path"])
    cut, fields = make_cut(options, summary), _fields(summary)
    use_cores(beam_options, at_most=len(plans))
    _refuse_foreign(options.output_path)
    files = OutputFiles(
        "output_path", "clean corpus", SUCCESS, {"": "removal_manifest\\.json"}, (DOCUMENTS_FOLDER,)
    )
    paths = [plan.file.path for plan in plans]
    with (
        forked_workers(beam_options),
        output_folder.taken(
            options.output_path, options.overwrite, job, files=files, inputs=paths
        ) as job_run,
    ):
        pipeline = running.new_pipeline(beam_options)
        build(pipeline, options, plans, cut, fields, job_run)
        if not running.run_to_end(pipeline, job, job_run):
            return None
    return options.output_path


def build(
    pipeline: beam.Pipeline,
    options: RemovalOptions,
    plans: Sequence[CleanFile],
    cut: Cut | None,
    fields: Fields,
    run: JobRun,
) -> None:
    """Adds the whole job to a pipeline."""
    documents_path = f"{options.result_path}/{layout.DOCUMENTS}"
    run = JobRun(run.folder, run.marker)  # the lease stays with the launcher
    guard = run.marker.check if run.marker else None

    def clean(keyed: tuple[int, Iterable[CleanFile]]) -> Iterator[CleanedFile]:
        for plan in keyed[1]:
            with logged("Clean", path=plan.file.path):
                yield clean_file(plan, documents_path, run.folder, fields, cut, guard)

    cleaned: Any = (
        pipeline
        | "Files" >> beam.Create([(plan.number, plan) for plan in plans], reshuffle=False)
        | "Spread files" >> beam.GroupByKey()
        | "Clean" >> beam.FlatMap(clean)
    )
    _ = (
        pipeline
        | "Begin the end" >> beam.Impulse()
        | "Finish" >> beam.Map(finish, options, run, AsList(cleaned))
    )


def finish(_: bytes, options: RemovalOptions, run: JobRun, cleaned: Iterable[CleanedFile]) -> None:
    """Writes the manifest and `.SUCCESS`.

    Raises:
      ProbelineError: the counts do not add up.
    """
    guard = run.marker.check if run.marker else None
    files = sorted(cleaned, key=lambda file: file.number)
    total: Counter[str] = Counter()
    for file in files:
        check_counts(file)
        total.update(file.counts)
    by_set: dict[str, dict[str, int]] = {}
    for key, count in sorted(total.items()):
        if key.startswith("set:"):
            name, what = key.removeprefix("set:").rsplit(":", 1)
            by_set.setdefault(name, {})[what] = count
    manifest = {
        "version": __version__,
        "result_path": options.result_path,
        "options": {
            name: getattr(options, name)
            for name in ("remove", "margin_chars", "min_piece_chars", "max_pieces", "mask_token")
        },
        "counts": _plain(total),
        "by_evaluation_set": by_set,
        "files": [{"path": file.path, **_plain(file.counts)} for file in files],
    }
    text = orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n"
    if not exists(f"{options.output_path}/{SUCCESS}"):  # another attempt was faster
        write_guarded(f"{options.output_path}/{MANIFEST}", text, run.folder, guard)
        write_guarded(f"{options.output_path}/{SUCCESS}", b"", run.folder, guard)
    run.tidy_up()


def _plain(counts: Counter[str]) -> dict[str, int]:
    found = {key: count for key, count in counts.items() if not key.startswith("set:")}
    return {**dict.fromkeys(_SUMS, 0), **found}


def check_counts(file: CleanedFile) -> None:
    """Raises ProbelineError unless all records and characters of a file are kept or removed."""
    counts = file.counts
    records = counts["untouched"] + counts["dropped"] + counts["changed"]
    chars = counts["chars_kept"] + counts["chars_removed"]
    if records != counts["records_in"] or chars != counts["chars_in"]:
        raise ProbelineError(
            f"{file.path}: {counts['records_in']} records came in, {records} went out or were "
            "dropped: this is a fault of Probeline, report it"
        )


# --- the result -----------------------------------------------------------------------------------


def read_result(path: str) -> dict[str, Any]:
    """Returns the summary of a finished result; UsageError if it is none."""
    data = read_file(f"{path}/{layout.SUMMARY}")
    if data is None or not all(
        exists(f"{path}/{name}")
        for name in (layout.SUCCESS_NAME, layout.DOCUMENTS, layout.TRAIN_FILES)
    ):
        raise UsageError(
            f"--result_path={path} is no finished result of the overlap job of this version: run "
            "python -m beam_pipeline.overlap first"
        )
    return orjson.loads(data)


def plan_files(options: RemovalOptions, input_paths: Sequence[str]) -> list[CleanFile]:
    """Returns what to write for each training file of a result, in its order."""
    counts: Counter[str] = Counter()
    for table in read_row_groups(f"{options.result_path}/{layout.DOCUMENTS}", ["train_path"]):
        for pair in table.column("train_path").value_counts().to_pylist():
            counts[pair["values"]] += pair["counts"]
    plans, first = [], 0
    with open_parquet(f"{options.result_path}/{layout.TRAIN_FILES}") as parquet:
        records = parquet.read(["train_path", "num_bytes", "version", "num_rows"]).to_pylist()
    base = common_folder(input_paths, {record["train_path"] for record in records})
    for number, record in enumerate(records):
        path = record["train_path"]
        file = FileVersion(path, record["num_bytes"], record["version"])
        below = _absolute(path).removeprefix(base).replace("://", "/").lstrip("/")
        target = f"{options.output_path.rstrip('/')}/{DOCUMENTS_FOLDER}/{below}"
        plans.append(CleanFile(number, file, target, record["num_rows"], first, counts[path]))
        first += counts[path]
    return plans


def common_folder(input_paths: Sequence[str], files: set[str]) -> str:
    """Returns the folder, with a slash, that all values of --input_path lie in; "" if none."""
    folders = []
    for path in input_paths:
        if path not in files:
            path = path.rstrip("/") + "/"
            if not is_folder(path) and (wildcard := re.search(r"[*?\[]", path)):
                path = path[: wildcard.start()]
        folders.append(_absolute(path.rpartition("/")[0]).split("/"))
    depth = 0
    while depth < min(map(len, folders)) and len({folder[depth] for folder in folders}) == 1:
        depth += 1
    return "".join(f"{part}/" for part in folders[0][:depth])


def _absolute(path: str) -> str:
    return os.path.abspath(path) if is_local(path) else path


def _refuse_foreign(output: str) -> None:
    """Raises UsageError where the folder of documents is not one of a removal."""
    folder = f"{output.rstrip('/')}/{DOCUMENTS_FOLDER}"
    marks = (MANIFEST, SUCCESS, output_folder.TEMP_FOLDER)
    if is_folder(folder) and not any(
        exists(f"{output}/{mark}") or is_folder(f"{output}/{mark}") for mark in marks
    ):
        raise UsageError(
            f"--output_path={output} has a folder {DOCUMENTS_FOLDER} that no run has put there: "
            "choose another folder"
        )


# --- the cut --------------------------------------------------------------------------------------


def make_cut(options: RemovalOptions, summary: dict[str, Any]) -> Cut | None:
    """Returns how texts are cut, None if contaminated documents are dropped.

    Raises:
      UsageError: the mask is no token, or one that an evaluation row has.
    """
    if options.remove == "document":
        return None
    tokenizer = tokenizer_named(summary["options"]["tokenizer"])
    if options.remove == "split":
        limits = options.margin_chars, options.min_piece_chars, options.max_pieces
        return Cut(tokenizer, None, *limits)
    _check_mask(options.mask_token, tokenizer, summary)
    return Cut(tokenizer, options.mask_token)


def _check_mask(mask: str, tokenizer: Tokenizer, summary: dict[str, Any]) -> None:
    given = f"--mask_token={mask}"
    hashes = tokens_of(mask, tokenizer).hashes
    if not len(hashes) or empty_token() in hashes:
        raise UsageError(
            f"{given} begins or ends with what separates tokens, or is nothing else: give a word"
        )
    found = summary["options"].items()
    config = DeconConfig(
        **{name: value for name, value in found if value and name != "ngram_length"}
    )
    files = match_evaluation(config.sources, config.eval_text_fields, config.eval_fields == "each")
    with tempfile.TemporaryDirectory(prefix="probeline-") as folder:
        path = os.path.join(folder, "rows")
        write_rows(files, path, Fields(config.text_field, config.eval_id))
        for utf8, bounds in EvaluationRows.open(path).texts():
            for batch in token_batches(utf8, bounds, tokenizer):
                if np.isin(batch.hashes, hashes).any():
                    raise UsageError(
                        f"{given} has a token of an evaluation row, so that a masked text might "
                        "share one again: give another word"
                    )


def _fields(summary: dict[str, Any]) -> Fields:
    return Fields(summary["options"]["text_field"], summary["options"]["id_field"])
