"""Addresses that are replaced: CryptoPAn as published, and what is kept of earlier batches."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yacryptopan import CryptoPAn

from beam_pipeline.sources.anonymize import Anonymizer, _slot
from tests.support.anonymizing import KEY, replaced, replaced_text
from tests.support.helpers import MAPPED_IPV4
from tests.support.properties import num_examples


def by_oracle(number: int, oracle: CryptoPAn) -> int:
    """Returns what another implementation makes of an address."""
    if number >> 32 == 0xFFFF:
        return MAPPED_IPV4 | oracle.anonymize_bin(number & 0xFFFF_FFFF, 4)
    return oracle.anonymize_bin(number, 6)


# --- the scheme ---------------------------------------------------------------------------------

# From the sample trace of the authors' own distribution, raw and sanitised.
PUBLISHED_KEY = bytes.fromhex("1522178d33a4cf80130a5b1649907d10d8988f837979652762574c2d2a842202")
PUBLISHED = {
    "128.11.68.132": "135.242.180.132",
    "129.118.74.4": "134.136.186.123",
    "130.132.252.244": "133.68.164.234",
    "141.223.7.43": "141.167.8.160",
    "192.102.249.13": "252.138.62.131",
    "192.41.57.43": "252.222.221.184",
    "207.105.49.5": "241.118.205.138",
    "24.0.250.221": "100.15.198.226",
    "24.13.62.231": "100.2.192.247",
    "4.3.88.225": "124.60.155.63",
    "64.14.118.196": "0.255.183.58",
    "64.34.154.117": "0.221.154.117",
    "10.185.25.118": "117.161.29.118",
}


@pytest.mark.parametrize("address", PUBLISHED)
def test_published_ipv4(address: str) -> None:
    assert replaced_text(address, PUBLISHED_KEY) == PUBLISHED[address]


def test_published_ipv6() -> None:
    key = b"32-char-str-for-AES-key-and-pad."  # with this, yacryptopan's own documentation
    assert replaced_text("2001:db8::1", key) == "27fe:8bc7:fee:1e:1e1f:f0fe:f0e1:83fd"
    assert replaced_text("192.0.2.1", key) == "192.0.125.244"


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
