"""When a run starts, as its result tells it.

With SOURCE_DATE_EPOCH (reproducible-builds.org), seconds since 1970, it is that time: then two runs
write the same bytes in every file.
"""

import os
from datetime import UTC, datetime

from beam_pipeline.errors import UsageError

_VARIABLE = "SOURCE_DATE_EPOCH"


def start_time() -> str:
    """Returns the time in UTC, ISO 8601.

    Raises:
      UsageError: SOURCE_DATE_EPOCH is no number of seconds.
    """
    given = os.environ.get(_VARIABLE)
    try:
        now = datetime.now(UTC) if given is None else datetime.fromtimestamp(int(given), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"{_VARIABLE}={given} is no time: give whole seconds since 1970, or unset it"
        ) from error
    return now.isoformat(timespec="microseconds")
