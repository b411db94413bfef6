"""--anonymize: its key, CryptoPAn as published, and no address of the input in what is read."""

import bz2
import gzip
import io
import json
import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.api_core.exceptions import PermissionDenied
from hypothesis import given, settings
from hypothesis import strategies as st
from yacryptopan import CryptoPAn

from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.main import main
from beam_pipeline.probe_rows.grouping import PreGroup
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.sources import anonymize_key
from beam_pipeline.sources.anonymize import WITHHELD, Anonymizer, _slot, anonymizer_of
from beam_pipeline.sources.anonymize_key import (
    KEY_VARIABLE,
    KeyReference,
    find_key,
    fingerprint,
    parse_key,
)
from beam_pipeline.sources.inputs import inspect, match_files, plan_units
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.sources.reading import CheckedBatch, UnreadableInputError, read_piece
from tests.support.engines import Gcs
from tests.support.helpers import MAPPED_IPV4
from tests.support.properties import num_examples

KEY = bytes(range(7, 39))
HALF = 0xFFFF_FFFF_FFFF_FFFF


def replaced(numbers: Sequence[int], anonymizer: Anonymizer) -> list[int]:
    """Returns what becomes of 128-bit addresses, IPv4 as ::ffff:a.b.c.d."""
    hi = np.array([number >> 64 for number in numbers], np.uint64)
    lo = np.array([number & HALF for number in numbers], np.uint64)
    new = anonymizer.addresses(hi, lo)
    return [high << 64 | low for high, low in zip(*(half.tolist() for half in new), strict=True)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a file of input and a key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    pq.write_table(one_row(), tmp_path / "in.parquet")
    (tmp_path / "key").write_bytes(KEY)
    return tmp_path


def one_row() -> pa.Table:
    return pa.table(
        {
            "event_time": pa.array([1_700_000_000], pa.timestamp("s")),
            "src_addr": ["192.0.2.9"],
            "dst_addr": ["198.51.100.7"],
            "ip_version": pa.array([4], pa.int8()),
            "rtt": [3.5],
        }
    )


SECRET = "projects/p/secrets/anonymize/versions/3"


@pytest.mark.parametrize(
    "data",
    [KEY, f"{KEY.hex().upper()}\n".encode(), f" {KEY.hex()}\r\n".encode()],
)
def test_a_key_is_32_bytes_or_64_hex_digits(data: bytes) -> None:
    assert parse_key(data, "key") == KEY


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (KEY + b"\n", "has 33 bytes"),
        (KEY.hex()[:63].encode(), "has 63 hex digits"),
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
    (folder / "huge").open("wb").truncate(1 << 40)
    os.mkfifo(folder / "pipe")
    for name in (folder, folder / "pipe", "/dev/zero"):
        assert "not a regular file" in refusal_of(capsys, f"--anonymize_key_file={name}")
    assert f"has {1 << 40} bytes: a key is" in refusal_of(capsys, "--anonymize_key_file=huge")
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


def test_a_key_in_secret_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    def access(name: str) -> SimpleNamespace:
        if name != SECRET:
            raise PermissionDenied("Permission denied.")
        return SimpleNamespace(payload=SimpleNamespace(data=KEY))

    client = SimpleNamespace(access_secret_version=access)
    monkeypatch.setattr(anonymize_key, "_secret_client", lambda: client)
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


# --- replaced addresses ---------------------------------------------------------------------------


def by_oracle(number: int, oracle: CryptoPAn) -> int:
    """Returns what another implementation makes of an address."""
    if number >> 32 == 0xFFFF:
        return MAPPED_IPV4 | oracle.anonymize_bin(number & 0xFFFF_FFFF, 4)
    return oracle.anonymize_bin(number, 6)


# --- the scheme ---------------------------------------------------------------------------------

_keys = st.binary(min_size=32, max_size=32)
_ipv4 = st.integers(0, 2**32 - 1).map(lambda number: MAPPED_IPV4 | number)
_ipv6 = st.one_of(
    st.sampled_from([0, 1, 2**128 - 1, 0xFF02 << 112 | 1, 0xFE80 << 112, MAPPED_IPV4 - 1]),
    st.integers(0, 2**128 - 1),
).filter(lambda number: number >> 32 != 0xFFFF)


@settings(max_examples=num_examples(40))
@given(key=_keys, numbers=st.lists(st.one_of(_ipv4, _ipv6), max_size=12))
def test_equals_another_implementation(key: bytes, numbers: list[int]) -> None:
    oracle = CryptoPAn(key)
    assert replaced(numbers, Anonymizer(key)) == [by_oracle(number, oracle) for number in numbers]


def common_prefix(one: int, other: int) -> int:
    return 128 - (one ^ other).bit_length()


@settings(max_examples=num_examples(150))
@given(key=_keys, one=st.one_of(_ipv4, _ipv6), shared=st.integers(0, 128), low=st.integers(0))
def test_common_prefixes_are_preserved(key: bytes, one: int, shared: int, low: int) -> None:
    """So no two addresses become one, and IPv4 stays IPv4."""
    is_ipv4 = one >> 32 == 0xFFFF
    free = min(128 - shared, 32 if is_ipv4 else 128)
    other = one ^ low % (1 << free)
    if (other >> 32 == 0xFFFF) != is_ipv4:
        return
    new, new_other = replaced([one, other], Anonymizer(key))
    assert common_prefix(new, new_other) == common_prefix(one, other)
    assert (new >> 32 == 0xFFFF) == is_ipv4


# --- what is kept of earlier batches ------------------------------------------------------------


def random_addresses(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the halves of addresses, nine of ten IPv4."""
    rng = np.random.default_rng(seed)
    hi, lo = rng.integers(0, 2**64, (2, count), np.uint64)
    ipv4 = rng.random(count) < 0.9
    hi[ipv4] = 0
    lo[ipv4] = np.uint64(MAPPED_IPV4) | lo[ipv4] >> np.uint64(32)
    return hi, lo


def test_replacements_are_equal_in_all_batches() -> None:
    """More addresses than are kept: some push others out, and come again."""
    hi, lo = random_addresses(200_000, seed=1)
    whole = Anonymizer(KEY).addresses(hi, lo)
    assert len(np.unique(np.stack(whole), axis=1)[0]) == len(
        np.unique(np.stack([hi, lo]), axis=1)[0]
    )
    anonymizer = Anonymizer(KEY)
    for seed, size in ((2, 70_000), (3, 1), (4, 131_072), (5, 300)):
        rows = np.random.default_rng(seed).integers(0, len(hi), size)
        for _ in range(2):
            new_hi, new_lo = anonymizer.addresses(hi[rows], lo[rows])
            assert (new_hi == whole[0][rows]).all() and (new_lo == whole[1][rows]).all()
    some = np.arange(20)
    oracle = CryptoPAn(KEY)
    numbers = [int(hi[i]) << 64 | int(lo[i]) for i in some]
    assert replaced(numbers, anonymizer) == [by_oracle(number, oracle) for number in numbers]


def test_shared_by_threads() -> None:
    """Some addresses that are kept in one place, which threads fill and read without end."""
    hi, lo = random_addresses(400_000, seed=3)
    places = np.array([_slot(*address) for address in zip(hi, lo, strict=True)])
    same = places == np.bincount(places).argmax()
    hi, lo = hi[same], lo[same]
    assert len(hi) > 5
    whole = Anonymizer(KEY).addresses(hi, lo)
    cache = Anonymizer(KEY)._cache

    def work(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, len(hi), 100_000)
        exact = whole[0][rows], whole[1][rows]
        for _ in range(20):
            cache.keep(hi[rows], lo[rows], *exact)
            new_hi, new_lo, missing = cache.look_up(hi[rows], lo[rows])
            is_right = (new_hi == exact[0]) & (new_lo == exact[1])
            is_right[missing] = True
            if not is_right.all():
                return False
        return len(missing) < len(rows)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


# --- reading with --anonymize ---------------------------------------------------------------------


def batches_of(path: Path, options: ReadOptions) -> list[CheckedBatch]:
    units = plan_units([inspect(match_files([str(path)])[0], options)])
    return [b for unit in units for piece in unit.pieces for b in read_piece(piece, options)]


def letters_of(path: Path, folder: Path) -> list[tuple[str, str]]:
    """Returns reason and value of each dead letter of an anonymised file."""
    options = ReadOptions(anonymize=find_key(str(folder / "key")))
    return [
        (letter.reason, letter.value)
        for batch in batches_of(path, options)
        for letter in batch.letters
    ]


def test_dead_letters_have_no_values(folder: Path) -> None:
    rows = [{**one_row().to_pylist()[0], "src_addr": "192.0.2.300"}]
    pq.write_table(pa.Table.from_pylist(rows, one_row().schema), folder / "bad.parquet")
    assert letters_of(folder / "bad.parquet", folder) == [("src_addr_invalid", WITHHELD)]
    good = {"from": "192.0.2.9", "dst_addr": "198.51.100.7", "af": 4, "timestamp": 1_700_000_000}
    lines = [
        json.dumps({**good, "result": [{"rtt": 1.5}, {}]}),
        '{"from": "192.0.2.9", ',
        json.dumps({**good, "result": []}),
        json.dumps({**good, "type": "dns", "result": [{"rtt": 1}]}),
    ]
    (folder / "results").write_text("\n".join(lines))
    expected = ["rtt_null", "json_invalid", "no_results", "not_a_ping"]
    letters = letters_of(folder / "results", folder)
    assert sorted(letters) == sorted((reason, WITHHELD) for reason in expected)


def cut_off(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "text": lambda _: b"9.9.9.9\n8.8.8.8\n",
    "gzip": lambda data: cut_off(gzip.compress(data)),
    "bzip2": lambda data: cut_off(bz2.compress(data)),
    "parquet": lambda data: cut_off(_as_parquet()),
    "parquet pages": lambda data: _as_parquet().replace(b"9.9.9.9", b"\xff" * 7),
}


def _as_parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(one_row().set_column(1, "src_addr", [["9.9.9.9"]]), sink, compression="none")
    return sink.getvalue()


@pytest.mark.parametrize("damage", DAMAGED)
def test_errors_of_unreadable_files_reveal_no_address(folder: Path, damage: str) -> None:
    line = b'{"from": "9.9.9.9", "dst_addr": "9.9.9.9", "timestamp": 1, "result": [{"rtt": 1}]}\n'
    path = folder / "damaged"
    path.write_bytes(DAMAGED[damage](line * 20_000))
    options = ReadOptions(anonymize=find_key("key"))
    said: list[str] = []
    try:
        for batch in batches_of(path, options):
            said += [f"{letter}" for letter in batch.letters]
    except UnreadableInputError as error:
        said += ["".join(traceback.format_exception(error)), str(error.as_letter())]
        said.append(str(error.as_error()))
        assert "damaged" in str(error)
    except ProbelineError as error:  # refused when it is inspected
        said.append("".join(traceback.format_exception(error)))
        assert str(path) in str(error)
    assert said
    for address in ("9.9.9", "8.8.8"):
        assert not [each for each in said if address in each], said


def test_arrow_messages_are_withheld(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> Iterator[CheckedBatch]:
        raise pa.ArrowInvalid("cannot make a number of '192.0.2.9'")
        yield

    options = ReadOptions(anonymize=find_key("key"))
    monkeypatch.setattr("beam_pipeline.sources.reading._read_parquet", failing)
    with pytest.raises(UnreadableInputError) as refusal:
        batches_of(folder / "in.parquet", options)
    told = "".join(traceback.format_exception(refusal.value))
    assert "192.0.2.9" not in told and f"ArrowInvalid, its message is {WITHHELD}" in told
    with pytest.raises(UnreadableInputError, match=r"192\.0\.2\.9"):
        batches_of(folder / "in.parquet", ReadOptions())
