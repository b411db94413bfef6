"""A network with known truth: probes and anchors in cities, and the paths between them.

`build_network` draws every address, place, rate, delay and loss rate from the seed. An address
prefix belongs to one city, so a model can learn to predict the round trip from the source prefix
and the destination. `simulation.measurements` measures it.
"""

import ipaddress
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from beam_pipeline.simulation.options import NetworkOptions

type Floats = NDArray[np.float64]
type Ints = NDArray[np.int64]

OUTAGE_SHARE = 0.05  # of a probe's days have an outage
MIN_OUTAGE_HOURS, MAX_OUTAGE_HOURS = 1.0, 8.0

_KM_PER_MS = 200.0  # light in fibre
_EARTH_RADIUS_KM = 6371.0
_MIN_STRETCH = 1.15  # path over great circle; jitter would need six sigma to undo it
_EVENING_PEAK_TURN = 15 / 24  # sin() is zero at 15:00 local time, so load peaks at 21:00
_MIN_DAYS, _MAX_DAYS = 1, 365
_FLOOR_MEASUREMENTS = 5  # of the quietest probe

# One random stream per use, so that another draw in one does not affect the others.
NETWORK_STREAM, OUTAGE_STREAM, SLICE_STREAM = range(3)


# Cities with probes and anchors, as arrays; `weight` is the relative number of both.
CITIES = np.array(
    [
        ("Amsterdam", 52.37, 4.90, 5),
        ("Athens", 37.98, 23.73, 1),
        ("Bangkok", 13.76, 100.50, 1),
        ("Berlin", 52.52, 13.41, 3),
        ("Bogota", 4.71, -74.07, 1),
        ("Buenos Aires", -34.60, -58.38, 1),
        ("Cairo", 30.04, 31.24, 1),
        ("Chicago", 41.88, -87.63, 2),
        ("Dallas", 32.78, -96.80, 2),
        ("Dubai", 25.20, 55.27, 1),
        ("Frankfurt", 50.11, 8.68, 5),
        ("Istanbul", 41.01, 28.98, 1),
        ("Jakarta", -6.21, 106.85, 1),
        ("Johannesburg", -26.20, 28.05, 1),
        ("Kyiv", 50.45, 30.52, 1),
        ("London", 51.51, -0.13, 4),
        ("Los Angeles", 34.05, -118.24, 2),
        ("Madrid", 40.42, -3.70, 2),
        ("Mexico City", 19.43, -99.13, 1),
        ("Mumbai", 19.08, 72.88, 2),
        ("Nairobi", -1.29, 36.82, 1),
        ("New York", 40.71, -74.01, 4),
        ("Paris", 48.86, 2.35, 4),
        ("Prague", 50.08, 14.44, 2),
        ("San Francisco", 37.77, -122.42, 3),
        ("Sao Paulo", -23.55, -46.63, 2),
        ("Seoul", 37.57, 126.98, 1),
        ("Singapore", 1.35, 103.82, 2),
        ("Stockholm", 59.33, 18.07, 2),
        ("Sydney", -33.87, 151.21, 2),
        ("Tokyo", 35.68, 139.69, 2),
        ("Toronto", 43.65, -79.38, 1),
        ("Warsaw", 52.23, 21.01, 2),
        ("Zurich", 47.38, 8.54, 2),
    ],
    [("name", "U16"), ("latitude", "f8"), ("longitude", "f8"), ("weight", "i8")],
)

_PREFIXES_PER_CITY = 4
# First octets with no special block inside (private, loopback, documentation, multicast, ...),
# so that any address under them is a public one.
_PUBLIC_OCTETS = sorted(
    set(range(1, 224)) - {10, 100, 127, 169, 172, 192, 198, 203}  # 0/8 and 224/3 are not in it
)
_HOSTS_PER_IPV4_PREFIX = 256 * 254  # the last octet is neither 0 nor 255
_HOSTS_PER_IPV6_PREFIX = 1 << 16  # one address in each /48 of a /32


class Nodes(NamedTuple):
    """Places as arrays of one length; `city` is an index into CITIES, the others are degrees."""

    city: Ints
    latitude: Floats
    longitude: Floats

    def take(self, index: Ints) -> "Nodes":
        return Nodes(self.city[index], self.latitude[index], self.longitude[index])


@dataclass(frozen=True)
class Probes:
    """The sources, `[num_probes]` each; `weight` is the expected share of all measurements."""

    nodes: Nodes
    addresses: list[str]
    is_ipv6: NDArray[np.bool_]
    weight: Floats
    access_delay_ms: Floats
    loss_rate: Floats
    load_ms: Floats  # mean extra delay of the daily cycle, which swings between 0 and twice it


@dataclass(frozen=True)
class Anchors:
    """The destinations. Anchor a is destination a by IPv4 and num_anchors + a by IPv6."""

    nodes: Nodes
    addresses: list[str]  # [2 * num_anchors]
    load_ms: Floats


@dataclass(frozen=True)
class Pairs:
    """The pinged (probe, destination) pairs: `[num_pairs]` each, in probe order."""

    probe: NDArray[np.int32]
    destination: NDArray[np.int32]
    rate_hz: Floats
    phase: NDArray[np.float32]  # of the first tick, in intervals, [0, 1)
    mean_ms: NDArray[np.float32]  # distance, access and the mean of the daily load
    # The daily load is sine_ms * sin(t) + cosine_ms * cos(t), t being the UTC time of day in
    # radians: the sum of the probe's and the anchor's sinusoids, each at its own local hour.
    sine_ms: NDArray[np.float32]
    cosine_ms: NDArray[np.float32]


@dataclass(frozen=True)
class Network:
    probes: Probes
    anchors: Anchors
    pairs: Pairs
    rows_per_day: float


def build_network(options: NetworkOptions) -> Network:
    rng = np.random.default_rng([options.seed, NETWORK_STREAM])
    probe_nodes = _place(rng, options.num_probes)
    anchor_nodes = _place(rng, options.num_anchors)
    rank = rng.permutation(options.num_probes)
    # round(share * n) ranks at even steps, so that the share holds for probes and for rows
    share = options.ipv6_share
    is_ipv6 = np.floor((rank + 1) * share + 0.5) > np.floor(rank * share + 0.5)
    sources, destinations = _addresses(rng, probe_nodes.city, is_ipv6, anchor_nodes.city)
    probes = Probes(
        nodes=probe_nodes,
        addresses=sources,
        is_ipv6=is_ipv6,
        weight=_weights(rank, options),
        access_delay_ms=np.round(rng.lognormal(math.log(4.0), 0.6, options.num_probes), 3),
        loss_rate=np.round(rng.uniform(0.02, 0.04, options.num_probes), 4),
        load_ms=rng.lognormal(0.0, 0.7, options.num_probes),
    )
    anchors = Anchors(anchor_nodes, destinations, rng.exponential(0.3, options.num_anchors))
    probe, anchor = _choose_destinations(rng, options)
    # The period in which all pairs yield num_measurements at the average interval; for periods
    # under a day or over a year, the interval is adjusted instead.
    days = options.num_measurements * options.interval_seconds / len(probe) / 86_400
    rows_per_day = options.num_measurements / min(max(days, _MIN_DAYS), _MAX_DAYS)
    pairs = _pairs(rng, probes, anchors, probe, anchor, rows_per_day)
    return Network(probes, anchors, pairs, rows_per_day)


def _place(rng: np.random.Generator, num_nodes: int) -> Nodes:
    """Puts nodes into cities by weight, scattered by about half a degree (55 km)."""
    weight = CITIES["weight"]
    city = rng.choice(len(CITIES), num_nodes, p=weight / weight.sum())
    latitude, longitude = CITIES["latitude"][city], CITIES["longitude"][city]
    north, east = rng.normal(0.0, 0.5, (2, num_nodes))
    east /= np.cos(np.radians(latitude))
    return Nodes(city, np.round(latitude + north, 4), np.round(longitude + east, 4))


def _weights(rank: Ints, options: NetworkOptions) -> Floats:
    """Zipf's law (1/rank), raised at its tail so that most probes get several measurements."""
    zipf = 1.0 / (rank + 1.0)
    zipf /= zipf.sum()
    even_share = min(0.5, _FLOOR_MEASUREMENTS * options.num_probes / options.num_measurements)
    weight = (1 - even_share) * zipf + even_share / options.num_probes
    busiest = int(np.argmin(rank))
    if options.num_probes > 1 and options.hot_share > weight[busiest]:
        weight *= (1 - options.hot_share) / (1 - weight[busiest])
        weight[busiest] = options.hot_share
    return weight


def _choose_destinations(rng: np.random.Generator, options: NetworkOptions) -> tuple[Ints, Ints]:
    """Returns (probe, anchor) of every pair: different anchors per probe, as many as available.

    Robert Floyd's sampling without replacement; memory does not depend on the number of anchors.
    """
    num_probes, num_anchors = options.num_probes, options.num_anchors
    largest = options.max_destinations
    most = min(largest, num_anchors)
    chosen = np.empty((num_probes, most), np.int64)
    for column, newest in enumerate(range(num_anchors - most, num_anchors)):
        draw = rng.integers(0, newest + 1, num_probes)
        taken = (chosen[:, :column] == draw[:, None]).any(axis=1)
        chosen[:, column] = np.where(taken, newest, draw)
    num_kept = np.minimum(rng.integers((largest + 1) // 2, largest + 1, num_probes), most)
    kept = np.arange(most) < num_kept[:, None]
    # The set is uniform but its order is not: shuffle before keeping the first few.
    return np.repeat(np.arange(num_probes), num_kept), rng.permuted(chosen, axis=1)[kept]


def _pairs(
    rng: np.random.Generator,
    probes: Probes,
    anchors: Anchors,
    probe: Ints,
    anchor: Ints,
    rows_per_day: float,
) -> Pairs:
    """Computes rate and delays of every (probe, anchor) pair."""
    here, there = probes.nodes.take(probe), anchors.nodes.take(anchor)
    stretch = np.maximum(_MIN_STRETCH, rng.lognormal(math.log(1.5), 0.12, len(probe)))
    probe_load, anchor_load = probes.load_ms[probe], anchors.load_ms[anchor]
    probe_turn, anchor_turn = (
        2 * np.pi * (nodes.longitude / 360 - _EVENING_PEAK_TURN) for nodes in (here, there)
    )
    uptime = 1 - OUTAGE_SHARE * (MIN_OUTAGE_HOURS + MAX_OUTAGE_HOURS) / 2 / 24
    rate_hz = (probes.weight / np.bincount(probe))[probe] * (rows_per_day / 86_400 / uptime)
    travel_ms = 2 * _distance_km(here, there) / _KM_PER_MS * stretch
    mean_ms = travel_ms + probes.access_delay_ms[probe] + probe_load + anchor_load
    sine_ms = probe_load * np.cos(probe_turn) + anchor_load * np.cos(anchor_turn)
    cosine_ms = probe_load * np.sin(probe_turn) + anchor_load * np.sin(anchor_turn)
    destination = anchor + np.where(probes.is_ipv6[probe], len(anchors.load_ms), 0)
    return Pairs(
        probe=probe.astype(np.int32),
        destination=destination.astype(np.int32),
        rate_hz=rate_hz,
        phase=rng.random(len(probe), np.float32),
        mean_ms=mean_ms.astype(np.float32),
        sine_ms=sine_ms.astype(np.float32),
        cosine_ms=cosine_ms.astype(np.float32),
    )


def _distance_km(here: Nodes, there: Nodes) -> Floats:
    """Returns the great-circle distances (haversine)."""
    lat, lon, other_lat, other_lon = map(np.radians, (*here[1:], *there[1:]))
    half_chord = np.sin((other_lat - lat) / 2) ** 2
    half_chord += np.cos(lat) * np.cos(other_lat) * np.sin((other_lon - lon) / 2) ** 2
    return 2 * _EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.minimum(half_chord, 1.0)))


def _addresses(
    rng: np.random.Generator, probe_city: Ints, is_ipv6: NDArray[np.bool_], anchor_city: Ints
) -> tuple[list[str], list[str]]:
    """Returns one source per probe, and all destinations: IPv4, then IPv6 of every anchor.

    Probes and anchors of a city share its prefixes; hosts are drawn without replacement.
    """
    sources, destinations = np.empty(len(probe_city), object), []
    for draw, of_family in ((_ipv4_texts, ~is_ipv6), (_ipv6_texts, is_ipv6)):
        texts = draw(rng, np.concatenate([probe_city[of_family], anchor_city]))
        num_sources = np.count_nonzero(of_family)
        sources[of_family] = texts[:num_sources]
        destinations += texts[num_sources:]
    return sources.tolist(), destinations


def _ipv4_texts(rng: np.random.Generator, city: Ints) -> list[str]:
    """Draws an IPv4 address in one of the /16 of each node's city; a first octet has one city."""
    octets = rng.permutation(_PUBLIC_OCTETS)[: len(CITIES) * _PREFIXES_PER_CITY]
    prefix = octets * 256 + rng.integers(0, 256, len(octets))
    slot, host = _draw_hosts(rng, city, _HOSTS_PER_IPV4_PREFIX)
    third, last = np.divmod(host, 254)
    address = prefix[slot] << 16 | third << 8 | last + 1
    return [str(ipaddress.IPv4Address(value)) for value in address.tolist()]


def _ipv6_texts(rng: np.random.Generator, city: Ints) -> list[str]:
    """Draws an IPv6 address in one of the /32 (2a00:… to 2a0f:…) of each node's city."""
    num_prefixes = len(CITIES) * _PREFIXES_PER_CITY
    prefix = (0x2A00 + rng.integers(0, 16, num_prefixes)) << 16 | rng.choice(
        np.arange(1, 1 << 16), num_prefixes, replace=False
    )
    slot, site = _draw_hosts(rng, city, _HOSTS_PER_IPV6_PREFIX)
    network = prefix[slot] << 16 | site  # a /48
    interface = rng.integers(1, 1 << 63, len(city))
    return [
        str(ipaddress.IPv6Address(high << 80 | low))
        for high, low in zip(network.tolist(), interface.tolist(), strict=True)
    ]


def _draw_hosts(rng: np.random.Generator, city: Ints, num_hosts: int) -> tuple[Ints, Ints]:
    """Returns for each node a prefix of its city and a host below num_hosts, all distinct."""
    number = np.empty(len(city), np.int64)
    for index in range(len(CITIES)):
        members = np.flatnonzero(city == index)
        number[members] = rng.choice(num_hosts * _PREFIXES_PER_CITY, len(members), replace=False)
    slot, host = np.divmod(number, num_hosts)
    return city * _PREFIXES_PER_CITY + slot, host
