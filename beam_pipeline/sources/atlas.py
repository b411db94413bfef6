"""RIPE Atlas results of ping and traceroute: JSON lines and BigQuery exports, as batches of
measurements.

Batches have the columns of COLUMNS, with nulls for missing values; `measurements.check` applies the
rules, as for any other input. Lines are decoded straight into typed structs; only those of another
than the usual form pass through rules in Python. Arrow repeats the values that the pings of a
result share, so that a measurement costs one float.
"""

import contextlib
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple, cast

import msgspec
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import UNSET, UnsetType

from beam_pipeline.dataset.dead_letters import MAX_VALUE_CHARS
from beam_pipeline.documents.json import BadRecordError
from beam_pipeline.documents.json_records import ArrayError, split_objects
from beam_pipeline.sources.mapping import encoded_texts, family_of, is_list
from beam_pipeline.sources.options import COLUMNS, AtlasSource, Hops
from beam_pipeline.sources.tables import BadRow, TableBatch
from beam_pipeline.storage.lines import DAMAGE, whole_lines

# Reasons of dead letters for lines, and for single pings. The last two are rules of `check`, for
# values that do not fit its columns.
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
_PING_FIELDS = ("timeout", "error", "rtt")  # of an entry of `pings`
_PING_PATHS = tuple(f".{name}" for name in _PING_FIELDS)
# The types of columns that are no strings, and the names of the types in messages.
_TYPES = {
    "start_time": (pa.types.is_timestamp, "a timestamp"),
    "af": (pa.types.is_integer, "an integer"),
    "pings.timeout": (pa.types.is_boolean, "a boolean"),
    "pings.error": (pa.types.is_boolean, "a boolean"),
    "pings.rtt": (pa.types.is_floating, "a floating-point number"),
}


_LINE_FEED, _OPEN, _CLOSE = (np.uint8(ord(char)) for char in "\n{}")


_Letter = tuple[str, str]  # one of LINE_REASONS, and text


class _Ping(msgspec.Struct, gc=False):
    """An entry of `result`: a failed ping if it has `x` or `error`."""

    rtt: float | None = None
    x: str | UnsetType = UNSET  # a timeout
    error: str | UnsetType = UNSET


class _Result(msgspec.Struct, gc=False, kw_only=True):
    """The values of a result that become measurements."""

    timestamp: int | float | None  # seconds since 1970
    src: str | None
    dst_addr: str | None
    af: int | None
    result: Sequence[_Ping]


def _plain_decoder(atlas_source: AtlasSource) -> msgspec.json.Decoder[_Result]:
    """Returns a decoder of lines to which no rule of `_parse` applies; others are a ValueError.

    These are the results with pings of firmware 4460 and later. Fields that are not read need only
    be JSON and UTF-8: a number there may exceed every float. Decoding takes a third of the time of
    `_parse`.
    """
    fields = [
        ("timestamp", Annotated[int, msgspec.Meta(ge=-_MAX_SECONDS, le=_MAX_SECONDS)]),
        ("src", str, msgspec.field(name=atlas_source)),
        ("dst_addr", str | None, None),  # absent after a failed name resolution
        ("addr", None, None),
        ("af", Literal[4, 6]),
        ("result", Annotated[tuple[_Ping, ...], msgspec.Meta(min_length=1)]),
        ("type", Literal["ping"], "ping"),
    ]
    plain = msgspec.defstruct("PlainResult", fields, bases=(_Result,), gc=False, kw_only=True)
    return cast(msgspec.json.Decoder[_Result], msgspec.json.Decoder(plain))


class _Codes(dict[str | None, int | None]):
    """Codes of texts in the order of their first use; a null has none."""

    def __init__(self) -> None:
        super().__init__({None: None})

    def __missing__(self, text: str) -> int:
        code = self[text] = len(self) - 1
        return code

    def of(self, texts: list[str | None]) -> pa.Array:
        return pa.array(map(self.__getitem__, texts), pa.int32())

    def encoded(self, codes: pa.Array) -> pa.DictionaryArray:
        """Returns the texts of codes."""
        table = pa.array(itertools.islice(self, 1, None), pa.string())
        return pa.DictionaryArray.from_arrays(codes, table)


class _Block(NamedTuple):
    """What consecutive lines hold."""

    lines: np.ndarray  # int64, of each result, counted from 0
    results: list[_Result]
    letters: list[BadRow]  # of lines and of single pings, with one of LINE_REASONS
    num_lines: int


class _Columns:
    """Collects results and dead letters for a batch."""

    def __init__(self) -> None:
        self.num_rows = 0  # pings and dead letters
        self.letters: list[BadRow] = []
        self._blocks: list[list[pa.Array]] = []
        self._src_codes, self._dst_codes = _Codes(), _Codes()

    def add(self, block: _Block) -> None:
        """Adds a block, as arrays while its objects are in the processor's cache."""
        results = block.results
        rtts = [
            ping.rtt if ping.x is UNSET and ping.error is UNSET else _FAILED
            for each in results
            for ping in each.result
        ]
        arrays = [
            pa.array(block.lines),
            _event_times([each.timestamp for each in results]),
            self._src_codes.of([each.src for each in results]),
            self._dst_codes.of([each.dst_addr for each in results]),
            pa.array([each.af for each in results], pa.int8()),
            pa.array([len(each.result) for each in results], pa.int64()),
            pa.array(rtts, pa.float64()),
        ]
        self._blocks.append(arrays)
        self.letters += block.letters
        self.num_rows += len(rtts) + len(block.letters)

    def batch(self, next_line: int) -> TableBatch[pa.RecordBatch]:
        """Returns all that was added, up to `next_line`."""
        columns = map(pa.concat_arrays, zip(*self._blocks, strict=True))
        lines, event_time, src, dst, version, num_pings, rtt = columns
        src, dst = self._src_codes.encoded(src), self._dst_codes.encoded(dst)
        if version.null_count:
            version = pc.coalesce(version, family_of(dst))
        parents = np.repeat(np.arange(len(lines)), num_pings.to_numpy())
        batch = _repeat([event_time, src, dst, version], parents, rtt)
        return TableBatch(batch, lines.to_numpy()[parents], self.letters, next_line)


_Parse = Callable[[bytes], tuple[list[_Result], list[_Letter]]]


def read_json(
    blocks: Iterator[bytes],
    atlas_source: AtlasSource,
    batch_rows: int = 131_072,
    hops: Hops = "last",
    is_span: bool = False,
) -> Iterator[TableBatch[pa.RecordBatch]]:
    """Reads RIPE Atlas results: JSON lines, one object each, or one JSON array of objects.

    Each entry of `result` is a measurement at the result's `timestamp`, the only time reported by
    Atlas: its `rtt`, or a failed ping if it has `x` (timeout) or `error`, else a null rtt. Entries
    marked `dup` are measurements: firmware marks every reply with an unexpected sequence number,
    including replies after their timeout (`{"x":"*"},{"dup":1,"rtt":1635.4}`); only traceroute has
    `late`. A failed name resolution is an `error` without a destination. Firmware 1 reports only
    means over its pings: no_results.

    A traceroute gives the replies of its last responding hop, if they are from the destination, or
    as many failed pings as its last hop has packets; with `hops="all"` every reply of every hop.

    Format: https://atlas.ripe.net/docs/apis/measurement-result-format/

    Args:
      blocks: the decompressed file, cut anywhere, without byte order mark. Blank lines are counted.
        Elements of an array count as lines.
      atlas_source: the field with the source, `from` (the public address) or `src_addr`.
      batch_rows: a batch ends with the block of lines at which it reaches this many measurements
        and dead letters.
      hops: which hops of a traceroute are destinations.
      is_span: the blocks are a part of a file of lines, whatever they begin with.

    Raises:
      DAMAGE, ArrayError: the file is truncated or damaged, after all lines before it.
    """
    decoder, columns = _plain_decoder(atlas_source), _Columns()
    parse = functools.partial(_parse, atlas_source=atlas_source, hops=hops)
    start = next_line = 0
    damage: list[Exception] = []
    for text in _texts(blocks, damage, is_span):
        block = _read_block(text, next_line, decoder, parse)
        columns.add(block)
        next_line += block.num_lines
        if columns.num_rows >= batch_rows:
            yield columns.batch(next_line)
            columns, start = _Columns(), next_line
    if next_line > start:
        yield columns.batch(next_line)
    if damage:
        raise damage[0]


def _texts(
    blocks: Iterator[bytes], damage: list[Exception], is_span: bool
) -> Iterator[bytes | list[bytes]]:
    """Yields lines, joined, or elements of an array; an error that ends them goes to `damage`."""
    split = whole_lines if is_span else functools.partial(split_objects, of_lines=whole_lines)
    try:
        yield from split(blocks, MAX_LINE_BYTES)
    except (*DAMAGE, ArrayError) as error:
        damage.append(error)


def _read_block(
    text: bytes | list[bytes],
    first_line: int,
    decoder: msgspec.json.Decoder[_Result],
    parse: _Parse,
) -> _Block:
    """Reads consecutive lines: plain ones as decoded, if possible at once, others by the rules."""
    if isinstance(text, bytes):
        if plain := _plain_results(text, decoder):
            lines = np.arange(first_line, first_line + len(plain))
            return _Block(lines, plain, [], len(plain))
        text = text.split(b"\n")
    texts = text
    if max(map(len, text), default=0) > MAX_LINE_BYTES:
        texts = [line if len(line) <= MAX_LINE_BYTES else b"" for line in text]
    decoded = map(decoder.decode, map(_checked, texts))
    numbers: list[int] = []
    results: list[_Result] = []
    letters: list[BadRow] = []
    odd = -1  # the last line that is not plain
    while odd < len(text):
        plain = odd + 1
        num_before = len(results)
        with contextlib.suppress(ValueError, RecursionError):
            for result in decoded:
                results.append(result)
        odd = plain + len(results) - num_before
        numbers += range(first_line + plain, first_line + odd)
        if odd < len(text):
            found, bad = _read_odd_line(text[odd], parse)
            numbers += [first_line + odd] * len(found)
            results += found
            letters += [BadRow(first_line + odd, *letter) for letter in bad]
    return _Block(np.array(numbers, np.int64), results, letters, len(text))


def _plain_results(text: bytes, decoder: msgspec.json.Decoder[_Result]) -> list[_Result]:
    """Returns the results of consecutive lines if all are plain, else an empty list."""
    chars = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(chars == _LINE_FEED)
    lengths = np.diff(ends, prepend=-1, append=len(text)) - 1
    if not 0 < lengths.min() <= lengths.max() <= MAX_LINE_BYTES:
        return []
    # `decode_lines` does not look for line feeds. But no value has `}`, a line feed and `{` in
    # sequence, so if these are around every line end, values end there, and perhaps elsewhere.
    if (chars[ends - 1] != _CLOSE).any() or (chars[ends + 1] != _OPEN).any():
        return []
    with contextlib.suppress(ValueError, RecursionError):
        results = decoder.decode_lines(_checked(text))
        if len(results) == len(lengths):
            return results
    return []


def _checked(text: bytes) -> bytes:
    """Returns a text, or raises a ValueError unless it is UTF-8, also where a decoder skips it."""
    if not text.isascii():
        text.decode()
    return text


def _read_odd_line(text: bytes, parse: _Parse) -> tuple[list[_Result], list[_Letter]]:
    if not text or text.isspace():
        return [], []
    try:
        return parse(text)
    except BadRecordError as bad:
        # A character takes at most four bytes, so enough bytes remain for a dead letter.
        excerpt = text[: 4 * MAX_VALUE_CHARS].decode("utf-8", "replace")
        return [], [(str(bad), excerpt[:MAX_VALUE_CHARS])]


def _parse(
    text: bytes, atlas_source: AtlasSource, hops: Hops
) -> tuple[list[_Result], list[_Letter]]:
    """Returns a line's results and its unusable pings, or raises BadRecordError."""
    if len(text) > MAX_LINE_BYTES:
        raise BadRecordError("line_too_long")
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise BadRecordError("json_invalid") from None
    if type(fields) is not dict:
        raise BadRecordError("json_not_an_object")
    # Firmware before 4460 gives no type.
    kind = fields.get("type", "ping")
    if kind not in ("ping", "traceroute"):
        raise BadRecordError("not_a_ping")
    entries = fields.get("result")
    if entries is None or entries == []:
        raise BadRecordError("dns_error" if fields.get("dnserr") is not None else "no_results")
    if type(entries) is not list:
        raise BadRecordError("wrong_type")
    timestamp, src = _timestamp(fields), _text(fields, _SRC_NAMES[atlas_source])
    dst_addr, af = _text(fields, _DST_NAMES), _ip_version(fields)
    letters: list[_Letter] = []
    if kind == "ping":
        pings = {dst_addr: list(_usable(_ping, entries, "result", letters))}
    else:
        pings = _pings_of_hops(entries, dst_addr, hops, letters)
    if not letters and not any(pings.values()):
        raise BadRecordError("no_results")
    results = [
        _Result(timestamp=timestamp, src=src, dst_addr=dst, af=af, result=entries)
        for dst, entries in pings.items()
    ]
    return results, letters


def _pings_of_hops(
    entries: list[Any], dst_addr: str | None, hops: Hops, letters: list[_Letter]
) -> dict[str | None, list[_Ping]]:
    """Returns the pings of a traceroute by destination."""
    pings: dict[str | None, list[_Ping]] = defaultdict(list)
    num_last = 0  # packets of the last hop
    for index in reversed(range(len(entries))):
        packets = _packets(entries[index], f"result[{index}]", letters)
        replies = [(addr, ping) for addr, ping in packets if addr is not None]
        if index == len(entries) - 1:
            num_last = len(packets)
        for addr, ping in replies:
            if hops == "all" or addr == dst_addr:
                pings[addr].append(ping)
        if hops == "last" and replies:
            break
    if hops == "last" and not pings:
        pings[dst_addr] = [_Ping(x="*")] * num_last
    return pings


def _packets(hop: Any, path: str, letters: list[_Letter]) -> list[tuple[str | None, _Ping]]:
    """Returns the packets of a hop: who replied, if anyone, and the ping.

    A late reply is to an earlier packet, which has its own entry. A hop that could not be probed
    is one failed packet.
    """
    if type(hop) is dict and "error" in hop:
        return [(None, _Ping(x="*"))]
    entries = hop.get("result") if type(hop) is dict else None
    if type(entries) is not list:
        letters.append(("wrong_type", f"{path}: {_json(hop)}"))
        return []
    return [packet for packet in _usable(_packet, entries, path + ".result", letters) if packet]


def _packet(entry: Any) -> tuple[str | None, _Ping] | None:
    if type(entry) is dict and "late" in entry:
        return None
    ping = _ping(entry)
    addr = _typed(entry.get("from"), str) if ping.x is UNSET else None
    return addr, ping


def _usable[T](
    parse: Callable[[Any], T], entries: list[Any], path: str, letters: list[_Letter]
) -> Iterator[T]:
    """Yields the parsed entries of a list; unusable ones go to `letters`."""
    for index, entry in enumerate(entries):
        try:
            yield parse(entry)
        except BadRecordError as bad:
            letters.append((str(bad), f"{path}[{index}]: {_json(entry)}"))


def _json(entry: Any) -> str:
    try:
        return orjson.dumps(entry).decode()[:MAX_VALUE_CHARS]
    except orjson.JSONEncodeError:  # it writes fewer levels than it reads
        return "deeply nested"


def _typed(value: Any, *types: type) -> Any:
    """Returns a value, or raises BadRecordError unless it is None or of these types."""
    if value is not None and type(value) not in types:  # exactly: Python's True is an int
        raise BadRecordError("wrong_type")
    return value


def _timestamp(fields: dict[str, Any]) -> int | float | None:
    timestamp = _typed(fields.get("timestamp"), int, float)
    if timestamp is not None and abs(timestamp) > _MAX_SECONDS:
        raise BadRecordError("event_time_out_of_range")
    return timestamp


def _text(fields: dict[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        if (text := _typed(fields.get(name), str)) is not None:
            return text
    return None


def _ip_version(fields: dict[str, Any]) -> int | None:
    version = _typed(fields.get("af", fields.get("pf")), int)
    if version is not None and not -128 <= version <= 127:
        raise BadRecordError("ip_version_not_4_or_6")
    return version


def _ping(entry: Any) -> _Ping:
    if type(entry) is not dict:
        raise BadRecordError("wrong_type")
    if "x" in entry or "error" in entry:
        failure = entry.get("x", entry.get("error"))
        if type(failure) is not str:
            raise BadRecordError("wrong_type")
        return _Ping(x=failure)
    rtt = _typed(entry.get("rtt"), int, float)
    return _Ping(rtt if rtt is None else float(rtt))


def _event_times(seconds: list[int | float | None]) -> pa.Array:
    with contextlib.suppress(pa.ArrowInvalid):
        whole = pa.array(seconds)
        if whole.type == pa.int64() and not whole.null_count:
            return pa.array(whole.to_numpy() * _US_PER_S, pa.timestamp("us"))
    times = [each if each is None else round(each * _US_PER_S) for each in seconds]
    return pa.array(times, pa.timestamp("us"))


def _repeat(shared: list[pa.Array], parents: np.ndarray, rtt: pa.Array) -> pa.RecordBatch:
    """Returns a batch of COLUMNS: row i has the values `parents[i]` of the shared columns."""
    index = pa.array(parents)
    columns = [column.take(index) for column in shared]
    return pa.RecordBatch.from_arrays([*columns, rtt], names=list(COLUMNS))


def is_bigquery_export(schema: pa.Schema) -> bool:
    """Returns whether Parquet is an export of the BigQuery table, which has `pings` lists."""
    index = schema.get_field_index("pings")
    return index >= 0 and is_list(schema.field(index).type)


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
    for name in ("start_time", src_name, "dst_addr", "af", "pings"):
        count = len(schema.get_all_field_indices(name))
        if count != 1:
            return (
                f"must have one column {name!r} and has {count} (of {', '.join(schema.names)}); "
                f"export start_time, {src_name}, dst_addr, af and pings of the table "
                "ripencc-atlas.measurements.ping"
            )
        dtype = schema.field(name).type
        if problem := _pings_problem(dtype) if name == "pings" else _type_problem(name, dtype):
            return problem
    return None


def _type_problem(name: str, dtype: pa.DataType) -> str | None:
    value_type = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    is_right, wanted = _TYPES.get(name, (_is_string, "a string"))
    if is_right(value_type):
        return None
    kind = "field" if name.startswith("pings.") else "column"
    return f"has {kind} {name!r} of type {dtype}, which must be {wanted}"


def _is_string(dtype: pa.DataType) -> bool:
    types = pa.types
    return types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype)


def _pings_problem(dtype: pa.DataType) -> str | None:
    if not is_list(dtype) or not pa.types.is_struct(dtype.value_type):
        return f"has column 'pings' of type {dtype}, which must be a list of structs"
    for name in _PING_FIELDS:
        index = dtype.value_type.get_field_index(name)
        if index < 0:
            return f"has column 'pings' of type {dtype}, which must have one field {name!r}"
        if problem := _type_problem(f"pings.{name}", dtype.value_type.field(index).type):
            return problem
    return None


def explode_bigquery(
    batch: pa.RecordBatch, atlas_source: AtlasSource, first_row: int = 0
) -> TableBatch[pa.RecordBatch]:
    """Returns the measurements of BigQuery rows, one per entry of `pings`; rows without are bad.

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
        encoded_texts(batch.column(_BIGQUERY_SRC_NAMES[atlas_source])),
        encoded_texts(batch.column("dst_addr")),
        batch.column("af"),
    ]
    empty = (first_row + np.flatnonzero(num_pings == 0)).tolist()
    bad_rows = [BadRow(row, "no_results", "") for row in empty]
    found = _repeat(shared, parents, rtt)
    return TableBatch(found, first_row + parents, bad_rows, first_row + len(lists))
