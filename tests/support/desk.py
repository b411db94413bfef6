"""A folder with everything that the pages presume, and the code of pages run in it."""

import bz2
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline import generate
from beam_pipeline.main import main
from tests.support.atlas_results import BIGQUERY_SCHEMA
from tests.support.documents import Block
from tests.support.repository import ROOT
from tests.support.stand_ins import StandIns
from tests.support.training_runs import MODEL
from tests.support.waiting import HANG_S
from tests.support.warm_python import TRAINING, warm_python

# What pages call and tests must not: it would install, open or pay for something.
STAND_INS = ("bq", "curl", "docker", "gcloud", "jupyter", "make", "pip", "xpk")
# Our own programs start with their imports done.
_PROBELINE = """\
case "$1" in
  train | evaluate) exec {} -m beam_pipeline.cli.probeline "$@" ;;
  *) exec {} -m beam_pipeline.cli.probeline "$@" ;;
esac"""
# Less work, this machine for Dataflow, and a folder for Cloud Storage.
_REPLACEMENTS = (
    (r"--num_measurements[= ]\d+", "--num_measurements=60000"),
    (r"\bsteps=\d+", "steps=6"),
    (r"network_curriculum=\S+", "network_curriculum=128x2,512x2"),
    (r"(probeline train tiny .*)", rf"\1 {' '.join(MODEL)}"),
    (r"(probeline evaluate .*)", r"\1 --num_contexts=8 --num_rtt=8 --num_train_contexts=8"),
    (r"projects/P/secrets/\S+", "key.hex"),
    ("rows/a|gs://data/rows", "rows"),
    ("--since=2026-11-01 --until=2026-11-08", "--since=2026-01-01 --until=2026-01-08"),
    ("train:60,1", "train:60,0"),
    ("gs://(bucket|BUCKET)", "gs"),
    (
        r" --(runner=Dataflow|project=|region=|temp_location=|setup_file=|worker_machine_type="
        r"|disk_size_gb=|num_workers=|max_num_workers=|number_of_worker_harness_threads=)\S*",
        "",
    ),
)
_PASSAGE = "the quick brown fox jumps over the lazy dog near the old stone bridge every morning"
_TEXTS = {
    "corpus/a.jsonl": [f"before {_PASSAGE} after", "nothing that any question contains"],
    "eval/mmlu/test.jsonl": [_PASSAGE, "a question that is not in the corpus at all"],
    "eval/test.jsonl": ["many words that occur nowhere else in exactly this order"],
    "c4/a.jsonl.gz": [f"document {number}" for number in range(40)],
}
_PING = {"type": "ping", "af": 4, "timestamp": 1_793_491_200, "dst_addr": "198.51.100.1"}


def make_presumed(folder: Path) -> None:
    """Writes small inputs under the names that pages use, also in a bucket, `gs`."""
    flags = ["--num_measurements=200000", "--num_probes=5200", "--num_anchors=40"]
    assert generate.main([f"--output={folder}/data", *flags]) == 0
    assert main([f"--input={folder}/data/*.parquet", f"--output={folder}/rows"]) == 0
    for name, texts in _TEXTS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"id": f"{n}", "text": text}) for n, text in enumerate(texts)]
        data = ("\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    dumps, export = folder / "dumps/2026-11-01", folder / "atlas/2026-11-01"
    dumps.mkdir(parents=True)
    export.mkdir(parents=True)
    ping = _PING | {"from": "192.0.2.1", "result": [{"rtt": 12.25}, {"ttl": 60, "late": 1}]}
    data = bz2.compress(f"{json.dumps(ping)}\n".encode() * 3)
    (dumps / "ping-2026-11-01T0000.bz2").write_bytes(data)
    row = {"start_time": 1_793_491_200_000_000, "af": 4, "dst_addr": "198.51.100.1"}
    row |= {"synth_addr": "192.0.2.1", "pings": [{"rtt": 12.25, "timeout": False, "error": False}]}
    table = pa.Table.from_pylist([row], BIGQUERY_SCHEMA)
    pq.write_table(table, export / "ping-000000000000.parquet", store_schema=False)
    (folder / "gs").mkdir()
    for name, target in {
        "measurements": "data",
        "data": "data",
        "dumps": "dumps",
        "atlas": "atlas",
    }.items():
        (folder / "gs" / name).symlink_to(folder / target)
    (folder / "export.sql").write_text("EXPORT DATA\n) AS\nSELECT 1\n")
    (folder / "key.hex").write_text("5a" * 32)


def smaller(text: str) -> str:
    """Returns code of a page that does less, on this machine."""
    for pattern, replacement in _REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    return text


class Desk:
    """A folder to run code in; `python` and `probeline` are these, other programs are stand-ins.

    Attributes:
      calls: returns the words of each call of a stand-in.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._exports: list[str] = []
        programs = StandIns(folder / ".bin")
        self.stand_in, self.calls = programs.add, programs.calls
        self._warm = shlex.join(warm_python())
        self.stand_in("probeline", _PROBELINE.format(self._warm, self._warm))
        for name in STAND_INS:
            self.stand_in(name, "cat >/dev/null" if name in ("bq", "gcloud") else "")
        stand_ins, _, system = programs.variables["PATH"].partition(":")
        self._variables = {
            **programs.variables,
            "PATH": f"{stand_ins}:{Path(sys.executable).parent}:{system}",
            "HOME": str(folder),
            "PYTHONSAFEPATH": "1",  # the package of this checkout, not a copy in the folder
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
        }

    def run(self, block: Block) -> None:
        """Runs a block of shell or SQL; what shell exports, later blocks have."""
        text = smaller(block.text.replace("\\\n", " "))
        if block.language == "sql":
            with duckdb.connect() as connection:
                connection.execute(f"SET file_search_path = '{self.folder}'")
                connection.execute(text).fetchall()
            return
        if "probeline train" in text:
            training = shlex.join(warm_python(*TRAINING))
            self.stand_in("probeline", _PROBELINE.format(training, self._warm))
        self._remove_outputs(text)
        self.sh("\n".join([*self._exports, text]))
        self._exports += re.findall(r"^export .+", text, re.MULTILINE)

    def sh(self, text: str) -> str:
        """Runs a script; returns what it prints."""
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env={**os.environ, **self._variables},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        assert result.returncode == 0, f"{text}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
        return result.stdout

    def python(self, *pieces: str, python: str | Path = "python") -> str:
        """Runs pieces of Python as one script; returns what it prints."""
        text = smaller("\n".join(pieces))
        self._remove_outputs(text)
        (self.folder / "script.py").write_text(text)
        return self.sh(f"{shlex.quote(str(python))} script.py")

    def _remove_outputs(self, text: str) -> None:
        for output in re.findall(r'(?:--output|output_path)[= ]"?([^\s"]+)', text):
            shutil.rmtree(self.folder / output, ignore_errors=True)
