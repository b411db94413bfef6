"""The key of --anonymize: what is one, where it may lie, and that it does not travel."""

import base64
import json
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import secretmanager

from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.main import main
from beam_pipeline.probe_rows.grouping import PreGroup
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.sources import anonymize_key
from beam_pipeline.sources.anonymize import anonymizer_of
from beam_pipeline.sources.anonymize_key import (
    KEY_VARIABLE,
    KeyReference,
    find_key,
    fingerprint,
    parse_key,
)
from beam_pipeline.sources.options import ReadOptions
from tests.support.anonymizing import KEY
from tests.support.anonymizing import folder as folder
from tests.support.engines import Gcs

SECRET = "projects/p/secrets/anonymize/versions/3"


@pytest.mark.parametrize(
    "data",
    [KEY, KEY.hex().encode(), f"{KEY.hex().upper()}\n".encode(), f" {KEY.hex()}\r\n".encode()],
)
def test_a_key_is_32_bytes_or_64_hex_digits(data: bytes) -> None:
    assert parse_key(data, "key") == KEY


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "has 0 hex digits"),
        (KEY + b"\n", "has 33 bytes"),
        (KEY.hex()[:63].encode(), "has 63 hex digits"),
        (b"g" + KEY.hex()[1:].encode(), "has 64 bytes"),
        (b"00" * 32, "1 different bytes"),
        (b"abcdefg" * 4 + b"abcd", "7 different bytes"),
    ],
)
def test_invalid_key_is_not_quoted(data: bytes, found: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_key(data, "--anonymize_key_file=k")
    message = str(refusal.value)
    assert message.startswith("--anonymize_key_file=k has") and found in message
    assert "\n" not in message and "openssl rand -hex 32" in message
    assert not data or data.decode(errors="replace")[:20] not in message


def test_fingerprints_identify_keys() -> None:
    keys = [KEY, KEY[::-1], bytes([KEY[0] ^ 1, *KEY[1:]]), bytes([*KEY[:31], KEY[31] ^ 1])]
    fingerprints = {fingerprint(key) for key in keys}
    assert len(fingerprints) == 4 and all(len(bytes.fromhex(each)) == 8 for each in fingerprints)
    assert fingerprint(KEY) == "1aa7f1b0f5b3bbb6"  # a manifest of an earlier version is recognised


FLAGS = ["--input=in.parquet", "--output=out", "--anonymize=prefix_preserving"]


def refusal_of(capsys: pytest.CaptureFixture, *flags: str) -> str:
    """Returns the one line with which the job refuses to run."""
    capsys.readouterr()
    assert main([*FLAGS, *flags]) in (1, 2)
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1, error
    return error


def test_unreadable_keys(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert "needs a key" in refusal_of(capsys)
    assert "no/key: there is no such file" in refusal_of(capsys, "--anonymize_key_file=no/key")
    assert "Is a directory" in refusal_of(capsys, f"--anonymize_key_file={folder}")
    (folder / "short").write_bytes(KEY[:16])
    error = refusal_of(capsys, "--anonymize_key_file=short")
    assert "has 16 bytes" in error and "--anonymize_key_file" in error
    assert not (folder / "out").exists()


def test_key_in_the_command_line(folder: Path, capsys: pytest.CaptureFixture) -> None:
    for flags in ([], ["--anonymize=none"], ["--runner=DataflowRunner"]):
        error = refusal_of(capsys, *flags, f"--anonymize_key_file={KEY.hex()}")
        assert "do not use this key" in error and KEY.hex() not in error


def test_local_key_with_dataflow(folder: Path, capsys, monkeypatch) -> None:
    cloud = [
        *("--input=gs://b/in", "--output=gs://b/out", "--anonymize=prefix_preserving"),
        *("--runner=DataflowRunner", "--project=p", "--region=r", "--temp_location=gs://b/t"),
        "--sdk_container_image=i",
    ]
    monkeypatch.setenv(KEY_VARIABLE, KEY.hex())
    for flags in ([], ["--anonymize_key_file=key"]):
        capsys.readouterr()
        assert main([*cloud, *flags]) == 2
        error = capsys.readouterr().err
        assert "Dataflow's workers do not see it" in error and "secret" in error
        assert error.count("\n") == 1


def test_key_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY[::-1].hex())
    assert find_key("") == KeyReference("", fingerprint(KEY[::-1]))
    assert find_key("key") == KeyReference(str(folder / "key"), fingerprint(KEY))


def test_key_changed_during_a_run(folder: Path) -> None:
    reference = find_key("key")
    (folder / "key").write_bytes(KEY[::-1])
    with pytest.raises(ProbelineError, match="do not change the key") as refusal:
        anonymizer_of(reference)
    assert fingerprint(KEY) in str(refusal.value) and fingerprint(KEY[::-1]) in str(refusal.value)


def test_a_key_on_gs(gcs: Gcs, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY.hex()}\n")
    bucket = gcs.make_bucket()
    gcs.upload(tmp_path / "key", f"{bucket}/keys/key")
    assert find_key(f"{bucket}/keys/key") == KeyReference(f"{bucket}/keys/key", fingerprint(KEY))
    with pytest.raises(UsageError, match="no such file"):
        find_key(f"{bucket}/keys/other")
    with pytest.raises(ProbelineError, match="there is no bucket no-such-bucket-4712"):
        find_key("gs://no-such-bucket-4712/key")


class SecretManager(BaseHTTPRequestHandler):
    """Answers for one version of one secret as the service does, and refuses all others."""

    def do_GET(self) -> None:
        status, answer = 403, {"error": {"code": 403, "message": "Permission denied."}}
        if self.path.partition("?")[0] == f"/v1/{SECRET}:access":
            data = base64.b64encode(KEY).decode()
            status, answer = 200, {"name": SECRET, "payload": {"data": data}}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def secret_manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with HTTPServer(("127.0.0.1", 0), SecretManager) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = partial(
            secretmanager.SecretManagerServiceClient,
            credentials=AnonymousCredentials(),
            transport="rest",
            client_options={"api_endpoint": f"http://127.0.0.1:{server.server_port}"},
        )
        monkeypatch.setattr(anonymize_key, "_secret_client", client)
        yield
        server.shutdown()


@pytest.mark.usefixtures("secret_manager")
def test_a_key_in_secret_manager() -> None:
    assert find_key(SECRET) == KeyReference(SECRET, fingerprint(KEY))
    with pytest.raises(ProbelineError, match="Secret Manager Secret Accessor") as refusal:
        find_key(SECRET.replace("anonymize", "other"))
    assert "Permission denied" in str(refusal.value) and "\n" not in str(refusal.value)


def test_key_is_not_pickled(folder: Path) -> None:
    options = ReadOptions(anonymize=find_key("key"))
    sent = pickle.dumps(PreGroup(options, Workspace("w", 0)))
    assert fingerprint(KEY).encode() in sent
    assert KEY not in sent and KEY.hex().encode() not in sent and KEY[:16] not in sent
    assert KEY.hex() not in repr(options) and str(KEY) not in repr(options)
    with pytest.raises(TypeError, match="must not be sent"):
        pickle.dumps(anonymizer_of(options.anonymize))  # type: ignore[arg-type]
    assert KEY.hex() not in repr(vars(anonymizer_of(options.anonymize)))  # type: ignore[arg-type]
