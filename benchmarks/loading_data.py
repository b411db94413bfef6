"""Makes the datasets of the loading bench: train only, kept for later benches.

Three sources:

  long   eight probes, so that nearly all rows are full
  small  probes of 5 to 60 measurements, so that several rows make a crop
  mixed  5,000 probes by Zipf's law

`long` has the requested number of measurements, the others a tenth.
"""

import ipaddress
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import ROOT
from benchmarks.loading_cases import SHAPES, folder_name
from benchmarks.runner import appears_whole, generated, module_command

_NUM_PROBES = {"long": 8, "mixed": 5000}
_MIN_SMALL, _MAX_SMALL = 5, 60  # measurements of a probe of `small`
_FIRST_SMALL_IPV4 = int(ipaddress.IPv4Address("16.0.0.0"))
_FIRST_SMALL_IPV6 = int(ipaddress.IPv6Address("2a00::"))


def make(name: str, num_measurements: int, seed: int, data_dir: str) -> dict[str, Any]:
    """Makes a dataset unless it exists; returns its folder and contents.

    Args:
      name: of SHAPES.
      num_measurements: of the source `long`.
    """
    shape = SHAPES[name]
    folder = Path(data_dir) / folder_name("rows", name, num_measurements, seed)
    if not (folder / "_SUCCESS").exists():
        source = _measurements(shape.source, num_measurements, seed, Path(data_dir))
        command = module_command(
            "beam_pipeline.main",
            input=f"{source}/*.parquet",
            output=folder,
            measurement_encoding=shape.measurement_encoding,
            max_row_size_mb=shape.max_row_size_mb,
            array_record_options=shape.array_record_options,
            train_ratio=1,
        )
        subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr)
    train = json.loads((folder / "manifest.json").read_text())["splits"]["train"]
    return {
        "folder": str(folder),
        "measurements": train["num_measurements"],
        "records": train["num_records"],
        "shards": len(train["shards"]),
        "file_bytes": train["num_bytes"],
    }


def _measurements(source: str, num_measurements: int, seed: int, data_dir: Path) -> Path:
    """Returns a folder of Parquet, generated if missing."""
    if source != "long":
        num_measurements = max(num_measurements // 10, 1)
    folder = data_dir / f"{source}-{num_measurements}-{seed}"
    if source != "small":
        probes = _NUM_PROBES[source]
        generated(folder, num_measurements=num_measurements, num_probes=probes, seed=seed)
        shutil.rmtree(folder / "truth", ignore_errors=True)
    elif not folder.exists():
        mixed = _measurements("mixed", 10 * num_measurements, seed, data_dir)
        with appears_whole(folder) as being_made:
            being_made.mkdir()
            table = among_small_probes(pq.read_table(mixed), np.random.default_rng(seed))
            pq.write_table(table, being_made / "measurements.parquet", row_group_size=1 << 17)
    return folder


def among_small_probes(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Assigns new sources to runs of consecutive measurements.

    A new source may join the end of one probe and the beginning of the next.
    """
    order = [("ip_version", "ascending"), ("src_addr", "ascending"), ("event_time", "ascending")]
    table = table.sort_by(order)
    ends = np.cumsum(rng.integers(_MIN_SMALL, _MAX_SMALL + 1, table.num_rows // _MIN_SMALL + 1))
    # The remainder goes to the last probe.
    ends = ends[ends <= table.num_rows - _MIN_SMALL]
    probe = np.searchsorted(ends, np.arange(table.num_rows), "right")
    first = np.concatenate([[0], ends])
    versions = table.column("ip_version").to_numpy()[first].tolist()
    sources = [
        str(
            ipaddress.IPv4Address(_FIRST_SMALL_IPV4 + number)
            if version == 4
            else ipaddress.IPv6Address(_FIRST_SMALL_IPV6 + (number << 80))
        )
        for number, version in enumerate(versions)
    ]
    index = table.schema.get_field_index("src_addr")
    return table.set_column(index, "src_addr", pa.array(sources).take(pa.array(probe)))
