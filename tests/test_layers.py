"""How the source is laid out: imports without circles, modules and functions of readable size.

All imports count, also those inside functions and those for type checkers alone.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.repository import ROOT

PRODUCT = ("beam_pipeline", "training")
MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 70
Graph = Mapping[str, set[str]]


@cache
def modules(*packages: str) -> dict[str, Path]:
    """Returns the files of packages by module name."""
    files = (path for package in packages for path in sorted((ROOT / package).rglob("*.py")))
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


def imported_by(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Yields the modules among `known` that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in full]
        yield from (name for name in names if name in known)


@cache
def imports() -> Graph:
    known = modules(*PRODUCT)
    return {name: set(imported_by(path, known)) - {name} for name, path in known.items()}


def package_of(module: str) -> str:
    """Returns the package of a module; a module with packages beside it stands for itself."""
    folder = modules(*PRODUCT)[module].parent
    if any(path.parent.parent == folder for path in folder.glob("*/*.py")):
        return module
    return ".".join(folder.relative_to(ROOT).parts)


def circle(graph: Graph) -> list[str]:
    """Returns the nodes of a circle, in order; nothing if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_files_do_not_import_each_other_in_a_circle() -> None:
    assert circle(imports()) == []


def test_packages_do_not_import_each_other_in_a_circle() -> None:
    packages: dict[str, set[str]] = {}
    for module, imported in imports().items():
        package = package_of(module)
        packages.setdefault(package, set()).update(map(package_of, imported))
    assert circle({name: others - {name} for name, others in packages.items()}) == []


@pytest.mark.parametrize("package", [*PRODUCT, "benchmarks", "examples", "scripts", "tests"])
def test_modules_and_functions_are_short(package: str) -> None:
    long = []
    for path in modules(package).values():
        text = path.read_text()
        if (count := text.count("\n")) > MAX_MODULE_LINES:
            long.append(f"{path.relative_to(ROOT)}: {count} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > MAX_FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {size}")
    assert not long, "\n".join(long)
