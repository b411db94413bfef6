"""What an input file is, from its first bytes and objects: a format, or a problem with its cure.

Names of files do not count. A file of another kind is refused before anything is grouped.
"""

import csv
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from beam_pipeline.dataset import addresses
from beam_pipeline.documents.fields import leaf_names
from beam_pipeline.documents.json_records import ArrayError, split_objects
from beam_pipeline.errors import shortened
from beam_pipeline.sources import mapping, tables
from beam_pipeline.sources.options import COLUMNS, InputFormat, ReadOptions

HEAD_BYTES = 1 << 16
_OBJECTS = 20
_JSON_STARTS = (b"{", b"[", b"\x1e")
_ATLAS_FIELDS = frozenset(("prb_id", "msm_id", "fw", "result"))
_DUCKDB = "duckdb -c \"COPY (FROM {reader}) TO 'pings.parquet'\""
_BINARY = (
    (b"PAR1", "Parquet", "parquet"),
    (b"ARROW1", "Arrow IPC", "arrow"),
    (b"\xff\xff\xff\xff", "Arrow IPC", "arrow"),  # a stream
)
BINARY_MAGIC = tuple(magic for magic, _, _ in _BINARY)
_ORC = (
    'python -c "from pyarrow import orc, parquet; '
    "parquet.write_table(orc.read_table('FILE'), 'pings.parquet')\""
)
# First bytes, name, and what makes a file of it that can be read.
_FOREIGN = (
    (b"ORC", "an ORC file", _ORC),
    (b"Obj\x01", "an Avro file", _DUCKDB.format(reader="read_avro('FILE')")),
    (b"SQLite format 3\0", "an SQLite database", _DUCKDB.format(reader="sqlite_scan('FILE', 'T')")),
    (b"\xfd7zXZ\0", "compressed with xz", "decompress it (xz -d) or compress it with zstd"),
    (b"PK\x03\x04", "a zip archive", "unpack it (unzip), or save a spreadsheet as CSV"),
    (b"\x12\x05", "a warts file", "convert it: sc_warts2json FILE > FILE.json"),
    (b"\xff\xfe", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8 FILE"),
    (b"\xfe\xff", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8 FILE"),
)  # fmt: skip
_LOG = re.compile(rb"\s*(PING |Pinging |HPING |\[\d+\.\d+\] )")  # of ping, hping or fping -D
_TAR = slice(257, 262)  # where a tar archive has "ustar"
_FPING_KINDS = ("resp", "timeout", "summary", "vSum", "intSum", "warning")
_FPING_CURES = {
    "event_time": "run fping with -D, or pass --columns event_time==TIME",
    "src_addr": "pass --columns src_addr==ADDRESS, that of the host that ran fping",
}
_NAME = re.compile(r"[^\W\d][\w .()/%-]*")  # of a column
# An object that has a list of objects, behind or within objects and scalars.
_LIST_WITHIN = re.compile(
    rb'\s*\{(\s*"[^"]*"\s*:\s*(("[^"]*"|[\w.+-]+|\{[^{}\[\]]*\})\s*,|\{))*'
    rb'\s*"[^"]*"\s*:\s*\[\s*\{'
)
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


class Detected(NamedTuple):
    """The format of a file; `problem` is why it cannot be read, if it cannot."""

    input_format: InputFormat
    problem: str | None = None


def detect(head: bytes, is_compressed: bool, path: str, options: ReadOptions) -> Detected:
    """Returns the format of a file that begins with `head`, decompressed.

    Parquet and Arrow files are not looked into: their schema is in the file.
    """
    wanted = options.input_format
    if wanted in ("parquet", "atlas_bigquery", "probe_rows", "arrow"):
        return Detected(wanted)
    if not head.strip():
        return Detected("json" if wanted == "auto" else wanted)  # a file without rows
    for magic, name, input_format in _BINARY:
        if head.startswith(magic):
            if is_compressed:
                return Detected("parquet", f"is {name} within a compressed file: decompress it")
            return Detected(input_format, _not(wanted, "auto", name))  # type: ignore[arg-type]
    for magic, name, cure in _FOREIGN:
        if head.startswith(magic):
            return Detected("csv", f"is {name}, which is not read: {cure}")
    if _LOG.match(head):
        return Detected(
            "csv",
            "is a log of ping, which is not read: with times (ping -D), the awk command of "
            "docs/your_data.md converts it; fping writes JSON with -J -D",
        )
    if head[_TAR] == b"ustar":
        return Detected("csv", "is a tar archive, which is not read: unpack it (tar -xf)")
    if head.lstrip()[:1] in _JSON_STARTS:
        return _detect_json(head, path, options)
    return _detect_text(head, path, options)


def _not(wanted: str, found: str, name: str) -> str | None:
    """Returns the problem of a file that is not of the format of --input_format."""
    if wanted in ("auto", found):
        return None
    return f"holds {name}, not --input_format={wanted}: leave the flag out or correct it"


# --- JSON -----------------------------------------------------------------------------------------


def _detect_json(head: bytes, path: str, options: ReadOptions) -> Detected:
    wanted = options.input_format
    texts, objects = _first_objects(head)
    if not objects and wanted != "csv":
        # Bad lines are dead letters of a file whose format is known or can be guessed.
        if wanted == "auto":
            return Detected(_guess_by_names(head), _whole_table(head, 0, options))
        return Detected(wanted)
    keys = list(dict.fromkeys(key for each in objects for key in each))
    lacking = _lacking(objects, path, options)
    if wanted in ("auto", "json") and not lacking:
        batch = tables.parse_together(texts)
        problem = batch and mapping.problem_of(
            batch.schema, options.mapping, mapping.partitions_of(path)
        )
        if problem:
            problem = _whole_table(head, len(objects), options) or problem
        return Detected("json", problem or None)
    if _ATLAS_FIELDS.intersection(keys):
        return Detected("atlas_json", _not(wanted, "atlas_json", "RIPE Atlas results"))
    if _is_scamper(objects):
        return Detected("scamper_json", _not(wanted, "scamper_json", "scamper's ping records"))
    if _is_fping(objects):
        problem = _not(wanted, "fping_json", "pings of fping")
        return Detected("fping_json", problem or _fping_problem(objects, path, options))
    for name, cure, holds in _LOOK_ALIKES:
        if holds(objects):
            shown = shortened(keys)
            return Detected("json", f"is JSON with the fields {shown}, {name}: {cure}")
    if problem := _whole_table(head, len(objects), options):
        return Detected("json", problem)
    if (problem := _not(wanted, "json", "JSON of another schema")) is not None:
        return Detected("json", f"{problem} (fields {shortened(keys)})")
    # Names within a field may be addresses.
    leaves = [name for each in objects for name in leaf_names(each, nested=not options.anonymize)]
    leaves = list(dict.fromkeys(leaves))
    return Detected("json", mapping.missing(lacking, leaves, options.mapping) if lacking else None)


def _whole_table(head: bytes, num_objects: int, options: ReadOptions) -> str | None:
    """Returns the problem of a file whose only object, perhaps longer than `head`, has all rows.

    `num_objects` is how many whole objects `head` has.
    """
    if num_objects > 1:
        return None
    of_time = options.mapping.names["event_time"].names
    by_column = (rb'"%s"\s*:\s*(\[|\{\s*"\d)' % re.escape(name.encode()) for name in of_time)
    if any(re.search(each, head) for each in by_column):
        return (
            "has one list or object for each column: write rows, in pandas with "
            "to_json('FILE', orient='records', lines=True)"
        )
    begin = _LIST_WITHIN.match(head[:4096])
    names = ["prb_id", *(name for each in options.mapping.sources for name in each.names)]
    keys = {name: rb'"%s"\s*:' % re.escape(name.encode()) for name in names}
    if not begin or any(re.search(key, begin[0]) for key in keys.values()):
        return None
    within = [name for name, key in keys.items() if len(re.findall(key, head)) > 1 - num_objects]
    if within:
        return (
            "has its rows within one object: write them as lines, "
            f"jq -c '.. | objects | select(has(\"{within[0]}\"))' FILE > FILE.json"
        )
    return None


def _lacking(
    objects: Sequence[dict[str, Any]], path: str, options: ReadOptions
) -> list[tuple[str, str]]:
    """Returns the columns that no object has, and their names there."""
    lacking: list[tuple[str, str]] = []
    for column, source in options.mapping.names.items():
        for name in source.names:
            is_there = any(mapping.find_value(each, name) is not None for each in objects)
            if not is_there and name not in mapping.partitions_of(path) and column != "ip_version":
                lacking.append((column, name))
    return lacking


def _first_objects(head: bytes) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Returns up to _OBJECTS whole objects at the beginning of a file, as text and parsed."""
    texts: list[bytes] = []
    objects: list[dict[str, Any]] = []
    try:
        for records in split_objects([head], HEAD_BYTES):
            for record in records:
                try:
                    found = orjson.loads(record)
                except orjson.JSONDecodeError:
                    continue
                if type(found) is dict:
                    texts.append(record.replace(b"\n", b" "))
                    objects.append(found)
                if len(objects) == _OBJECTS:
                    return texts, objects
    except ArrayError:  # the head ends within an element
        pass
    return texts, objects


def _guess_by_names(head: bytes) -> InputFormat:
    names = {name.decode() for name in re.findall(rb'"(\w+)"\s*:', head)}
    return "atlas_json" if _ATLAS_FIELDS & names or not set(COLUMNS) & names else "json"


def _is_scamper(objects: Sequence[dict[str, Any]]) -> bool:
    kinds = {each.get("type") for each in objects}
    fields = {key for each in objects for key in each}
    return bool(kinds & {"ping", "cycle-start"}) and bool(fields & {"ping_sent", "list_name"})


def _is_fping(objects: Sequence[dict[str, Any]]) -> bool:
    found = [(kind, value) for each in objects for kind, value in each.items() if len(each) == 1]
    return any(kind in _FPING_KINDS and type(v) is dict and "host" in v for kind, v in found)


def _fping_problem(
    objects: Sequence[dict[str, Any]], path: str, options: ReadOptions
) -> str | None:
    _, found, _ = tables.parse_records(enumerate(map(orjson.dumps, objects)), tables.parse_fping)
    pings: list[dict[str, Any]] = [
        dict(zip(tables.FPING_COLUMNS, values, strict=True)) for values in found
    ]
    if not pings and not any("warning" in each for each in objects):
        return "has only fping's summaries: run fping -J -D without -q or -Q"
    if pings and (lacking := _lacking(pings, path, options)):
        column, name = lacking[0]
        if column == name in _FPING_CURES:
            return f"holds pings of fping, without {column}: {_FPING_CURES[column]}"
        return mapping.missing(lacking, tables.FPING_COLUMNS, options.mapping)
    times = [
        str(ping[name]) for name in options.mapping.names["event_time"].names for ping in pings
    ]
    if times and not options.mapping.time_unit and not _NUMBER.fullmatch(times[0]):
        return f"has times such as {times[0]}, not seconds: pass --time_unit=iso"
    return None


def _any_has(*names: str) -> Any:
    return lambda objects: any(set(names) <= set(each) for each in objects)


_LOOK_ALIKES = (
    ("an error of an API", "request the results again", _any_has("error")),
    ("an error of an API", "request the results again", _any_has("detail", "status")),
    (
        "a measurement of Globalping",
        "it has no address of the probe, so it cannot be grouped by probe",
        lambda objects: (
            _any_has("measurementId")(objects) or _any_has("results", "target")(objects)
        ),
    ),
    (
        "a result of pScheduler",
        "write its roundtrips as rows of event_time, src_addr, dst_addr and rtt",
        _any_has("roundtrips"),
    ),
    (
        "BigQuery's JSON export of RIPE Atlas",
        "export it as Parquet: EXPORT DATA OPTIONS(format='PARQUET', …)",
        _any_has("synth_addr", "pings"),
    ),
)


# --- delimited text -------------------------------------------------------------------------------


def _detect_text(head: bytes, path: str, options: ReadOptions) -> Detected:
    wanted = options.input_format
    seen = "" if options.anonymize else f" ({head[:8]!r})"
    lines = b"\n".join(chain.from_iterable(tables.split_text([head], HEAD_BYTES))).split(b"\n")
    dialect = tables.find_dialect(lines[0], options.mapping)
    names = {name for source in options.mapping.sources for name in source.names}
    # Values may have another encoding than UTF-8: only those of our columns count.
    is_text = b"\0" not in head
    is_ours = names.intersection(dialect.names) or wanted == "csv"
    if not (is_text and (is_ours or _has_header(dialect))):
        problem = _no_table_problem(lines[0], dialect) if is_text else None
        return Detected(
            "csv",
            problem
            or f"is neither Parquet, Arrow, JSON nor delimited text with one of the columns "
            f"{', '.join(sorted(names))} by its first bytes{seen}; see docs/your_data.md for other "
            "formats",
        )
    if (problem := _not(wanted, "csv", "delimited text")) is not None:
        return Detected("csv", problem)
    shown = [] if options.anonymize else None  # without a header, the names would be addresses
    problem = mapping.problem_of(
        dialect.schema, options.mapping, mapping.partitions_of(path), shown
    )
    return Detected("csv", problem or _time_problem(lines, dialect, options))


def _has_header(dialect: tables.Dialect) -> bool:
    """Returns whether a first line has names of columns, be they not ours."""
    names = [name for name in dialect.names if name]
    return len(names) > 2 and all(map(_NAME.fullmatch, names))


def _no_table_problem(line: bytes, dialect: tables.Dialect) -> str | None:
    """Returns what is wrong with a first line of values, if it has an address."""
    if _num_addresses(dialect.names):
        return (
            "has no first line with the names of columns: pass their positions, counted from 1, "
            "as in --columns event_time=1,src_addr=2,dst_addr=3,rtt=4"
        )
    if line.startswith((b"#", b"sep=")):
        return (
            "begins with a comment or separator: leave such lines out, "
            "grep -v -e '^#' -e '^sep=' FILE > FILE.csv"
        )
    words = line.decode("utf-8", "replace").split()
    if len(set(COLUMNS).intersection(words)) > 1 or _num_addresses(words) > 1:
        return "is text delimited by spaces: convert it, tr -s ' ' , < FILE > FILE.csv"
    return None


def _num_addresses(texts: Sequence[str]) -> int:
    return int(np.isin(addresses.parse(pa.array(texts, pa.string()))[2], (4, 6)).sum())


def _time_problem(
    lines: Sequence[bytes], dialect: tables.Dialect, options: ReadOptions
) -> str | None:
    """Returns the problem of times that are numbers without a unit."""
    names = options.mapping.names["event_time"].names
    if options.mapping.time_unit or not names or names[0] not in dialect.names:
        return None
    texts = (line.decode("utf-8", "replace") for line in lines[dialect.has_header : _OBJECTS])
    texts = (text.replace("\r", " ") for text in texts)  # within a line, an error of `csv`
    index = dialect.names.index(names[0])
    rows = csv.reader(texts, delimiter=dialect.delimiter)
    times = [row[index].strip() for row in rows if len(row) > index]
    if times and all(map(_NUMBER.fullmatch, times)):
        return (
            f"has times such as {times[0]} in column {names[0]!r}, numbers without a unit: "
            f"{mapping.UNIT_CURE}"
        )
    return None
