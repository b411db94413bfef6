"""The options of a simulation, as flags. Light imports."""

import functools
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from beam_pipeline.cli.flags import check_flags, flag
from beam_pipeline.errors import UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_START = datetime(2200, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """The flags that determine every measurement."""

    num_measurements: int = flag("Exact number of rows.", limits=(1, None), group="measurements")
    # A city's prefixes hold a quarter of a million addresses.
    num_probes: int = flag(
        "Sources, with activity by Zipf's law.", limits=(1, 1_000_000), group="network"
    )
    seed: int = flag("The same flags give the same bytes.", 0, (0, None), group="measurements")
    num_anchors: int = flag("Destinations.", 200, (1, 10_000), group="network")
    max_destinations: int = flag(
        "Destinations of a probe, at most; at least half as many.", 20, (1, 1000), group="network"
    )
    ipv6_share: float = flag(
        "Share of the probes that have IPv6 addresses.", 0.1, (0, 1), group="network"
    )
    interval_seconds: float = flag(
        "Average time between a probe's pings of one destination; adjusted if the measurements "
        "would span less than a day or more than a year.",
        900.0,
        group="measurements",
    )
    hot_share: float = flag(
        "Share of all rows for the busiest probe, if larger than by Zipf's law.",
        0.0,
        (0, 1),
        group="measurements",
    )
    start: str = flag("ISO date of the first measurement, UTC.", "2026-01-01", group="measurements")

    def __post_init__(self) -> None:
        check_flags(self)
        if not 0 < self.interval_seconds < math.inf:
            raise UsageError(f"--interval_seconds={self.interval_seconds:g} must be above 0")
        _ = self.start_us

    @functools.cached_property
    def start_us(self) -> int:
        """Start in µs since 1970, from an ISO date or time, in UTC unless it has a zone."""
        try:
            start = datetime.fromisoformat(self.start)
        except ValueError:
            raise UsageError(
                f"--start={self.start} is not an ISO date; write it as 2026-01-31"
            ) from None
        start = start if start.tzinfo else start.replace(tzinfo=UTC)
        if not _EPOCH <= start < _LATEST_START:
            raise UsageError(
                f"--start={self.start} is out of range; choose a date from 1970 to 2199"
            )
        return (start - _EPOCH) // timedelta(microseconds=1)
