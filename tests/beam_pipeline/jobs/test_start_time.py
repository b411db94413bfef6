"""The time that a result tells."""

from datetime import UTC, datetime, timedelta

import pytest

from beam_pipeline.errors import UsageError
from beam_pipeline.jobs.start_time import start_time


def test_it_is_now_or_the_time_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert start_time() == "2023-11-14T22:13:20.000000+00:00"
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    started = datetime.fromisoformat(start_time())
    assert timedelta() <= datetime.now(UTC) - started < timedelta(minutes=1)


@pytest.mark.parametrize("given", ["", "today", "1e9", "99999999999999999999"])
def test_what_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", given)
    with pytest.raises(UsageError, match=f"SOURCE_DATE_EPOCH={given} is no time"):
        start_time()
