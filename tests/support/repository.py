"""The root of the repository, and all files below a folder."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def files_below(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of all files below a folder, by their paths in it."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
