"""The engines that tests run on: built if missing, started for a session, stopped after it.

`prism` is a binary that Beam starts itself. `flink` and `spark` are job servers with an engine
inside, `gcs` an emulator of the object store. What an engine needs to be built is often not on a
user's machine: then its tests are skipped and say why; with CI=true that is a failure.
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from beam_pipeline.storage import gcs as gcs_storage
from benchmarks.engine_servers import (
    Flink,
    free_port,
    gcs_client,
    running_flink,
    running_gcs_emulator,
    running_server,
    upload,
)
from tests.support.repository import ROOT

_BUILT = ROOT / ".engines"
# A run of seconds gains nothing from Java's second compiler.
JAVA = {"JAVA_FLAGS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def missing(reason: str) -> None:
    """Skips the test; in continuous integration, where nothing may be missing, fails it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def build(what: str, tools: Sequence[str], *script: str) -> None:
    """Runs a build script, if the machine has the tools for it."""
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    if lacking:
        missing(f"{what} needs {' and '.join(tools)}, and there is no {lacking[0]} here")
    result = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def built_with_go(what: str, binary: str, script: str) -> str:
    """Returns the path of a binary, built if need be; skips (in CI fails) without Go."""
    path = _BUILT / binary
    if not path.exists():
        build(what, ["go"], script)
    return str(path)


@pytest.fixture(scope="session")
def prism() -> str:
    """The path of the Prism binary."""
    given = os.environ.get("PRISM_BINARY")
    if given and Path(given).exists():
        return given
    return built_with_go("Prism", "prism", "scripts/build_prism.sh")


def flink_is_built() -> None:
    """Builds the job server if it is missing; skips (in CI fails) without Java or Maven."""
    build("Flink", ["java", "mvn"], "scripts/build_flink.sh")


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """A running Flink job server, one for each test process."""
    flink_is_built()
    with running_flink(tmp_path_factory.mktemp("flink"), JAVA["JAVA_FLAGS"]) as running:
        yield running


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[list[str]]:
    """The flags that run a job on a job server with a Spark inside; workers are threads here."""
    build("Spark", ["java", "mvn"], "scripts/build_spark.sh")
    port = free_port()
    command = ["scripts/spark_server.sh", str(port), str(tmp_path / "spark")]
    with running_server("Spark", command, port, tmp_path / "spark.log", {**os.environ, **JAVA}):
        address = f"--job_endpoint=127.0.0.1:{port}"
        yield ["--runner=PortableRunner", address, "--environment_type=LOOPBACK"]


class Gcs:
    """An emulator of GCS that is empty at first; a test makes the buckets that it needs."""

    def __init__(self, endpoint: str):
        self.endpoint = endpoint

    def make_bucket(self) -> str:
        """Returns the `gs://` path of a new bucket."""
        name = f"test-{uuid.uuid4().hex}"
        gcs_client(self.endpoint).create_bucket(name)
        return f"gs://{name}"

    def upload(self, source: Path, target: str) -> None:
        """Copies a file to a `gs://` path, or all files below a folder to below that path."""
        upload(source, target, self.endpoint)


@pytest.fixture(scope="session")
def gcs_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gcs]:
    """The running emulator, one for each test process; a test asks for `gcs`."""
    binary = built_with_go("The GCS emulator", "fake-gcs-server", "scripts/build_gcs_emulator.sh")
    with running_gcs_emulator(binary, tmp_path_factory.mktemp("gcs")) as endpoint:
        yield Gcs(endpoint)


@pytest.fixture
def gcs(gcs_emulator: Gcs, monkeypatch: pytest.MonkeyPatch) -> Gcs:
    """The emulator; as long as the test runs, all that reads or writes `gs://` goes there."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_emulator.endpoint)
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", gcs_emulator.endpoint)
    return gcs_emulator


def stored_objects(folder: str) -> dict[str, bytes]:
    """Returns the bytes of all objects below a `gs://` folder, by their paths in it."""
    return {
        path.removeprefix(f"{folder}/"): gcs_storage.read(path) or b""
        for path in gcs_storage.list_objects(f"{folder}/")
    }
