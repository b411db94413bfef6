"""Names that a package exports, each loaded from its module on first use.

`import beam_pipeline` stays light, and `from beam_pipeline import WriteToArrayRecord` loads Beam.
`__init__.pyi` declares the names for type checkers and editors; a test compares the two.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from beam_pipeline.errors import missing_extra


def exporting(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
      package: the package's `__name__`.
      modules: for each module below the package, its exported names, separated by spaces.

    Example:

        __getattr__, __dir__, __all__ = exporting(__name__, {"dataset": "DataConfig build_dataset"})
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        try:
            found = getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        except ModuleNotFoundError as error:
            if (missing := missing_extra(error)) is None:
                raise
            raise ModuleNotFoundError(f"{package}.{name}: {missing}", name=error.name) from error
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return get, names, sorted(module_of)
