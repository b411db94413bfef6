"""RIPE Atlas ping results: JSON lines and BigQuery exports as batches of measurements.

Batches have the columns of COLUMNS, with nulls for missing values; `measurements.check` applies the
rules, as for any other input. A result is parsed once in Python, and Arrow repeats the values that
its pings share, so that a measurement costs one float.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.dead_letters import MAX_VALUE_CHARS
from beam_pipeline.documents.json_records import ArrayError, begins_array, split_array
from beam_pipeline.sources import measurements
from beam_pipeline.sources.options import COLUMNS, AtlasSource
from beam_pipeline.storage.lines import DAMAGE, read_blocks, split_lines

# Reasons of dead letters for whole lines. The last two are rules of `check`, for values that do not
# fit its columns.
LINE_REASONS = (
    "json_invalid",
    "json_not_an_object",
    "line_too_long",
    "not_a_ping",
    "no_results",
    "dns_error",
    "wrong_type",
    "event_time_out_of_range",
    "ip_version_not_4_or_6",
)
# A result is a few hundred bytes. The bound keeps a file without line ends out of memory.
MAX_LINE_BYTES = 1 << 20

_FAILED = -1.0
_US_PER_S = 1_000_000
_MAX_SECONDS = np.iinfo(np.int64).max // _US_PER_S
# The names in firmware 4460 and later, then those in earlier firmware.
_DST_NAMES = ("dst_addr", "addr")
_SRC_NAMES = {"from": ("from",), "src_addr": ("src_addr", "srcaddr")}
_BIGQUERY_SRC_NAMES = {"from": "synth_addr", "src_addr": "src_addr"}
# The fields of an entry of `pings`, their types, and the names of the types in messages.
_PING_FIELDS = {
    "timeout": (pa.types.is_boolean, "a boolean"),
    "error": (pa.types.is_boolean, "a boolean"),
    "rtt": (pa.types.is_floating, "a floating-point number"),
}
_PING_PATHS = tuple(f".{name}" for name in _PING_FIELDS)


class JsonBatch(NamedTuple):
    """The measurements of consecutive lines."""

    measurements: pa.RecordBatch  # the columns of COLUMNS, n rows
    lines: np.ndarray  # int64 [n], the line of each measurement, counted from 0
    bad_lines: list[tuple[int, str, str]]  # (line, one of LINE_REASONS, the line's text)
    num_lines: int  # blank lines included


class Exploded(NamedTuple):
    """The pings of a batch of BigQuery rows."""

    measurements: pa.RecordBatch  # the columns of COLUMNS, n rows
    rows: np.ndarray  # int64 [n], the row of the batch of each measurement
    empty_rows: np.ndarray  # int64 [k], the rows without pings: dead letters, 'no_results'


class _BadLineError(Exception):
    """A line is a dead letter; the message is its reason."""


class _Result(NamedTuple):
    """Values shared by the pings of one line."""

    line: int
    num_pings: int
    event_time: int | None  # µs since 1970
    src_addr: str | None
    dst_addr: str | None
    ip_version: int | None


def read_json(
    stream: BinaryIO, atlas_source: AtlasSource, batch_rows: int = 131_072
) -> Iterator[JsonBatch]:
    """Reads RIPE Atlas ping results: JSON lines, one object each, or one JSON array of objects.

    Each entry of `result` is a measurement at the result's `timestamp`, the only time reported by
    Atlas: its `rtt`, or a failed ping if it has `x` (timeout) or `error`, else a null rtt. Entries
    marked `dup` are measurements: firmware marks every reply with an unexpected sequence number,
    including replies after their timeout (`{"x":"*"},{"dup":1,"rtt":1635.4}`); only traceroute has
    `late`. A failed name resolution is an `error` without a destination. Firmware 1 reports only
    means over its pings: no_results.

    Format: https://atlas.ripe.net/docs/apis/measurement-result-format/

    Args:
      stream: the decompressed file; blank lines are counted. Elements of an array count as lines.
      atlas_source: the field with the source, `from` (the public address) or `src_addr`.
      batch_rows: a batch ends with the line at which it reaches this many measurements and bad
        lines; results are not split.

    Raises:
      DAMAGE, ArrayError: the file is truncated or damaged, after all lines before it.
    """
    src_names = _SRC_NAMES[atlas_source]
    results: list[_Result] = []
    rtts: list[float | None] = []
    bad_lines: list[tuple[int, str, str]] = []
    start, line = 0, -1
    damage: list[Exception] = []
    for line, text in enumerate(_lines(stream, damage)):
        if not text or text.isspace():
            continue
        try:
            result, pings = _parse(line, text, src_names)
        except _BadLineError as bad:
            # A character takes at most four bytes, so enough bytes remain for a dead letter.
            excerpt = text[: 4 * MAX_VALUE_CHARS].decode("utf-8", "replace")
            bad_lines.append((line, str(bad), excerpt[:MAX_VALUE_CHARS]))
        else:
            results.append(result)
            rtts += pings
        if len(rtts) + len(bad_lines) >= batch_rows:
            yield _to_batch(results, rtts, bad_lines, line + 1 - start)
            results, rtts, bad_lines, start = [], [], [], line + 1
    if line >= start:
        yield _to_batch(results, rtts, bad_lines, line + 1 - start)
    if damage:
        raise damage[0]


def _lines(stream: BinaryIO, damage: list[Exception]) -> Iterator[bytes]:
    """Yields lines, or the elements of an array; an error that ends them goes to `damage`."""
    blocks = read_blocks(stream)
    try:
        first_block = next(blocks, b"")
        split = split_array if begins_array(first_block) else split_lines
        for lines in split(chain([first_block], blocks), MAX_LINE_BYTES):
            yield from lines
    except (*DAMAGE, ArrayError) as error:
        damage.append(error)


def _parse(
    line: int, text: bytes, src_names: tuple[str, ...]
) -> tuple[_Result, list[float | None]]:
    """Returns a line's result and the rtt of each ping, or raises _BadLineError."""
    if len(text) > MAX_LINE_BYTES:
        raise _BadLineError("line_too_long")
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise _BadLineError("json_invalid") from None
    if type(fields) is not dict:
        raise _BadLineError("json_not_an_object")
    # Firmware before 4460 gives no type.
    if fields.get("type", "ping") != "ping":
        raise _BadLineError("not_a_ping")
    pings = fields.get("result")
    if pings is None or pings == []:
        raise _BadLineError("dns_error" if fields.get("dnserr") is not None else "no_results")
    if type(pings) is not list:
        raise _BadLineError("wrong_type")
    event_time, src_addr = _event_time(fields.get("timestamp")), _text(fields, src_names)
    dst_addr, ip_version = _text(fields, _DST_NAMES), _ip_version(fields)
    result = _Result(line, len(pings), event_time, src_addr, dst_addr, ip_version)
    return result, [_rtt(ping) for ping in pings]


def _typed(value: Any, *types: type) -> Any:
    """Returns a value, or raises _BadLineError unless it is None or of these types."""
    if value is not None and type(value) not in types:  # exactly: Python's True is an int
        raise _BadLineError("wrong_type")
    return value


def _event_time(timestamp: Any) -> int | None:
    if _typed(timestamp, int, float) is None:
        return None
    if abs(timestamp) > _MAX_SECONDS:
        raise _BadLineError("event_time_out_of_range")
    return round(timestamp * _US_PER_S)


def _text(fields: dict[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        if (text := _typed(fields.get(name), str)) is not None:
            return text
    return None


def _ip_version(fields: dict[str, Any]) -> int | None:
    version = _typed(fields.get("af", fields.get("pf")), int)
    if version is not None and not -128 <= version <= 127:
        raise _BadLineError("ip_version_not_4_or_6")
    return version


def _rtt(ping: Any) -> float | None:
    if type(ping) is not dict:
        raise _BadLineError("wrong_type")
    if "x" in ping or "error" in ping:
        failure = ping.get("x", ping.get("error"))
        if type(failure) is not str:
            raise _BadLineError("wrong_type")
        return _FAILED
    rtt = ping.get("rtt")
    return rtt if type(rtt) is float or rtt is None else float(_typed(rtt, int))


def _to_batch(
    results: list[_Result],
    rtts: list[float | None],
    bad_lines: list[tuple[int, str, str]],
    num_lines: int,
) -> JsonBatch:
    columns = zip(*results, strict=True) if results else [()] * len(_Result._fields)
    lines, num_pings, times, srcs, dsts, versions = columns
    dst = pa.array(dsts, pa.string()).dictionary_encode()
    version = pa.array(versions, pa.int8())
    if version.null_count:
        version = pc.coalesce(version, _family(dst))
    parents = np.repeat(np.arange(len(results)), np.array(num_pings, np.int64))
    src = pa.array(srcs, pa.string()).dictionary_encode()
    shared = [pa.array(times, pa.timestamp("us")), src, dst, version]
    batch = _repeat(shared, parents, pa.array(rtts, pa.float64()))
    return JsonBatch(batch, np.array(lines, np.int64)[parents], bad_lines, num_lines)


def _family(addrs: pa.DictionaryArray) -> pa.Array:
    """Returns 4 or 6 for each address, null for invalid ones."""
    _, _, status = addresses.parse(addrs.dictionary)
    families = pa.array(status, pa.int8(), mask=status < addresses.FAMILY_IPV4)
    return families.take(addrs.indices)


def _repeat(shared: list[pa.Array], parents: np.ndarray, rtt: pa.Array) -> pa.RecordBatch:
    """Returns a batch of COLUMNS: row i has the values `parents[i]` of the shared columns."""
    index = pa.array(parents)
    columns = [column.take(index) for column in shared]
    return pa.RecordBatch.from_arrays([*columns, rtt], names=list(COLUMNS))


def is_bigquery_export(schema: pa.Schema) -> bool:
    """Returns whether Parquet is an export of the BigQuery table, which has `pings` lists."""
    index = schema.get_field_index("pings")
    return index >= 0 and _is_list(schema.field(index).type)


def _is_list(dtype: pa.DataType) -> bool:
    return pa.types.is_list(dtype) or pa.types.is_large_list(dtype)


def bigquery_columns(schema: pq.ParquetSchema, atlas_source: AtlasSource) -> list[str]:
    """Returns the dotted paths of the columns to read, with only the needed fields of `pings`.

    The paths between a list and its fields depend on the writer (`pings.list.element.rtt`,
    `pings.list.item.rtt`), so they are taken from the file's schema.
    """
    wanted = {"start_time", _BIGQUERY_SRC_NAMES[atlas_source], "dst_addr", "af"}
    paths = [schema.column(i).path for i in range(len(schema))]
    pings = {path for path in paths if path.startswith("pings.") and path.endswith(_PING_PATHS)}
    return [path for path in paths if path in wanted | pings]


def bigquery_schema_problem(schema: pa.Schema, atlas_source: AtlasSource) -> str | None:
    """Returns one line about the first missing or mistyped column, if any."""
    src_name = _BIGQUERY_SRC_NAMES[atlas_source]
    names = ("start_time", src_name, "dst_addr", "af", "pings")
    for name, column in zip(names, (*COLUMNS[:4], "pings"), strict=True):
        count = len(schema.get_all_field_indices(name))
        if count != 1:
            return (
                f"must have one column {name!r} and has {count} (of {', '.join(schema.names)}); "
                f"export start_time, {src_name}, dst_addr, af and pings of the table "
                "ripencc-atlas.measurements.ping"
            )
        dtype = schema.field(name).type
        if name == "pings":
            return _pings_problem(dtype)
        if problem := measurements.type_problem(name, dtype, column):
            return problem
    return None


def _pings_problem(dtype: pa.DataType) -> str | None:
    if not _is_list(dtype) or not pa.types.is_struct(dtype.value_type):
        return f"has column 'pings' of type {dtype}, which must be a list of structs"
    for name, (is_right, wanted) in _PING_FIELDS.items():
        index = dtype.value_type.get_field_index(name)
        if index < 0:
            return f"has column 'pings' of type {dtype}, which must have one field {name!r}"
        field = dtype.value_type.field(index).type
        if not is_right(field):
            return f"has field 'pings.{name}' of type {field}, which must be {wanted}"
    return None


def explode_bigquery(batch: pa.RecordBatch, atlas_source: AtlasSource) -> Exploded:
    """Returns the measurements of BigQuery rows, one per entry of `pings`.

    An entry with `timeout` or `error` is a failed ping; an entry without these and without an rtt
    has a null rtt. The source is `synth_addr`, the public address, or `src_addr`. The batch may be
    a slice.

    Schema: https://github.com/RIPE-NCC/ripe-atlas-bigquery/blob/main/docs/measurements_ping.md
    """
    lists = batch.column("pings")
    num_pings = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    parents = np.repeat(np.arange(len(lists)), num_pings)
    # `struct_field` returns null for the fields of a null entry; `StructArray.field` does not.
    pings = lists.flatten()
    timeout, error, rtt = (pc.struct_field(pings, name) for name in _PING_FIELDS)
    failed = pc.or_kleene(timeout, error).fill_null(False)
    rtt = pc.if_else(failed, pa.scalar(_FAILED, rtt.type), rtt)
    shared = [
        batch.column("start_time"),
        _encoded(batch.column(_BIGQUERY_SRC_NAMES[atlas_source])),
        _encoded(batch.column("dst_addr")),
        batch.column("af"),
    ]
    return Exploded(_repeat(shared, parents, rtt), parents, np.flatnonzero(num_pings == 0))


def _encoded(texts: pa.Array) -> pa.Array:
    # Repeating codes costs a fraction of repeating strings, and `check` needs codes.
    return texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
