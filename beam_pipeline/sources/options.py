"""The options of reading measurements. Nothing heavy is imported here."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, get_args

from beam_pipeline.dataset.layout import Encoding
from beam_pipeline.errors import UsageError, printable
from beam_pipeline.sources.anonymize_key import KeyReference

COLUMNS = ("event_time", "src_addr", "dst_addr", "ip_version", "rtt")
InputFormat = Literal[
    "parquet", "arrow", "csv", "json", "atlas_json", "atlas_bigquery", "scamper_json", "fping_json",
    "probe_rows",
]  # fmt: skip
INPUT_FORMATS: tuple[InputFormat, ...] = get_args(InputFormat)
# Formats of columns with names that --columns changes; the others have their own fields.
TABLES: tuple[InputFormat, ...] = ("parquet", "arrow", "csv", "json", "fping_json")
TimeUnit = Literal["", "s", "ms", "us", "ns", "iso"]
TIME_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)
RttUnit = Literal["s", "ms", "us"]
RTT_UNITS: tuple[RttUnit, ...] = get_args(RttUnit)
AtlasSource = Literal["from", "src_addr"]
Hops = Literal["last", "all"]
Ends = Literal["addresses", "names"]

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_EPOCH_SECONDS = re.compile(r"\d+(\.\d{1,6})?")


@dataclass(frozen=True)
class Sample:
    """Which measurements of the input are wanted; by default all."""

    probes: float = 1.0  # a share, more than 0, up to 1
    measurements: float = 1.0  # a share of the sampled probes' measurements
    since_us: int = 0  # µs since 1970 UTC
    until_us: int | None = None  # exclusive

    @property
    def has_window(self) -> bool:
        """Whether the sample depends on time."""
        return self.since_us > 0 or self.until_us is not None

    @property
    def share(self) -> float:
        """The share of the measurements within the window that are in the sample."""
        return self.probes * self.measurements

    def manifest_options(self) -> dict[str, Any]:
        """Returns the options that the manifest lists, named after their flags."""
        return {
            "sample_probes": self.probes,
            "sample_measurements": self.measurements,
            "since": time_text(self.since_us) if self.since_us else "",
            "until": "" if self.until_us is None else time_text(self.until_us),
        }


def parse_time(flag: str, text: str) -> int:
    """Returns µs since 1970 of an ISO 8601 time, by default UTC, or of seconds; or UsageError."""
    try:
        if _EPOCH_SECONDS.fullmatch(text):
            if len(text) == 8:  # also a date without dashes
                raise ValueError("eight digits are ambiguous: a date or seconds")
            seconds, _, rest = text.partition(".")
            time = _EPOCH + timedelta(seconds=int(seconds), microseconds=int(rest.ljust(6, "0")))
        else:
            time = datetime.fromisoformat(text)
            time = time if time.tzinfo else time.replace(tzinfo=UTC)
        if (time_us := (time - _EPOCH) // _MICROSECOND) < 0:
            raise ValueError("it is before 1970")
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--{flag}={printable(text)} is not a time ({error}): write it as 2026-11-01, "
            "2026-11-01T12:00:00Z or in seconds since 1970"
        ) from error
    return time_us


def parse_window(since: str, until: str) -> tuple[int, int | None]:
    """Returns the times of --since and --until, which may be empty; or UsageError."""
    since_us = parse_time("since", since) if since else 0
    until_us = parse_time("until", until) if until else None
    if until_us is not None and until_us <= since_us:
        raise UsageError(
            f"--until={until} is not after "
            + (f"--since={since}" if since else "1970")
            + ": the time window is empty"
        )
    return since_us, until_us


def time_text(time_us: int) -> str:
    """Returns a time in µs since 1970 as ISO 8601, which `parse_time` inverts."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")


class Source(NamedTuple):
    """Where an input table has one of COLUMNS."""

    names: tuple[str, ...]  # several, or one that is a list, for a measurement each (rtt)
    constant: str | None = None  # a value for all rows, in place of names
    is_packed: bool = False  # an address as a number or as 4 or 16 bytes

    @property
    def text(self) -> str:
        """Returns what --columns has after `COLUMN=`."""
        value = ",".join(self.names) if self.constant is None else f"={self.constant}"
        return f"{value}:packed" if self.is_packed else value


@dataclass(frozen=True)
class Mapping:
    """How the columns of an input table become those of COLUMNS."""

    sources: tuple[Source, ...] = tuple(Source((name,)) for name in COLUMNS)  # one for each
    time_unit: TimeUnit = ""  # of times that are numbers; "" refuses these
    rtt_unit: RttUnit = "ms"
    failed: tuple[str, ...] = ()  # null, nan, zero, or a text: lost pings, besides negative RTTs
    ends: Ends = "addresses"  # names: a text that is no address is the name of a host or site

    @property
    def names(self) -> dict[str, Source]:
        return dict(zip(COLUMNS, self.sources, strict=True))

    @property
    def is_positional(self) -> bool:
        """Whether columns are given by position, counted from 1, in text without a header."""
        names = [name for source in self.sources for name in source.names]
        return any(map(str.isdecimal, names))


def parse_columns(text: str) -> tuple[Source, ...]:
    """Parses --columns; UsageError if it is not valid.

    `event_time=ts,rtt=p1,p2` renames; `src_addr==192.0.2.1` is a constant, `src_addr=ip:packed` an
    address as a number or as bytes. If all names are numbers, they are positions.
    """
    sources = {name: Source((name,)) for name in COLUMNS}
    column = ""
    for part in filter(None, text.split(",")):
        head, equals, name = part.partition("=")
        if not equals and column == "rtt":  # a further column of RTTs
            sources[column] = Source((*sources[column].names, head))
            continue
        column = head
        if column not in sources or not name.removeprefix("=") or not name.isprintable():
            raise UsageError(
                f"--columns={printable(text)}: {part!r} is not COLUMN=NAME with a column of "
                f"{', '.join(COLUMNS)}"
            )
        packed = name.endswith(":packed") and column in ("src_addr", "dst_addr")
        if name.startswith("="):
            sources[column] = Source((), name[1:])
        else:
            sources[column] = Source(
                (name.removesuffix(":packed") if packed else name,), None, packed
            )
    names = [name for source in sources.values() for name in source.names]
    if len(set(names)) < len(names):
        raise UsageError(
            f"--columns={printable(text)} reads two columns from the same input column"
        )
    given = tuple(sources.values())
    positional = list(map(str.isdecimal, names))
    if any(positional) and not all(positional):
        plain = [name for name, is_number in zip(names, positional, strict=True) if not is_number]
        if plain != ["ip_version"]:
            raise UsageError(
                f"--columns={printable(text)} mixes positions and names ({', '.join(plain)}): give "
                "the positions of all columns, counted from 1, or all names"
            )
    return given


def parse_failed(text: str) -> tuple[str, ...]:
    """Parses --failed into its words and texts, without `negative`, which always holds."""
    return tuple(part for part in text.split(",") if part and part != "negative")


@dataclass(frozen=True)
class ReadOptions:
    """How to read the input."""

    input_format: InputFormat | Literal["auto"] = "auto"  # of all files; auto detects it for each
    mapping: Mapping = Mapping()
    atlas_source: AtlasSource = "from"  # which address of a result is the probe's
    hops: Hops = "last"  # which hops of a traceroute are destinations
    anonymize: KeyReference | None = None  # the key with which addresses are replaced
    skip_bad_files: bool = False  # an unreadable file becomes a dead letter
    encoding: Encoding = "arrow"  # values out of its range become dead letters
    sample: Sample = Sample()
    as_stored: bool = False  # round measurements as their encoding does
