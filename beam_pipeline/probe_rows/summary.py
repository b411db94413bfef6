"""What came out of a run, for the person who waits for it."""

import shlex
import sys

from rich.console import Console
from rich.table import Table

from beam_pipeline.dataset.manifest import DEAD_LETTER_FOLDER, Dataset


def print_summary(dataset: Dataset, seconds: float) -> None:
    """Prints counts, sizes, where the dataset lies and what to try next, to stdout."""
    console = Console(file=sys.stdout, highlight=False)
    counts = dataset.manifest.counts
    table = Table("", "probes", "rows", "measurements", "MB", "shards", title=dataset.path)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, split in dataset.manifest.splits.items():
        numbers = (split.num_probes, split.num_records, split.num_measurements)
        size = f"{split.num_bytes / 1e6:,.1f}"
        table.add_row(name, *(f"{n:,}" for n in numbers), size, str(len(split.shards)))
    console.print(table)
    rate = counts.measurements / max(seconds, 1e-9) / 1e6
    console.print(
        f"{counts.measurements:,} measurements of {counts.input_files} files in {seconds:.1f} s "
        f"({rate:.2f} M/s)",
        soft_wrap=True,
    )
    if counts.dead_letters:
        reasons = ", ".join(f"{count:,} {name}" for name, count in counts.dead_letters.items())
        console.print(
            f"{counts.num_dead_letters:,} dead letters in {dataset.file(DEAD_LETTER_FOLDER)}: "
            f"{reasons}",
            soft_wrap=True,
        )
    path = shlex.quote(dataset.path)
    console.print(
        f"Next: python -m beam_pipeline.inspect {path}, to see what is in it\n"
        f"      python -m beam_pipeline.verify {path}, to check every byte",
        soft_wrap=True,
        markup=False,
    )
