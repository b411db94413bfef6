"""Which tokens the evaluation rows have, by their hashes: what is not among them shares nothing.

A removal that masks texts looks its mask up here, so that it need not read the evaluation sets.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from beam_pipeline.overlap.ngrams.index import distinct
from beam_pipeline.overlap.ngrams.row_tokens import Texts
from beam_pipeline.overlap.ngrams.token_batches import token_batches
from beam_pipeline.overlap.ngrams.token_kernels import HASH_NAME
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from beam_pipeline.overlap.results.output_files import parquet_writer
from beam_pipeline.storage.files import atomic_write
from beam_pipeline.storage.parquet import open_parquet

_MIN_WAITING = 1 << 20  # hashes
_SCHEMA = pa.schema([("token_hash", pa.uint64())]).with_metadata({"hash": HASH_NAME})


def write_eval_tokens(
    path: str, temp_folder: str, texts: Iterable[Texts], tokenizer: Tokenizer
) -> None:
    """Writes the hashes of the distinct tokens of some texts, in order."""
    found, waiting, num_waiting = np.empty(0, np.uint64), [], 0
    for utf8, bounds in texts:
        for batch in token_batches(utf8, bounds, tokenizer):
            waiting.append(distinct(batch.hashes.copy()))
            num_waiting += len(waiting[-1])
            if num_waiting > max(_MIN_WAITING, len(found)):
                found, waiting, num_waiting = distinct(np.concatenate([found, *waiting])), [], 0
    found = distinct(np.concatenate([found, *waiting]))
    with atomic_write(path, temp_folder) as stream, parquet_writer(stream, _SCHEMA) as writer:
        writer.write_table(pa.table([found], schema=_SCHEMA))


def read_eval_tokens(path: str) -> np.ndarray:
    """Returns the hashes, uint64, ascending."""
    with open_parquet(path) as parquet:
        return parquet.read().column("token_hash").to_numpy()
