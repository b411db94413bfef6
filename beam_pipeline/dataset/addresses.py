"""IP addresses as columns: text to two 64-bit halves and back, without Python objects.

An address is 128 bits, `hi` and `lo` (uint64). IPv4 is ::ffff:a.b.c.d, like an IPv4-mapped IPv6
address, so all spellings of an address are one value. Kernels parse the common spellings, the
standard library's `ipaddress` all others. Text is written as in RFC 5952.
"""

import ipaddress

import numpy as np
import pyarrow as pa

from beam_pipeline.kernels import kernel, subkernel

MAPPED_IPV4 = 0xFFFF << 32
MAX_TEXT_BYTES = 39
# The status of a text in `parse`: a family, or why it is not an address.
FAMILY_IPV4, FAMILY_IPV6 = 4, 6
INVALID, ZONE_ID, UNSURE, NULL = 0, 1, 2, 3


@subkernel
def parse_ipv4_text(data, start, end):
    """Returns the 32-bit address, or -1 if the text is not plain dotted decimal."""
    value = octet = dots = digits = 0
    for at in range(start, end):
        char = data[at]
        if char == 46:  # .
            if digits == 0 or octet > 255:
                return -1
            value = value * 256 + octet
            octet = digits = 0
            dots += 1
        elif 48 <= char <= 57:
            if (digits > 0 and octet == 0) or digits == 3:  # 01.2.3.4, 1000.2.3.4
                return -1
            octet = octet * 10 + (char - 48)
            digits += 1
        else:
            return -1
    if dots != 3 or digits == 0 or octet > 255:
        return -1
    return value * 256 + octet


@subkernel
def parse_ipv6_text(data, start, end, groups):
    """Fills the eight 16-bit `groups`; returns False if the text is not plain hex groups."""
    count = 0
    gap = -1
    value = digits = 0
    at = start
    if end - start >= 2 and data[start] == 58 and data[start + 1] == 58:
        gap = 0
        at += 2
    while at < end:
        char = data[at]
        if char == 58:  # :
            if digits == 0 or count == 8:
                return False
            groups[count] = value
            count += 1
            value = digits = 0
            at += 1
            if at == end:
                return False
            if data[at] == 58:
                if gap >= 0:
                    return False
                gap = count
                at += 1
            continue
        if 48 <= char <= 57:
            digit = char - 48
        elif 97 <= (char | 32) <= 102:
            digit = (char | 32) - 87
        else:
            return False
        digits += 1
        if digits > 4:
            return False
        value = value * 16 + digit
        at += 1
    if digits:
        if count == 8:
            return False
        groups[count] = value
        count += 1
    if gap < 0:
        return count == 8
    if count > 7:
        return False
    moved = count - gap
    for i in range(moved):
        groups[7 - i] = groups[count - 1 - i]
    for i in range(gap, 8 - moved):
        groups[i] = 0
    return True


@kernel
def _parse_all(offsets, data, hi, lo, status):
    groups = np.zeros(8, np.uint64)
    for row in range(len(offsets) - 1):
        start, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        value = parse_ipv4_text(data, start, end)
        if value >= 0:
            lo[row] = np.uint64(MAPPED_IPV4) | np.uint64(value)
            status[row] = FAMILY_IPV4
        elif parse_ipv6_text(data, start, end, groups):
            for i in range(4):
                hi[row] = (hi[row] << np.uint64(16)) | groups[i]
                lo[row] = (lo[row] << np.uint64(16)) | groups[4 + i]
            mapped = hi[row] == 0 and lo[row] >> np.uint64(32) == np.uint64(0xFFFF)
            status[row] = FAMILY_IPV4 if mapped else FAMILY_IPV6
        else:
            status[row] = UNSURE


def _parse_unusual(text: str) -> tuple[int, int]:
    """Parses a text with `ipaddress`; returns the 128-bit value and the status."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return 0, INVALID
    if isinstance(address, ipaddress.IPv4Address):
        return MAPPED_IPV4 | int(address), FAMILY_IPV4
    if address.scope_id is not None:
        return 0, ZONE_ID
    return int(address), FAMILY_IPV6 if address.ipv4_mapped is None else FAMILY_IPV4


def parse(texts: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parses n address texts.

    Args:
      texts: a string, large_string or string_view array of n values.

    Returns:
      hi, lo: uint64 [n], the halves of the 128-bit address, zero if there is none.
      status: uint8 [n], 4 or 6 for an address of that family, else INVALID, ZONE_ID or NULL.
    """
    if not pa.types.is_string(texts.type):
        texts = texts.cast(pa.large_string())
    offsets, data = string_buffers(texts)
    data.flags.writeable = False  # one version of the kernel
    hi, lo = np.zeros(len(texts), np.uint64), np.zeros(len(texts), np.uint64)
    status = np.zeros(len(texts), np.uint8)
    _parse_all(offsets, data, hi, lo, status)
    for row in np.flatnonzero(status == UNSURE).tolist():
        text = data[offsets[row] : offsets[row + 1]].tobytes().decode(errors="replace")
        value, status[row] = _parse_unusual(text)
        hi[row], lo[row] = value >> 64, value & 0xFFFF_FFFF_FFFF_FFFF
    if texts.null_count:
        status[texts.is_null().to_numpy(zero_copy_only=False)] = NULL
    return hi, lo, status


def string_buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the offsets (n + 1) and the bytes of a string or large_string array, uncopied."""
    _, offsets, data = texts.buffers()
    dtype = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    if offsets is None or len(texts) == 0:
        return np.zeros(1, dtype), np.zeros(0, np.uint8)
    view = np.frombuffer(offsets, dtype)[texts.offset : texts.offset + len(texts) + 1]
    return view, np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)


# For each octet, its digits, left aligned, and their number.
_OCTETS = np.array([[*str(o).encode().ljust(3, b"\0"), len(str(o))] for o in range(256)], np.uint8)


@subkernel
def _write_ipv4(value, out, at):
    """Writes an address at `at` and returns its end; overwrites up to 16 bytes."""
    for shift in (24, 16, 8, 0):
        octet = (value >> shift) & 255
        out[at] = _OCTETS[octet, 0]
        out[at + 1] = _OCTETS[octet, 1]
        out[at + 2] = _OCTETS[octet, 2]
        at += _OCTETS[octet, 3]
        out[at] = 46
        at += 1
    return at - 1


@subkernel
def _longest_zeros(groups):
    """Returns start and length of the zero groups replaced by '::', length 0 if none."""
    best_start, best, start, length = 0, 0, 0, 0
    for i in range(8):
        if groups[i] == 0:
            if length == 0:
                start = i
            length += 1
            if length > best:
                best_start, best = start, length
        else:
            length = 0
    return best_start, best if best >= 2 else 0


@subkernel
def _write_ipv6(hi, lo, groups, out, at):
    for i in range(4):
        groups[i] = (hi >> np.uint64(48 - 16 * i)) & np.uint64(0xFFFF)
        groups[4 + i] = (lo >> np.uint64(48 - 16 * i)) & np.uint64(0xFFFF)
    gap, length = _longest_zeros(groups)
    i = 0
    while i < 8:
        if length and i == gap:
            out[at] = out[at + 1] = 58
            at += 2
            i += length
            continue
        if i and not (length and i == gap + length):
            out[at] = 58
            at += 1
        started = False
        for shift in (12, 8, 4, 0):
            digit = (int(groups[i]) >> shift) & 15
            started = started or digit > 0 or shift == 0
            if started:
                out[at] = 48 + digit if digit < 10 else 87 + digit
                at += 1
        i += 1
    return at


@kernel
def _format_ipv4(values, offsets, out):
    at = 0
    for row in range(len(values)):
        at = _write_ipv4(int(values[row]), out, at)
        offsets[row + 1] = at
    return at


@kernel
def _format_any(hi, lo, offsets, out):
    groups = np.zeros(8, np.uint64)
    at = 0
    for row in range(len(hi)):
        if hi[row] == 0 and lo[row] >> np.uint64(32) == np.uint64(0xFFFF):
            at = _write_ipv4(int(lo[row] & np.uint64(0xFFFFFFFF)), out, at)
        else:
            at = _write_ipv6(hi[row], lo[row], groups, out, at)
        offsets[row + 1] = at
    return at


def format_ipv4(values: np.ndarray) -> pa.StringArray:
    """Formats IPv4 addresses, uint32 [n], as text with compact offsets and bytes."""
    offsets, out = np.zeros(len(values) + 1, np.int32), np.empty(len(values) * 15 + 4, np.uint8)
    return _string_array(offsets, out[: _format_ipv4(values, offsets, out)])


def format_any(hi: np.ndarray, lo: np.ndarray) -> pa.StringArray:
    """Formats addresses, halves of uint64 [n] each, as text with compact offsets and bytes."""
    offsets = np.zeros(len(hi) + 1, np.int32)
    out = np.empty(len(hi) * MAX_TEXT_BYTES + 4, np.uint8)
    return _string_array(offsets, out[: _format_any(hi, lo, offsets, out)])


def _string_array(offsets: np.ndarray, data: np.ndarray) -> pa.StringArray:
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))


@kernel
def ipv4_text_lengths(values):
    """Returns the text lengths of IPv4 addresses: uint32 [n] to uint8 [n]."""
    lengths = np.empty(len(values), np.uint8)
    for row in range(len(values)):
        length = 3
        for shift in (24, 16, 8, 0):
            length += _OCTETS[(values[row] >> shift) & 255, 3]
        lengths[row] = length
    return lengths
