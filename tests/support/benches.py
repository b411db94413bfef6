"""Running benches in tests: as a program on little data, its results, its table in a document."""

import subprocess
import sys
from pathlib import Path

from benchmarks import results, table
from benchmarks.results import Results
from tests.support.repository import ROOT

BURN = "import time\nwhile time.process_time() < 0.4: pass\n"  # takes 0.4 s of CPU


def run_module(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m NAME` in the repository."""
    command = [sys.executable, "-m", name, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def run_the_bench(name: str, folder: Path, *flags: str, module: str = "", code: int = 0) -> Results:
    """Runs a bench that must end with `code` and returns its results, which name no folder."""
    folders = [f"--data_dir={folder}/data", f"--results={folder}/results"]
    done = run_module(f"benchmarks.{module or name}", *flags, *folders)
    assert done.returncode == code, done.stdout + done.stderr
    (path,) = (folder / "results").glob(f"{name}-*.json")
    assert str(folder) not in path.read_text() and str(ROOT) not in path.read_text()
    return results.load(path)


def shown_in_a_document(name: str, folder: Path) -> str:
    """Returns what `benchmarks.table` puts into a document of the results of `run_the_bench`."""
    document = folder / "document.md"
    before, after = f"before\n<!-- bench:{name} -->\n", f"<!-- /bench:{name} -->\nafter\n"
    document.write_text(f"{before}old\n{after}")
    flags = [f"--bench={name}", f"--document={document}", f"--results={folder}/results"]
    assert table.main(flags) == 0
    text = document.read_text()
    assert text.startswith(before) and text.endswith(after)
    return text.removeprefix(before).removesuffix(after)
