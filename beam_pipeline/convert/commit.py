"""The last step: the proof of the counts, then the final names, the manifest and `.SUCCESS`."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import orjson

from beam_pipeline import __version__
from beam_pipeline.convert.layout import DEAD_LETTERS, MANIFEST, SUCCESS, Layout
from beam_pipeline.convert.shards import ConvertedShard
from beam_pipeline.convert.staging import StagedUnit
from beam_pipeline.convert.units import InputFile
from beam_pipeline.dataset.manifest import success_stamp
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.monitoring import logged
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.jobs.output_lease import LostOutputError
from beam_pipeline.shards.letters import LetterPart, dead_letter_names
from beam_pipeline.shards.writing import ShardInfo
from beam_pipeline.storage.files import checksum_text, exists
from beam_pipeline.storage.lines import BYTE_ORDER_MARK
from beam_pipeline.storage.many_files import Move, move_files, write_guarded

_FAULT = "this is a fault of Probeline or of the runner, report it"


class Job(NamedTuple):
    """What the steps of one job run share."""

    layout: Layout
    run: JobRun
    options: dict[str, Any]  # as the manifest lists them
    started: str


def commit(
    _: bytes,
    job: Job,
    files: Iterable[InputFile],
    staged: Iterable[StagedUnit],
    written: Iterable[ConvertedShard],
) -> None:
    """Proves the counts, names the files, writes manifest and `.SUCCESS`, tidies up.

    An earlier attempt may have done any of these steps.

    Raises:
      ProbelineError: the counts do not agree, or another run has taken the output.
    """
    success = f"{job.layout.output}/{SUCCESS}"
    with logged("Commit the records", output=job.layout.output):
        try:
            if not exists(success):
                _commit(
                    job,
                    sorted(files, key=lambda file: file.number),
                    sorted(staged, key=lambda unit: (unit.file, unit.unit)),
                    sorted(written, key=lambda shard: shard.info.shard),
                )
        except LostOutputError:  # an attempt that has finished releases the marker
            if not exists(success):
                raise
        job.run.tidy_up()


def _commit(
    job: Job,
    files: Sequence[InputFile],
    staged: Sequence[StagedUnit],
    written: Sequence[ConvertedShard],
) -> None:
    units = check_units(files, staged)
    check_shards(staged, written)
    output, guard = job.layout.output, job.run.marker.check if job.run.marker else None
    if guard is not None:
        guard()
    parts = [part for unit in staged for part in unit.letter_files]
    letters = [f"{DEAD_LETTERS}/{name}" for name in dead_letter_names(len(parts))]
    infos = [shard.info for shard in written]
    move_files(
        [
            Move(part.path, f"{output}/{path}", part.num_bytes, part.crc32c)
            for part, path in zip(parts, letters, strict=True)
        ]
        + [
            Move(shard.temporary_path, info.path, info.num_bytes, info.crc32c)
            for shard, info in zip(written, infos, strict=True)
        ]
    )
    packages = ("apache-beam", "array-record", "pyarrow")
    manifest = {
        "started": job.started,
        "versions": {"probeline": __version__, **{name: version(name) for name in packages}},
        "options": job.options,
        "counts": _counts(staged),
        "inputs": [_input(file, units[file.number]) for file in files],
        "shards": [
            {
                "path": info.path.removeprefix(f"{output}/"),
                "first_record": shard.first_record,
                "num_records": info.num_records,
                **_digests(info),
            }
            for shard, info in zip(written, infos, strict=True)
        ],
        "dead_letter_files": [
            {"path": path, **_digests(part)} for part, path in zip(parts, letters, strict=True)
        ],
    }
    data = orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n"
    for name, content in ((MANIFEST, data), (SUCCESS, success_stamp(data))):
        write_guarded(f"{output}/{name}", content, job.run.folder, guard)


def _digests(file: ShardInfo | LetterPart) -> dict[str, Any]:
    crc32c = checksum_text(file.crc32c)
    return {"num_bytes": file.num_bytes, "crc32c": crc32c, "sha256": file.sha256}


def _counts(units: Iterable[StagedUnit]) -> dict[str, Any]:
    """Returns the counts of some units, or of all."""
    letters: Counter[str] = Counter()
    records_in = records_out = blank_lines = 0
    for unit in units:
        letters.update(unit.dead_letters)
        records_in += unit.num_read
        records_out += unit.num_staged
        blank_lines += unit.num_blank
    return {
        "records_in": records_in,
        "records_out": records_out,
        "dead_letters": dict(sorted(letters.items())),
        "blank_lines": blank_lines,
    }


def _input(file: InputFile, units: Sequence[StagedUnit]) -> dict[str, Any]:
    path, num_bytes, file_version = file.file
    known = {"path": path, "num_bytes": num_bytes, "version": file_version, "format": file.format}
    return {**known, **_counts(units)}


def check_units(
    files: Sequence[InputFile], staged: Sequence[StagedUnit]
) -> dict[int, list[StagedUnit]]:
    """Returns the units of each file; ProbelineError unless every file was read once, to its end.

    Args:
      files, staged: in order.
    """
    by_file = itertools.groupby(staged, lambda unit: unit.file)
    units = {number: list(of_file) for number, of_file in by_file}
    for file in files:
        found = units.setdefault(file.number, [])
        numbers = [unit.unit for unit in found]
        if not found or numbers != list(range(found[0].num_units)):
            raise ProbelineError(
                f"{file.file.path}: the work units {numbers} of "
                f"{found[0].num_units if found else 'all'} were read: {_FAULT}"
            )
        if all(unit.is_whole for unit in found):
            _check_end(file, found)
    for unit in staged:
        if unit.num_read != unit.num_staged + sum(unit.dead_letters.values()):
            raise ProbelineError(
                f"{files[unit.file].file.path}: {unit.num_read} records were read, but "
                f"{unit.num_staged} were staged and {sum(unit.dead_letters.values())} are dead "
                f"letters: {_FAULT}"
            )
    return units


def _check_end(file: InputFile, units: Sequence[StagedUnit]) -> None:
    """Compares what was read of a file with its footer or, of plain JSON lines, with its size."""
    rows = sum(unit.num_read for unit in units)
    if file.num_rows is not None and rows != file.num_rows:
        raise ProbelineError(
            f"{file.file.path}: {rows} of its {file.num_rows} rows were read: {_FAULT}"
        )
    if file.format == "jsonl" and not file.is_compressed:
        missing = file.file.num_bytes - sum(unit.num_bytes for unit in units)
        if missing not in (0, len(BYTE_ORDER_MARK)):
            raise ProbelineError(
                f"{file.file.path}: {missing} of its {file.file.num_bytes} bytes were not read: "
                f"{_FAULT}"
            )


def check_shards(staged: Iterable[StagedUnit], written: Sequence[ConvertedShard]) -> None:
    """Raises ProbelineError unless the shards hold all staged records.

    Args:
      written: in order.
    """
    total, at = sum(unit.num_staged for unit in staged), 0
    for number, shard in enumerate(written):
        info = shard.info
        place = number, len(written), at, shard.num_planned
        if (info.shard, info.num_shards, shard.first_record, info.num_records) != place:
            raise ProbelineError(
                f"{info.path} holds {info.num_records} records from record {shard.first_record} "
                f"on, where {shard.num_planned} from record {at} on belong: {_FAULT}"
            )
        at += info.num_records
    if at != total:
        raise ProbelineError(f"{total} records were staged, but {at} were written: {_FAULT}")
