"""The engines and the GCS emulator for the jobs of benches and tests.

    python -m benchmarks.engine_servers [--parallelism=2] -- COMMAND ...

starts a Flink and runs a command with the flags appended that send its job there. Both are in one
process tree, which `benchmarks.measure` measures. Only Flink's jars are built here.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.measure import memory_mib

FLINK = ROOT / ".engines" / "flink"
GCS_EMULATOR = ROOT / ".engines" / "fake-gcs-server"
_START_S = 600
_STOP_S = 20


@dataclass(frozen=True)
class Flink:
    """A running job server, which starts a new Flink for each job in its own process."""

    pid: int
    port: int

    def peak_mib(self) -> float:
        """Returns the peak memory of the job server, including Flink and its tasks."""
        return memory_mib("VmHWM", self.pid)

    def flags(self, parallelism: int = 2) -> list[str]:
        """Returns the flags of `beam_pipeline.main` to run there; workers are the caller's threads.

        With --experiments=use_loopback_process_worker they are processes.
        """
        return [
            "--runner=PortableRunner",
            f"--job_endpoint=127.0.0.1:{self.port}",
            "--environment_type=LOOPBACK",
            f"--parallelism={parallelism}",
        ]


@contextlib.contextmanager
def running_flink(folder: Path, java_flags: str = "") -> Iterator[Flink]:
    """Runs a job server with all its files in a folder, the log as FOLDER/log.

    RuntimeError if it does not start.
    """
    port = free_port()
    command = ["scripts/flink_server.sh", str(port), str(folder)]
    environment = {**os.environ, "JAVA_FLAGS": java_flags}
    folder.mkdir(parents=True, exist_ok=True)
    with running_server("the Flink job server", command, port, folder / "log", environment) as pid:
        yield Flink(pid, port)


@contextlib.contextmanager
def running_gcs_emulator(binary: str, folder: Path) -> Iterator[str]:
    """Runs an empty GCS emulator; yields its endpoint URL. RuntimeError if it does not start."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    flags = f"-scheme http -host 127.0.0.1 -port {port} -public-host {address} -backend memory"
    command = [binary, *flags.split(), "-log-level", "error"]
    with running_server("the GCS emulator", command, port, folder / "log", dict(os.environ)):
        yield f"http://{address}"


def gcs_client(endpoint: str) -> Any:
    """Returns Google's GCS client for an emulator."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    return Client("test", AnonymousCredentials(), client_options={"api_endpoint": endpoint})


def upload(source: Path | str, target: str, endpoint: str) -> None:
    """Copies a file, or a folder's files, to or below a `gs://` path of an emulator.

    The bucket is created if it does not exist.
    """
    name, _, prefix = target.removeprefix("gs://").partition("/")
    client, source = gcs_client(endpoint), Path(source)
    bucket = client.lookup_bucket(name) or client.create_bucket(name)
    for path in [source] if source.is_file() else [p for p in source.rglob("*") if p.is_file()]:
        below = "" if path == source else path.relative_to(source).as_posix()
        object_name = "/".join(part for part in (prefix.rstrip("/"), below) if part)
        bucket.blob(object_name).upload_from_filename(str(path))


def prism_binary() -> Path:
    """Returns $PRISM_BINARY, else the binary built by the tests, else that of `go install`."""
    if given := os.environ.get("PRISM_BINARY"):
        return Path(given).absolute()
    built = ROOT / ".engines" / "prism"
    return built if built.exists() else Path.home() / "go" / "bin" / "prism"


def prism_flags() -> tuple[str, str]:
    """Returns the flags that run a job on Prism."""
    return "--runner=PrismRunner", f"--prism_location={prism_binary()}"


def free_port() -> int:
    """Returns a free port below those that Linux and macOS give to who asks for any."""
    while True:
        port = random.SystemRandom().randrange(15000, 32000)
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def running_server(
    what: str, command: list[str], port: int, log: Path, environment: dict[str, str]
) -> Iterator[int]:
    """Runs a logged server on a port; yields its process id once it answers.

    RuntimeError if it does not start.
    """
    with open(log, "wb") as stream:
        server = subprocess.Popen(
            [*_end_with_parent(), *command], stdout=stream, stderr=stream, cwd=ROOT,
            env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise RuntimeError(f"{what} does not start: {said}")
            time.sleep(0.05)
        yield server.pid
    finally:
        stop(server)


def _end_with_parent() -> list[str]:
    """Returns a command prefix with which Linux ends a command when its parent ends.

    A `preexec_fn` would do the same, but its fork can fail in a process that uses gRPC.
    """
    return ["setpriv", "--pdeathsig=TERM", "--"] if shutil.which("setpriv") else []


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def stop(leader: subprocess.Popen) -> None:
    """Ends a process that leads a group, and all its descendants."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(leader.pid, signal_number)
        except ProcessLookupError:
            break
        try:
            leader.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            continue
    leader.wait()


def main() -> int:
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description="Runs a command's job on a new Flink.")
    parser.add_argument("--parallelism", type=int, default=2)
    args = parser.parse_args(sys.argv[1:at])
    with tempfile.TemporaryDirectory(prefix="flink-") as folder:
        with running_flink(Path(folder)) as flink:
            return subprocess.call([*sys.argv[at + 1 :], *flink.flags(args.parallelism)])


if __name__ == "__main__":
    sys.exit(main())
