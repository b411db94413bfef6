"""State shared by all steps of an overlap run, and the steps of the evaluation side.

evaluation files → Prepared: all their rows in one file, and the fingerprint of the job run
index shard, Prepared → the index shard's file
"""

import contextlib
import ctypes
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.cli.flags import values_of
from beam_pipeline.dataset import dead_letters
from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.documents.fields import Fields
from beam_pipeline.documents.files import WorkUnit
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.machine import machine_memory_bytes
from beam_pipeline.jobs.monitoring import logged
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.overlap.evaluation import (
    EvaluationFile,
    EvaluationRows,
    fingerprint_rows,
    write_rows,
)
from beam_pipeline.overlap.job.config import DeconConfig, flag_fields
from beam_pipeline.overlap.job.manifest import options_of, versions_of, write_summary
from beam_pipeline.overlap.ngrams.arrays import hand_pages_back
from beam_pipeline.overlap.ngrams.index import (
    BYTES_PER_PLACE,
    FORMAT,
    INDEX_BYTES_PER_PLACE,
    Index,
    IndexShard,
    build_index,
    count_index_shards,
    open_index,
    write_index,
)
from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.ngrams.token_batches import (
    MAX_TOKEN_BYTES,
    count_long_tokens,
    count_places,
    count_tokens,
    count_unspaced,
)
from beam_pipeline.overlap.ngrams.token_kernels import HASH_NAME
from beam_pipeline.overlap.ngrams.token_texts import (
    TokenTexts,
    open_token_texts,
    token_texts,
    write_token_texts,
)
from beam_pipeline.overlap.ngrams.tokenizers import MULTILINGUAL, Tokenizer, tokenizer_named
from beam_pipeline.overlap.results import match_files
from beam_pipeline.overlap.results.details import DetailsOptions, Evaluation
from beam_pipeline.overlap.results.layout import WORK_FOLDER
from beam_pipeline.overlap.results.match_files import letters_path
from beam_pipeline.storage.files import COPY_BYTES, atomic_write, exists, locked
from beam_pipeline.storage.local_copy import machine_folder, on_this_machine

MAX_PASSES = 16
_ROWS_NAME, _TOKENS_NAME = "evaluation.arrow", "evaluation_tokens.arrow"
_MIN_LONG_TOKEN_ROWS = 16  # for a warning; fewer may be links or code
_M_ARENA_MAX = -8  # of glibc's malloc.h
_NOT_GLIBC = (OSError, AttributeError, TypeError)  # raised with other C libraries
_SHARE_OF_MEMORY = 3  # the index gets a third; batches of documents and mapped pages the rest


@dataclass(frozen=True)
class Job:
    """The state that every worker gets."""

    config: DeconConfig
    run: JobRun  # holds the output; incomplete files go below its folder
    num_eval_files: int
    num_train_files: int
    started_at: str = ""  # the launcher's time, so that all attempts write the same summary
    command: str = ""  # as typed in a shell; "" for a run from Python

    @property
    def details(self) -> DetailsOptions:
        """The details to write; a negative cap is unlimited."""
        config = self.config
        caps = (config.max_details_per_pair, config.max_details)
        return DetailsOptions(config.details, *(None if cap < 0 else cap for cap in caps))

    def option(self, name: str, value: Any) -> str:
        """Returns an option as written in a shell or in Python."""
        if not self.command:
            return f"{name}={value!r}"
        return f"--{name}" if value is True else f"--{name}={value}"

    @property
    def fields(self) -> Fields:
        """The fields to read of a document."""
        return Fields(self.config.text_field, self.config.id_field)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the config."""
        return tokenizer_named(self.config.tokenizer)

    def path(self, *names: str) -> str:
        """Returns a path below the output."""
        return FileSystems.join(self.config.output_path, *names)

    def temp_path(self, *names: str) -> str:
        """Returns a path below the job run's own folder."""
        return FileSystems.join(self.run.folder, *names)


# --- memory -------------------------------------------------------------------------------------


def share_one_heap() -> None:
    """Makes all threads of this process and its forks allocate from one heap.

    glibc gives threads separate heaps, each of which keeps the memory of its largest message.
    """
    with contextlib.suppress(*_NOT_GLIBC):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


@contextlib.contextmanager
def freeing_step(step: str, **where: object) -> Iterator[None]:
    """Logs as `logged`, and returns the step's memory to the system.

    Without it, freed memory and mapped pages take a few hundred MiB in each waiting worker.
    """
    with logged(step, **where):
        yield
    hand_pages_back()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(*_NOT_GLIBC):
        ctypes.CDLL(None).malloc_trim(0)


# --- shared by steps ----------------------------------------------------------------------------


@functools.lru_cache(1)
def _open_rows(path: str) -> EvaluationRows:
    return EvaluationRows.open(on_this_machine(path))


@functools.lru_cache(1)
def _open_tokens(path: str) -> TokenTexts:
    return open_token_texts(on_this_machine(path))


_evaluations: dict[str, Evaluation] = {}  # the latest, by folder


class Prepared(NamedTuple):
    """The evaluation side of a job run."""

    folder: str  # of index shards and match files; the same when the run is resumed
    rows_path: str
    fingerprint: str
    num_index_shards: int
    counts: dict[str, int]
    letters: dict[str, int]  # dead letters by reason
    warnings: tuple[str, ...] = ()

    def index_path(self, index_shard: int) -> str:
        """Returns the path of an index shard."""
        name = f"index-{index_shard:05d}-of-{self.num_index_shards:05d}"
        return FileSystems.join(self.folder, name)

    def match_path(self, unit: WorkUnit, index_shard: int) -> str:
        """Returns the path of the match file of a work unit and an index shard."""
        return FileSystems.join(self.folder, f"{unit.name}-pass-{index_shard:05d}.parquet")

    @property
    def index_bytes(self) -> int:
        """The approximate size of an index shard."""
        return self.counts["eval_ngrams"] * INDEX_BYTES_PER_PLACE // self.num_index_shards

    def open_rows(self) -> EvaluationRows:
        """Maps the rows into memory, once per process."""
        return _open_rows(self.rows_path)

    def open_tokens(self) -> TokenTexts:
        """Maps the rows' tokens into memory, once per process."""
        return _open_tokens(FileSystems.join(self.folder, _TOKENS_NAME))

    def open_index(self, index_shard: int) -> Index:
        """Maps an index shard into memory."""
        return open_index(on_this_machine(self.index_path(index_shard)), self.fingerprint)

    def evaluation(self) -> Evaluation:
        """Maps the whole evaluation side into memory, once per process."""
        if self.folder not in _evaluations:
            tokens, shards = self.open_tokens(), range(self.num_index_shards)
            postings = [Postings(self.open_index(shard), tokens) for shard in shards]
            _evaluations.clear()
            _evaluations[self.folder] = Evaluation(self.open_rows(), postings)
        return _evaluations[self.folder]


def read_evaluation_sets(files: Sequence[EvaluationFile], job: Job) -> Prepared:
    """Reads all evaluation sets in one step, since their rows are numbered consecutively."""
    limit, temp = job.config.limit_test_instances, job.run.folder
    with logged("Read evaluation sets"), tempfile.TemporaryDirectory() as folder:
        local_path = os.path.join(folder, _ROWS_NAME)
        fields = job.fields._replace(id=job.config.eval_id)
        counts, letters = write_rows(files, local_path, fields, limit)
        prepared = _prepare(job, local_path, counts, letters)
        if not exists(prepared.rows_path):
            with open(local_path, "rb") as rows, atomic_write(prepared.rows_path, temp) as target:
                shutil.copyfileobj(rows, target, COPY_BYTES)
        tokens_path = FileSystems.join(prepared.folder, _TOKENS_NAME)
        if not exists(tokens_path):
            texts = EvaluationRows.open(local_path).texts()
            with atomic_write(tokens_path, temp) as target:
                write_token_texts((token_texts(*some, job.tokenizer) for some in texts), target)
        if letters:
            with atomic_write(letters_path(prepared.rows_path), temp) as stream:
                stream.write(dead_letters.to_parquet(letters))
    for warning in prepared.warnings:
        print(warning, file=sys.stderr, flush=True)
    summarize(job, prepared, "index", {})
    return prepared


def _prepare(
    job: Job, rows_path: str, counts: dict[str, int], letters: Sequence[DeadLetter]
) -> Prepared:
    config, lengths = job.config, job.config.lengths
    texts = EvaluationRows.open(rows_path).texts()
    tokens = count_tokens(texts, job.tokenizer)
    counts |= {
        "degenerate_eval_rows": int(tokens.is_degenerate.sum()),
        "short_eval_rows": int((tokens.counts < config.min_tokens).sum()),
        "unspaced_eval_rows": count_unspaced(texts, tokens.counts, job.tokenizer),
        "long_token_eval_rows": count_long_tokens(texts, tokens.counts),
    }
    num_places = count_places(tokens.counts, lengths)
    num_index_shards = config.num_shards or choose_index_shards(num_places, config)
    flags, values = flag_fields(), values_of(config)
    names = [item.name for item in flags if item.metadata["affects"] == "matches"]
    options = {name: values[name] for name in names} | {"parts": num_index_shards}
    fingerprint = fingerprint_rows(rows_path, lengths, job.tokenizer, options)
    # Index shards and match files are cut by hash, so only those with the same hashes are reused.
    folder = job.path(WORK_FOLDER, f"{fingerprint}-{HASH_NAME}-{FORMAT}-{match_files.FORMAT}")
    return Prepared(
        folder,
        FileSystems.join(folder, _ROWS_NAME),
        fingerprint,
        num_index_shards,
        {**counts, "eval_ngrams": num_places},
        dead_letters.count_by_reason(letters),
        tuple(_warnings_of(counts, config)),
    )


def _warnings_of(counts: Mapping[str, int], config: DeconConfig) -> Iterator[str]:
    """Yields warnings to act on before the scan."""
    if counts["unspaced_eval_rows"]:
        yield (
            f"Warning: {counts['unspaced_eval_rows']:,} of {counts['eval_rows']:,} evaluation rows "
            f"are in scripts without spaces and have few tokens with --tokenizer={config.tokenizer}"
            f", so that little of them is found; --tokenizer={MULTILINGUAL} finds it"
        )
    elif counts["long_token_eval_rows"] >= _MIN_LONG_TOKEN_ROWS:
        yield (
            f"Warning: {counts['long_token_eval_rows']:,} of {counts['eval_rows']:,} evaluation "
            f"rows have more than {MAX_TOKEN_BYTES} bytes a token with "
            f"--tokenizer={config.tokenizer}, so that little of them is found: choose a tokenizer "
            "that separates their words"
        )


def choose_index_shards(num_places: int, config: DeconConfig) -> int:
    """Returns the number of index shards such that each fits in memory.

    Raises ProbelineError if the training data would be read more than MAX_PASSES times.
    """
    memory_bytes = config.index_memory_mb << 20 or machine_memory_bytes() // _SHARE_OF_MEMORY
    num_index_shards = count_index_shards(num_places, memory_bytes)
    if num_index_shards > 1:
        cost = (
            f"{num_places:,} n-grams of the evaluation sets need "
            f"{num_places * BYTES_PER_PLACE / 2**30:,.1f} GiB, and the index may take "
            f"{memory_bytes / 2**30:,.1f} GiB on a worker: the training data is read "
            f"{num_index_shards} times"
        )
        if num_index_shards > MAX_PASSES:
            raise ProbelineError(
                f"{cost}, more than {MAX_PASSES}: use workers with more memory, increase "
                f"--index_memory_mb, or pass --num_shards={num_index_shards} to run anyway"
            )
        print(cost, file=sys.stderr, flush=True)
    return num_index_shards


def build_index_shard(index_shard: int, job: Job, prepared: Prepared) -> str:
    """Writes an index shard, unless it exists, and returns its path."""
    path = prepared.index_path(index_shard)
    # One process per machine at a time, since each may need all of its memory.
    lock = locked(os.path.join(machine_folder(), "index-lock"))
    with logged("Build the index", path=path), lock:
        if not exists(path):
            index = build_index(
                prepared.open_rows().texts(),
                job.config.lengths,
                job.tokenizer,
                IndexShard(index_shard, prepared.num_index_shards),
                job.config.degenerate == "skip",
                job.config.min_tokens,
            )
            with atomic_write(path, job.run.folder) as stream:
                write_index(index, stream, prepared.fingerprint)
    return path


def summarize(
    job: Job,
    prepared: Prepared,
    stage: str,
    counts: Mapping[str, Any],
    outputs: Sequence[str] = (),
    folder: str | None = None,
) -> None:
    """Writes progress_summary.json after a stage.

    Args:
      stage: the next stage, or "done".
      counts: those of the training side.
      folder: by default the output.
    """
    summary = {
        "stage": stage,
        "num_eval_files": job.num_eval_files,
        "num_train_files": job.num_train_files,
        "num_shards": prepared.num_index_shards,
        "max_parallelism": job.config.processes,
        "ngram_lengths": list(job.config.lengths),
        "tokenizer": job.config.tokenizer,
        "fingerprint": prepared.fingerprint,
        "started_at": job.started_at,
        "options": options_of(job.config),
        "versions": versions_of(job.config),
        "counts": {**prepared.counts, **counts},
        "warnings": list(prepared.warnings),
        "outputs": list(outputs),
    }
    write_summary(folder or job.config.output_path, job.run.folder, summary)
