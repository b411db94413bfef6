"""Five minutes with Probeline: simulated measurements, the job, the check, a look at a row.

make demo                 into demo/
python scripts/demo.py FOLDER
"""

import shlex
import shutil
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from array_record.python.array_record_module import ArrayRecordReader
from rich.console import Console
from rich.table import Table

from beam_pipeline import generate, main, verify
from beam_pipeline.row_codec import decode_record

NUM_MEASUREMENTS, NUM_PROBES = 1_000_000, 1000


def run(folder: Path) -> int:
    """Makes a dataset below `folder`; returns the exit code."""
    console = Console(highlight=False)
    started = time.monotonic()
    measurements, rows = folder / "measurements", folder / "rows"
    # A demo is for running again; it removes its own two folders only.
    for old in (measurements, rows):
        shutil.rmtree(old, ignore_errors=True)
    steps = (
        (
            generate.main,
            "beam_pipeline.generate",
            [
                f"--output={measurements}",
                f"--num_measurements={NUM_MEASUREMENTS}",
                f"--num_probes={NUM_PROBES}",
            ],
        ),
        (
            main.main,
            "beam_pipeline.main",
            [f"--input={measurements}/*.parquet", f"--output={rows}", "--max_row_size_mb=1"],
        ),
        (verify.main, "beam_pipeline.verify", [str(rows)]),
    )
    for step, module, arguments in steps:
        console.print(f"\n$ python -m {module} {shlex.join(arguments)}", soft_wrap=True)
        code = step(arguments)
        if code:
            return code
    console.print()
    show_row(rows, console)
    console.print(
        f"\nAll of it took {time.monotonic() - started:.0f} s. The dataset is in {rows}: shards in "
        f"train/ and test/, what they hold in */rows.parquet, its counts in manifest.json.\n"
        f"Next, on data of your own: .venv/bin/python -m beam_pipeline.main --input "
        f"'data/*.parquet' --output rows --columns event_time=ts",
        soft_wrap=True,
    )
    return 0


def show_row(dataset: Path, console: Console) -> None:
    """Prints a row that is the second of its probe, found in rows.parquet, read by position."""
    index = pq.read_table(dataset / "train" / "rows.parquet").to_pylist()
    line = max(index, key=lambda line: (line["row_index"] == 1, line["n_measurements"]))
    shards = sorted((dataset / "train").glob("*.arrayrecord"))
    reader = ArrayRecordReader(str(shards[line["shard"]]))
    row = decode_record(reader.read([line["position"]])[0])
    console.print(
        f"row {row.row_index} of probe {row.src_addr}: {row.n_measurements:,} measurements over "
        f"{row.time_span_seconds / 3600:.1f} h in {row.num_bytes:,} bytes"
    )
    table = Table(*row.to_arrow().schema.names)
    for measurement in row.to_arrow().slice(0, 5).to_pylist():
        time_of_day = f"{measurement['event_time']:%Y-%m-%d %H:%M:%S.%f}"
        values = (measurement["dst_addr"], measurement["ip_version"], f"{measurement['rtt']:.3f}")
        table.add_row(time_of_day, *(str(value) for value in values))
    console.print(table)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1] if len(sys.argv) > 1 else "demo")))
