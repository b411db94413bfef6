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
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer, tokenizer_named
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

    name: str  # kind of output, for messages
    flag: str  # for the output's folder
    result_path: str
    output_path: str
    folder: str  # of the new files, below the output
    manifest: str  # path below the output
    success: str  # path below the output
    # To a path; the counts' `total` has at least `records_in` and `contaminated`.
    write: Callable[[TrainingFile, DocumentReader, str], Counts]
    facts: dict[str, Any]  # the manifest without the counts

    @property
    def documents_path(self) -> str:
        """The table of contaminated documents."""
        return f"{self.result_path}/{layout.DOCUMENTS}"

    def path(self, name: str) -> str:
        """Returns a path below the output."""
        return f"{self.output_path.rstrip('/')}/{name}"

    @property
    def patterns(self) -> dict[str, str]:
        """`OutputFiles.patterns` for the manifest and temporary files beside it."""
        folder, _, manifest = self.manifest.rpartition("/")
        names = re.escape(manifest), re.escape(self.success.rpartition("/")[2])
        return {folder: rf"{names[0]}|({'|'.join(names)})\.\d+\.tmp"}

    def done_path(self, name: str = "") -> str:
        """Returns the path of a record of a finished file, or of the folder of these records."""
        return self.path(f"{self.folder}/{_DONE}/{name}".rstrip("/"))


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
    job = FileJob(
        name=_CLEAN_CORPUS,
        flag=flag,
        result_path=options.result_path,
        output_path=options.output_path,
        folder="documents",
        manifest=layout.REMOVAL_MANIFEST,
        success=layout.SUCCESS_NAME,
        write=functools.partial(
            rewriting.clean_file,
            fields=_fields(summary),
            cut=cut,
            min_coverage=options.removal.min_coverage,
        ),
        facts=_facts(options, summary, values_of(options.removal)),
    )
    return _run(job, options, summary, beam_options)


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
    manifest = orjson.loads(read_file(f"{output}/{layout.REMOVAL_MANIFEST}") or b"{}")
    difference = option_that_differs(manifest, values_of(options.removal))
    if not exists(f"{options.result_path}/{layout.SUCCESS_NAME}"):  # of a finished one see `remove`
        difference = difference or result_that_differs(manifest, options.result_path)
    if difference:
        raise other_output(_CLEAN_CORPUS, given, difference)


def write_attributes(options: AttributeOptions, beam_options: PipelineOptions) -> str | None:
    """Writes the attributes of all documents; otherwise as `remove`."""
    summary = read_result(options.result_path)
    folder = _attributes_folder(options)
    form = attributes.FORMS[options.format]
    if options.format == DOLMA and _fields(summary).nested:
        text_field = summary["options"]["text_field"]
        raise UsageError(
            f"--format=dolma: Dolma's documents have one text, not --text_field={text_field}: pass "
            "--format=parquet"
        )
    write = functools.partial(
        form.write, fields=_fields(summary), attribute_name=options.attribute_name
    )
    given = {name: getattr(options, name) for name in ("format", "attribute_name")}
    job = FileJob(
        name="set of attributes",
        flag="output_path",
        result_path=options.result_path,
        output_path=options.output_path,
        folder=folder,
        manifest=attributes_manifest(options),
        success=f"{folder}/{layout.SUCCESS_NAME}",
        write=write,
        facts=_facts(options, summary, given),
    )
    return _run(job, options, summary, beam_options, form.name_of)


def _attributes_folder(options: AttributeOptions) -> str:
    return f"attributes/{options.attribute_name}"


def attributes_manifest(options: AttributeOptions) -> str:
    """Returns the path of the attributes' manifest below their output."""
    return f"{_attributes_folder(options)}/_manifest.json"


def _fields(summary: dict[str, Any]) -> Fields:
    return training_fields(summary["options"]["text_field"], summary["options"]["id_field"])


def _facts(
    options: FileJobOptions, summary: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """Returns the options for the manifest, and a fingerprint of all that affects the output."""
    names = (layout.DOCUMENTS, layout.TRAIN_FILES)
    content = {
        "version": __version__,
        "options": given,
        "result": [size_and_checksum(f"{options.result_path}/{name}") for name in names],
        "read": [summary["options"][name] for name in ("tokenizer", "text_field", "id_field")],
    }
    packed = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    fingerprint = hashlib.blake2b(packed, digest_size=8).hexdigest()
    return {"fingerprint": fingerprint, "options": given}


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
    _check_mask(config.mask_token, tokenizer, result_path)
    return Cut(tokenizer, config.mask_token)


def _check_mask(mask: str, tokenizer: Tokenizer, result_path: str) -> None:
    given = f"--mask_token={mask}"
    hashes = tokens_of(mask, tokenizer).hashes
    if not len(hashes) or empty_token() in hashes:
        raise UsageError(f"{given} must be a word without token separators at its ends")
    if np.isin(hashes, read_eval_tokens(f"{result_path}/{layout.EVAL_TOKENS}")).any():
        raise UsageError(
            f"{given} has a token of an evaluation row, so a masked text could share it "
            "again: choose another word"
        )


# --- running --------------------------------------------------------------------------------------


def _run(
    job: FileJob,
    options: FileJobOptions,
    summary: dict[str, Any],
    beam_options: PipelineOptions,
    new_name: Callable[[str], str] = str,
) -> str | None:
    """Writes the files and returns the output's folder, or None if only a template was written."""
    paths = [("result_path", job.result_path), (job.flag, job.output_path)]
    dataflow_job = frame.check_runner(beam_options, paths)
    is_finished = exists(job.path(job.success))
    if is_finished and options.skip_existing and not options.overwrite:
        _check_same(job)
        return job.output_path
    files = plan_files(
        *(options.result_path, summary["options"], job.path(job.folder), new_name),
        input_path=options.input_path,
    )
    _refuse_foreign(job)
    begun = job.done_path(f"{job.facts['fingerprint']}.begun")
    resumes = options.skip_existing and not is_finished and exists(begun)
    folders = ((), (job.folder,)) if resumes else ((job.folder,), ())
    spec = JobSpec(
        output=job.output_path,
        files=OutputFiles(job.flag, job.name, job.success, job.patterns, *folders),
        inputs=[file.file.path for file in files],
        num_units=len(files),
        dataflow_job=dataflow_job,
        overwrite=options.overwrite,
    )

    def build_job(pipeline: beam.Pipeline, run: JobRun) -> Commit:
        run.write(begun, b"")
        return build(pipeline, run, job, files)

    return job.output_path if frame.run(spec, build_job, beam_options) else None


def _check_same(job: FileJob) -> None:
    """Raises UsageError unless a finished output is that of the job."""
    manifest = orjson.loads(read_file(job.path(job.manifest)) or b"{}")
    if manifest.get("fingerprint") != job.facts["fingerprint"]:
        difference = option_that_differs(manifest, job.facts["options"]) or (
            result_that_differs(manifest, job.result_path) or f"{job.result_path} has changed since"
        )
        raise other_output(job.name, f"--{job.flag}={job.output_path}", difference)


def option_that_differs(manifest: dict[str, Any], options: dict[str, Any]) -> str | None:
    """Describes the first option, or else the version, that differs from a manifest's."""
    before = manifest.get("options", {})
    for name, value in options.items():
        if before.get(name) != value:
            return f"--{name} was {before.get(name)} and is {value}"
    if (version := manifest.get("version")) != __version__:
        return f"the version of Probeline was {version} and is {__version__}"
    return None


def result_that_differs(manifest: dict[str, Any], result_path: str) -> str | None:
    """Describes the result of a manifest if it was in a different folder."""
    before = manifest.get("result_path", "an unknown result")
    is_same = os.path.normpath(before) == os.path.normpath(result_path)
    return None if is_same else f"it was made from {before}, not from {result_path}"


def other_output(name: str, given: str, difference: str) -> UsageError:
    """Returns the error for a finished output that differs from the one to be written."""
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
            f"--{job.flag}={job.output_path} has a folder {job.folder} that Probeline did not "
            "create: choose another folder"
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
    documents = DocumentReader(job.documents_path, file)
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
        "result_path": job.result_path,
        **job.facts,
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
