"""Makes what the loading bench reads, in a process of its own so that the bench stays small.

    python -m benchmarks.loading_data --dataset=arrow-256k-zstd --data_dir=build/benchmarks

Leaves a dataset of probe rows, train only, made by `beam_pipeline.main` and kept for the next
bench, and prints {"folder", "measurements", "records", "file_bytes"} as JSON. Three sources:

  long   eight probes, so that nearly all rows are full
  small  probes of 5 to 60 measurements, so that several rows make a crop
  mixed  5,000 probes by Zipf's law

`long` has --num_measurements, the others a tenth. --upload_to=gs://BUCKET/FOLDER copies the
dataset there, making the bucket if need be.
"""

import argparse
import contextlib
import ipaddress
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contenders import ROOT
from benchmarks.loading_cases import SHAPES, folder_name

_NUM_LONG_PROBES, _NUM_MIXED_PROBES = 8, 5000
_FEWEST, _MOST = 5, 60  # measurements of a probe of `small`
_FIRST_SMALL_IPV4 = int(ipaddress.IPv4Address("16.0.0.0"))
_FIRST_SMALL_IPV6 = int(ipaddress.IPv6Address("2a00::"))


def make(name: str, num_measurements: int, seed: int, data_dir: Path) -> dict[str, Any]:
    """Makes the dataset if it is not there yet and describes it."""
    shape = SHAPES[name]
    folder = data_dir / folder_name("rows", name, num_measurements, seed)
    if not (folder / "_SUCCESS").exists():
        source = _measurements(shape.source, num_measurements, seed, data_dir)
        flags = {
            "input": f"{source}/*.parquet",
            "output": folder,
            "measurement_encoding": shape.measurement_encoding,
            "max_row_size_mb": shape.max_row_size_mb,
            "array_record_options": shape.array_record_options,
            "train_ratio": 1,
        }
        _run("beam_pipeline.main", flags)
    train = json.loads((folder / "manifest.json").read_text())["splits"]["train"]
    return {
        "folder": str(folder),
        "measurements": train["num_measurements"],
        "records": train["num_records"],
        "file_bytes": train["num_bytes"],
    }


def _measurements(source: str, num_measurements: int, seed: int, data_dir: Path) -> Path:
    """Returns a folder of Parquet, generated if it is not there yet."""
    if source != "long":
        num_measurements = max(num_measurements // 10, 1)
    folder = data_dir / f"{source}-{num_measurements}-{seed}"
    if folder.exists():
        return folder
    if source == "small":
        mixed = _measurements("mixed", 10 * num_measurements, seed, data_dir)
        with _appears_whole(folder) as being_made:
            being_made.mkdir()
            table = _among_small_probes(pq.read_table(mixed), np.random.default_rng(seed))
            pq.write_table(table, being_made / "measurements.parquet", row_group_size=1 << 17)
        return folder
    with _appears_whole(folder) as being_made:
        flags = {
            "output": being_made,
            "num_measurements": num_measurements,
            "num_probes": _NUM_LONG_PROBES if source == "long" else _NUM_MIXED_PROBES,
            "seed": seed,
        }
        _run("beam_pipeline.generate", flags)
        shutil.rmtree(being_made / "truth")
    return folder


@contextlib.contextmanager
def _appears_whole(folder: Path) -> Iterator[Path]:
    being_made = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(being_made, ignore_errors=True)
    yield being_made
    being_made.rename(folder)


def _run(module: str, flags: dict[str, Any]) -> None:
    command = [sys.executable, "-m", module, *(f"--{name}={flags[name]}" for name in flags)]
    # Its summary would stand where this module's JSON is expected.
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr)


def _among_small_probes(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Returns measurements with new sources, each of which has some that follow each other.

    Where one probe ends does not matter to the cut: the next one's join its last.
    """
    order = [("ip_version", "ascending"), ("src_addr", "ascending"), ("event_time", "ascending")]
    table = table.sort_by(order)
    ends = np.cumsum(rng.integers(_FEWEST, _MOST + 1, table.num_rows // _FEWEST + 1))
    # What is left at the end goes to the last probe.
    ends = ends[ends <= table.num_rows - _FEWEST]
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


def upload(folder: Path, target: str) -> None:
    """Copies a dataset to gs://BUCKET/FOLDER, on the emulator at $STORAGE_EMULATOR_HOST."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import exceptions, storage

    bucket_name, _, prefix = target.removeprefix("gs://").partition("/")
    client = storage.Client(project="bench", credentials=AnonymousCredentials())
    bucket = client.bucket(bucket_name)
    with contextlib.suppress(exceptions.Conflict):  # it is there already
        client.create_bucket(bucket)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = f"{prefix}/{path.relative_to(folder)}"
            bucket.blob(name).upload_from_filename(str(path))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Makes a dataset of the loading bench.")
    parser.add_argument("--dataset", required=True, choices=[*SHAPES], metavar="NAME")
    parser.add_argument("--num_measurements", type=int, default=20_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data_dir", required=True, type=Path)
    parser.add_argument("--upload_to")
    args = parser.parse_args(argv)
    data_dir = args.data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True)
    described = make(args.dataset, args.num_measurements, args.seed, data_dir)
    if args.upload_to:
        upload(Path(described["folder"]), args.upload_to)
    print(json.dumps(described))
    return 0


if __name__ == "__main__":
    sys.exit(main())
