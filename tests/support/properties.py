"""How many examples Hypothesis tries: few in the quick suite, more with `--hypothesis-profile`.

`make test-slow` runs every property again as `thorough`; `PROFILE=exhaustive` takes the numbers
that tests give.
"""

from hypothesis import HealthCheck, settings

_NUM_EXAMPLES = {"quick": 15, "thorough": 40, "exhaustive": 100}  # the default of a property

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
