"""The steps of the evaluation side, and what all other steps get of it.

evaluation files → Prepared: all their rows in one file, and the fingerprint of the job run
index shard, Prepared → the index shard's file
"""

import contextlib
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.dataset import dead_letters
from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.documents.fields import training_fields
from beam_pipeline.documents.files import WorkUnit
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.monitoring import logged
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.machine import machine_memory_bytes, trim_heap
from beam_pipeline.overlap.evaluation import (
    EvaluationFile,
    EvaluationRows,
    fingerprint_rows,
    write_rows,
)
from beam_pipeline.overlap.job.config import DeconConfig
from beam_pipeline.overlap.job.manifest import options_of_matches, versions_of, write_summary
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
from beam_pipeline.overlap.ngrams.tokenizers import MULTILINGUAL, tokenizer_named
from beam_pipeline.overlap.results import match_files
from beam_pipeline.overlap.results.details import Evaluation
from beam_pipeline.overlap.results.layout import WORK_FOLDER
from beam_pipeline.overlap.results.match_files import letters_path
from beam_pipeline.report.tables import bytes_text
from beam_pipeline.storage.files import COPY_BYTES, atomic_write, exists, locked
from beam_pipeline.storage.local_copy import machine_folder, on_this_machine

MAX_PASSES = 16
_ROWS_NAME, _TOKENS_NAME = "evaluation.arrow", "evaluation_tokens.arrow"
_MIN_LONG_TOKEN_ROWS = 16  # for a warning; fewer may be links or code
_SHARE_OF_MEMORY = 3  # the index gets a third; batches of documents and mapped pages the rest


# --- memory -------------------------------------------------------------------------------------


@contextlib.contextmanager
def freeing_step(step: str, **where: object) -> Iterator[None]:
    """Logs as `logged`, and returns the step's memory to the system.

    Without it, freed memory and mapped pages take a few hundred MiB in each waiting worker.
    """
    with logged(step, **where):
        yield
    hand_pages_back()
    pa.default_memory_pool().release_unused()
    trim_heap()


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


def read_evaluation_sets(
    files: Sequence[EvaluationFile], run: JobRun, config: DeconConfig, summary: dict[str, Any]
) -> Prepared:
    """Reads all evaluation sets in one step, since their rows are numbered consecutively."""
    with logged("Read evaluation sets"), tempfile.TemporaryDirectory() as folder:
        local_path = os.path.join(folder, _ROWS_NAME)
        fields = training_fields(config.text_field, config.eval_id)
        fields = fields._replace(lm_eval=config.is_lm_eval)
        counts, letters = write_rows(files, local_path, fields, config.limit_test_instances)
        prepared = _prepare(run, config, local_path, counts, letters)
        if not exists(prepared.rows_path):
            target = atomic_write(prepared.rows_path, run.folder)
            with open(local_path, "rb") as rows, target as stream:
                shutil.copyfileobj(rows, stream, COPY_BYTES)
        tokens_path = FileSystems.join(prepared.folder, _TOKENS_NAME)
        if not exists(tokens_path):
            tokenizer = tokenizer_named(config.tokenizer)
            texts = EvaluationRows.open(local_path).texts()
            with atomic_write(tokens_path, run.folder) as stream:
                write_token_texts((token_texts(*some, tokenizer) for some in texts), stream)
        if letters:
            with atomic_write(letters_path(prepared.rows_path), run.folder) as stream:
                stream.write(dead_letters.to_parquet(letters))
    for warning in prepared.warnings:
        print(warning, file=sys.stderr, flush=True)
    summarize(run, summary, prepared, "index", {})
    return prepared


def _prepare(
    run: JobRun,
    config: DeconConfig,
    rows_path: str,
    counts: dict[str, int],
    letters: Sequence[DeadLetter],
) -> Prepared:
    tokenizer, lengths = tokenizer_named(config.tokenizer), config.lengths
    texts = EvaluationRows.open(rows_path).texts()
    tokens = count_tokens(texts, tokenizer)
    counts |= {
        "degenerate_eval_rows": int(tokens.is_degenerate.sum()),
        "repeated_eval_ids": EvaluationRows.open(rows_path).count_repeated_ids(),
        "unspaced_eval_rows": count_unspaced(texts, tokens.counts, tokenizer),
        "long_token_eval_rows": count_long_tokens(texts, tokens.counts),
    }
    num_places = count_places(tokens.counts, lengths)
    memory_bytes = config.index_memory_mb << 20
    num_index_shards = config.num_shards or choose_index_shards(num_places, memory_bytes)
    affecting = {**options_of_matches(config), "parts": num_index_shards}
    fingerprint = fingerprint_rows(rows_path, lengths, tokenizer, affecting)
    # Index shards and match files are cut by hash, so only those with the same hashes are reused.
    name = f"{fingerprint}-{HASH_NAME}-{FORMAT}-{match_files.FORMAT}"
    folder = run.path(f"{WORK_FOLDER}/{name}")
    return Prepared(
        folder,
        FileSystems.join(folder, _ROWS_NAME),
        fingerprint,
        num_index_shards,
        {**counts, "eval_ngrams": num_places},
        dead_letters.count_by_reason(letters),
        tuple(_warnings_of(counts, config.tokenizer)),
    )


def _warnings_of(counts: Mapping[str, int], tokenizer: str) -> Iterator[str]:
    """Yields warnings to act on before the scan."""
    if counts["repeated_eval_ids"]:
        yield (
            "Warning: evaluation rows of one set with different texts share an id, for "
            f"{counts['repeated_eval_ids']:,} ids: only instance_ids and num_instances go by ids, "
            "all else goes by rows"
        )
    if counts["unspaced_eval_rows"]:
        yield (
            f"Warning: {counts['unspaced_eval_rows']:,} of {counts['eval_rows']:,} evaluation rows "
            f"are in scripts without spaces and have few tokens with --tokenizer={tokenizer}"
            f", so that little of them is found; --tokenizer={MULTILINGUAL} finds it"
        )
    elif counts["long_token_eval_rows"] >= _MIN_LONG_TOKEN_ROWS:
        yield (
            f"Warning: {counts['long_token_eval_rows']:,} of {counts['eval_rows']:,} evaluation "
            f"rows have more than {MAX_TOKEN_BYTES} bytes a token with "
            f"--tokenizer={tokenizer}, so that little of them is found: choose a tokenizer "
            "that separates their words"
        )


def choose_index_shards(num_places: int, memory_bytes: int) -> int:
    """Returns the number of index shards such that each fits in memory; 0 is a third of it.

    Raises ProbelineError if the training data would be read more than MAX_PASSES times.
    """
    memory_bytes = memory_bytes or machine_memory_bytes() // _SHARE_OF_MEMORY
    num_index_shards = count_index_shards(num_places, memory_bytes)
    if num_index_shards > 1:
        cost = (
            f"{num_places:,} n-grams of the evaluation sets need "
            f"{bytes_text(num_places * BYTES_PER_PLACE)}, and the index may take "
            f"{bytes_text(memory_bytes)} on a worker: the training data is read "
            f"{num_index_shards} times"
        )
        if num_index_shards > MAX_PASSES:
            raise ProbelineError(
                f"{cost}, more than {MAX_PASSES}: use workers with more memory, increase "
                f"--index_memory_mb, or pass --num_shards={num_index_shards} to run anyway"
            )
        print(cost, file=sys.stderr, flush=True)
    return num_index_shards


def build_index_shard(
    index_shard: int, run: JobRun, config: DeconConfig, prepared: Prepared
) -> str:
    """Writes an index shard, unless it exists, and returns its path."""
    path = prepared.index_path(index_shard)
    # One process per machine at a time, since each may need all of its memory.
    lock = locked(os.path.join(machine_folder(), "index-lock"))
    with logged("Build the index", path=path), lock:
        if not exists(path):
            index = build_index(
                prepared.open_rows().texts(),
                config.lengths,
                tokenizer_named(config.tokenizer),
                IndexShard(index_shard, prepared.num_index_shards),
                config.degenerate == "skip",
                config.min_tokens,
            )
            with atomic_write(path, run.folder) as stream:
                write_index(index, stream, prepared.fingerprint)
    return path


def summarize(
    run: JobRun,
    summary: dict[str, Any],
    prepared: Prepared,
    stage: str,
    counts: Mapping[str, Any],
    outputs: Sequence[str] = (),
    folder: str | None = None,
) -> None:
    """Writes progress_summary.json after a stage.

    Args:
      summary: as it was at launch.
      stage: the next stage, or "done".
      counts: those of the training side.
      folder: by default the output.
    """
    reached = {
        **summary,
        "stage": stage,
        "num_shards": prepared.num_index_shards,
        "fingerprint": prepared.fingerprint,
        "versions": versions_of(summary["tokenizer"]),
        "counts": {**prepared.counts, **counts},
        "warnings": (*summary["warnings"], *prepared.warnings),
        "outputs": outputs,
    }
    write_summary(folder or run.output, run.folder, reached)
