"""Arguments that our sources and sinks share with those of Beam."""

from typing import Any

from apache_beam import coders
from apache_beam.options.value_provider import ValueProvider


def refuse(name: str, value: Any, reason: str) -> None:
    """Raises ValueError for an argument of Beam's transforms that has no meaning in ours."""
    if value is not None:
        raise ValueError(f"{name} is {value!r}; leave it out, since {reason}")


def known_text(name: str, value: str | ValueProvider) -> str:
    """Returns an argument as a text that is known when the pipeline is built.

    Raises:
      ValueError: it is known only when the job runs.
      TypeError: it is no text.
    """
    if isinstance(value, ValueProvider):
        if not value.is_accessible():
            raise ValueError(
                f"{name} is known only when the job runs: give a text, or start the job from a "
                "Flex Template, where options are known when the pipeline is built"
            )
        value = value.get()
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str or a ValueProvider of one, not {value!r}")
    return value


def element_type(coder: coders.Coder) -> Any:
    """Returns the type of what a coder encodes, Any if it does not tell."""
    try:
        return coder.to_type_hint()
    except NotImplementedError:  # of Beam's base class: a coder need not tell
        return Any
