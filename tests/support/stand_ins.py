"""Stand-ins for the programs that scripts call, and the record of their calls."""

import subprocess
from pathlib import Path

from tests.support.repository import ROOT
from tests.support.waiting import HANG_S

_RECORD = """#!/usr/bin/env bash
{ printf '%s\\037' "${0##*/}" "$@"; printf '\\036'; } >>"$CALLS"
"""


class StandIns:
    """Programs in a folder; `variables` puts them into PATH, before others of their names."""

    def __init__(self, folder: Path):
        self._folder, self._calls = folder, folder / ".calls"
        folder.mkdir(parents=True)
        path = f"{folder}:/usr/local/bin:/usr/bin:/bin"
        self.variables = {"PATH": path, "CALLS": str(self._calls)}

    def add(self, name: str, body: str = "") -> None:
        """Writes a program of bash that records its calls."""
        path = self._folder / name
        path.write_text(f"{_RECORD}{body}\n")
        path.chmod(0o755)

    def calls(self, program: str | None = None) -> list[list[str]]:
        """Returns the words of each call so far, or of one program's."""
        if not self._calls.exists():
            return []
        calls = [call.split("\037")[:-1] for call in self._calls.read_text().split("\036")[:-1]]
        return [call for call in calls if program in (None, call[0])]


def run_script(script: Path, *arguments: str, environment: dict[str, str], code: int = 0) -> str:
    """Runs a script that must end with `code`; returns what it prints, its errors if it fails."""
    result = subprocess.run(
        ["bash", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stderr if code else result.stdout


def one_line(errors: str) -> str:
    """Returns a message that must be one line of the form `error: …`."""
    assert errors.count("\n") == 1 and errors.startswith("error: "), errors
    return errors


def check_shell(path: Path) -> None:
    """Checks the syntax of a shell script, and that it is executable if it has a first line."""
    subprocess.run(["bash", "-n", path], check=True)
    is_program = path.read_text().startswith("#!/usr/bin/env bash\n")
    assert bool(path.stat().st_mode & 0o100) == is_program


def check_copied(lines: list[str]) -> None:
    """Checks that the sources of a Dockerfile's COPY arguments exist in the repository."""
    for line in lines:
        *sources, _ = line.split()
        assert line.startswith("--from=") or all((ROOT / name).exists() for name in sources), line
