"""Small files and sizes, local and on `gs://`: on an emulator, and errors as GCS gives them."""

import http.server
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import google.auth
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError

from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.storage import gcs as google_storage
from beam_pipeline.storage.files import (
    checksum_text,
    crc32c,
    file_infos,
    open_file,
    read_file,
    remove_folder,
    write_file,
)
from beam_pipeline.storage.gcs import FileInfo, prepare_native_reader
from tests.conftest import Gcs
from tests.support.probe_rows_on_disk import write_records

PATH = "gs://bucket/rows/manifest.json"


def refusal_of(call: Callable[[], object]) -> str:
    with pytest.raises(ProbelineError) as refusal:
        call()
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def info_of(data: bytes) -> FileInfo:
    return FileInfo(len(data), checksum_text(crc32c(data)))


@pytest.mark.parametrize("path", ["nothing", "no/folder/file", "file/below"])
def test_missing_local_file(tmp_path, path):
    (tmp_path / "file").write_bytes(b"x")
    assert read_file(f"{tmp_path}/{path}") is None
    assert file_infos([f"{tmp_path}/{path}"]) == {f"{tmp_path}/{path}": None}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_failed_read_names_the_file() -> None:
    for read in (lambda file: file.read(), lambda file: file.read(9)):
        with open_file("/proc/self/mem") as file, pytest.raises(OSError, match="/proc/self/mem"):
            read(file)


def test_read_object(gcs: Gcs, tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(256)) * 4000)
    bucket = gcs.make_bucket()
    for name in ("file", "a/b/file", "a/with space/100%?#é"):
        gcs.upload(tmp_path / "file", f"{bucket}/{name}")
        assert read_file(f"{bucket}/{name}") == bytes(range(256)) * 4000


@pytest.mark.parametrize("name", ["nothing", "a/", "a/fil"])
def test_missing_object(gcs: Gcs, tmp_path, name):
    (tmp_path / "file").write_bytes(b"x")
    bucket = gcs.make_bucket()
    gcs.upload(tmp_path, f"{bucket}/a")
    assert read_file(f"{bucket}/{name}") is None
    assert file_infos([f"{bucket}/{name}"]) == {f"{bucket}/{name}": None}


def test_infos_of_many_files_in_several_folders(gcs: Gcs, tmp_path, monkeypatch):
    files = {f"train/shard-{n:03d}": bytes([n]) * (1000 + n) for n in range(120)}
    files |= {"train/deeper/shard-000": b"other", "test/shard-000": b"1", "top": b"2"}
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    bucket = gcs.make_bucket()
    gcs.upload(tmp_path, bucket)
    asked = {f"{bucket}/{name}": info_of(data) for name, data in files.items()}
    missing = {f"{bucket}/train/shard-120": None, f"{bucket}/nowhere/x": None}
    local = {str(tmp_path / "top"): FileInfo(1, None)}

    listed = []
    listing = google_storage.list_objects
    monkeypatch.setattr(
        google_storage,
        "list_objects",
        lambda prefix, **options: listed.append(prefix) or listing(prefix, **options),
    )
    wanted = asked | missing | local
    assert file_infos(wanted) == wanted
    folders = ("", "nowhere/", "test/", "train/", "train/deeper/")
    assert sorted(listed) == [f"{bucket}/{folder}" for folder in folders]


def test_a_checksum_keeps_its_leading_zeros(gcs: Gcs, tmp_path):
    data = next(data for n in range(10_000) if crc32c(data := b"%d" % n) < 1 << 24)
    (tmp_path / "file").write_bytes(data)
    bucket = gcs.make_bucket()
    gcs.upload(tmp_path, bucket)
    assert file_infos([f"{bucket}/file"]) == {f"{bucket}/file": info_of(data)}
    assert str(info_of(data).crc32c).startswith("00")


def test_missing_bucket(gcs: Gcs):
    wanted = f"cannot read {PATH}: there is no bucket bucket; check its name"
    assert refusal_of(lambda: read_file(PATH)) == wanted
    assert refusal_of(lambda: file_infos([PATH])) == wanted


def test_array_record_reads_from_gs_once_prepared(gcs: Gcs, tmp_path, monkeypatch):
    records = [b"%d" % n * 1000 for n in range(50)]
    write_records(tmp_path / "shard", records)
    path = f"{gcs.make_bucket()}/train/shard"
    gcs.upload(tmp_path / "shard", path)
    monkeypatch.delenv("CLOUD_STORAGE_EMULATOR_ENDPOINT")
    prepare_native_reader(path)
    reader = ArrayRecordReader(path)
    assert reader.ok() and reader.num_records() == 50
    assert reader.read([7, 49]) == [records[7], records[49]]
    assert reader.read_all() == records


@pytest.mark.parametrize(
    "call", [read_file, lambda path: file_infos([path]), prepare_native_reader]
)
def test_unsupported_paths(call, tmp_path, monkeypatch):
    message = refusal_of(lambda: call("s3://bucket/manifest.json"))
    assert message.startswith("cannot read s3://bucket/manifest.json: only local paths and gs://")
    for path in ("gs://", "gs://bucket", "gs://bucket/", "gs:///name"):
        assert refusal_of(partial(read_file, path)) == (
            f"cannot read {path}: it is not gs://bucket/name; give both"
        )
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):  # a pipe would wait for ever
        assert "is not a regular file" in refusal_of(partial(read_file, str(path)))
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    assert 'install it with pip install "probeline[gcp]"' in refusal_of(lambda: read_file(PATH))


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Stands in for GCS: all requests get the HTTP status that a test sets."""
    statuses = [200]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(statuses[-1])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        for variable in ("STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("API_ENDPOINT_OVERRIDE", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(google_storage, "_RETRY_S", 1)
        google_storage._access.cache_clear()
        yield statuses.append
        google_storage._access.cache_clear()
        server.shutdown()
        thread.join()


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    def default(*args, **kwargs):
        raise DefaultCredentialsError(
            "Your default credentials were not found. To set up Application Default Credentials, "
            "see https://cloud.google.com/docs"
        )

    monkeypatch.setattr(google.auth, "default", default)


def give_credentials(monkeypatch: pytest.MonkeyPatch, credentials: AnonymousCredentials) -> None:
    monkeypatch.setattr(google.auth, "default", lambda *args, **kwargs: (credentials, None))


NO_CREDENTIALS = (
    "Your default credentials were not found; run `gcloud auth application-default login` or let "
    "GOOGLE_APPLICATION_CREDENTIALS name a key file"
)


@pytest.mark.parametrize("status", [401, 403])
def test_without_credentials(answer, no_credentials, status):
    assert read_file(PATH) == b""  # of a public bucket
    answer(status)
    message = refusal_of(lambda: read_file(PATH))
    assert message == f"cannot read {PATH}: it is not public: {NO_CREDENTIALS}"
    assert refusal_of(lambda: prepare_native_reader(PATH)) == (
        f"cannot read {PATH}: ArrayRecord needs credentials for gs://, even for a public bucket: "
        f"{NO_CREDENTIALS}, or copy the dataset to a local folder"
    )


@pytest.mark.parametrize(
    ("status", "cure"),
    [
        (403, "; give the account the role Storage Object Viewer"),
        (503, "; check the network and try again"),
    ],
)
def test_refused_request(answer, monkeypatch, status, cure):
    give_credentials(monkeypatch, AnonymousCredentials())
    answer(status)
    message = refusal_of(lambda: read_file(PATH))
    assert message.startswith(f"cannot read {PATH}: ") and str(status) in message
    assert message.endswith(cure)


@pytest.mark.parametrize("at", ["", "inside", "inside/deep"])
@pytest.mark.parametrize("kind", ["link to a folder", "link to a file", "dangling link"])
def test_remove_folder_follows_no_link(tmp_path: Path, at: str, kind: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_bytes(b"x")
    target = {"link to a folder": "mine", "link to a file": "mine/file"}.get(kind, "nothing")
    folder = tmp_path / "folder"
    place = folder / at / "link" if at else folder
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(tmp_path / target)
    if at:
        remove_folder(str(folder))
        assert not folder.exists()
    else:
        with pytest.raises(UsageError, match=r"folder is a link.*: move it$"):
            remove_folder(str(folder))
        assert folder.is_symlink()
    assert (tmp_path / "mine/file").read_bytes() == b"x"


@pytest.mark.parametrize("at", ["", "inside"])
def test_remove_folder_removes_nothing_around_a_mount(tmp_path: Path, at: str, monkeypatch) -> None:
    folder = tmp_path / "folder"
    (folder / "inside").mkdir(parents=True)
    (folder / "inside/file").write_bytes(b"x")
    mount = str(folder / at).rstrip("/")
    monkeypatch.setattr("os.path.ismount", lambda path: path == mount)
    with pytest.raises(UsageError, match=r"is a mount point.*: move it$"):
        remove_folder(str(folder))
    assert (folder / "inside/file").exists()


def test_nothing_but_a_file_is_replaced(tmp_path: Path) -> None:
    """Root may replace devices: /dev/stdout, /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "folder").mkdir()
    before = sorted((path.name, path.lstat()) for path in tmp_path.iterdir())
    for name, _ in before:
        refused = refusal_of(partial(write_file, f"{tmp_path}/{name}", b""))
        assert "give the path of a file" in refused
    assert sorted((path.name, path.lstat()) for path in tmp_path.iterdir()) == before
