"""How many examples Hypothesis tries: few in the quick suite, more with `--hypothesis-profile`.

`make test-slow` runs every property again as `thorough`: with more examples, or fewer where they
take long. `PROFILE=exhaustive` takes the numbers that tests give.
"""

import functools
import random
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.errors import UnsatisfiedAssumption
from hypothesis.strategies import DataObject

_NUM_EXAMPLES = {"quick": 10, "thorough": 40, "exhaustive": 100}  # the default of a property
_THOROUGH_S = 0.7  # CPU time of a property's examples, of which 10 are tried anyway

for name, number in _NUM_EXAMPLES.items():
    settings.register_profile(
        name,
        max_examples=number,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("quick")


def num_examples(exhaustive: int, quick: int = _NUM_EXAMPLES["quick"]) -> int:
    """Returns how many examples a property gets, from its numbers for two of the profiles."""
    number = settings().max_examples
    if number <= _NUM_EXAMPLES["quick"]:
        return min(exhaustive, quick)
    share = min(1, number / _NUM_EXAMPLES["exhaustive"])
    return max(min(exhaustive, quick), round(exhaustive * share))


def bound(test: Any) -> None:
    """Bounds the CPU time of a property in the profile `thorough`: later examples pass untried.

    Call it before each run of the property, whose time begins with its first example.
    """
    if settings().max_examples != _NUM_EXAMPLES["thorough"]:
        return
    handle = test.hypothesis
    handle.inner_test = _bounded(getattr(handle.inner_test, "__wrapped__", handle.inner_test))


def _bounded(inner: Callable[..., None]) -> Callable[..., None]:
    num_tried, started, has_failed = 0, 0.0, False

    @functools.wraps(inner)
    def tried(*args: Any, **kwargs: Any) -> None:
        nonlocal num_tried, started, has_failed
        started = started or time.process_time()
        is_late = time.process_time() - started > _THOROUGH_S
        # An example that draws while it runs must run: Hypothesis expects equal draws of it.
        draws = any(isinstance(value, DataObject | random.Random) for value in kwargs.values())
        if is_late and not draws and num_tried >= _NUM_EXAMPLES["quick"] and not has_failed:
            return
        num_tried += 1
        try:
            inner(*args, **kwargs)
        except UnsatisfiedAssumption:
            raise
        except Exception:
            has_failed = True  # Hypothesis now looks for a smaller example, and takes its time
            raise

    return tried
