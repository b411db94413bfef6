"""`--ends=names`: each name has an address of its own, and the dataset knows whose it is."""

import csv
import io
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from beam_pipeline.dataset import end_names
from beam_pipeline.dataset.croissant import CROISSANT_NAME
from beam_pipeline.dataset.end_names import Names, address_of, as_file
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError
from beam_pipeline.export.__main__ import main as export
from beam_pipeline.inspect.__main__ import main as inspect
from beam_pipeline.main import main
from beam_pipeline.sources.mapping import convert
from beam_pipeline.sources.options import Mapping
from beam_pipeline.verify.__main__ import main as verify
from tests.support.job_runs import files_of

NETWORK = IPv6Network("fd70:726f:6265::/48")
ENDS = ["tokyo-1", "site 7", "Zürich", "12", "=1+1,", "192.0.2.1", "2001:db8::1"]
NAMED = set(ENDS[:5])


def write(path: Path, ends: list[str], first_second: int = 0) -> Path:
    """Writes pings from each end to the next one."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["event_time", "src_addr", "dst_addr", "ip_version", "rtt"])
        for at, (src, dst) in enumerate(zip(ends, ends[1:] + ends[:1], strict=True)):
            rows.writerow([first_second + at, src, dst, 4, 20 + at])
    return path


def run(source: Path, output: Path, *flags: str) -> set[str]:
    """Runs the job with names; returns the names that the dataset has."""
    flags = (*flags, "--ends=names", "--time_unit=s", "--measurement_encoding=arrow")
    assert main([f"--input={source}", f"--output={output}", *flags]) == 0
    assert verify([str(output)]) == 0
    return set(Names.read(open_dataset(str(output))))


@pytest.fixture(scope="module")
def rows(folder: Path) -> Path:
    assert run(write(folder / "pings.csv", ENDS, 1_700_000_000), folder / "rows") == NAMED
    return folder / "rows"


@given(st.lists(st.text(max_size=300) | st.sampled_from(ENDS), min_size=1, max_size=20))
@example(["a\nb", "é" * 128, "\x00", "::ffff:192.0.2.1"])
def test_each_text_is_an_address_a_name_or_invalid(texts: list[str]) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "event_time": pa.array(range(len(texts)), pa.timestamp("us")),
            "src_addr": pa.array(texts),
            "dst_addr": pa.array(texts).dictionary_encode(),
            "rtt": pa.array([1.0] * len(texts)),
        }
    )
    plain, found = (convert(batch, Mapping(ends=ends)) for ends in ("addresses", "names"))
    assert found.originals.column("src_addr").to_pylist() == texts
    assert set(found.names) <= {text.strip() for text in texts}
    before, after = (each.measurements.column("ip_version").to_pylist() for each in (plain, found))
    for text, family, new_family, address in zip(
        texts, before, after, found.measurements.column("src_addr").to_pylist(), strict=True
    ):
        name = text.strip()
        if family is not None or name not in found.names:
            assert (address, new_family) == (text, family)
        else:
            assert new_family == 6
            assert IPv6Address(address) in NETWORK
            assert address == address_of(name)


def test_numbers_are_names() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "event_time": pa.array([0], pa.timestamp("us")),
            "src_addr": pa.array([7]),
            "dst_addr": pa.array([12]).dictionary_encode(),
            "rtt": pa.array([1.0]),
        }
    )
    assert set(convert(batch, Mapping(ends="names")).names) == {"7", "12"}


def test_no_two_names_share_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_names, "address_of", lambda name: f"fd70::{len(name)}")
    with pytest.raises(ProbelineError, match="names ab and cd have the same address"):
        as_file(["cd", "ab", "abc"])


@pytest.mark.slow
def test_an_export_has_names_and_gives_the_same_shards(rows: Path, tmp_path: Path) -> None:
    assert export([str(rows), f"--output={tmp_path / 'pings.parquet'}"]) == 0
    table = pq.read_table(tmp_path / "pings.parquet")
    assert set(table["src_addr"].to_pylist()) == set(table["dst_addr"].to_pylist()) == set(ENDS)
    assert run(tmp_path / "pings.parquet", tmp_path / "again") == NAMED
    assert files_of(tmp_path / "again/train") == files_of(rows / "train")


def test_a_spreadsheet_computes_no_name(rows: Path, capfdbinary: pytest.CaptureFixture) -> None:
    assert export([str(rows), "--output=-", "--probe=tokyo-1,12"]) == 0
    found = list(csv.DictReader(io.StringIO(capfdbinary.readouterr().out.decode())))
    assert {row["src_addr"] for row in found} == {"tokyo-1", "12"}
    assert {row["dst_addr"] for row in found} == {"site 7", "'=1+1,"}


def test_inspect_and_descriptions_have_the_names(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect([str(rows)]) == 0
    assert inspect([str(rows), "--row=0"]) == 0
    shown = capsys.readouterr().out
    assert "tokyo-1" in shown
    assert str(NETWORK.network_address).removesuffix("::") not in shown
    assert "names.parquet" in (rows / CROISSANT_NAME).read_text()


def test_names_of_what_is_left_out_are_left_out(tmp_path: Path) -> None:
    source = write(tmp_path / "pings.csv", ENDS, 1_700_000_000)
    assert run(source, tmp_path / "rows", "--until=1700000002") == {"tokyo-1", "site 7", "Zürich"}


@pytest.mark.slow
def test_names_are_not_kept_with_anonymize(tmp_path: Path, rows: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(range(32)))
    flags = "--anonymize=prefix_preserving", f"--anonymize_key_file={tmp_path / 'key'}"
    for source in (write(tmp_path / "pings.csv", ENDS, 1_700_000_000), rows):
        assert run(source, tmp_path / f"{source.stem}-out", *flags) == set()
        assert not (tmp_path / f"{source.stem}-out/names.parquet").exists()


@pytest.mark.slow
def test_names_of_datasets_are_carried_on(tmp_path: Path, rows: Path) -> None:
    """An append has the bytes of one job over all input; so has a dataset as input."""
    first, second = (
        write(tmp_path / f"{name}.csv", ends, 1_700_000_000 + 100 * at)
        for at, (name, ends) in enumerate((("a", ENDS), ("b", ["new", "tokyo-1", "192.0.2.1"])))
    )
    both = NAMED | {"new"}
    assert run(tmp_path / "?.csv", tmp_path / "whole") == both
    assert run(first, tmp_path / "grown") == NAMED
    assert run(second, tmp_path / "grown", "--append") == both
    assert run(second, tmp_path / "joined", f"--input={tmp_path / 'grown'}", "--duplicates=drop")
    for output in ("grown", "joined"):
        for name in ("names.parquet", "train/rows.parquet"):
            ours = (tmp_path / output / name).read_bytes()
            assert ours == (tmp_path / "whole" / name).read_bytes(), (output, name)


def test_a_changed_table_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(write(tmp_path / "pings.csv", ENDS, 1_700_000_000), tmp_path / "rows")
    table = tmp_path / "rows/names.parquet"
    table.write_bytes(table.read_bytes().replace(b"tokyo-1", b"kyoto-1"))
    assert verify([str(tmp_path / "rows")]) == 1
    assert export([str(tmp_path / "rows"), "--output=-"]) == 1
    assert "names.parquet has checksum" in capsys.readouterr().err
