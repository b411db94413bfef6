"""How many examples Hypothesis tries: few in the quick suite, all in the slow one.

`make test-slow` runs every property again with `--hypothesis-profile=thorough`.
"""

from hypothesis import HealthCheck, settings

_NUM_EXAMPLES = {"quick": 15, "thorough": 100}  # of a property that does not say

for name, number in _NUM_EXAMPLES.items():
    settings.register_profile(
        name,
        max_examples=number,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("quick")


def num_examples(thorough: int, quick: int = _NUM_EXAMPLES["quick"]) -> int:
    """Returns how many examples a property gets, given the numbers for the two suites."""
    is_thorough = settings().max_examples == _NUM_EXAMPLES["thorough"]
    return thorough if is_thorough else min(thorough, quick)
