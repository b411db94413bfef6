"""The columns of an input table as those of COLUMNS: names, types and units.

  table of a container → find: the columns and fields wanted → convert: typed columns of COLUMNS

Text and typed columns give the same values. A value that cannot be read as its type is null in the
converted column and marked as unreadable; `measurements.check` makes it a dead letter.
"""

import contextlib
import ipaddress
import re
import shlex
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.end_names import address_of, is_name
from beam_pipeline.errors import shortened
from beam_pipeline.sources.options import COLUMNS, Mapping, Source

_NUMBER_PER_US = {"s": 1e-6, "ms": 1e-3, "us": 1.0, "ns": 1e3}
_MS_PER_RTT_UNIT = {"s": 1e3, "ms": 1.0, "us": 1e-3}
_MAX_US = 2.0**63 - 1024
# What Arrow casts; a batch without another text is cast as a whole.
_NUMBER = (
    r"^(?i)[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|nan(\([a-z0-9_]*\))?|inf|infinity)$"
)
_ISO = r"^\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?)?"
_ZONED = _ISO + r"(Z|[+-]\d\d(:?\d\d)?)$"
_UTC = " UTC"
# What Arrow casts only if written otherwise: ISO 8601 without hyphens or with a decimal comma,
# BigQuery's zone, a zone after a space, and more digits than µs.
_REWRITTEN = (
    (r"^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)", r"\1-\2-\3T\4:\5:\6"),
    (r"(:\d\d),(\d+)", r"\1.\2"),
    (f"{_UTC}$", "Z"),
    (r" ([+-]\d\d:?\d\d)$", r"\1"),
    (r"(\.\d{6})\d+", r"\1"),
)
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_NO_CHILD = (KeyError, TypeError, AttributeError, pa.ArrowInvalid)
# What other names of a column have in common, likely ones first.
_ALIKE = {
    "event_time": ("time", "date", "stamp", r"\bts"),
    "src_addr": ("src", "source", "from", "probe", "vantage"),
    "dst_addr": ("dst", "dest", "target", r"\bto\b", r"\bhost\b"),
    "ip_version": (r"\bip_?v", r"\baf\b", "family"),
    "rtt": ("rtt", "laten", "delay", "ping", "avg"),
}
UNIT_CURE = "pass --time_unit=s, ms, us or ns"


class Converted(NamedTuple):
    """Measurements of a batch of rows."""

    measurements: pa.RecordBatch  # the columns of COLUMNS, n rows
    parents: np.ndarray | None  # int64 [n], the row of each measurement; None if it is its number
    unreadable: dict[str, np.ndarray]  # by column: bool [n], whether its value cannot be read
    originals: pa.RecordBatch  # the columns of COLUMNS as the input has them, for dead letters
    names: tuple[str, ...] = ()  # of ends, distinct


def is_text(dtype: pa.DataType) -> bool:
    """Returns whether a type is text, as strings or as unannotated UTF-8."""
    types = pa.types
    return (
        types.is_string(dtype)
        or types.is_large_string(dtype)
        or types.is_string_view(dtype)
        or types.is_binary(dtype)
        or types.is_large_binary(dtype)
    )


def _is_number(dtype: pa.DataType) -> bool:
    return pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)


def is_list(dtype: pa.DataType) -> bool:
    return pa.types.is_list(dtype) or pa.types.is_large_list(dtype)


def _value_type(dtype: pa.DataType) -> pa.DataType:
    return dtype.value_type if pa.types.is_dictionary(dtype) else dtype


def find_type(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Returns the type of a column, or of a nested field by its dotted name; None if missing."""
    return _find(schema, name, lambda parent, head: parent.field(head).type)


def find_column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    """Returns a column, or a nested field by its dotted name; None if it is missing."""
    return _find(batch, name, _child)


def find_value(record: dict[str, Any], name: str) -> Any:
    """Returns the value of a name, or of a nested field by its dotted name; None if missing."""
    return _find(record, name, lambda parent, head: parent[head])


def _find(parent: Any, name: str, child: Callable[[Any, str], Any]) -> Any:
    """Returns a child, or one within a child of which the name up to a dot is the name; or None."""
    with contextlib.suppress(*_NO_CHILD):
        return child(parent, name)
    for dot in (at for at, char in enumerate(name) if char == "."):
        with contextlib.suppress(*_NO_CHILD):
            inner = child(parent, name[:dot])
            if (found := _find(inner, name[dot + 1 :], child)) is not None:
                return found
    return None


def _child(parent: pa.RecordBatch | pa.StructArray, name: str) -> pa.Array:
    """Returns a column, or a field that is null where its struct is."""
    if isinstance(parent, pa.RecordBatch):
        return parent.column(name)
    return pc.struct_field(parent, [parent.type.get_field_index(name)])


def partitions_of(path: str) -> dict[str, str]:
    """Returns the values of the folders of a path that are named `name=value`, as Hive does."""
    pairs = [part.partition("=") for part in path.split("/")[:-1] if "=" in part]
    return {name: unquote(value) for name, _, value in pairs if value != _HIVE_NULL}


def problem_of(
    schema: pa.Schema,
    mapping: Mapping,
    partitions: Collection[str] = (),
    shown: Sequence[str] | None = None,
) -> str | None:
    """Returns one line about the first unsuited or all missing columns of a table, with a cure.

    `shown` are the names that a message may list, by default all.
    """
    lacking: list[tuple[str, str]] = []
    for column, source in mapping.names.items():
        for name in source.names:
            count = len(schema.get_all_field_indices(name))
            if count > 1:
                return f"has {count} columns named {name!r}; it must be one"
            dtype = find_type(schema, name)
            if dtype is not None:
                if problem := _type_problem(column, name, _value_type(dtype), source, mapping):
                    return problem
            elif name not in partitions and not (column == "ip_version" == name):
                lacking.append((column, name))
    names = schema.names if shown is None else shown
    return missing(lacking, names, mapping) if lacking else None


def missing(lacking: Sequence[tuple[str, str]], names: Sequence[str], mapping: Mapping) -> str:
    """Returns one line about columns that a table lacks, with what may be meant of those it has.

    `lacking` are columns and their names there, `names` those that the table has.
    """
    wanted = ", ".join(repr(name) for _, name in lacking)
    given = {name: each.text for name, each in mapping.names.items() if each != Source((name,))}
    guessed = {column: _alike(column, names) for column in dict(lacking)}
    pairs = ",".join(f"{column}={text}" for column, text in (given | guessed).items())
    return (
        f"has no column {wanted} (only {shortened(names)}); "
        f"give other names in --columns {shlex.quote(pairs)}"
    )


def _alike(column: str, names: Sequence[str]) -> str:
    """Returns the only name that has something in common with a column's, or NAME."""
    for word in _ALIKE[column]:
        found = [name for name in names if re.search(word, name.lower())]
        found = [name for name in found if name.isprintable() and "," not in name]  # for the flag
        if len(found) == 1:
            return found[0]
    return "NAME"


def _type_problem(
    column: str, name: str, dtype: pa.DataType, source: Source, mapping: Mapping
) -> str | None:
    # Names within a field may be addresses.
    kind = str(dtype).partition("<")[0] if pa.types.is_nested(dtype) else dtype
    seen = f"has column {name!r} of type {kind}"
    if pa.types.is_null(dtype):
        return None
    if pa.types.is_struct(dtype):
        return f"{seen}: name a field of it, as in --columns '{column}={name}.FIELD'"
    if column == "event_time":
        if pa.types.is_timestamp(dtype):
            return None
        if _is_number(dtype):
            if mapping.time_unit in _NUMBER_PER_US:
                return None
            return f"{seen}, a number without a unit: {UNIT_CURE}"
        if is_text(dtype):
            return None
        return f"{seen}, which must be a timestamp, a number or an ISO 8601 text"
    if column in ("src_addr", "dst_addr"):
        packed = _packed_kind(dtype)
        if source.is_packed:
            return None if packed else f"{seen}, which holds no packed addresses: leave out :packed"
        if packed and mapping.ends != "names":
            return (
                f"{seen}, which must be a text; if it is an address as {packed}, pass --columns "
                f"{column}={name}:packed"
            )
        if is_text(dtype) or (mapping.ends == "names" and _is_number(dtype)):
            return None
        return f"{seen}, which must be a text"
    if column == "rtt" and is_list(dtype):
        dtype = dtype.value_type
    if _is_number(dtype) or is_text(dtype) or pa.types.is_null(dtype):
        return None
    return f"{seen}, which must be a number"


def _packed_kind(dtype: pa.DataType) -> str | None:
    if pa.types.is_integer(dtype):
        return "a number"
    if pa.types.is_fixed_size_binary(dtype) and dtype.byte_width in (4, 16):
        return f"{dtype.byte_width} bytes"
    return None


def convert(
    batch: pa.RecordBatch, mapping: Mapping, partitions: dict[str, str] | None = None
) -> Converted:
    """Returns the measurements of a batch of rows of a table.

    `partitions` has the values of `name=value` folders of the path, for columns that the table
    lacks.
    """
    raw, parents = _raw_columns(batch, mapping, partitions or {})
    unreadable: dict[str, np.ndarray] = {}

    def read(
        column: str, convert_column: Callable[..., tuple[pa.Array, np.ndarray]], *args
    ) -> pa.Array:
        values, bad = convert_column(raw[column], *args)
        if bad.any():
            unreadable[column] = bad
        return values

    sources = mapping.names
    src, dst = (_addresses(raw[name], sources[name]) for name in ("src_addr", "dst_addr"))
    names: set[str] = set()
    if mapping.ends == "names":
        raw.pop("ip_version", None)  # a name has none
        src, dst = _named(src, names), _named(dst, names)
    version = (
        read("ip_version", _versions) if "ip_version" in raw else family_of(encoded_texts(dst))
    )
    columns = [
        read("event_time", _times, mapping.time_unit),
        src,
        dst,
        version,
        read("rtt", _rtts, _MS_PER_RTT_UNIT[mapping.rtt_unit], mapping.failed),
    ]
    measurements = pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))
    shown = [
        raw[name] if name in raw and _is_shown(raw[name].type) else measurements.column(name)
        for name in COLUMNS
    ]
    originals = pa.RecordBatch.from_arrays(shown, names=list(COLUMNS))
    return Converted(measurements, parents, unreadable, originals, tuple(names))


def _is_shown(dtype: pa.DataType) -> bool:
    """Returns whether a dead letter can have a value of a type as text."""
    dtype = _value_type(dtype)
    return is_text(dtype) or _is_number(dtype) or pa.types.is_timestamp(dtype)


def _raw_columns(
    batch: pa.RecordBatch, mapping: Mapping, partitions: dict[str, str]
) -> tuple[dict[str, pa.Array], np.ndarray | None]:
    """Returns the input's column for each of COLUMNS, one line per measurement."""
    raw: dict[str, pa.Array] = {}
    for column, source in mapping.names.items():
        found = [find_column(batch, name) for name in source.names]
        if len(found) > 1:
            continue
        if found and found[0] is not None:
            # A column without any value has no type; the version is then that of dst_addr.
            if column != "ip_version" or not pa.types.is_null(found[0].type):
                raw[column] = found[0]
            continue
        value = source.constant or (partitions.get(source.names[0]) if source.names else None)
        if value is not None:
            raw[column] = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
        elif column != "ip_version":  # a field that no object of a batch of JSON has
            raw[column] = pa.nulls(batch.num_rows)
    names = mapping.names["rtt"].names
    if len(names) > 1:
        wide = [find_column(batch, name) for name in names]
        texts = any(each is not None and is_text(_value_type(each.type)) for each in wide)
        as_type = pa.string() if texts else pa.float64()
        parts = [
            pa.nulls(batch.num_rows, as_type) if each is None else _plain(each).cast(as_type)
            for each in wide
        ]
        order = np.arange(len(parts) * batch.num_rows).reshape(len(parts), -1).T.ravel()
        rtt = pa.concat_arrays(parts).take(pa.array(order))
        parents = np.repeat(np.arange(batch.num_rows), len(parts))
    elif is_list(raw["rtt"].type):
        lists = raw["rtt"]
        # A row without any RTT stays a row: its RTT is null.
        is_empty = pc.fill_null(pc.equal(pc.list_value_length(lists), 0), True)
        lists = pc.if_else(is_empty, pa.scalar([None], lists.type), lists)
        parents = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
        rtt = lists.flatten()
    else:
        return raw, None
    raw = {name: column.take(pa.array(parents)) for name, column in raw.items() if name != "rtt"}
    return raw | {"rtt": rtt}, parents


def _plain(column: pa.Array) -> pa.Array:
    """Returns a column without dictionary, views or binary text."""
    if pa.types.is_dictionary(column.type):
        values = _plain(column.dictionary)
        column = pa.DictionaryArray.from_arrays(column.indices, values).dictionary_decode()
    if pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    if pa.types.is_binary(column.type):
        return column.view(pa.string())
    return column.view(pa.large_string()) if pa.types.is_large_binary(column.type) else column


def encoded_texts(column: pa.Array) -> pa.DictionaryArray:
    """Returns texts with a dictionary: `check` needs codes, which cost less to repeat."""
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def _none_bad(column: pa.Array) -> np.ndarray:
    return np.zeros(len(column), bool)


def _is_null(column: pa.Array) -> np.ndarray:
    return column.is_null().to_numpy(zero_copy_only=False)


def _mask(values: pa.Array) -> np.ndarray:
    return values.fill_null(False).to_numpy(zero_copy_only=False)


def _addresses(column: pa.Array, source: Source) -> pa.Array:
    """Returns addresses as text; work is per distinct address."""
    if pa.types.is_null(column.type):
        return column.cast(pa.string())
    if not source.is_packed:
        if not is_text(_value_type(column.type)):  # JSON has any type
            column = _plain(column)
            is_number = _is_number(column.type)
            return column.cast(pa.string()) if is_number else pa.nulls(len(column), pa.string())
        if pa.types.is_dictionary(column.type) or pa.types.is_string_view(column.type):
            return column
        return _plain(column)
    encoded = encoded_texts(column)
    texts = [_unpacked(value) for value in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(texts, pa.string()))


def _named(column: pa.Array, names: set[str]) -> pa.DictionaryArray:
    """Replaces names by their addresses, and adds them to `names`; leaves addresses as they are."""
    encoded = encoded_texts(_plain(column))
    _, _, status = addresses.parse(encoded.dictionary)
    texts = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    for at in np.flatnonzero((status == addresses.INVALID) | (status == addresses.ZONE_ID)):
        with contextlib.suppress(UnicodeDecodeError):
            name = texts[at].decode().strip()
            if is_name(name):
                texts[at] = address_of(name).encode()
                names.add(name)
    known = pa.array(texts, pa.large_binary()).view(pa.large_string())
    return pa.DictionaryArray.from_arrays(encoded.indices, known)


def _unpacked(value: int | bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return str(ipaddress.IPv4Address(value) if isinstance(value, int) else _address(value))
    except ValueError:
        return str(value)  # not an address: a dead letter shows it


def _address(packed: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(packed)
    return getattr(found, "ipv4_mapped", None) or found


def family_of(column: pa.DictionaryArray) -> pa.Array:
    """Returns 4 or 6 for each address, null for invalid ones."""
    _, _, status = addresses.parse(column.dictionary)
    families = pa.array(status, pa.int8(), mask=status < addresses.FAMILY_IPV4)
    return families.take(column.indices)


def _numbers(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Returns a column as float64, NaN texts included, and which texts are no numbers."""
    column = _plain(column)
    if pa.types.is_null(column.type):
        return column.cast(pa.float64()), _none_bad(column)
    if not is_text(column.type):
        if _is_number(column.type):
            return column.cast(pa.float64(), safe=False), _none_bad(column)
        return pa.nulls(len(column), pa.float64()), ~_is_null(column)
    return _cast_texts(pc.ascii_trim_whitespace(column), pa.float64(), _NUMBER)


def _versions(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    column = _plain(column)
    if pa.types.is_integer(column.type):
        return column, _none_bad(column)
    numbers, bad = _numbers(column)
    if bad.any() and is_text(column.type):
        numbers, bad = _numbers(pc.replace_substring_regex(column, r"(?i)^(ip)?v([46])$", r"\2"))
    values = numbers.to_numpy(zero_copy_only=False)
    is_valid = np.isin(values, (4.0, 6.0))
    bad |= ~is_valid & ~np.isnan(values)
    return pa.array(np.where(is_valid, values, 0).astype(np.int8), mask=~is_valid), bad


def _rtts(
    column: pa.Array, ms_per_unit: float, failed: Sequence[str]
) -> tuple[pa.Array, np.ndarray]:
    column = _plain(column)
    texts = [text for text in failed if text not in ("null", "nan", "zero")]
    is_failed = _none_bad(column)
    if is_text(column.type):
        column = pc.ascii_trim_whitespace(column)
        is_failed |= _mask(pc.is_in(column, pa.array(texts, column.type)))
        # An empty text is a missing value.
        column = pc.if_else(pc.or_(pc.equal(column, ""), pa.array(is_failed)), None, column)
    if pa.types.is_floating(column.type) and not failed and ms_per_unit == 1:
        return column, is_failed
    numbers, bad = _numbers(column)
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    nulls = _is_null(numbers)
    for word, holds in (
        ("null", nulls & ~bad & ~is_failed),
        ("nan", np.isnan(values)),
        ("zero", ~nulls & (values == 0)),
    ):
        if word in failed:
            is_failed = is_failed | holds
    with np.errstate(over="ignore"):
        scaled = np.where(is_failed, -1.0, values * ms_per_unit)
    return pa.array(scaled, mask=nulls & ~is_failed), bad & ~is_failed


def _times(column: pa.Array, unit: str) -> tuple[pa.Array, np.ndarray]:
    column = _plain(column)
    if pa.types.is_timestamp(column.type):
        return column, _none_bad(column)
    if pa.types.is_null(column.type):
        return column.cast(pa.timestamp("us")), _none_bad(column)
    if is_text(column.type):
        column = pc.ascii_trim_whitespace(column)
        column = pc.if_else(pc.equal(column, ""), None, column)
        if unit in ("", "iso"):
            return _iso_times(column)
    elif pa.types.is_integer(column.type) and unit in ("s", "ms", "us", "ns"):
        # Exact, and `check` knows the range of each unit.
        return column.cast(pa.int64(), safe=False).cast(pa.timestamp(unit)), _none_bad(column)
    if unit not in _NUMBER_PER_US:
        return pa.nulls(len(column), pa.timestamp("us")), ~_is_null(column)
    numbers, bad = _numbers(column)
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False) / _NUMBER_PER_US[unit]
    bad = bad | ~(np.abs(values) < _MAX_US)
    times = np.where(bad, 0, np.round(values)).astype(np.int64)
    nulls = _is_null(numbers)
    return pa.array(times, pa.timestamp("us"), mask=nulls | bad), bad


def _iso_times(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Returns ISO 8601 texts as times in µs, by default UTC; further digits are cut."""
    # The first text decides how all are cast: a cast that fails takes twenty times as long.
    is_zoned = pc.any(pc.match_substring_regex(column.drop_null()[:1], _ZONED)).as_py()
    with contextlib.suppress(pa.ArrowInvalid):
        texts = column
        if not is_zoned and pc.all(pc.ends_with(column, _UTC)).as_py():
            texts = pc.utf8_slice_codeunits(column, 0, -len(_UTC))
        times = texts.cast(pa.timestamp("us", "UTC" if is_zoned else None))
        return times.cast(pa.timestamp("us")), _none_bad(column)
    for pattern, replacement in _REWRITTEN:
        column = pc.replace_substring_regex(column, pattern, replacement)
    zoned = pc.match_substring_regex(column, _ZONED)
    plain = pc.match_substring_regex(column, _ISO + "$")
    as_zoned, bad = _cast_each(pc.if_else(zoned, column, None), pa.timestamp("us", "UTC"))
    as_plain, also_bad = _cast_each(pc.if_else(plain, column, None), pa.timestamp("us"))
    times = pc.coalesce(as_zoned.cast(pa.timestamp("us")), as_plain)
    return times, bad | also_bad | _mask(pc.invert(pc.or_(zoned, plain)))


def _cast_texts(column: pa.Array, dtype: pa.DataType, form: str) -> tuple[pa.Array, np.ndarray]:
    """Casts texts; if some cannot be cast, only those of a form, a regular expression."""
    with contextlib.suppress(pa.ArrowInvalid):
        return column.cast(dtype), _none_bad(column)
    fits = pc.match_substring_regex(column, form)
    values, bad = _cast_each(pc.if_else(fits, column, None), dtype)
    return values, bad | _mask(pc.invert(fits))


def _cast_each(column: pa.Array, dtype: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Casts values, null where that fails; also returns where it does."""
    try:
        return column.cast(dtype), _none_bad(column)
    except pa.ArrowInvalid:
        if len(column) == 1:
            return pa.nulls(1, dtype), np.ones(1, bool)
    half = len(column) // 2
    parts = [_cast_each(part, dtype) for part in (column[:half], column[half:])]
    values = pa.concat_arrays([values for values, _ in parts])
    return values, np.concatenate([bad for _, bad in parts])
