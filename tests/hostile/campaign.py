"""A campaign of hostile uses: programs × faults × places, each in a box of its own, by one judge.

  python -m tests.hostile.campaign [--areas machine …] [--number 50] [--results FILE]

A use holds if it ends in time with a documented exit code, alters nothing but its output, leaves no
temporary file and no process, and explains a failure in one line. A reader that succeeds must give
what it gives without the fault. Uses run in copies of a warm process, as root, in a namespace where
the machine is read-only but for /tmp and this checkout, and devices are their own.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beam_pipeline.kernels import cache_folder
from tests.support.warm_python import TRAINING, stop, warm_python

HERE = Path(__file__).parent
LIMIT_S = 100
CODES = (0, 1, 2, 130)
_VERDICT = re.compile(r"^.* FAILED: .*", re.MULTILINE)  # of verify, with its cure
_UNEXPECTED = re.compile(r"Traceback|unexpected|Exception ignored|core dumped|Fatal Python")
_SANDBOX = """
dev=$(mktemp -d) && mount -t tmpfs none "$dev"
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/std* /dev/fd "$dev"
mkdir -m 1777 "$dev/shm" && mount --move "$dev" /dev && rmdir "$dev"
mount --bind /tmp /tmp && mount --bind "$PWD" "$PWD" && cd "$PWD"
mount -o bind,remount,ro / && exec "$@"
"""
_RUN = """
import os, runpy, sys
{prelude}
module = sys.argv[0] = sys.argv.pop(1)
sys.modules.pop(module, None)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
_SIGNALS = """
if os.fork() == 0:
    import time
    os.closerange(0, 3)
    for after, number in {}:
        time.sleep(after)
        os.kill(os.getppid(), number)
    os._exit(0)
"""
_PEAK = """
import atexit, resource
def note(path=os.getcwd() + "/peak"):
    who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    open(path, "w").write(str(max(resource.getrusage(each).ru_maxrss for each in who) >> 10))
atexit.register(note)
"""
_PRELOADED = (
    *("beam_pipeline.convert.job", "beam_pipeline.inspect.page"),
    *("beam_pipeline.export.measurements", "beam_pipeline.overlap.removal.attributes"),
    *("beam_pipeline.overlap.report.page", "training.analyze_padding", "training.dataset"),
)


@dataclass(frozen=True)
class Use:
    """One hostile use; "{box}" in its texts is the folder where it runs.

    Attributes:
      command: module and arguments.
      damage: changes the box before the run.
      prelude: statements before the program.
      shell: the line that runs the program, "$@".
      whole: a success must give the output of the unharmed command.
      send: (seconds, signal) after each other.
      real: start a new interpreter.
      ours: folder of the box that the command may change; "*" for all but what `keep` has.
      check: returns a fault of the output.
      max_mb: limit of memory, not measured if 0.
      stuck: not even removing the output's temporary files works.
    """

    area: str
    name: str
    command: Sequence[str]
    damage: Callable[[Path], Any] = lambda box: None
    prelude: str = ""
    shell: str = '"$@"'
    environment: dict[str, str] = field(default_factory=dict[str, str])
    send: Sequence[Sequence[float]] = ()
    whole: bool = False
    real: bool = False
    training: bool = False
    ours: str = "out"
    check: Callable[[Path], str] = lambda box: ""
    max_mb: int = 0
    stuck: bool = False


def run(
    use: Use, fixtures: Path, folder: Path, preloaded: tuple[str, ...] = _PRELOADED
) -> dict[str, Any]:
    """Runs a use in a new box below `folder`; returns exit code, error and faults."""
    box = Path(tempfile.mkdtemp(dir=folder))
    shutil.copytree(fixtures, box, symlinks=True, dirs_exist_ok=True)
    box.chmod(0o777)
    for name in ("tmp", "cwd", "home"):
        (box / name).mkdir()
        (box / name).chmod(0o777)
    use.damage(box)
    before, started = _snapshot(box), time.monotonic()
    more = TRAINING if use.training else ()
    python = [sys.executable] if use.real else warm_python(*preloaded, *more)
    prelude = use.prelude + (_PEAK if use.max_mb else "")
    prelude += _SIGNALS.format(use.send) if use.send else ""
    script = _RUN.format(prelude=prelude).replace("{box}", str(box))
    command = [text.replace("{box}", str(box)) for text in use.command]
    environment = {
        "TMPDIR": f"{box}/tmp",
        "HOME": f"{box}/home",
        "PYTHONPATH": os.getcwd(),
        "PYTHONSAFEPATH": "1",
        "SOURCE_DATE_EPOCH": "1700000000",
        "COLUMNS": "200",
    }
    shell = ["/bin/sh", "-c", use.shell.replace("{box}", str(box)), "sh"]
    process = subprocess.Popen(
        [*shell, *python, "-c", script, *command],
        cwd=box / "cwd",
        env={**os.environ, **environment, **use.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=LIMIT_S)
        text = errors.decode(errors="replace")
        verdicts = "".join(f"error: {each}\n" for each in _VERDICT.findall(out.decode()))
        faults = [*_judge(use, process.returncode, text + verdicts, box, before), use.check(box)]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, text, faults = b"", "", ["hangs"]
        process.communicate()
    if use.max_mb and (peak := box / "cwd/peak").exists() and int(peak.read_text()) > use.max_mb:
        faults.append(f"takes {peak.read_text()} MB")
    result = {
        "code": process.returncode,
        "seconds": round(time.monotonic() - started, 1),
        "error": text.replace(str(box), "BOX")[-2000:],
        "digest": _digest(use, out, box),
        "faults": list(filter(None, faults)),
    }
    shutil.rmtree(box, ignore_errors=True)
    return result


def _snapshot(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Returns mode, time and content of all below a folder."""
    found = {}
    for above, folders, names in os.walk(folder):
        for path in (Path(above, name) for name in (*folders, *names)):
            stat, content = path.lstat(), None
            if path.is_symlink():
                content = os.readlink(path)
            elif path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            time_ns = 0 if path.is_dir() else stat.st_mtime_ns
            found[str(path.relative_to(folder))] = stat.st_mode, time_ns, content
    return found


def _digest(use: Use, out: bytes, box: Path) -> str:
    """Returns a digest of what a command printed, without paths and times, and wrote."""
    files = {} if use.ours == "cache" else _snapshot(box / use.ours)
    printed = re.sub(rb"[\d.]+ (m?s\b|M/s|MB/s)", b"", out.replace(bytes(box), b""))
    contents = sorted((name, state[2]) for name, state in files.items())
    return hashlib.sha256(repr((printed, contents)).encode()).hexdigest()


def _judge(use: Use, code: int, text: str, box: Path, before: dict[str, Any]) -> Iterator[str]:
    """Yields what is wrong with an ended run."""
    if found := _UNEXPECTED.search(text):
        yield f"says {found[0]}"
    ends = (ended for _, number in use.send for ended in (-number, 128 + number))
    if code not in (*CODES, *ends):
        yield f"ends with {code}"
    lines = [line for line in text.splitlines() if line.startswith("error:")]
    if code in (1, 2) and use.shell == '"$@"' and len(lines) != 1:
        yield f"has {len(lines)} lines of error"
    for line in lines:
        if not re.search(r"[:;] .{7,}| outside \S+ to ", line[7:]):
            yield "names no cure"
    after = _snapshot(box)
    for name in sorted(before.keys() | after.keys()):
        named = (f"--{flag}={{box}}/{name}" for flag in ("output", "html"))
        is_ours = name.split("/")[0] in (use.ours, "tmp", "home")
        if use.ours == "*":
            is_ours = name not in before or not name.startswith("keep") or {*named} & {*use.command}
        if not is_ours and name != "cwd/peak" and before.get(name) != after.get(name):
            yield f"alters {name}"
            break
    deadline = time.monotonic() + 3
    while (left := _processes(box)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left += [
        name
        for name in after
        if name not in before
        and re.search(r"^tmp/|\.tmp$|/\.probeline-temp/", name)
        and not (use.stuck and "/.probeline-temp/" in name)
    ]
    if left:
        yield f"leaves {left[:3]}"


def _processes(box: Path) -> list[str]:
    """Returns the command lines of processes in a box."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd").startswith(f"{box}/cwd"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[-80:])
        except OSError:
            continue
    return found


def campaign(
    chosen: Sequence[Use],
    folder: Path,
    log: Path | None = None,
    preloaded: tuple[str, ...] = _PRELOADED,
) -> list[dict[str, Any]]:
    """Runs uses, four at a time; returns a record of each."""
    from tests.hostile.uses import make_fixtures

    fixtures, records = folder / "fixtures", []
    os.environ["MPLCONFIGDIR"] = f"{folder}/matplotlib"  # of the warm process
    folder.chmod(0o755)
    make_fixtures(fixtures)
    if shutil.which("cc"):  # else uses of network file systems do without
        library = folder / "faulty_io.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", HERE / "faulty_io.c", "-o", library], check=True
        )
        os.environ["LD_PRELOAD"] = str(library)
    for more in {TRAINING if use.training else () for use in chosen}:
        warm_python(*preloaded, *more)
    plain = {
        tuple(use.command): Use("", "", use.command, ours=use.ours) for use in chosen if use.whole
    }
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda use: run(use, fixtures, folder, preloaded), plain.values())
        wholes = {command: result["digest"] for command, result in zip(plain, results)}
        results = pool.map(lambda use: run(use, fixtures, folder, preloaded), chosen)
        for use, result in zip(chosen, results):
            if use.whole and not result["code"] and result["digest"] != wholes[tuple(use.command)]:
                result["faults"].append("gives another result")
            records.append({"area": use.area, "use": use.name, **result})
            if log:
                with log.open("a") as file:
                    file.write(json.dumps(records[-1]) + "\n")
    os.environ.pop("LD_PRELOAD", None)
    return records


def main() -> int:
    from tests.hostile.uses import AREAS

    if os.environ.setdefault("HOSTILE_SANDBOX", "") == "":
        os.environ["HOSTILE_SANDBOX"] = "inside"
        inside = [sys.executable, "-m", "tests.hostile.campaign", *sys.argv[1:]]
        os.execvp("unshare", ["unshare", "-m", "sh", "-ec", _SANDBOX, "sh", *inside])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--areas", nargs="*", default=list(AREAS), choices=list(AREAS))
    parser.add_argument("--number", type=int, default=1 << 30, help="uses of each area, by chance")
    parser.add_argument("--results", type=Path, help="table to write")
    parser.add_argument("--log", type=Path, help="a line for each use")
    args = parser.parse_args()
    chosen: list[Use] = []
    for area in args.areas:
        uses = list(AREAS[area]())
        chosen += random.Random(area).sample(uses, min(len(uses), args.number))
    random.Random(0).shuffle(chosen)
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
        if (kernels := cache_folder()).is_dir():  # else each use compiles its own
            shutil.copytree(kernels, f"{folder}/cache/probeline/kernels")
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        records = campaign(chosen, Path(folder), args.log)
    stop()
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        table[record["area"]].update(uses=1, held=not record["faults"])
    failed = [record for record in records if record["faults"]]
    for area, counts in table.items():
        print(f"{area:14} {counts['held']:5} of {counts['uses']}")
    for record in failed:
        print(record["area"], record["use"], record["faults"], record["error"][-300:].strip())
    if args.results:
        summary = [{name: record[name] for name in ("area", "use", "faults")} for record in failed]
        machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
        document = {"machine": machine, "date": time.strftime("%Y-%m-%d"), "uses": len(records)}
        document |= {"areas": table, "failed": summary}
        args.results.write_text(json.dumps(document, indent=1) + "\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
