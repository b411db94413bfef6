"""Addresses as columns against the standard library's `ipaddress`, which is the oracle."""

import ipaddress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset import addresses, layout
from beam_pipeline.dataset.addresses import FAMILY_IPV4, FAMILY_IPV6, INVALID, NULL, ZONE_ID
from tests.support.helpers import MAPPED_IPV4, as_number, canonical, spellings_of
from tests.support.properties import num_examples

IPV4 = st.integers(0, 2**32 - 1)
# Groups of zeros decide where '::' goes, so most groups are zero or short.
IPV6 = st.lists(
    st.one_of(st.just(0), st.integers(0, 0xFFFF), st.sampled_from([1, 0xF, 0x10, 0xFFF, 0xFFFF])),
    min_size=8,
    max_size=8,
).map(lambda groups: int("".join(f"{group:04x}" for group in groups), 16))
ADDRESS = st.one_of(IPV4.map(lambda n: MAPPED_IPV4 | n), IPV6)


def parsed(texts: list[str]) -> list[tuple[int, int]]:
    """Returns (128-bit value, status) of each text."""
    columns = addresses.parse(pa.array(texts, pa.string()))
    return [(int(hi) << 64 | int(lo), int(status)) for hi, lo, status in zip(*columns)]


def expected(text: str) -> tuple[int, int]:
    """The address that a text is, by the standard library."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return 0, INVALID
    if address.version == 6 and address.scope_id is not None:
        return 0, ZONE_ID
    number = as_number(text)
    return number, FAMILY_IPV4 if number >> 32 == 0xFFFF else FAMILY_IPV6


def halves(numbers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    hi = np.array([number >> 64 for number in numbers], np.uint64)
    return hi, np.array([number & (2**64 - 1) for number in numbers], np.uint64)


# --- parse --------------------------------------------------------------------------------------


@st.composite
def spelled(draw):
    """Texts of an address in any spelling that `ipaddress` takes, or one that is nearly so."""
    number = draw(ADDRESS)
    text = draw(st.sampled_from(spellings_of(number)))
    if draw(st.booleans()) and ":" in text:
        groups = text.split(":")
        at = draw(st.integers(0, len(groups) - 1))
        groups[at] = groups[at].rjust(draw(st.integers(1, 5)), "0") if groups[at] else ""
        text = ":".join(groups)
    if draw(st.booleans()) and ":" in text:
        # '::' in place of any groups: right if they were zero, another address if they were not.
        groups = text.split(":")
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(groups))] * 2)))
        text = ":".join(groups[:start]) + "::" + ":".join(groups[end:])
    return text


@settings(max_examples=num_examples(200))
@given(st.lists(spelled(), max_size=20))
def test_spellings_parse_like_ipaddress(texts):
    assert parsed(texts) == [expected(text) for text in texts]


@settings(max_examples=num_examples(200))
@given(st.text(max_size=20) | st.text(alphabet="0123456789abcdefABCDEF:.% -", max_size=45))
@example("１.2.3.4")  # a full-width digit
@example("1.2.3.4\x00")
@example("é")
def test_any_text_parses_like_ipaddress(text):
    assert parsed([text]) == [expected(text)]


EDGE_CASES = """
. : 1.2.3 01.2.3.4 1.2.3.04 00.0.0.0 1.2.3.4.5 1.2.3. .1.2.3 1..2.3 1.2.3.256 256.1.1.1 1000.1.1.1
99999999999999999999.1.1.1 1.1.1.99999999999999999999999999999999 +1.2.3.4 -1.2.3.4 0x1.2.3.4
1.2.3.4/32 16909060 ::: ::1:: 1::2::3 :1:2:3:4:5:6:7 1:2:3:4:5:6:7: 1:2:3:4:5:6:7 1:2:3:4:5:6:7:8:9
1:2:3:4:5:6:7:8:: ::1:2:3:4:5:6:7:8 1:2:3:4::5:6:7:8 12345:: 00001:: g:: ::g @:: ::` [::1] ::1%
::ffff:1.2.3 ::ffff:01.2.3.4 ::ffff:1.2.3.4:1 1:2:3:4:5:6:7:1.2.3.4 1.2.3.4:: ::ffff:256.0.0.1
localhost ::1%eth0 fe80::1%25 fe80::%0 ::ffff:1.2.3.4%eth0 ::ffff:1.2.3.4 ::FFFF:1.2.3.4
::ffff:102:304 0:0:0:0:0:ffff:0102:0304 ::1.2.3.4 ::fffe:1.2.3.4 ::1:ffff:1.2.3.4 1::ffff:0:0
0.0.0.0 255.255.255.255 :: ffff:ffff:ffff:ffff:ffff:ffff:ffff:FFFF
"""


def test_edge_cases_parse_like_ipaddress():
    texts = ["", " 1.2.3.4", "1.2.3.4 ", "1.2.3.4\n", *EDGE_CASES.split()]
    assert dict(zip(texts, parsed(texts))) == {text: expected(text) for text in texts}


def test_invalid_utf8_is_not_an_address():
    """Parquet's strings are not checked when they are read."""
    data, offsets = b"1.2.3.4\xff\xfe::1", np.array([0, 7, 9, 12], np.int32)
    texts = pa.StringArray.from_buffers(3, pa.py_buffer(offsets), pa.py_buffer(data))
    assert addresses.parse(texts)[2].tolist() == [FAMILY_IPV4, INVALID, FAMILY_IPV6]


@pytest.mark.parametrize("dtype", [pa.string(), pa.large_string(), pa.string_view()])
def test_string_types_slices_and_nulls(dtype):
    """Also all nulls, none at all, and a null over bytes."""
    texts = ["9.9.9.9", "::2", None, "", "1.2.3.4", "a rather long text, no address at all", "::1"]
    hi, lo, status = addresses.parse(pa.array(texts, dtype).slice(1, 5))
    assert status.tolist() == [FAMILY_IPV6, NULL, INVALID, FAMILY_IPV4, INVALID]
    assert lo.tolist() == [2, 0, 0, MAPPED_IPV4 | 0x01020304, 0]
    assert hi.tolist() == [0] * 5
    assert addresses.parse(pa.array([None, None], dtype))[2].tolist() == [NULL, NULL]
    assert [len(part) for part in addresses.parse(pa.array([], dtype))] == [0, 0, 0]
    buffers = (
        pa.py_buffer(b"\0"),
        pa.py_buffer(np.array([0, 7], np.int32)),
        pa.py_buffer(b"1.2.3.4"),
    )
    assert addresses.parse(pa.Array.from_buffers(pa.string(), 1, buffers))[2].tolist() == [NULL]


# --- format -------------------------------------------------------------------------------------


@settings(max_examples=num_examples(200))
@given(st.lists(ADDRESS, max_size=20))
def test_format_equals_rfc_5952(numbers):
    assert addresses.format_any(*halves(numbers)).to_pylist() == [canonical(n) for n in numbers]


@settings(max_examples=num_examples(100))
@given(st.lists(IPV4, max_size=20))
def test_format_ipv4_and_its_length(numbers):
    values = np.array(numbers, np.uint32)
    texts = addresses.format_ipv4(values).to_pylist()
    assert texts == [str(ipaddress.IPv4Address(number)) for number in numbers]
    assert addresses.ipv4_text_lengths(values).tolist() == [len(text) for text in texts]


# --- src_id -------------------------------------------------------------------------------------


def test_golden_src_id():
    """Another value would give every dataset's probes other identities and other shards."""
    assert layout.src_id("192.0.2.1") == 5_005_947_116_569_359_677
    assert layout.src_id("2001:db8::1") == 3_898_959_680_619_705_475
