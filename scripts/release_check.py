"""Builds sdist and wheel, and runs the first page of README from the wheel, outside the clone.

  python scripts/release_check.py [FOLDER]

The wheel of the sdist must equal the wheel of the tree in every file. It is installed, with the
newest versions that its bounds allow, into an empty environment of each Python of 3.12 to 3.14 that
this machine has, on PATH or below ~/.pyenv. Needs uv. FOLDER (build/release) keeps the files.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.12", "3.13", "3.14")
SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "beam_pipeline", "training")
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "uv"
HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in HIDDEN}


def run(*command: str | Path, folder: Path, path: Path | None = None) -> str:
    """Runs a command and returns what it prints; SystemExit with its errors if it fails."""
    paths = f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]
    environment = {**ENVIRONMENT, "PATH": paths}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(target: Path) -> Path:
    """Writes the sdist and the wheel into a folder; returns the wheel."""
    with tempfile.TemporaryDirectory() as temporary:
        sources, of_tree = Path(temporary, "sources"), Path(temporary, "wheel")
        sources.mkdir()
        run("cp", "-r", *SOURCES, sources, folder=ROOT)  # what was built in the clone stays behind
        run("find", ".", "-name", "__pycache__", "-exec", "rm", "-r", "{}", "+", folder=sources)
        run(UV, "build", "--quiet", "--out-dir", target, folder=sources)  # the sdist, its wheel
        run(UV, "build", "--quiet", "--wheel", "--out-dir", of_tree, folder=sources)
        (wheel,), (other,) = target.glob("*.whl"), of_tree.glob("*.whl")
        if contents(wheel) != contents(other):
            raise SystemExit("error: the wheel of the sdist is not that of the tree")
    return wheel


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def interpreters() -> dict[str, Path]:
    """Returns the Pythons of this machine by version."""
    found: dict[str, Path] = {}
    for version in PYTHONS:
        below = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
        on_path = shutil.which(f"python{version}")
        for candidate in [*([Path(on_path)] if on_path else []), *reversed(below)]:
            asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            answer = subprocess.run(
                asked, cwd="/", capture_output=True, text=True
            )  # pyenv's asks where
            if answer.stdout.strip() == version:
                found[version] = candidate
                break
    return found


def first_page(wheel: Path) -> tuple[list[str], list[str]]:
    """Returns README's first commands, for the wheel, and patterns of the lines they print."""
    readme = (ROOT / "README.md").read_text()
    shell, printed = re.findall(r"^```(?:sh|text)\n(.+?)^```", readme, re.MULTILINE | re.DOTALL)[:2]
    commands = shell.replace("'.[", f"'{wheel}[").replace("pip install", f"{UV} pip install -q")
    lines = [r"\s+".join(map(re.escape, line.split())) for line in printed.splitlines() if line]
    time = re.compile(r"in\\s\+\S+\\s\+s\\s\+\S+\\s\+M/s\\\)")
    return commands.splitlines(), [time.sub(r"in \\S+ s \\(\\S+ M/s\\)", line) for line in lines]


def check(python: Path, wheel: Path) -> None:
    """Runs README's first page in an empty environment and folder."""
    commands, patterns = first_page(wheel)
    with tempfile.TemporaryDirectory() as temporary:
        folder, home = Path(temporary, "empty"), Path(temporary, "environment")
        folder.mkdir()
        run(UV, "venv", "--quiet", "--python", python, home, folder=folder)
        ENVIRONMENT["VIRTUAL_ENV"] = str(home)
        printed = "".join(
            run("bash", "-c", command, folder=folder, path=home / "bin") for command in commands
        )
        if different := [pattern for pattern in patterns if not re.search(pattern, printed)]:
            raise SystemExit(f"error: {different[0]} is not in\n{printed[:2000]}")
        if not (folder / "report.html").stat().st_size:
            raise SystemExit("error: the report is empty")
        run(UV, "pip", "check", folder=folder)


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release").resolve()
    shutil.rmtree(target, ignore_errors=True)
    wheel = build(target)
    print(f"{wheel.name}: the sdist gives the same wheel", flush=True)
    there = interpreters()
    for version in PYTHONS:
        if version in there:
            check(there[version], wheel)
        print(f"Python {version}: {'README ran' if version in there else 'not here'}", flush=True)
    if not there:
        raise SystemExit(f"error: no Python of {', '.join(PYTHONS)} is here")


if __name__ == "__main__":
    main()
