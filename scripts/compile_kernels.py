"""Compiles kernels for `make`: those of `probeline warm` that users of a clone need first.

python scripts/compile_kernels.py [--more]

--more goes on to what developers and tests come to: large rows, rows read one by one, further
options of the overlap job.
"""

import sys
from pathlib import Path

from beam_pipeline.warm import compare_texts, compile_by, draw_batches, write_dataset


def draw_large_row(folder: Path) -> None:
    """Draws from a row of over 512 KiB, which is read where it lies in its shard."""
    from training.dataset import DataConfig, build_dataset

    rows = write_dataset(folder, "compact", num_probes=1, num_measurements=60_000)
    next(iter(build_dataset(DataConfig(files=str(rows), batch_size=4))))


def read_rows(folder: Path) -> None:
    """Reads the measurements of a row one by one and draws its examples, as a small row too."""
    from training.rows.row_source import ProbeRowDataSource
    from training.sampler import ProbeRowSampler

    for encoding in ("compact", "arrow"):
        row = ProbeRowDataSource(str(write_dataset(folder / encoding, encoding) / "train"))[0]
        list(row["measurements"])
        for crop_size in (1024, 1 << 17):
            next(ProbeRowSampler(crop_size).examples(row))


def compare_texts_again(folder: Path) -> None:
    """Runs the overlap job with options that take kernels of their own."""
    compare_texts(folder, "--ngram_length=1,2", "--max_document_frequency=2")


if __name__ == "__main__":
    rounds = [[draw_batches, compare_texts]]
    if "--more" in sys.argv[1:]:  # later: both rounds run the jobs
        rounds.append([draw_large_row, read_rows, compare_texts_again])
    compile_by(rounds)
