"""Jobs that kill themselves: at the n-th change of a folder, or at a chosen call.

Instead of a kill, all changes from the n-th on may meet an error of the machine.

The first works for every job and every step, whatever its functions are called: Python reports
each file that it opens, renames, links or removes to an audit hook.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.warm_python import warm_python

_AT_CHANGE = """
import os, shutil, signal, subprocess, sys, threading, time
folder, at, copies, log = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
fault, kinds = {fault}, 3 if {fault} else 6
{setup}
changes, program, is_copying, lock = 0, os.getpid(), False, threading.RLock()
def hook(event, arguments):
    if event not in ("open", "os.link", "os.mkdir", "os.rename", "os.remove", "os.rmdir")[:kinds]:
        return
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
        return
    if fault and event == "os.mkdir" and os.path.isdir(arguments[0]):
        return
    if str(arguments[0]).startswith(folder) and os.getpid() == program:
        with lock:  # one thread after another
            if not is_copying:
                change()
        if fault and 0 < at <= changes:
            raise OSError(fault, os.strerror(fault), str(arguments[0]))
def change():
    global changes, is_copying
    changes += 1
    if changes == at and not fault:
        {harm}
    if copies and os.path.exists(folder):
        is_copying, target = True, f"{{copies}}/{{changes}}"
        time.sleep(0.005)  # for the change that another thread has just begun
        while subprocess.run(["cp", "-a", folder, target]).returncode:
            shutil.rmtree(target)
        is_copying = False
sys.addaudithook(hook)
from {module} import main
code = main(sys.argv[5:])
count = changes
open(log, "w").write(str(count))
sys.exit(code)
"""

# Statements: the process kills itself when `name` of `owner` is called for the n-th time (`after`).
KILLING = """
original, calls = getattr(owner, name), []
def killing(*args, **kwargs):
    calls.append(0)
    if len(calls) == after:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(owner, name, killing)
"""
_AT_CALL = """
import os, signal, sys
import beam_pipeline.probe_rows.bucket as bucket
import beam_pipeline.{module} as module
bucket.BUCKET_ROWS = {bucket_rows}
owner, name, after = {owner}, {name!r}, {after}
{killing}
from beam_pipeline.main import main
sys.exit(main(sys.argv[1:]))
"""

BUCKET_ROWS = 100

# Of phases of the job: the module, what holds the function, its name, and which call of it.
KILL_POINTS = {
    "closing chunks": ("shards.claim_checks", "module.ClaimWriter", "close", 1),
    "sorting": ("probe_rows.bucket", "module.Bucket", "histories", 3),
    "closing packets": ("probe_rows.packets", "module.PacketWriter", "close", 2),
    "writing shards": ("shards.writing", "module.WriteShard", "_write_shard", 2),
    "before _SUCCESS": ("dataset.manifest", "module", "success_stamp", 1),
}


def kill_script(module: str, owner: str, name: str, after: int) -> str:
    """Returns a script that runs `main` and kills its process at the n-th call of a function.

    Its probes are in many buckets, so that a kill comes between two of them.
    """
    return _AT_CALL.format(
        module=module, owner=owner, name=name, after=after, bucket_rows=BUCKET_ROWS, killing=KILLING
    )


def run_and_kill(
    module: str,
    setup: str,
    folder: Path,
    at: int,
    flags: Sequence[str],
    log: Path,
    copies: Path | None = None,
    fault: int = 0,
    harm: str = "os.kill(program, signal.SIGKILL)",
) -> subprocess.CompletedProcess[str]:
    """Runs a program that kills itself before it changes a folder for the n-th time.

    Args:
      module: has the function `main`.
      setup: statements that run first, such as sizes of work units.
      at: from 1 on; 0 never kills.
      log: gets the number of changes if the program ends.
      copies: a folder that gets a copy before each change, by its number: what a kill would leave.
      fault: the errno of all new files from the n-th on, instead of the kill.
      harm: another statement instead of the kill.
    """
    script = _AT_CHANGE.format(module=module, setup=setup, fault=fault, harm=harm)
    return subprocess.run(
        [*warm_python(), "-c", script, str(folder), str(at), str(copies or ""), str(log), *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1790000000"},
    )
