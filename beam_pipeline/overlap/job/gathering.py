"""From parts to files of the output as Beam steps; what they do is in `counts` and `details`.

NumberedUnit → counts of n-grams by bucket of evaluation rows → files of each bucket
NumberedUnit → size of its details → how many it may write
NumberedUnit → files of each unit
all of these → the output, `.SUCCESS` last
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.monitoring import counter, logged
from beam_pipeline.jobs.output_lease import Marker
from beam_pipeline.overlap.documents.evaluation import EvaluationRows
from beam_pipeline.overlap.job import progress
from beam_pipeline.overlap.job.preparing import Job, Prepared, summary_of
from beam_pipeline.overlap.job.units import NumberedUnit, ScannedUnit
from beam_pipeline.overlap.results.counts import (
    NGRAM_COUNTS,
    ROW_COUNTS,
    Boilerplate,
    add_counts,
    boilerplate_of,
    cut_by_bucket,
    unit_counts,
    write_boilerplate,
)
from beam_pipeline.overlap.results.details import (
    DetailsSize,
    ExpandedUnit,
    Unit,
    count_details,
    expand_unit,
    quotas,
)
from beam_pipeline.overlap.results.layout import SUCCESS_NAME, WORK_FOLDER
from beam_pipeline.overlap.results.match_files import Keep
from beam_pipeline.overlap.results.outputs import Results, write_dead_letters, write_outputs
from beam_pipeline.overlap.results.row_overlaps import (
    BucketFiles,
    write_boilerplate_lines,
    write_bucket,
)
from beam_pipeline.storage.files import atomic_write, exists, remove_folder

_KINDS = (NGRAM_COUNTS, ROW_COUNTS)
_UNITS_OF_A_FILE = 1000  # of overlap_instances


class BucketBoilerplate(NamedTuple):
    """The n-grams of a bucket of evaluation rows that are boilerplate."""

    bucket: int
    counts: bytes  # NGRAM_COUNTS
    lines_path: str


class _Step(beam.DoFn):
    """A step that reads parts."""

    def __init__(self, job: Job):
        self._job = job
        self._keep: dict[str, Keep] = {}
        self._rows: dict[str, EvaluationRows] = {}

    def _kept(self, boilerplate_path: str | None) -> Keep | None:
        if boilerplate_path is None:
            return None
        if boilerplate_path not in self._keep:
            self._keep[boilerplate_path] = Boilerplate.open(boilerplate_path).keep
        return self._keep[boilerplate_path]

    def _rows_of(self, prepared: Prepared) -> EvaluationRows:
        if prepared.rows_path not in self._rows:
            self._rows[prepared.rows_path] = prepared.open_rows()
        return self._rows[prepared.rows_path]

    def _temporary(self, kind: str, name: str) -> str:
        return FileSystems.join(self._job.temp_folder, kind, name)


class CountNgrams(_Step):
    """NumberedUnit → (bucket, (kind, counts)); kind is 0 for n-grams and 1 for rows."""

    def process(
        self, unit: NumberedUnit, boilerplate_path: str | None = None
    ) -> Iterator[tuple[int, tuple[int, bytes]]]:
        with logged("Count n-grams", path=unit.path, first_row=unit.first_row):
            counts = unit_counts(unit.parts, self._kept(boilerplate_path))
        for kind, array in enumerate(counts):
            for bucket, data in cut_by_bucket(array):
                yield bucket, (kind, data)


class FindBoilerplate(_Step):
    """(bucket, [(kind, counts)]) → BucketBoilerplate."""

    def process(
        self, keyed: tuple[int, Iterable[tuple[int, bytes]]], prepared: Prepared
    ) -> Iterator[BucketBoilerplate]:
        bucket, counts = keyed
        ngrams = add_counts([data for kind, data in counts if kind == 0], NGRAM_COUNTS)
        found = boilerplate_of(ngrams, self._job.max_document_frequency)
        path = self._temporary("boilerplate", f"{bucket:08d}.jsonl")
        rows, tokenizer = self._rows_of(prepared), self._job.tokenizer
        write_boilerplate_lines(path, self._job.temp_folder, found, rows, tokenizer)
        yield BucketBoilerplate(bucket, found.tobytes(), path)


class GatherBoilerplate(_Step):
    """All BucketBoilerplate, as a side input → the path of the one file that lists it."""

    def process(self, _: bytes, found: Iterable[BucketBoilerplate]) -> Iterator[str]:
        path = self._temporary("boilerplate", "keys")
        counts = (np.frombuffer(bucket.counts, NGRAM_COUNTS) for bucket in sorted(found))
        write_boilerplate(path, self._job.temp_folder, counts)
        yield path


class WriteBucket(_Step):
    """(bucket, [(kind, counts)]) → (bucket, BucketFiles)."""

    def process(
        self, keyed: tuple[int, Iterable[tuple[int, bytes]]], prepared: Prepared
    ) -> Iterator[tuple[int, BucketFiles]]:
        bucket, counts = keyed
        parts: tuple[list[bytes], list[bytes]] = ([], [])
        for kind, data in counts:
            parts[kind].append(data)
        ngrams, documents = (add_counts(*of) for of in zip(parts, _KINDS, strict=True))
        with logged("Write evaluation rows", bucket=bucket):
            yield (
                bucket,
                write_bucket(
                    self._temporary("buckets", f"{bucket:08d}"),
                    self._job.temp_folder,
                    ngrams,
                    documents,
                    self._rows_of(prepared),
                    self._job.tokenizer,
                ),
            )


class SizeDetails(_Step):
    """NumberedUnit → (unit, DetailsSize), what there would be without caps."""

    def process(
        self, unit: NumberedUnit, prepared: Prepared, boilerplate_path: str | None = None
    ) -> Iterator[tuple[NumberedUnit, DetailsSize]]:
        with logged("Size details", path=unit.path, first_row=unit.first_row):
            size = count_details(
                described(unit),
                self._rows_of(prepared),
                self._kept(boilerplate_path),
                self._job.cap(self._job.max_details_per_pair),
            )
        yield unit, size


class Expand(_Step):
    """NumberedUnit → (unit, ExpandedUnit, its DetailsSize if there are caps)."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._sizes: dict[str, tuple[int | None, DetailsSize]] | None = None

    def process(
        self,
        unit: NumberedUnit,
        prepared: Prepared,
        boilerplate_path: str | None = None,
        sizes: Iterable[tuple[NumberedUnit, DetailsSize]] = (),
    ) -> Iterator[tuple[NumberedUnit, ExpandedUnit, DetailsSize | None]]:
        if self._job.has_caps and self._sizes is None:
            self._sizes = self._with_quotas(sizes)
        quota, size = self._sizes[unit.name] if self._sizes is not None else (None, None)
        with logged("Expand", path=unit.path, first_row=unit.first_row):
            expanded = expand_unit(
                described(unit),
                self._temporary("units", unit.name),
                self._job.temp_folder,
                self._rows_of(prepared),
                self._kept(boilerplate_path),
                self._job.cap(self._job.max_details_per_pair),
                quota,
            )
        yield unit, expanded, size

    def _with_quotas(
        self, sizes: Iterable[tuple[NumberedUnit, DetailsSize]]
    ) -> dict[str, tuple[int | None, DetailsSize]]:
        """Returns how many details each unit may write, by its name, and how many it has."""
        ordered = sorted(sizes)
        kept = quotas([size.num_kept for _, size in ordered], self._job.cap(self._job.max_details))
        return {unit.name: (quota, size) for (unit, size), quota in zip(ordered, kept, strict=True)}


def described(unit: NumberedUnit) -> Unit:
    """Returns a unit as `details` takes it."""
    return Unit(list(unit.parts), unit.path, unit.row_offset)


class Summarize(beam.CombineFn):
    """ScannedUnit → counts of the training side."""

    def create_accumulator(self) -> Counter[str]:
        return Counter()

    def add_input(self, mutable_accumulator: Counter[str], element: ScannedUnit):
        work, summary = element
        mutable_accumulator["matches"] += summary.num_matches
        if work.part == 0:
            for name in ("rows", "texts", "without_text"):
                mutable_accumulator[f"train_{name}"] += getattr(summary, f"num_{name}")
            mutable_accumulator["train_text_bytes"] += summary.text_bytes
            for reason, count in summary.letters.items():
                mutable_accumulator[f"letters:{reason}"] += count
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[Counter[str]]) -> Counter[str]:
        merged: Counter[str] = Counter()
        for accumulator in accumulators:
            merged.update(accumulator)
        return merged

    def extract_output(self, accumulator: Counter[str]) -> dict[str, Any]:
        names = ("train_rows", "train_texts", "train_without_text", "train_text_bytes", "matches")
        letters = {
            name.removeprefix("letters:"): count
            for name, count in sorted(accumulator.items())
            if name.startswith("letters:")
        }
        return {**{name: accumulator[name] for name in names}, "dead_letters": letters}


class CheckScan(beam.DoFn):
    """Counts of the training side → the same, if there is a text; tells that the scan is over."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, scanned: Mapping[str, Any], prepared: Prepared) -> Iterator[dict[str, Any]]:
        job = self._job
        if not scanned["train_texts"]:
            raise ProbelineError(
                f"none of {scanned['train_rows']} records of {job.num_train_files} training files "
                f"has a text in the field {job.text_field!r}: name the field with --text_field"
            )
        read = scanned["train_texts"] + scanned["train_without_text"]
        if read + sum(scanned["dead_letters"].values()) != scanned["train_rows"]:
            raise ProbelineError(
                f"{scanned['train_rows']} training records were read, but {read} scanned: this is "
                "a fault of Probeline, report it"
            )
        summary = summary_of(job, prepared, "gather", scanned)
        progress.write_summary(job.output_path, job.temp_folder, summary)
        yield dict(scanned)


class Finish(beam.DoFn):
    """Everything, as side inputs → the output; `.SUCCESS` comes last."""

    def __init__(self, job: Job, marker: Marker | None):
        self._job = job
        self._marker = marker
        self._details = counter("overlap_details")

    def process(
        self,
        _: bytes,
        prepared: Prepared,
        scanned: Mapping[str, Any],
        expanded: Iterable[tuple[NumberedUnit, ExpandedUnit, DetailsSize | None]],
        buckets: Iterable[tuple[int, BucketFiles]],
        boilerplate: Iterable[BucketBoilerplate] | None = None,
    ) -> Iterator[Any]:
        units = sorted(expanded, key=lambda element: element[0])
        ordered = [files for _, files in sorted(buckets)]
        lines = None
        if boilerplate is not None:
            lines = [bucket.lines_path for bucket in sorted(boilerplate)]
        results = Results([files for _, files, _ in units], ordered, lines, self._job.has_caps)
        with logged("Finish", output=self._job.output_path):
            # It may be that an attempt before this one came to its end, and its result was lost.
            if not exists(self._job.path(SUCCESS_NAME)):
                if self._marker is not None:
                    self._marker.check()
                self._finish(prepared, scanned, units, results)
            self._tidy_up()
        return iter(())

    def _finish(
        self,
        prepared: Prepared,
        scanned: Mapping[str, Any],
        units: Sequence[tuple[NumberedUnit, ExpandedUnit, DetailsSize | None]],
        results: Results,
    ) -> None:
        job = self._job
        written = write_outputs(
            job.output_path,
            job.temp_folder,
            prepared.open_rows(),
            job.lengths,
            results,
            max(1, -(-len(units) // _UNITS_OF_A_FILE)),
        )
        with_letters = [
            (unit.parts[0], unit.row_offset) for unit, _, _ in units if unit.num_letters
        ]
        if prepared.letters:
            with_letters.insert(0, (prepared.rows_path, 0))
        letters = write_dead_letters(job.output_path, job.temp_folder, with_letters)
        counts = {**scanned, **self._details_counts(results, units)}
        counts["dead_letters"] = dict(
            sorted((Counter(scanned["dead_letters"]) + Counter(prepared.letters)).items())
        )
        names = [*written, *([letters] if letters else [])]
        summary = summary_of(job, prepared, "done", counts, names)
        progress.write_summary(job.output_path, job.temp_folder, summary)
        with atomic_write(job.path(SUCCESS_NAME), job.temp_folder) as stream:
            stream.write(b"")

    def _tidy_up(self) -> None:
        """Removes what nothing needs any more; details that were left out need the parts."""
        job = self._job
        if not progress.read_summary(job.output_path)["counts"]["details_left_out"]:
            remove_folder(job.path(WORK_FOLDER))
        remove_folder(job.temp_folder)
        if self._marker is not None:
            self._marker.release()

    def _details_counts(
        self,
        results: Results,
        units: Sequence[tuple[NumberedUnit, ExpandedUnit, DetailsSize | None]],
    ) -> dict[str, int]:
        num_written = sum(unit.num_records for unit in results.units)
        self._details.inc(num_written)
        if not results.has_caps:
            num_bytes = sum(unit.num_bytes for unit in results.units)
            return {"details": num_written, "details_left_out": 0, "detail_bytes": num_bytes}
        sizes = [size for _, _, size in units if size is not None]
        return {
            "details": num_written,
            "details_left_out": sum(size.num_records for size in sizes) - num_written,
            "detail_bytes": sum(size.num_bytes for size in sizes),
        }
