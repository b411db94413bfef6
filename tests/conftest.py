"""Fixtures that more than one test file needs."""

import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_pipeline.row_codec import Encoding

PRISM_VERSION = "v2.77.0"
GCS_EMULATOR_VERSION = "v1.56.1"
ROOT = Path(__file__).parent.parent


def built_with_go(what: str, binary: str, script: str, version: str) -> str:
    """Returns the path of a binary, built if need be; skips (in CI fails) without Go."""
    path = ROOT / ".engines" / binary
    if path.exists():
        return str(path)
    if shutil.which("go") is None:
        reason = f"{what} needs Go (1.23 or newer) to be built, and there is no `go` here"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    result = subprocess.run([script, version], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return str(path)


@pytest.fixture(scope="session")
def prism() -> str:
    """The path of the Prism binary."""
    given = os.environ.get("PRISM_BINARY")
    if given and Path(given).exists():
        return given
    return built_with_go("Prism", "prism", "scripts/build_prism.sh", PRISM_VERSION)


class Gcs:
    """An emulator of GCS that is empty at first; a test makes the buckets that it needs."""

    def __init__(self, endpoint: str):
        self.endpoint = endpoint

    def make_bucket(self) -> str:
        """Returns the `gs://` path of a new bucket."""
        name = f"test-{uuid.uuid4().hex}"
        self._client().create_bucket(name)
        return f"gs://{name}"

    def upload(self, source: Path, target: str) -> None:
        """Copies a file to a `gs://` path, or all files below a folder to below that path."""
        bucket, _, prefix = target.removeprefix("gs://").partition("/")
        paths = [source] if source.is_file() else [p for p in source.rglob("*") if p.is_file()]
        for path in paths:
            below = "" if path == source else path.relative_to(source).as_posix()
            name = "/".join(part for part in (prefix.rstrip("/"), below) if part)
            self._client().bucket(bucket).blob(name).upload_from_filename(str(path))

    def _client(self):
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        return Client(
            "test", AnonymousCredentials(), client_options={"api_endpoint": self.endpoint}
        )


@pytest.fixture(scope="session")
def gcs_emulator() -> Iterator[Gcs]:
    """The running emulator, one for each test process; a test asks for `gcs`."""
    binary = built_with_go(
        "The GCS emulator", "fake-gcs-server", "scripts/build_gcs_emulator.sh", GCS_EMULATOR_VERSION
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    flags = f"-scheme http -host 127.0.0.1 -port {port} -public-host {address} -backend memory"
    server = subprocess.Popen([binary, *flags.split(), "-log-level", "error"])
    try:
        for _ in range(600):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None, f"the GCS emulator ended with {server.returncode}"
            time.sleep(0.05)
        else:
            pytest.fail(f"the GCS emulator did not answer on {address} within 30 s")
        yield Gcs(f"http://{address}")
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def gcs(gcs_emulator: Gcs, monkeypatch: pytest.MonkeyPatch) -> Gcs:
    """The emulator; as long as the test runs, all that reads or writes `gs://` goes there."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_emulator.endpoint)
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", gcs_emulator.endpoint)
    return gcs_emulator


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[Encoding, Path]:
    """`probe_rows_on_disk.mixed_rows` as a dataset in both encodings; no test changes it."""
    from tests.probe_rows_on_disk import write_mixed

    return write_mixed(tmp_path_factory.mktemp("mixed"))
