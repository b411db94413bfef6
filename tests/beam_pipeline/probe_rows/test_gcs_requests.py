"""What the job asks of GCS: few bytes, and bounded memory."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_pipeline.errors import ProbelineError
from beam_pipeline.shards.claim_checks import ClaimReader, StoredPayload
from beam_pipeline.storage.gcs import info
from tests.support.engines import Gcs
from tests.support.faulty_gcs import FaultyGcs, faulty


@pytest.fixture
def passed_on(gcs: Gcs, monkeypatch) -> Iterator[FaultyGcs]:
    """A proxy that only counts."""
    with faulty(gcs.endpoint) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        yield proxy


def test_a_range_costs_little_more_than_its_bytes(gcs: Gcs, tmp_path: Path, passed_on) -> None:
    (tmp_path / "large").write_bytes(bytes(8 << 20))
    path = f"{gcs.make_bucket()}/large"
    gcs.upload(tmp_path / "large", path)
    reader = ClaimReader()
    for offset in (5 << 20, 1 << 20):
        assert reader.read(StoredPayload(path, offset, 300_000, None)) == bytes(300_000)
    assert [passed.method for passed in passed_on.requests] == ["GET", "GET"]
    assert sum(passed.num_bytes for passed in passed_on.requests) < 2 * 310_000
    for start, length in ((5 << 20, 4 << 20), (9 << 20, 1)):
        with pytest.raises(ProbelineError, match="large changed after it was written"):
            reader.read(StoredPayload(path, start, length, None))


UPLOAD = """
import resource, sys
from beam_pipeline.storage.files import local_file
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with local_file(sys.argv[1]) as path, open(path, "wb") as file:
    for number in range(300):
        file.write(bytes([number % 251]) * (1 << 20))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def test_a_large_shard_goes_up_in_chunks_and_bounded_memory(gcs: Gcs, passed_on) -> None:
    path = f"{gcs.make_bucket()}/large"
    result = subprocess.run(
        [sys.executable, "-c", UPLOAD, path], capture_output=True, text=True, check=True
    )
    assert int(result.stdout) < 150  # MiB, the library's own modules among them
    chunks = [passed for passed in passed_on.requests if passed.method == "PUT"]
    assert len(chunks) == 19
    found = info(path)
    assert found is not None and found.num_bytes == 300 << 20
