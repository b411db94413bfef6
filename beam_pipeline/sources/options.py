"""The options of reading measurements. Nothing heavy is imported here."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from beam_pipeline.dataset.layout import Encoding
from beam_pipeline.errors import UsageError, printable
from beam_pipeline.sources.anonymize_key import KeyReference

COLUMNS = ("event_time", "src_addr", "dst_addr", "ip_version", "rtt")
InputFormat = Literal["parquet", "atlas_json", "atlas_bigquery", "probe_rows"]
INPUT_FORMATS: tuple[InputFormat, ...] = ("parquet", "atlas_json", "atlas_bigquery", "probe_rows")
AtlasSource = Literal["from", "src_addr"]
ATLAS_SOURCES: tuple[AtlasSource, ...] = ("from", "src_addr")
Hops = Literal["last", "all"]

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


@dataclass(frozen=True)
class ReadOptions:
    """How to read the input."""

    input_format: InputFormat | Literal["auto"] = "auto"  # of all files; auto detects it for each
    # Each of COLUMNS, and its name in the input.
    columns: tuple[tuple[str, str], ...] = tuple((name, name) for name in COLUMNS)
    atlas_source: AtlasSource = "from"  # which address of a result is the probe's
    hops: Hops = "last"  # which hops of a traceroute are destinations
    anonymize: KeyReference | None = None  # the key with which addresses are replaced
    skip_bad_files: bool = False  # an unreadable file becomes a dead letter
    encoding: Encoding = "arrow"  # values out of its range become dead letters
    sample: Sample = Sample()
    as_stored: bool = False  # round measurements as their encoding does

    @property
    def names(self) -> dict[str, str]:
        return dict(self.columns)
