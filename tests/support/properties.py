"""How many examples Hypothesis tries: few in the quick suite, all in the slow one.

`make test-slow` runs every property again with `--hypothesis-profile=thorough`.
"""

from hypothesis import HealthCheck, settings

_MAX_EXAMPLES = {"quick": 25, "thorough": 10_000}

for name, number in _MAX_EXAMPLES.items():
    settings.register_profile(
        name,
        max_examples=number,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("quick")


def num_examples(thorough: int) -> int:
    """Returns how many examples a property gets; `thorough` says how many in the slow suite."""
    return min(thorough, settings.default.max_examples)
