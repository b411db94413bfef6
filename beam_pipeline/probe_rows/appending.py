"""Appending to a finished dataset: whether it is possible, and what the run takes from it.

The result is that of one job over all input, so the options that determine bytes are the dataset's.
Its rows are read back as input beside the new files, and everything is grouped again.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from beam_pipeline.dataset.manifest import (
    NEXT_FOLDER,
    SUCCESS_NAME,
    Counts,
    Generation,
    Manifest,
    SourceFile,
)
from beam_pipeline.dataset.rows import Dataset, open_dataset, open_whole
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.jobs import output_folder
from beam_pipeline.jobs.frame import start_time
from beam_pipeline.probe_rows.options import Options, other_option
from beam_pipeline.probe_rows.switch import DATASET_FILES
from beam_pipeline.storage.files import exists, is_gcs, is_local
from beam_pipeline.storage.matching import FileVersion

_MAX_LISTED_FILES = 1000


def open_base(output: str) -> Dataset:
    """Completes a killed run's switch and opens the dataset to append to; UsageError if unfit."""
    if not is_local(output) and not is_gcs(output):
        raise UsageError(f"--append: {output} is neither local nor on gs://: choose such a folder")
    try:
        dataset = open_whole(output, f"--output={output}")
    except ProbelineError as error:
        raise UsageError(f"--append adds to a finished dataset, but {error}") from error
    if dataset.path != output.rstrip("/") or exists(f"{dataset.path}/{NEXT_FOLDER}/{SUCCESS_NAME}"):
        dataset = tidied(output)
    counts = dataset.manifest.counts
    if counts.num_dead_letters and not dataset.manifest.dead_letter_files:
        raise UsageError(
            f"--append: the manifest of {output} lists no files of dead letters, as older versions "
            f"wrote it: write a new dataset with --input={output}"
        )
    return dataset


def tidied(output: str) -> Dataset:
    """Completes the switch of a killed run, and opens the dataset."""
    with output_folder.taken(output, False, append=True, files=DATASET_FILES):
        return open_dataset(output)


def check(base: Dataset, ours: dict[str, Any]) -> None:
    """Raises ProbelineError if an option of `ours` is not the dataset's, or it has just changed."""
    defaults = {item.name: item.default for item in fields(Options)}
    for name, value in ours.items():
        said = base.manifest.options.get(name, defaults.get(name, ""))
        if value != said:
            raise other_option(name, value, base.path, said)
    if open_dataset(base.path).manifest != base.manifest:
        raise ProbelineError(
            f"{base.path} was just changed by another run: run the same command again"
        )


def all_inputs(base: Dataset | None, planned: Generation) -> list[str]:
    """Returns the inputs of all generations."""
    if base is None:
        return planned.input
    generations = as_base(base.manifest).generations
    return [path for each in generations for path in each.input or ["EARLIER"]] + planned.input


def as_base(manifest: Manifest) -> Manifest:
    """Returns the part of the dataset's manifest that the commit needs."""
    splits = {name: replace(split, shards=[]) for name, split in manifest.splits.items()}
    probes = sum(split.num_probes for split in manifest.splits.values())
    records = sum(split.num_records for split in manifest.splits.values())
    # The only generation of a manifest that predates their list.
    first = Generation("", [], {}, manifest.versions, manifest.counts, probes, records)
    return replace(manifest, splits=splits, generations=manifest.generations or [first])


_READ_OPTIONS = ("input_format", "columns", "time_unit", "rtt_unit", "failed", "ends")


def plan(options: Options, files: Iterable[FileVersion]) -> Generation:
    """Returns the generation that a run writes, without its counts."""
    listed = sorted(files)
    digest = hashlib.blake2b(digest_size=16)
    for file in listed:
        digest.update(repr(tuple(file)).encode())
    few: Sequence[FileVersion] = listed if len(listed) <= _MAX_LISTED_FILES else ()
    return Generation(
        started=start_time(),
        input=list(options.input),
        options={name: getattr(options, name) for name in _READ_OPTIONS},
        versions={},
        counts=Counts(0, 0, 0, {}),
        num_probes=0,
        num_records=0,
        files_digest=digest.hexdigest(),
        files=[SourceFile(*file) for file in few],
    )
