"""Prints the section of CHANGELOG.md for a tag, once everything that names the version agrees.

  python scripts/release_notes.py v0.1.0

Needs no package, so that it runs before anything is installed.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version_of(text: str, pattern: str) -> str:
    """Returns what the pattern's group finds in a text."""
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"error: no line is like {pattern}")
    return found[1]


def notes(tag: str, root: Path = ROOT) -> str:
    """Returns the section of a version, without its heading; SystemExit if something is amiss."""
    version = tag.removeprefix("v")
    for name, pattern in (
        ("beam_pipeline/__init__.py", r'^__version__ = "(.+)"$'),
        ("CITATION.cff", r"^version: (.+)$"),
    ):
        if (found := version_of((root / name).read_text(), pattern)) != version:
            raise SystemExit(f"error: the tag is {tag}, {name} has {found}: make them agree")
    sections = re.split(r"^## (\S+).*\n", (root / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    by_name = dict(zip(sections[1::2], sections[2::2], strict=True))
    if not by_name.get(version, "").strip():
        raise SystemExit(f"error: CHANGELOG.md has nothing under '## {version}': write it first")
    if by_name.get("Unreleased", "").strip():
        raise SystemExit(f"error: CHANGELOG.md has lines under Unreleased: move them to {version}")
    return by_name[version].strip() + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python scripts/release_notes.py vX.Y.Z")
    print(notes(sys.argv[1]), end="")
