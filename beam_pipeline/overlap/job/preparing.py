"""What all steps of an overlap run know, and the steps that are one element each: the eval side.

evaluation files → Prepared: all their rows in one file, and what the run is made of
Prepared → the index, a file for each pass
"""

import functools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.dataset import dead_letters
from beam_pipeline.jobs.monitoring import logged
from beam_pipeline.overlap.documents.evaluation import (
    EvaluationFile,
    EvaluationRows,
    Fields,
    fingerprint_of,
    write_rows,
)
from beam_pipeline.overlap.job.config import DeconConfig
from beam_pipeline.overlap.job.progress import write_summary
from beam_pipeline.overlap.ngrams.index import (
    HashRange,
    build_index,
    count_places,
    count_tokens,
    num_parts_for,
    write_index,
)
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer, tokenizer_named
from beam_pipeline.overlap.results.layout import WORK_FOLDER
from beam_pipeline.overlap.results.match_files import letters_path
from beam_pipeline.storage.files import atomic_write, exists
from beam_pipeline.storage.local_copy import on_this_machine

_ROWS_NAME = "evaluation.arrow"
_COPY_BYTES = 8 << 20


@dataclass(frozen=True)
class Job:
    """What the workers have to know; names and meaning as in `config`.

    Attributes:
      temp_folder: the run's own folder, for files that are not whole yet.
    """

    output_path: str
    temp_folder: str
    lengths: tuple[int, ...]
    tokenizer_name: str
    text_field: str
    id_field: str
    num_shards: int
    max_parallelism: int
    limit_test_instances: int
    index_memory_mb: int
    skip_degenerate: bool
    max_details_per_pair: int
    max_details: int
    max_document_frequency: int
    num_eval_files: int
    num_train_files: int

    @classmethod
    def of(
        cls, config: DeconConfig, temp_folder: str, num_eval_files: int, num_train_files: int
    ) -> "Job":
        """Returns the job of a config."""
        return cls(
            output_path=config.output_path,
            temp_folder=temp_folder,
            lengths=config.ngram.lengths,
            tokenizer_name=config.tokenizer,
            text_field=config.text_field,
            id_field=config.id_field,
            num_shards=config.num_shards,
            max_parallelism=config.processes,
            limit_test_instances=config.limit_test_instances,
            index_memory_mb=config.index_memory_mb,
            skip_degenerate=config.degenerate == "skip",
            max_details_per_pair=config.max_details_per_pair,
            max_details=config.max_details,
            max_document_frequency=config.max_document_frequency,
            num_eval_files=num_eval_files,
            num_train_files=num_train_files,
        )

    @property
    def has_caps(self) -> bool:
        return self.max_details >= 0 or self.max_details_per_pair >= 0

    @staticmethod
    def cap(value: int) -> int | None:
        """Returns a cap of the config, None if there is none."""
        return None if value < 0 else value

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return tokenizer_named(self.tokenizer_name)

    def path(self, *names: str) -> str:
        """Returns a path below the output."""
        return FileSystems.join(self.output_path, *names)


class Prepared(NamedTuple):
    """The evaluation side of a run, read."""

    folder: str  # where this run, and one that goes on with it, keeps what it makes
    rows_path: str
    fingerprint: str
    num_parts: int  # of the index: so many passes
    counts: dict[str, int]
    letters: dict[str, int]  # dead letters by reason

    def index_path(self, part: int) -> str:
        """Returns where the index of a pass is."""
        return FileSystems.join(self.folder, f"index-{part:05d}-of-{self.num_parts:05d}")

    def open_rows(self) -> EvaluationRows:
        """Maps the rows into memory."""
        return EvaluationRows.open(on_this_machine(self.rows_path))


class ReadEvaluationSets(beam.DoFn):
    """Evaluation files → Prepared, in one element, since the rows are numbered through."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, files: Sequence[EvaluationFile]) -> Iterator[Prepared]:
        with logged("Read evaluation sets"), tempfile.TemporaryDirectory() as folder:
            yield self._prepare(files, os.path.join(folder, _ROWS_NAME))

    def _prepare(self, files: Sequence[EvaluationFile], local_path: str) -> Prepared:
        job = self._job
        fields = Fields(job.text_field, job.id_field, job.limit_test_instances)
        counts = write_rows(files, local_path, fields)
        tokens = count_tokens(EvaluationRows.open(local_path).texts(), job.tokenizer)
        num_places = count_places(tokens.counts, job.lengths)
        num_parts = job.num_shards or num_parts_for(num_places, job.index_memory_mb << 20)
        shaping = {
            "skip_degenerate": job.skip_degenerate,
            "fields": fields._asdict(),
            "parts": num_parts,
        }
        fingerprint = fingerprint_of(local_path, job.lengths, job.tokenizer, shaping)
        folder = job.path(WORK_FOLDER, fingerprint)
        rows_path = FileSystems.join(folder, _ROWS_NAME)
        if not exists(rows_path):
            with atomic_write(rows_path, job.temp_folder) as stream, open(local_path, "rb") as rows:
                shutil.copyfileobj(rows, stream, _COPY_BYTES)
        if counts.letters:
            with atomic_write(letters_path(rows_path), job.temp_folder) as stream:
                stream.write(dead_letters.to_parquet(counts.letters))
        prepared = Prepared(
            folder,
            rows_path,
            fingerprint,
            num_parts,
            {
                "eval_records": counts.num_records,
                "eval_rows": counts.num_texts,
                "eval_without_text": counts.num_without_text,
                "eval_ngrams": num_places,
                "degenerate_eval_rows": int(tokens.is_degenerate.sum()),
            },
            dead_letters.count_by_reason(counts.letters),
        )
        write_summary(job.output_path, job.temp_folder, summary_of(job, prepared, "index", {}))
        return prepared


class BuildIndex(beam.DoFn):
    """The number of a pass, Prepared → the path of its index."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, part: int, prepared: Prepared) -> Iterator[str]:
        job, path = self._job, prepared.index_path(part)
        with logged("Build the index", path=path):
            if not exists(path):
                index = build_index(
                    prepared.open_rows().texts(),
                    job.lengths,
                    job.tokenizer,
                    HashRange(part, prepared.num_parts),
                    job.skip_degenerate,
                )
                with atomic_write(path, job.temp_folder) as stream:
                    write_index(index, stream, prepared.fingerprint)
        yield path


def summary_of(
    job: Job, prepared: Prepared, stage: str, counts: Mapping[str, Any], outputs: Sequence[str] = ()
) -> dict[str, object]:
    """Returns what progress_summary.json says once a stage is over.

    Args:
      stage: the one that comes next, or "done".
      counts: of the training side.
    """
    return {
        "stage": stage,
        "num_eval_files": job.num_eval_files,
        "num_train_files": job.num_train_files,
        "num_shards": prepared.num_parts,
        "max_parallelism": job.max_parallelism,
        "ngram_lengths": list(job.lengths),
        "tokenizer": job.tokenizer_name,
        "fingerprint": prepared.fingerprint,
        "counts": {**prepared.counts, **counts},
        "outputs": list(outputs),
    }
