"""What tests of Dataflow share: the fake service with a bucket, and the work of a staged job.

A test file imports the fixtures itself: so ruff takes them for used.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from apache_beam.internal.gcp import auth
from apache_beam.runners.portability.stager import SUBMISSION_ENV_DEPENDENCIES_FILE, Stager
from google.cloud.dataflow_v1beta3 import types
from google.protobuf import json_format

from beam_pipeline.main import main
from tests.support.clean_environment import clean
from tests.support.dataflow_api import PROJECT, REGION, DataflowApi
from tests.support.engines import Gcs, stored_objects
from tests.support.helpers import measurements_table
from tests.support.repository import ROOT
from tests.support.waiting import HANG_S

WORKER = ROOT / "tests/support/dataflow_worker.py"
IMAGE = f"{REGION}-docker.pkg.dev/{PROJECT}/probeline/probe_rows:1"
SHAPING = ["--max_row_size_mb=0.01", "--probes_per_shard=3"]  # several rows a probe, and shards


@pytest.fixture
def dataflow(tmp_path: Path, gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataflowApi]:
    """The service beside the emulator of GCS, and credentials for both."""
    with DataflowApi(tmp_path) as api:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(api.credentials))
        # Beam keeps what it found first for as long as the process lives.
        monkeypatch.setattr(auth._Credentials, "_credentials_init", False)
        monkeypatch.setattr(auth._Credentials, "_credentials", None)
        monkeypatch.setattr(Stager, "_create_stage_submission_env_dependencies", _no_packages)
        yield api


def _no_packages(folder: str) -> list:
    """Stages an empty list of installed packages; Beam would ask pip, which takes 2 CPU-seconds."""
    path = Path(folder, SUBMISSION_ENV_DEPENDENCIES_FILE)
    path.touch()
    return [Stager._create_file_stage_to_artifact(str(path), path.name)]


@pytest.fixture
def measurements(tmp_path: Path) -> Path:
    path = tmp_path / "measurements.parquet"
    pq.write_table(measurements_table(4000, seed=1), path, row_group_size=1000)
    return path


@pytest.fixture
def bucket(gcs: Gcs, measurements: Path) -> str:
    """A bucket with input."""
    bucket = gcs.make_bucket()
    gcs.upload(measurements, f"{bucket}/in/measurements.parquet")
    return bucket


def options_of(job: types.Job) -> dict:
    """Returns the options that the workers get: {"options": …, "display_data": …}."""
    return json_format.MessageToDict(types.Environment.pb(job.environment).sdk_pipeline_options)


def staged(job: types.Job) -> dict[str, bytes]:
    """Returns what was staged for a job, by name."""
    return stored_objects(options_of(job)["options"]["pipelineUrl"].removesuffix("/pipeline.pb"))


def do_the_work(python: Path, folder: Path, job: types.Job) -> dict:
    """Runs the staged pipeline with a Python, away from this checkout."""
    folder.mkdir()
    (folder / "pipeline.pb").write_bytes(staged(job)["pipeline.pb"])
    (folder / "options.json").write_text(json.dumps(options_of(job)))
    result = subprocess.run(
        [python, WORKER, folder / "pipeline.pb", folder / "options.json"],
        cwd=folder,
        env=clean(os.environ),
        capture_output=True,
        text=True,
        timeout=HANG_S,  # the runner waits for ever for workers that do not start
    )
    if result.returncode:
        raise RuntimeError(result.stderr)
    return json.loads(result.stdout)


def local_dataset(measurements: Path, output: Path) -> dict[str, bytes]:
    """Returns the shards and indices of a run in memory, by name."""
    assert main([f"--input={measurements}", f"--output={output}", *SHAPING]) == 0
    paths = [path for split in ("train", "test") for path in (output / split).iterdir()]
    return {str(path.relative_to(output)): path.read_bytes() for path in paths}


def error_of(capsys: pytest.CaptureFixture, *flags: str, code: int) -> str:
    """Returns the one line of error with which the job ends; it must be the last."""
    capsys.readouterr()
    assert main(flags) == code
    errors = capsys.readouterr().err
    *before, last = errors.splitlines()
    assert last.startswith("error: "), errors
    assert not [line for line in before if line.startswith("error: ")], errors
    return last


def job_command(api: DataflowApi, bucket: str, *flags: str, image: str | None = IMAGE) -> list[str]:
    return [
        *(f"--input={bucket}/in/*.parquet", f"--output={bucket}/out", *SHAPING),
        *("--runner=DataflowRunner", f"--project={PROJECT}", f"--region={REGION}"),
        *(f"--temp_location={bucket}/temp", f"--dataflow_endpoint={api.endpoint}"),
        *([f"--sdk_container_image={image}"] if image else []),
        *flags,
    ]
