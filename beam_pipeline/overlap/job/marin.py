"""What marin's programs give to a config: steps in place of paths, and values without effect."""

import warnings
from collections.abc import Sequence
from typing import Any


def path_of(given: Any) -> Any:
    """Returns the output path of a step, or of a step's config, and anything else as it is.

    What has a step and the name of a file or folder in its output is the path of that.
    """
    if isinstance(path := path_of(step) if (step := getattr(given, "step", None)) else None, str):
        name = getattr(given, "name", None)
        return f"{path.rstrip('/')}/{name}" if name else path
    for owner in (given, getattr(given, "config", None)):
        if isinstance(path := getattr(owner, "output_path", None), str):
            return path
    return given


def warn_of(config: Any, names: Sequence[str]) -> None:
    """Warns of values that marin's programs take and that an exact comparison has no use for."""
    given = [f"{name}={getattr(config, name)}" for name in names if getattr(config, name)]
    if given:
        message = "has no effect: every n-gram is compared, exactly, and every overlap is reported"
        warnings.warn(f"{', '.join(given)} {message}", UserWarning, stacklevel=4)
