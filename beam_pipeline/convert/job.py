"""The conversion job: input files to committed shards, with a proof of its counts.

  InputFile → WorkUnit → StagedUnit      records in blocks, see `shards.staging`
                             | all of them: plan_shards
                         ShardPlan → ConvertedShard
                                          |
  InputFile, StagedUnit ------------ commit → manifest, `.SUCCESS`

Shards are ranges of all records in input order, so their bytes do not depend on which worker read
or wrote what. Workers write to the job run's own folder until the commit.
"""

import contextlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple, cast

import apache_beam as beam
import orjson
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList

from beam_pipeline.convert.options import (
    DEAD_LETTERS,
    MANIFEST,
    SUCCESS,
    ConvertOptions,
    RecordOptions,
)
from beam_pipeline.convert.records import checker, read_batches
from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.dataset.manifest import success_stamp
from beam_pipeline.documents import files as documents
from beam_pipeline.documents.files import Format, InputFile, WorkUnit, cut_into_work_units
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs import frame
from beam_pipeline.jobs.frame import FAULT, Commit, JobSpec
from beam_pipeline.jobs.messages import Message
from beam_pipeline.jobs.monitoring import count_dead_letters, counter, logged
from beam_pipeline.jobs.output_folder import JobRun, OutputFiles
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.letters import LetterBox, LetterPart, dead_letter_names
from beam_pipeline.shards.staging import BlockWriter, ShardPlan, StagedBlock, plan_shards, read_part
from beam_pipeline.shards.writing import ShardInfo, shard_path, write_records
from beam_pipeline.sources.inputs import match_files
from beam_pipeline.sources.reading import UnreadableInputError
from beam_pipeline.storage import files
from beam_pipeline.storage.array_record import open_reader, open_writer
from beam_pipeline.storage.lines import BYTE_ORDER_MARK
from beam_pipeline.storage.many_files import Move

_TEMPLATE, _SUFFIX = "-SSSSS-of-NNNNN", ".array_record"
_NOT_IN_THE_MANIFEST = ("output", "overwrite", "debug")


def run(options: ConvertOptions, beam_options: PipelineOptions) -> dict[str, Any] | None:
    """Runs the job and returns its manifest; None if it only wrote a template."""
    paths = [("output", options.output), *(("input", path) for path in options.input)]
    dataflow_job = frame.check_runner(beam_options, paths)
    manifest = {
        "started": frame.start_time(),
        "versions": frame.versions("apache-beam", "array-record", "pyarrow"),
        "options": {
            item.name: getattr(options, item.name)
            for item in fields(options)
            if item.name not in _NOT_IN_THE_MANIFEST
        },
    }
    inputs = inspect_all(options)
    spec = JobSpec(
        output=options.output,
        files=output_files(options.output),
        inputs=[file.path for file in inputs],
        num_units=sum(max(1, file.num_bytes // documents.WORK_UNIT_BYTES) for file in inputs),
        dataflow_job=dataflow_job,
        overwrite=options.overwrite,
    )
    build_job = partial(build, inputs=inputs, options=options, manifest=manifest)
    if not frame.run(spec, build_job, beam_options):
        return None
    return orjson.loads(files.read_file(f"{options.output.rstrip('/')}/{MANIFEST}") or b"{}")


def inspect_all(options: ConvertOptions) -> list[InputFile]:
    """Returns the input files in order; ProbelineError if one does not suit the options."""
    record_options = options.record_options()
    look = partial(
        documents.inspect,
        input_format=cast(Format, record_options.input_format),
        check=checker(record_options),
    )
    found = frame.inspected(match_files(options.input), look)
    for file in found:
        if file.problem is not None and options.on_bad_file == "fail":
            raise UnreadableInputError(file.path, 0, file.problem).as_error()
    return [file._replace(number=number) for number, file in enumerate(found)]


def output_name(output: str) -> str:
    """Returns the prefix of the shards' names: the name of the output folder."""
    whole = os.path.abspath(output) if files.is_local(output) else output.rstrip("/")
    return whole.rpartition("/")[2] or "records"


def output_files(output: str) -> OutputFiles:
    """Returns the files that a run may remove."""
    shards = rf"{re.escape(output_name(output))}-\d+-of-\d+{re.escape(_SUFFIX)}"
    return OutputFiles(
        flag="output",
        name="set of records",
        success=SUCCESS,
        patterns={
            "": rf"{shards}|{re.escape(MANIFEST)}|({MANIFEST}|{re.escape(SUCCESS)})\.\d+\.tmp",
            DEAD_LETTERS: r"dead_letter_\d+-of-\d+\.parquet",
        },
    )


# --- pipeline -------------------------------------------------------------------------------------


def build(
    pipeline: beam.Pipeline,
    run: JobRun,
    inputs: Sequence[InputFile],
    options: ConvertOptions,
    manifest: dict[str, Any],
) -> Commit:
    """Adds the job's transforms to a pipeline and returns its commit."""
    found: Any = pipeline | "Files" >> beam.Create(inputs, reshuffle=False)
    staged = (
        found
        | "Spread files" >> beam.Reshuffle()
        | "Cut into work units"
        >> beam.FlatMap(cut_into_work_units, documents.WORK_UNIT_BYTES, by_line=True)
        | "Spread work units" >> beam.Reshuffle()
        | "Read and stage"
        >> beam.Map(stage, options.record_options(), run.folder).with_output_types(StagedUnit)
    )
    written = (
        pipeline
        | "Begin the shards" >> beam.Impulse()
        | "Plan shards"
        >> beam.FlatMap(
            plan, AsList(staged), options.num_shards, options.shard_bytes
        ).with_output_types(ShardPlan)
        | "Spread shards" >> beam.Reshuffle()
        | "Write shards"
        >> beam.Map(convert_shard, run, options.array_record_options).with_output_types(
            ConvertedShard
        )
    )
    sides = run, manifest, AsList(found), AsList(staged), AsList(written)
    return Commit("Commit the records", commit, sides)


class StagedUnit(Message, frozen=True):
    """The records of a work unit, and the counts that prove that none was lost."""

    file: int  # its number
    unit: int
    num_units: int  # of the file
    is_whole: bool  # not truncated by damage
    num_read: int
    num_blank: int
    num_bytes: int  # of plain JSON lines
    dead_letters: dict[str, int]
    letter_files: list[LetterPart]
    blocks: list[StagedBlock]

    @property
    def num_staged(self) -> int:
        """The number of records for the output."""
        return sum(block.num_records for block in self.blocks)


def stage(unit: WorkUnit, options: RecordOptions, folder: str) -> StagedUnit:
    """Stages a work unit and updates the counters."""
    with logged("Read and stage", file=unit.path, unit=unit.number):
        staged = _stage(unit, options, folder)
    counter("rows_read").inc(staged.num_read)
    counter("files_unreadable").inc(not staged.is_whole)
    for reason, count in staged.dead_letters.items():
        count_dead_letters(reason, count)
    return staged


def _stage(unit: WorkUnit, options: RecordOptions, folder: str) -> StagedUnit:
    """Reads a work unit and writes its records to files below `folder`."""
    name = f"file-{unit.file.number:06d}-{unit.number:06d}"
    writer, letters = BlockWriter(f"{folder}/records", name), LetterBox(f"{folder}/letters", name)
    num_read = num_blank = num_bytes = 0
    is_whole = True
    for batch in read_batches(unit, options):
        is_whole = batch.is_whole
        if is_whole and batch.letters and options.on_bad_record == "fail":
            raise _bad_record(batch.letters[0], unit.start)
        writer.write(batch.records)
        letters.add(batch.letters)
        num_read += batch.num_read
        num_blank += batch.num_blank
        num_bytes += batch.num_bytes
    writer.close()
    letters.flush()
    return StagedUnit(
        unit.file.number,
        unit.number,
        unit.num_units,
        is_whole,
        num_read,
        num_blank,
        num_bytes,
        dict(letters.counts),
        letters.files,
        writer.blocks,
    )


def _bad_record(letter: DeadLetter, first_byte: int) -> ProbelineError:
    """Returns the error for a record that cannot be converted."""
    place = f" after byte {first_byte}" if first_byte else ""
    shown = f": {letter.value[:80]!r}" if letter.value else ""
    return ProbelineError(
        f"{letter.file} (row {letter.row}{place}) cannot be converted, {letter.reason}{shown}; "
        "repair the file, or pass --on_bad_record=dead_letter to continue without such records"
    )


def plan(
    _: bytes, staged: Iterable[StagedUnit], num_shards: int, shard_bytes: int
) -> list[ShardPlan]:
    """Plans the shards of all staged records, in input order."""
    in_order = sorted(staged, key=lambda unit: (unit.file, unit.unit))
    blocks = [block for unit in in_order for block in unit.blocks]
    return plan_shards(blocks, num_shards, shard_bytes)


class ConvertedShard(Message, frozen=True):
    """A shard with its temporary name."""

    temporary_path: str
    info: ShardInfo  # with the number of records that ArrayRecord's reader finds
    first_record: int  # its index among all records
    num_planned: int


def convert_shard(plan: ShardPlan, run: JobRun, writer_options: str) -> ConvertedShard:
    """Writes a shard to a temporary file; ProbelineError if its records are not as staged."""
    prefix = f"{run.output}/{output_name(run.output)}"
    final_path = shard_path(prefix, _TEMPLATE, _SUFFIX, plan.shard, plan.num_shards)
    temporary_path = files.unique_path(run.below("shards"), final_path.rpartition("/")[2])
    with (
        contextlib.closing(ClaimReader()) as reader,
        logged("Write shard", shard=plan.shard),
        files.local_file(temporary_path) as local_path,
    ):
        open_file = partial(open_writer, options=writer_options)
        batches = (batch for part in plan.parts for batch in read_part(part, reader))
        write_records(temporary_path, local_path, open_file, batches)
        digests = files.file_digests(local_path)
        written = open_reader(local_path)
        num_records = written.num_records()
        written.close()
    info = ShardInfo(final_path, plan.shard, plan.num_shards, num_records, *digests)
    counter("shards_written").inc()
    counter("records_written").inc(num_records)
    counter("bytes_written").inc(info.num_bytes)
    return ConvertedShard(temporary_path, info, plan.first_record, plan.num_records)


# --- commit ---------------------------------------------------------------------------------------


class Results(NamedTuple):
    """The workers' results, in input order."""

    inputs: list[InputFile]
    staged: list[StagedUnit]
    written: list[ConvertedShard]


def commit(
    run: JobRun,
    manifest: dict[str, Any],
    inputs: Iterable[InputFile],
    staged: Iterable[StagedUnit],
    written: Iterable[ConvertedShard],
) -> None:
    """Proves the counts, names the files, writes manifest and `.SUCCESS`; may be repeated."""
    results = Results(
        sorted(inputs, key=lambda file: file.number),
        sorted(staged, key=lambda unit: (unit.file, unit.unit)),
        sorted(written, key=lambda shard: shard.info.shard),
    )
    units = check_units(results)
    check_shards(results)
    parts = [part for unit in results.staged for part in unit.letter_files]
    letters = [f"{DEAD_LETTERS}/{name}" for name in dead_letter_names(len(parts))]
    moves = [
        Move(part.path, run.path(path), part.num_bytes, part.crc32c)
        for part, path in zip(parts, letters, strict=True)
    ]
    shards = []
    for shard in results.written:
        info = shard.info
        moves.append(Move(shard.temporary_path, info.path, info.num_bytes, info.crc32c))
        path = info.path.removeprefix(f"{run.output}/")
        place = {"path": path, "first_record": shard.first_record, "num_records": info.num_records}
        shards.append({**place, **_digests(info)})
    run.move(moves)
    data = frame.manifest_bytes(
        {
            **manifest,
            "counts": _counts(results.staged),
            "inputs": [_input(file, units[file.number]) for file in results.inputs],
            "shards": shards,
            "dead_letter_files": [
                {"path": path, **_digests(part)} for part, path in zip(parts, letters, strict=True)
            ],
        }
    )
    run.write(run.path(MANIFEST), data)
    run.finish(success_stamp(data))


def _digests(file: ShardInfo | LetterPart) -> dict[str, Any]:
    crc32c = files.checksum_text(file.crc32c)
    return {"num_bytes": file.num_bytes, "crc32c": crc32c, "sha256": file.sha256}


def _counts(units: Sequence[StagedUnit]) -> dict[str, Any]:
    """Returns the counts of some units."""
    letters: Counter[str] = Counter()
    for unit in units:
        letters.update(unit.dead_letters)
    return {
        "records_in": sum(unit.num_read for unit in units),
        "records_out": sum(unit.num_staged for unit in units),
        "dead_letters": dict(sorted(letters.items())),
        "blank_lines": sum(unit.num_blank for unit in units),
    }


def _input(file: InputFile, units: Sequence[StagedUnit]) -> dict[str, Any]:
    path, num_bytes, version = file.file
    known = {"path": path, "num_bytes": num_bytes, "version": version, "format": file.format}
    return {**known, **_counts(units)}


def check_units(results: Results) -> dict[int, list[StagedUnit]]:
    """Returns the units by file; ProbelineError unless every file was read once, to its end."""
    by_file = itertools.groupby(results.staged, lambda unit: unit.file)
    units = {number: list(of_file) for number, of_file in by_file}
    for file in results.inputs:
        found = units.setdefault(file.number, [])
        for fault in _faults(file, found):
            raise ProbelineError(f"{file.path}: {fault}: {FAULT}")
    return units


def _faults(file: InputFile, units: Sequence[StagedUnit]) -> Iterator[str]:
    numbers, expected = [unit.unit for unit in units], units[0].num_units if units else 1
    if numbers != list(range(expected)):
        yield f"the work units {numbers} of {expected} were read"
    rows, staged = (sum(unit.num_read for unit in units), sum(unit.num_staged for unit in units))
    letters = sum(sum(unit.dead_letters.values()) for unit in units)
    if rows != staged + letters:
        yield f"{rows} records were read, but {staged} were staged and {letters} are dead letters"
    if not all(unit.is_whole for unit in units):
        return
    if file.num_rows is not None and rows != file.num_rows:
        yield f"{rows} of its {file.num_rows} rows were read"
    missing = file.num_bytes - sum(unit.num_bytes for unit in units)
    is_plain = file.format == "jsonl" and not file.is_compressed
    if is_plain and missing not in (0, len(BYTE_ORDER_MARK)):
        yield f"{missing} of its {file.num_bytes} bytes were not read"


def check_shards(results: Results) -> None:
    """Raises ProbelineError unless the shards hold all staged records."""
    total, at = sum(unit.num_staged for unit in results.staged), 0
    for number, shard in enumerate(results.written):
        info = shard.info
        place = number, len(results.written), at, shard.num_planned
        if (info.shard, info.num_shards, shard.first_record, info.num_records) != place:
            raise ProbelineError(
                f"{info.path} holds {info.num_records} records from record {shard.first_record}, "
                f"but {shard.num_planned} from record {at} were planned: {FAULT}"
            )
        at += info.num_records
    if at != total:
        raise ProbelineError(f"{total} records were staged, but {at} were written: {FAULT}")
