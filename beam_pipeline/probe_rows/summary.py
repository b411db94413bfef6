"""The summary of a finished dataset, printed at the end of the job."""

import shlex

from beam_pipeline.dataset.manifest import DEAD_LETTER_FOLDER
from beam_pipeline.dataset.rows import Dataset
from beam_pipeline.errors import printable
from beam_pipeline.probe_rows.options import Options
from beam_pipeline.report.tables import Table
from beam_pipeline.report.terminal import new_console, print_table, say


def print_summary(_: Options, dataset: Dataset, seconds: float) -> None:
    """Prints counts, sizes, the place of the dataset and the next commands to stdout."""
    console = new_console()
    counts = dataset.manifest.counts
    rows = [
        (
            *(name, split.num_probes, split.num_records, split.num_measurements),
            *(f"{split.num_bytes / 1e6:,.1f}", len(split.shards)),
        )
        for name, split in dataset.manifest.splits.items()
    ]
    columns = ("", "probes", "rows", "measurements", "MB", "shards")
    print_table(console, Table(dataset.path, columns, rows))
    say(
        console,
        f"{counts.measurements:,} measurements of {counts.input_files} files in {seconds:.1f} s "
        f"({counts.measurements / max(seconds, 1e-9) / 1e6:.2f} M/s)",
    )
    if counts.rows_left_out:
        say(console, f"{counts.rows_left_out:,} of {counts.rows_read:,} rows are not in the sample")
    if counts.duplicates_dropped:
        say(console, f"{counts.duplicates_dropped:,} duplicates were dropped")
    if counts.dead_letters:
        reasons = ", ".join(f"{count:,} {name}" for name, count in counts.dead_letters.items())
        folder = dataset.file(DEAD_LETTER_FOLDER)
        say(console, f"{counts.num_dead_letters:,} dead letters in {folder}: {reasons}")
    path = printable(shlex.quote(dataset.path))
    print(f"Next: python -m beam_pipeline.inspect {path}, to see what is in it")
    print(f"      python -m beam_pipeline.verify {path}, to check every byte")
