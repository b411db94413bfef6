"""The simulated measurements against the truth written beside them."""

import ipaddress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from beam_pipeline.simulation import measurements as simulated_measurements
from tests.support.generated import files_of, run
from tests.support.repository import files_below

NUM_MEASUREMENTS, NUM_PROBES = 200_000, 400


def rows_of(folder: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in files_of(folder)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pings")
    assert run(folder, num_measurements=NUM_MEASUREMENTS, num_probes=NUM_PROBES) == 0
    return folder


@pytest.fixture(scope="module")
def rows(folder: Path) -> pa.Table:
    return rows_of(folder)


@pytest.fixture(scope="module")
def probes(folder: Path) -> pa.Table:
    return pq.read_table(folder / "truth/probes.parquet")


@pytest.fixture(scope="module")
def anchors(folder: Path) -> pa.Table:
    return pq.read_table(folder / "truth/anchors.parquet")


def lookup(keys: pa.ChunkedArray, table: pa.Table, key: str, column: str) -> np.ndarray:
    """Returns table[column] where table[key] equals each of `keys`; every key must be found."""
    position = pc.index_in(keys, value_set=table[key].combine_chunks())
    assert position.null_count == 0
    return table[column].take(position).to_numpy()


def test_addresses_are_valid_public_canonical_and_unique(
    probes: pa.Table, anchors: pa.Table
) -> None:
    texts = [*probes["src_addr"].to_pylist(), *anchors["dst_addr"].to_pylist()]
    assert len(set(texts)) == len(texts)
    for text in texts:
        address = ipaddress.ip_address(text)
        assert str(address) == text
        assert address.is_global and not address.is_multicast and not address.is_reserved


def test_ip_version_is_the_family_of_both(rows: pa.Table, anchors: pa.Table) -> None:
    is_ipv6 = rows["ip_version"].to_numpy() == 6
    for column in ("src_addr", "dst_addr"):
        assert np.array_equal(pc.match_substring(rows[column], ":").to_numpy(), is_ipv6)
    assert np.array_equal(
        lookup(rows["dst_addr"], anchors, "dst_addr", "ip_version"), rows["ip_version"].to_numpy()
    )


def test_a_prefix_belongs_to_one_city(probes: pa.Table, anchors: pa.Table) -> None:
    """The first byte of IPv4, so /16, too; the first four of IPv6."""
    nodes = [
        *zip(probes["src_addr"].to_pylist(), probes["city"].to_pylist(), strict=True),
        *zip(anchors["dst_addr"].to_pylist(), anchors["city"].to_pylist(), strict=True),
    ]
    city_of: dict[bytes, str] = {}
    for text, city in nodes:
        packed = ipaddress.ip_address(text).packed
        assert city_of.setdefault(packed[: 1 if len(packed) == 4 else 4], city) == city
    assert len(city_of) > 1.5 * len(set(city_of.values()))  # several prefixes a city


def test_activity_follows_zipf(rows: pa.Table, probes: pa.Table) -> None:
    counts = np.sort(pc.value_counts(rows["src_addr"]).field("counts").to_numpy())[::-1]
    weights = np.sort(probes["weight"].to_numpy())[::-1]
    assert len(counts) == NUM_PROBES and counts[-1] >= 5 and weights[0] > 20 * np.median(weights)
    assert counts[:20] / NUM_MEASUREMENTS == pytest.approx(weights[:20], rel=0.35)


def test_round_trip_is_never_faster_than_light_in_fibre(
    rows: pa.Table, probes: pa.Table, anchors: pa.Table
) -> None:
    degrees = [
        lookup(rows[address], table, address, axis)
        for address, table in (("src_addr", probes), ("dst_addr", anchors))
        for axis in ("latitude", "longitude")
    ]
    lat, lon, other_lat, other_lon = map(np.radians, degrees)
    # Spherical law of cosines: another formula than the one under test.
    cosine = np.sin(lat) * np.sin(other_lat) + np.cos(lat) * np.cos(other_lat) * np.cos(
        lon - other_lon
    )
    floor_ms = 2 * 6371 * np.arccos(np.clip(cosine, -1, 1)) / 200
    rtt = rows["rtt"].to_numpy()
    answered = rtt >= 0
    assert np.all(rtt[answered] >= floor_ms[answered])
    assert np.corrcoef(rtt[answered], floor_ms[answered])[0, 1] > 0.9
    access_ms = lookup(rows["src_addr"], probes, "src_addr", "access_delay_ms")
    assert np.all(rtt[answered] > 0.9 * (floor_ms + access_ms)[answered])


def test_failed_pings_are_exactly_minus_one_and_rare(rows: pa.Table, probes: pa.Table) -> None:
    rtt = rows["rtt"].to_numpy()
    failed = rtt < 0
    assert np.all(rtt[failed] == np.float32(-1))
    assert np.all(np.isfinite(rtt)) and rtt[~failed].min() > 0
    assert 0.02 < failed.mean() < 0.04
    loss_rate = probes["loss_rate"].to_numpy()
    assert loss_rate.min() >= 0.02 and loss_rate.max() <= 0.04
    # The busiest probe has rows enough to be held to its own rate.
    busiest = np.argmax(probes["weight"].to_numpy())
    own = pc.equal(rows["src_addr"], probes["src_addr"][int(busiest)]).to_numpy()
    assert failed[own].mean() == pytest.approx(loss_rate[busiest], abs=0.006)


# --- files: columns, order and bytes --------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_measurements", "num_probes", "flags"),
    [
        (1, 1, []),
        (7, 300, ["--num_files=3"]),
        (20_000, 5000, []),
        (50_000, 30, ["--interval_seconds=1e6", "--ipv6_share=1"]),
    ],
)
def test_number_and_order_of_rows(
    tmp_path: Path, monkeypatch, num_measurements: int, num_probes: int, flags: list[str]
) -> None:
    """In the order of time, within and across files."""
    monkeypatch.setattr(simulated_measurements, "_SLICE_ROWS", 1000)  # many seams
    assert run(tmp_path, *flags, num_measurements=num_measurements, num_probes=num_probes) == 0
    table = rows_of(tmp_path)
    assert table.num_rows == num_measurements
    assert pq.read_table(tmp_path / "truth/probes.parquet").num_rows == num_probes
    assert pc.count_distinct(table["src_addr"]).as_py() <= num_probes
    assert np.all(np.diff(table["event_time"].to_numpy().astype("i8")) >= 0)


def test_seeds_are_reproducible(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert run(tmp_path / name, f"--seed={seed}", num_measurements=20_000) == 0
    a, b, c = (files_below(tmp_path / name) for name in "abc")
    assert a == b
    assert a.keys() == c.keys()
    assert all(a[path] != c[path] for path in a)
