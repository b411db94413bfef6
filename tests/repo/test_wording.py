"""The words of CONTRIBUTING's glossary and style: what code and pages must not say.

Names are read from the syntax tree, so that a text may still speak of `most probes`.
"""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.documents import ROOT, pages

PACKAGES = ("beam_pipeline", "training")
# What no native technical writer would put so, and references to papers outside the repository.
BANNED = {
    "a document that is not here": r"\bSPEC \d|\bthe seeds'? (want|forgot|ask|checklist)",
    "house dialect": (
        r"\bis told of\b|nobody knows\b|\ban address is none\b|\b[Ss]ees to it\b|\blooks? on\b"
        r"|\bas it must be\b|\bCommitted, or not there\b|\bones? own\b|\bwhat is where\b"
        r"|\b(?:Enters?|Enter) [\w .]+; leaves? "
    ),
}
# In a name: max_ and min_; a figure is a picture; a function is named for what it returns.
BANNED_NAMES = r"^_?(?:most|least)_|^_?(?:MOST|LEAST)_|^_of_|^Figures$"


def sources() -> Iterator[tuple[str, str]]:
    """Yields (path, text) of the product's modules, templates, and of all pages."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in (".py", ".jinja", ".yml", ".js"):
                yield str(path.relative_to(ROOT)), path.read_text()
    for page in pages():
        yield page, (ROOT / page).read_text()


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields (line, name) of everything that a module defines or assigns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


@pytest.mark.parametrize("kind", BANNED)
def test_texts_are_plain(kind: str) -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, text in sources()
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(BANNED[kind], line)
    ]
    assert not found, f"{kind}:\n" + "\n".join(found)


def test_names_are_of_the_field() -> None:
    found = [
        f"{path}:{line}: {name}"
        for path, text in sources()
        if path.endswith(".py")
        for line, name in names(ast.parse(text))
        if re.search(BANNED_NAMES, name)
    ]
    assert not found, "\n".join(found)


def test_modules_are_named_for_what_they_hold() -> None:
    stems = {path.stem for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert not stems & {"words", "utils", "helpers", "misc", "common", "parts"}


@pytest.mark.parametrize("package", [*PACKAGES, "benchmarks", "examples", "scripts", "tests"])
def test_modules_and_functions_are_short(package: str) -> None:
    long = []
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text()
        if (count := text.count("\n")) > 400:
            long.append(f"{path.relative_to(ROOT)}: {count} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > 70:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {size}")
    assert not long, "\n".join(long)
