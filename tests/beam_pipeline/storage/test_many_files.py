"""Many files at once: renamed, joined and fetched, local and on `gs://`."""

import os
import threading
from pathlib import Path

import pytest
from google.api_core.exceptions import NotFound
from google.cloud.storage import Blob

from beam_pipeline.errors import ProbelineError
from beam_pipeline.storage import gcs as gcs_storage
from beam_pipeline.storage import many_files
from beam_pipeline.storage.files import crc32c, read_file, remove_folder, write_file
from beam_pipeline.storage.many_files import (
    Move,
    join_files,
    local_copies,
    move_files,
    moves_to_folder,
)
from tests.support.engines import Gcs, stored_objects
from tests.support.faulty_gcs import faulty


@pytest.fixture(params=["local", "gs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder on this machine, and one in a bucket."""
    if request.param == "gs":
        return f"{request.getfixturevalue('gcs').make_bucket()}/folder"
    return str(tmp_path)


def move_of(folder: str, name: str, data: bytes) -> Move:
    return Move(f"{folder}/temp/{name}", f"{folder}/{name}", len(data), crc32c(data))


def test_moves_are_idempotent(folder: str) -> None:
    moves = [move_of(folder, name, name.encode()) for name in ("one", "other")]
    for move in moves:
        write_file(move.source, os.path.basename(move.target).encode())
    for _ in range(2):
        move_files(moves)
        assert [read_file(move.target) for move in moves] == [b"one", b"other"]
        assert [read_file(move.source) for move in moves] == [None, None]


def test_missing_source_of_a_move(folder: str) -> None:
    move = move_of(folder, "one", b"one")
    for content in (None, b"two"):
        if content is not None:
            write_file(move.target, content)
        with pytest.raises(ProbelineError, match=r"is gone and .* has other content"):
            move_files([move])
    write_file(move.target, b"one")
    move_files([move])
    with pytest.raises(ProbelineError, match="is gone"):
        move_files([Move(move.source, move.target)])  # nobody knows what it held


def test_move_files_of_a_folder(folder: str) -> None:
    for name in ("a", "below/b"):
        write_file(f"{folder}/temp/{name}", name.encode())
    move_files(moves_to_folder(f"{folder}/temp", ["a", "below/b"], f"{folder}/out"))
    assert [read_file(f"{folder}/out/{name}") for name in ("a", "below/b")] == [b"a", b"below/b"]


@pytest.mark.parametrize("num_parts", [0, 1, 3, 70])
def test_join_files(folder: str, monkeypatch: pytest.MonkeyPatch, num_parts: int) -> None:
    """GCS joins 32 with a request: here it is 4, so that 70 take four levels."""
    monkeypatch.setattr(gcs_storage, "_MAX_COMPOSED", 4)
    parts = [f"{folder}/part-{number}" for number in range(num_parts)]
    for number, part in enumerate(parts):
        write_file(part, b"%d\n" % number * (number % 5))
    join_files(f"{folder}/joined", f"{folder}/temp", parts, b"empty")
    whole = b"".join(b"%d\n" % number * (number % 5) for number in range(num_parts))
    assert read_file(f"{folder}/joined") == (whole or b"empty" * (not parts))


def test_join_with_a_missing_part(gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = gcs.make_bucket()

    def gone(*_: object, **__: object) -> None:
        raise NotFound("Object not found")  # which the emulator answers with 500

    monkeypatch.setattr(Blob, "compose", gone)
    write_file(f"{bucket}/a", b"a")
    with pytest.raises(ProbelineError, match=r"cannot write .*: one of its 2 parts, .* is gone"):
        join_files(f"{bucket}/joined", bucket, [f"{bucket}/a", f"{bucket}/b"])


def test_local_copies_are_prefetched_and_deleted(gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = gcs.make_bucket()
    paths = [f"{bucket}/{number:03d}" for number in range(50)]
    for path in paths:
        write_file(path, path.encode())
    most, fetch = [0], many_files._fetch
    all_wait = threading.Barrier(many_files.gcs.REQUESTS_AT_A_TIME)

    def fetching(path: str, copy: str) -> str:
        if path < paths[all_wait.parties]:
            all_wait.wait(60)  # so many are fetched at once
        return fetch(path, copy)

    monkeypatch.setattr(many_files, "_fetch", fetching)
    folder = ""
    for path, copy in zip(paths, local_copies(paths), strict=True):
        assert Path(copy).read_bytes() == path.encode()
        folder = os.path.dirname(copy)
        most.append(len(os.listdir(folder)))
    assert max(most) <= many_files.gcs.REQUESTS_AT_A_TIME
    assert not os.path.exists(folder)


def test_batch_deletes(gcs: Gcs, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = gcs.make_bucket()
    paths = [f"{bucket}/below/{number}" for number in range(250)]
    for path in paths[:-1]:  # the last batch has one that is gone
        write_file(path, b"x")
    write_file(f"{bucket}/kept", b"x")
    with faulty(gcs.endpoint) as proxy, monkeypatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        remove_folder(f"{bucket}/below")
        assert [request.name for request in proxy.requests if request.method == "POST"] == [
            "/batch/storage/v1"
        ] * 3
    gcs_storage.delete_objects(paths)
    assert list(stored_objects(bucket)) == ["kept"]
