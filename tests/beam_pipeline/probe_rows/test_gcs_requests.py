"""What the job asks of GCS: few requests, several at a time, few bytes and bounded memory."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.dataset.layout import RowFormat
from beam_pipeline.dataset.placement import probe_hashes
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.frame import inspected
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.options import Options
from beam_pipeline.probe_rows.packets import ROW, PacketShards, PacketWriter
from beam_pipeline.shards.claim_checks import READS_AT_A_TIME, ClaimReader, StoredPayload
from beam_pipeline.sources import inputs
from beam_pipeline.storage.gcs import info
from tests.support.engines import Gcs
from tests.support.faulty_gcs import FaultyGcs, faulty
from tests.support.helpers import MAPPED_IPV4, make_run, measurements_table
from tests.support.job_runs import write_input
from tests.support.probe_rows_on_disk import options_of


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


def test_the_packets_of_a_shard_are_read_several_at_a_time(gcs: Gcs, monkeypatch) -> None:
    options = options_of(RowFormat("compact", 1 << 20))
    root = f"{gcs.make_bucket()}/run"
    packets = []
    for number in range(2 * READS_AT_A_TIME):
        writer = PacketWriter(Workspace(root, 0), options)
        rows = np.zeros(3, ROW)
        rows["src_lo"], rows["count"] = MAPPED_IPV4 | np.arange(number, number + 3), 20
        rows = rows[np.argsort(probe_hashes(np.zeros(3, np.uint64), rows["src_lo"].copy()))]
        writer.add(rows, make_run(60, seed=number))
        packets += writer.close()
    reader = ClaimReader(root)
    with faulty(gcs.endpoint, delay_s=0.1) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        shard = PacketShards(options.row_format, root).content(packets, 0, 1, reader)
        assert sum(len(batch.records) for batch in shard.batches()) == 6 * READS_AT_A_TIME
        assert len(proxy.requests) <= 2 * len(packets)
        assert proxy.longest_chain() <= len(packets) / 4
    reader.close()


UPLOAD = """
import resource, sys
from beam_pipeline.storage.files import local_file
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with local_file(sys.argv[1]) as path, open(path, "wb") as file:
    for number in range(300):
        file.write(bytes([number % 251]) * (1 << 20))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
def test_the_launcher_looks_at_many_files_at_once_and_fetches_little(
    gcs: Gcs, tmp_path: Path, monkeypatch
) -> None:
    """1,000 files at 50 ms a request may take ten seconds: 200 requests, one after another."""
    table = measurements_table(20_000, seed=1, num_probes=2_000)
    for number in range(64):
        write_input(tmp_path / str(number), table)
    bucket = gcs.make_bucket()
    gcs.upload(tmp_path, f"{bucket}/in")
    files = inputs.match_files([f"{bucket}/in/**"])
    assert len(files) == 64 and min(file.num_bytes for file in files) > 200_000
    with faulty(gcs.endpoint, delay_s=0.05) as proxy, monkeypatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        options = Options(input=(bucket,), output=bucket).read_options()
        found = inspected(files, partial(inputs.inspect, options=options))
    assert [file.file for file in found] == files
    assert {sum(file.row_group_rows) for file in found} == {20_000}
    assert proxy.longest_chain() < 64 * 200 / 1000 * 2.5
    assert sum(request.num_bytes for request in proxy.requests) < 64 * 100_000


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
