"""The jobs that write one file per training file of a finished result: removal and attributes.

  TrainingFile → write_file, with the job's writer → WrittenFile → finish: manifest, `.SUCCESS`

The manifest proves the counts: for each file and evaluation set, records and characters read are
those kept plus those removed. Until the end, the folder of new files holds `.done` with a record of
each finished file, so that a resumed run does not rewrite it.
"""

import functools
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import orjson
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList

from beam_pipeline import __version__
from beam_pipeline.cli.flags import values_of
from beam_pipeline.documents.fields import Fields, training_fields
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.jobs import frame
from beam_pipeline.jobs.frame import Commit, JobSpec
from beam_pipeline.jobs.monitoring import logged
from beam_pipeline.jobs.output_folder import JobRun, OutputFiles
from beam_pipeline.overlap.ngrams.token_kernels import empty_token
from beam_pipeline.overlap.ngrams.token_texts import tokens_of
from beam_pipeline.overlap.ngrams.tokenizers import tokenizer_named
from beam_pipeline.overlap.removal import attributes, rewriting
from beam_pipeline.overlap.removal.cutting import Cut
from beam_pipeline.overlap.removal.options import (
    DOLMA,
    AttributeOptions,
    FileJobOptions,
    RemovalConfig,
    RemovalOptions,
    check_cut,
)
from beam_pipeline.overlap.removal.training_files import (
    Counts,
    DocumentReader,
    TrainingFile,
    plan_files,
    read_result,
)
from beam_pipeline.overlap.results import layout
from beam_pipeline.overlap.results.contaminated import read_eval_tokens
from beam_pipeline.overlap.results.rules import SHORT_TOKENS
from beam_pipeline.storage.files import (
    exists,
    is_folder,
    is_local,
    read_file,
    remove_folder,
    size_and_checksum,
    unique_path,
)
from beam_pipeline.storage.many_files import Move
from beam_pipeline.storage.matching import match, unchanged

_CLEAN_CORPUS = "clean corpus"
_DONE = ".done"
_MAX_SHORT_SHARE = 0.05


@dataclass(frozen=True)
class FileJob:
    """The files to write for the training files, and their writer."""

    options: FileJobOptions
    name: str  # kind of output, for messages
    flag: str  # for the output's folder
    folder: str  # of the new files, below the output
    manifest: str  # path below the output
    success: str  # path below the output
    # To a path; the counts' `total` has at least `records_in` and `contaminated`.
    write: Callable[[TrainingFile, DocumentReader, str], Counts]
    given: dict[str, Any]  # the options that affect the output, for the manifest
    fingerprint: str  # of all that affects the output
    new_name: Callable[[str], str] = str  # of a training file's new file

    def path(self, name: str) -> str:
        """Returns a path below the output."""
        return f"{self.options.output_path.rstrip('/')}/{name}"

    def done_path(self, name: str = "") -> str:
        """Returns the path of a record of a finished file, or of the folder of these records."""
        return self.path(f"{self.folder}/{_DONE}/{name}".rstrip("/"))

    def output_files(self, resumes: bool) -> OutputFiles:
        """Returns the job's files in the output; files to resume from are kept."""
        folder, _, manifest = self.manifest.rpartition("/")
        names = re.escape(manifest), re.escape(self.success.rpartition("/")[2])
        patterns = {folder: rf"{names[0]}|({'|'.join(names)})\.\d+\.tmp"}
        folders = ((), (self.folder,)) if resumes else ((self.folder,), ())
        return OutputFiles(self.flag, self.name, self.success, patterns, *folders)


# --- the two jobs ---------------------------------------------------------------------------------


def remove(
    options: RemovalOptions, beam_options: PipelineOptions, flag: str = "output_path"
) -> str | None:
    """Writes a clean corpus and returns its folder, or None if only a template was written.

    Args:
      flag: the flag of its folder, for messages.

    Raises:
      UsageError: the result is not finished, or the options do not suit it.
      ProbelineError: a file has changed since the scan.
    """
    summary = read_result(options.result_path)
    check_short_rows(options.removal, summary)
    cut = make_cut(options.removal, options.result_path, summary)
    fields, least = _fields(summary), options.removal.min_coverage
    given = values_of(options.removal)
    job = FileJob(
        options,
        name=_CLEAN_CORPUS,
        flag=flag,
        folder="documents",
        manifest=layout.REMOVAL_MANIFEST,
        success=layout.SUCCESS_NAME,
        write=functools.partial(rewriting.clean_file, fields=fields, cut=cut, min_coverage=least),
        given=given,
        fingerprint=_fingerprint(options, summary, given),
    )
    return _run(job, summary, beam_options)


def check_short_rows(config: RemovalConfig, summary: dict[str, Any]) -> None:
    """Raises UsageError if rows that are too short to mean much alone would drop a lot of text."""
    counts = summary["counts"]
    share = counts["short_row_chars"] / max(1, counts["train_text_chars"])
    if share > _MAX_SHORT_SHARE and config.remove != "mask" and not config.allow_short_rows:
        raise UsageError(
            f"--remove={config.remove} would take up to {share:.1%} of the characters for the sake "
            f"of evaluation rows of fewer than {SHORT_TOKENS} tokens alone, in "
            f"{counts['short_row_documents']:,} documents: run the overlap job with "
            f"--preset=precise or --min_tokens={SHORT_TOKENS}, or pass --allow_short_rows"
        )


def check_output(options: RemovalOptions, flag: str) -> None:
    """Checks the output of a removal before its result is written.

    Raises UsageError if it is finished and must be kept, or differs in options or result.
    """
    output, given = options.output_path, f"--{flag}={options.output_path}"
    if options.overwrite or not exists(f"{output}/{layout.SUCCESS_NAME}"):
        return
    if not options.skip_existing:
        raise UsageError(
            f"{given} holds a finished clean corpus: choose another folder, or pass --overwrite to "
            "replace it"
        )
    is_known = exists(f"{options.result_path}/{layout.SUCCESS_NAME}")  # then see `remove`
    result = "" if is_known else options.result_path
    manifest = f"{output}/{layout.REMOVAL_MANIFEST}"
    if difference := _difference(manifest, values_of(options.removal), result):
        raise _other_output(_CLEAN_CORPUS, given, difference)


def write_attributes(options: AttributeOptions, beam_options: PipelineOptions) -> str | None:
    """Writes the attributes of all documents; otherwise as `remove`."""
    summary = read_result(options.result_path)
    fields, is_dolma = _fields(summary), options.format == DOLMA
    if is_dolma and fields.nested:
        raise UsageError(
            "--format=dolma: Dolma's documents have one text, not "
            f"--text_field={fields.text}: pass --format=parquet"
        )
    write = attributes.write_dolma if is_dolma else attributes.write_parquet
    given = {name: getattr(options, name) for name in ("format", "attribute_name")}
    manifest = attributes_manifest(options)
    folder = manifest.rpartition("/")[0]
    job = FileJob(
        options,
        name="set of attributes",
        flag="output_path",
        folder=folder,
        manifest=manifest,
        success=f"{folder}/{layout.SUCCESS_NAME}",
        write=functools.partial(write, fields=fields, attribute_name=options.attribute_name),
        given=given,
        fingerprint=_fingerprint(options, summary, given),
        new_name=attributes.dolma_name if is_dolma else attributes.parquet_name,
    )
    return _run(job, summary, beam_options)


def attributes_manifest(options: AttributeOptions) -> str:
    """Returns the path of the attributes' manifest below their output."""
    return f"attributes/{options.attribute_name}/_manifest.json"


def _fields(summary: dict[str, Any]) -> Fields:
    return training_fields(summary["options"]["text_field"], summary["options"]["id_field"])


def _fingerprint(options: FileJobOptions, summary: dict[str, Any], given: dict[str, Any]) -> str:
    names = (layout.DOCUMENTS, layout.TRAIN_FILES)
    content = {
        "version": __version__,
        "options": given,
        "result": [size_and_checksum(f"{options.result_path}/{name}") for name in names],
        "read": [summary["options"][name] for name in ("tokenizer", "text_field", "id_field")],
    }
    packed = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(packed, digest_size=8).hexdigest()


def make_cut(config: RemovalConfig, result_path: str, summary: dict[str, Any]) -> Cut | None:
    """Returns how texts are cut, or None if contaminated documents are dropped.

    Raises UsageError if the mask is not a token, or occurs in an evaluation row.
    """
    if config.remove == "document":
        return None
    check_cut(config, summary["options"]["text_field"])
    tokenizer = tokenizer_named(summary["options"]["tokenizer"])
    if config.remove == "split":
        limits = config.margin_chars, config.min_piece_chars, config.max_pieces
        return Cut(tokenizer, None, *limits)
    hashes = tokens_of(config.mask_token, tokenizer).hashes
    if not len(hashes) or empty_token() in hashes:
        problem = "must be a word without token separators at its ends"
    elif np.isin(hashes, read_eval_tokens(f"{result_path}/{layout.EVAL_TOKENS}")).any():
        problem = (
            "has a token of an evaluation row, so a masked text could share it again: choose "
            "another word"
        )
    else:
        return Cut(tokenizer, config.mask_token)
    raise UsageError(f"--mask_token={config.mask_token} {problem}")


# --- running --------------------------------------------------------------------------------------


def _run(job: FileJob, summary: dict[str, Any], beam_options: PipelineOptions) -> str | None:
    """Writes the files and returns the output's folder, or None if only a template was written."""
    options = job.options
    paths = [("result_path", options.result_path), (job.flag, options.output_path)]
    dataflow_job = frame.check_runner(beam_options, paths)
    is_finished = exists(job.path(job.success))
    if is_finished and options.skip_existing and not options.overwrite:
        _check_same(job)
        return options.output_path
    files = plan_files(
        *(options.result_path, summary["options"], job.path(job.folder), job.new_name),
        input_path=options.input_path,
    )
    _refuse_foreign(job)
    begun = job.done_path(f"{job.fingerprint}.begun")
    spec = JobSpec(
        output=options.output_path,
        files=job.output_files(options.skip_existing and not is_finished and exists(begun)),
        inputs=[file.file.path for file in files],
        num_units=len(files),
        dataflow_job=dataflow_job,
        overwrite=options.overwrite,
    )

    def build_job(pipeline: beam.Pipeline, run: JobRun) -> Commit:
        run.write(begun, b"")
        return build(pipeline, run, job, files)

    return options.output_path if frame.run(spec, build_job, beam_options) else None


def _check_same(job: FileJob) -> None:
    """Raises UsageError unless a finished output is that of the job."""
    path, result = job.path(job.manifest), job.options.result_path
    if _read_manifest(path).get("fingerprint") != job.fingerprint:
        difference = _difference(path, job.given, result) or f"{result} has changed since"
        raise _other_output(job.name, f"--{job.flag}={job.options.output_path}", difference)


def _difference(manifest_path: str, given: dict[str, Any], result_path: str) -> str | None:
    """Describes the first option, or the version or result path if any, that a manifest lacks."""

    def facts(options: dict[str, Any], version: str | None, result: str) -> dict[str, Any]:
        flags = {f"--{name}": value for name, value in options.items()}
        result = os.path.normpath(result)
        return {**flags, "the version of Probeline": version, "--result_path": result}

    manifest = _read_manifest(manifest_path)
    result_before = manifest.get("result_path", "")
    before = facts(manifest.get("options", {}), manifest.get("version"), result_before)
    now = facts(given, __version__, result_path or result_before)
    for name, value in now.items():
        if before.get(name) != value:
            return f"{name} was {before.get(name)} and is {value}"
    return None


def _other_output(name: str, given: str, difference: str) -> UsageError:
    return UsageError(
        f"--skip_existing: {given} holds a different {name}: {difference}; choose another folder, "
        "or pass --overwrite to replace it"
    )


def _refuse_foreign(job: FileJob) -> None:
    """Raises UsageError if Probeline did not create the folder of new files."""
    marks = (job.manifest, job.success, f"{job.folder}/{_DONE}")
    folder = job.path(job.folder)
    has_files = is_folder(folder)
    if is_local(folder):  # an empty folder may be what a run left that could not write
        has_files = any(names for *_, names in os.walk(folder))
    if has_files and not any(exists(job.path(mark)) or is_folder(job.path(mark)) for mark in marks):
        raise UsageError(
            f"--{job.flag}={job.options.output_path} has a folder {job.folder} that Probeline did "
            "not create: choose another folder"
        )


def build(
    pipeline: beam.Pipeline, run: JobRun, job: FileJob, files: Sequence[TrainingFile]
) -> Commit:
    """Adds the job's transforms to a pipeline and returns its commit."""

    def write(keyed: tuple[int, Iterable[TrainingFile]]) -> Iterator[WrittenFile]:
        for file in keyed[1]:
            with logged("Write", path=file.file.path):
                yield write_file(job, file, run)

    written: Any = (
        pipeline
        | "Files" >> beam.Create([(file.number, file) for file in files], reshuffle=False)
        | "Spread files" >> beam.GroupByKey()
        | "Write" >> beam.FlatMap(write)
    )
    return Commit("Finish", finish, (run, job, AsList(written)))


class WrittenFile(NamedTuple):
    """A training file whose new file has been written."""

    number: int
    path: str
    counts: Counts


def write_file(job: FileJob, file: TrainingFile, run: JobRun) -> WrittenFile:
    """Writes the new file of a training file, unless an earlier attempt has."""
    done_path = job.done_path(f"{file.number:06d}.json")
    if (counts := _read_done(done_path, file)) is not None:
        return WrittenFile(file.number, file.file.path, counts)
    documents = DocumentReader(f"{job.options.result_path}/{layout.DOCUMENTS}", file)
    temporary = unique_path(run.folder, "new")
    with unchanged(file.file, "the overlap job"):
        counts = job.write(file, documents, temporary)
    num_rows, contaminated = counts.total["records_in"], counts.total["contaminated"]
    if (num_rows, contaminated) != (file.num_rows, file.num_documents):
        raise ProbelineError(
            f"{file.file.path} has {num_rows} records, {contaminated} of them contaminated, but "
            f"the result has {file.num_rows} and {file.num_documents}: run the overlap job again"
        )
    run.move([Move(temporary, file.target, *size_and_checksum(temporary))])
    record = {"file": list(match(file.target)[0]), **counts._asdict()}
    run.write(done_path, orjson.dumps(record))
    return WrittenFile(file.number, file.file.path, counts)


def _read_done(path: str, file: TrainingFile) -> Counts | None:
    """Returns the counts of a file that an earlier attempt finished."""
    if (data := read_file(path)) is None:
        return None
    record = orjson.loads(data)
    if [list(found) for found in match(file.target)] != [record["file"]]:
        return None
    by_set = {name: Counter(counts) for name, counts in record["by_set"].items()}
    return Counts(Counter(record["total"]), by_set)


def finish(run: JobRun, job: FileJob, written: Iterable[WrittenFile]) -> None:
    """Writes the manifest and `.SUCCESS`; idempotent."""
    files = sorted(written, key=lambda file: file.number)
    total: Counter[str] = Counter()
    by_set: dict[str, Counter[str]] = {}
    for file in files:
        total.update(file.counts.total)
        for name, counts in file.counts.by_set.items():
            by_set.setdefault(name, Counter()).update(counts)
    manifest = {
        "version": __version__,
        "result_path": job.options.result_path,
        "fingerprint": job.fingerprint,
        "options": job.given,
        "counts": total,
        "by_evaluation_set": dict(sorted(by_set.items())),
        "files": [_counts_of(file) for file in files],
    }
    run.write(job.path(job.manifest), frame.manifest_bytes(manifest))
    remove_folder(job.done_path())  # the manifest shows that the folder is ours
    run.finish()


def _counts_of(file: WrittenFile) -> dict[str, Any]:
    total, by_set = file.counts
    return {"path": file.path, **total, "by_evaluation_set": dict(sorted(by_set.items()))}


# --- summaries ------------------------------------------------------------------------------------


def print_removal(output: str) -> None:
    """Prints the numbers of records and characters kept and removed."""
    counts = _read_counts(f"{output}/{layout.REMOVAL_MANIFEST}")
    print(
        f"{counts['records_in']:,} records: {counts['records_in'] - counts['contaminated']:,} "
        f"untouched, {counts['changed']:,} changed to {counts['pieces']:,}, "
        f"{counts['records_removed']:,} dropped\n"
        f"{counts['chars_in']:,} characters: {counts['chars_kept']:,} kept, "
        f"{counts['chars_removed']:,} removed\n"
        f"The counts by file are in {output}/{layout.REMOVAL_MANIFEST}"
    )


def print_attributes(options: AttributeOptions, output: str) -> None:
    """Prints how many documents have attributes."""
    manifest = f"{output}/{attributes_manifest(options)}"
    counts = _read_counts(manifest)
    print(
        f"Attributes of {counts['records_in']:,} records, "
        f"{counts['contaminated']:,} of them contaminated; the counts by file are in {manifest}"
    )


def _read_counts(path: str) -> dict[str, Any]:
    if (data := read_file(path)) is None:
        raise ProbelineError(f"{path} was removed while the job ran: run the command again")
    return orjson.loads(data)["counts"]


def _read_manifest(path: str) -> dict[str, Any]:
    return orjson.loads(read_file(path) or b"{}")
