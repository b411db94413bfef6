"""Whole runs with --anonymize: no address of the input is in anything that a run writes or says.

Every file below the output and the temporary folder is searched, also after a crash.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from yacryptopan import CryptoPAn

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.main import main
from beam_pipeline.sources.anonymize import WITHHELD
from beam_pipeline.sources.anonymize_key import fingerprint
from tests.support.dataflow_api import PROJECT, REGION, DataflowApi
from tests.support.dataflow_helpers import SHAPING, do_the_work, job_command, options_of, staged
from tests.support.dataflow_helpers import bucket as bucket
from tests.support.dataflow_helpers import dataflow as dataflow
from tests.support.dataflow_helpers import measurements as measurements
from tests.support.engines import Gcs, stored_objects
from tests.support.helpers import (
    as_number,
    canonical,
    measurements_table,
    reference_rows,
    spellings_of,
)
from tests.support.job_runs import FLAGS, files_of, history, make_dataset, read_rows
from tests.support.kills import KILL_POINTS, kill_script
from tests.support.waiting import HANG_S
from tests.support.warm_python import warm_python

# --- input, and the search for addresses -----------------------------------------


@dataclass(frozen=True)
class Input:
    """A file of input, and the addresses in it."""

    path: Path
    addresses: frozenset[str]


def bad_rows(good: dict) -> list[dict]:
    """Returns rows that become dead letters, each of which would show an address."""
    changes: list[dict] = [
        {"src_addr": "203.0.113.300"},
        {"src_addr": "fe80::aaaa:1%eth0"},
        {"dst_addr": "host-203-0-113-77"},
        {"dst_addr": "203.0.113.78 "},
        {"rtt": float("nan")},
        {"src_addr": None},
        {"ip_version": 5},
    ]
    return [{**good, **change} for change in changes]


REASONS = {
    "dst_addr_invalid": 2,
    "ip_version_not_4_or_6": 1,
    "rtt_not_finite": 1,
    "src_addr_invalid": 1,
    "src_addr_null": 1,
    "src_addr_zone_id": 1,
}
BAD_TEXTS = ("203.0.113", "fe80::aaaa", "203-0-113")


def plain_table() -> pa.Table:
    return measurements_table(1500, seed=4, num_probes=12)


def addresses_of(table: pa.Table) -> frozenset[str]:
    texts = table["src_addr"].to_pylist() + table["dst_addr"].to_pylist()
    return frozenset(canonical(as_number(text)) for text in texts)


def parquet_input(folder: Path) -> Input:
    table = plain_table()
    good = {**table.slice(0, 1).to_pylist()[0], "src_addr": "198.51.100.99"}
    bad = pa.Table.from_pylist(bad_rows(good), table.schema)
    whole = pa.concat_tables([table.slice(0, 700), bad, table.slice(700)])
    pq.write_table(whole, folder / "input.parquet", row_group_size=400)
    addresses = addresses_of(table) | {"198.51.100.99"}
    return Input(folder / "input.parquet", addresses)


def forms_of(addresses: Iterable[str]) -> list[bytes]:
    """Returns all that would show one of these addresses.

    Four bytes of IPv4 can be anywhere by chance. With the key and seeds of the tests they are not;
    one single hit of that kind after a change of libraries may be such.
    """
    forms: set[bytes] = {text.encode() for text in BAD_TEXTS}
    for address in addresses:
        number = as_number(address)
        forms.update(text.encode() for text in spellings_of(number))
        if ":" not in address:
            forms.update((number & 0xFFFF_FFFF).to_bytes(4, order) for order in ("big", "little"))
            continue
        halves = number >> 64, number & (1 << 64) - 1
        forms.update(half.to_bytes(8, order) for half in halves for order in ("big", "little"))
    return sorted(forms)


def shown(data: bytes, pattern: re.Pattern[bytes]) -> set[bytes]:
    """Returns what is found in some bytes, as they are or, if that is Parquet, in its values."""
    found = set(pattern.findall(data))
    if data.startswith(b"PAR1") and data.endswith(b"PAR1"):
        table = pq.read_table(pa.BufferReader(data))
        found |= set(pattern.findall(repr(table.to_pylist()).encode()))
    return found


def search(
    folders: Iterable[Path], addresses: Iterable[str], *said: bytes
) -> dict[str, set[bytes]]:
    """Returns what is found of addresses, by the file that it is in."""
    pattern = re.compile(b"|".join(re.escape(form) for form in forms_of(addresses)))
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    found = {str(path): shown(path.read_bytes(), pattern) for path in paths}
    found |= {f"output {number}": shown(text, pattern) for number, text in enumerate(said)}
    found |= {f"name of {path}": shown(path.name.encode(), pattern) for path in paths}
    return {name: what for name, what in found.items() if what}


# --- tests ----------------------------------------------------------------------------------------


KEY = bytes(range(50, 82))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Input:
    return parquet_input(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "key.hex"
    path.write_text(f"{KEY.hex()}\n")
    return path


def anonymized(key_file: Path | str) -> tuple[str, str]:
    return "--anonymize=prefix_preserving", f"--anonymize_key_file={key_file}"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Runs Python with temporary files below a folder."""
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.run(
        [*warm_python(), *arguments],
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        capture_output=True,
        timeout=HANG_S,
    )


# --- nothing raw --------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_address_of_the_input_is_written_or_said(tmp_path: Path, key_file: Path) -> None:
    """Beam's whole log is on; a second file cannot be read and begins with an address."""
    (tmp_path / "in").mkdir()
    source = parquet_input(tmp_path / "in")
    (tmp_path / "in" / "list").write_text("203.0.113.300\n203.0.113.77\n")
    (tmp_path / "run").mkdir()
    output = tmp_path / "run" / "out"
    flags = [f"--input={tmp_path}/in/*", "--on_bad_file=dead_letter"]
    flags += [f"--output={output}", "--inline_bytes=0", "--debug", *FLAGS, *anonymized(key_file)]
    done = run(tmp_path / "run", "-m", "beam_pipeline.main", *flags)
    assert done.returncode == 0, done.stderr.decode()
    manifest = open_dataset(str(output)).manifest
    assert manifest.counts.dead_letters == {**REASONS, "file_unreadable": 1}
    assert search([tmp_path / "run"], source.addresses, done.stdout, done.stderr) == {}
    letters = [
        letter
        for path in output.glob("dead_letter/*")
        for letter in pq.read_table(path).to_pylist()
    ]
    assert len(letters) == manifest.counts.num_dead_letters
    values = {letter["value"] for letter in letters if letter["reason"] != "file_unreadable"}
    assert WITHHELD in values and values <= {WITHHELD, ""}


# With the first they leave chunks and packets, with the second shards and all that tells of them.
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["closing packets", "before _SUCCESS"])
def test_what_a_crash_leaves_has_no_address_and_the_next_run_is_whole(
    source: Input, whole: Path, key_file: Path, tmp_path: Path, phase: str
) -> None:
    script = kill_script(*KILL_POINTS[phase])
    output = tmp_path / "out"
    flags = [f"--input={source.path}", f"--output={output}", "--inline_bytes=0", *FLAGS]
    flags += anonymized(key_file)
    done = run(tmp_path, "-c", script, *flags)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert list(output.rglob("*"))
    assert search([tmp_path], source.addresses, done.stdout, done.stderr) == {}
    assert files_of(make_dataset(source.path, output, *anonymized(key_file))) == files_of(whole)


def test_the_search_finds_addresses_where_they_are(source: Input, tmp_path: Path) -> None:
    """Without --anonymize: as text, packed in chunks, in dead letters."""
    flags = [f"--input={source.path}", f"--output={tmp_path}/out", "--inline_bytes=0"]
    flags += [*FLAGS, "--measurement_encoding=compact"]
    script = kill_script(*KILL_POINTS["closing packets"])
    assert run(tmp_path, "-c", script, *flags).returncode == -signal.SIGKILL
    found = search([tmp_path], source.addresses)
    for kind in ("/chunks/", "/dead_letters/"):
        assert any(kind in name for name in found), found
    texts = {form for forms in found.values() for form in forms}
    packed = {form for form in forms_of(source.addresses) if len(form) in (4, 8)} & texts
    assert len(packed) > 100 and b"203.0.113" in texts


# --- what comes out -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(source: Input, key_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("whole") / "out"
    return make_dataset(source.path, output, *anonymized(key_file))


def by_oracle(column: pa.ChunkedArray) -> list[str]:
    oracle = CryptoPAn(KEY)
    texts = [canonical(as_number(text)) for text in column.to_pylist()]
    return [oracle.anonymize(text) for text in texts]


def test_the_rows_are_those_of_the_replaced_addresses(whole: Path) -> None:
    table = plain_table()
    for number, name in ((1, "src_addr"), (2, "dst_addr")):
        table = table.set_column(number, name, [by_oracle(table[name])])
    assert history(read_rows(whole)) == reference_rows(table)


def test_the_manifest_tells_the_method_and_the_key_by_its_fingerprint(
    whole: Path, source: Input, tmp_path: Path
) -> None:
    told = (whole / "manifest.json").read_text()
    options = open_dataset(str(whole)).manifest.options
    assert options["anonymize"] == "prefix_preserving"
    assert options["anonymize_key_fingerprint"] == fingerprint(KEY)
    assert KEY.hex() not in told and "key.hex" not in told
    plain = make_dataset(source.path, tmp_path / "out")
    options = open_dataset(str(plain)).manifest.options
    assert options["anonymize"] == "none" and "anonymize_key_fingerprint" not in options


# --- Dataflow -----------------------------------------------------------------------------------


@pytest.fixture
def cloud_key(bucket: str, key_file: Path, gcs: Gcs) -> Iterator[str]:
    gcs.upload(key_file, f"{bucket}/keys/key.hex")
    yield f"{bucket}/keys/key.hex"


@pytest.mark.slow
def test_workers_of_dataflow_read_the_key_which_the_job_does_not_show(
    dataflow: DataflowApi,
    bucket: str,
    cloud_key: str,
    measurements: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The launcher waits; the dataset is that of a local run."""
    jobs = []

    def work(job) -> None:
        jobs.append((f"{job}{options_of(job)}", staged(job)))
        do_the_work(Path(sys.executable), tmp_path / "work", job)

    dataflow.worker = work
    assert main(job_command(dataflow, bucket, *anonymized(cloud_key))) == 0
    ((told, files),) = jobs
    (job,), said = dataflow.jobs, capsys.readouterr()
    page = f"https://console.cloud.google.com/dataflow/jobs/{REGION}/{job.id}?project={PROJECT}"
    assert job.id in said.err and page in said.err
    assert "4,000" in said.out  # the summary
    for secret in (KEY, KEY.hex().encode(), fingerprint(KEY).encode()):
        assert secret not in told.encode() and str(secret) not in told
    for data in files.values():
        assert KEY not in data and KEY.hex().encode() not in data
    found = stored_objects(f"{bucket}/out")
    addresses = addresses_of(pq.read_table(measurements))
    pattern = re.compile(b"|".join(re.escape(form) for form in forms_of(addresses)))
    assert {name for name, data in found.items() if shown(data, pattern)} == set()
    local = tmp_path / "local"
    flags = [f"--input={measurements}", f"--output={local}", *SHAPING, *anonymized(cloud_key)]
    assert main(flags) == 0
    assert {name: found[name] for name in files_of(local)} == files_of(local)
    told_of = {"README.md", "croissant.json", "manifest.json", "_SUCCESS"}
    assert set(found) == {*files_of(local), *told_of}
