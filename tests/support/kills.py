"""A job that kills itself at a chosen call, and the calls that tests choose."""

import os
import subprocess

from tests.support.repository import ROOT
from tests.support.warm_python import warm_python

_SCRIPT = """
import os, signal, sys
import beam_pipeline.{module} as module
{setup}
owner, name, after = {owner}, {name!r}, {after}
original, calls = getattr(owner, name), []
def killing(*args, **kwargs):
    calls.append(0)
    if len(calls) == after:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(owner, name, killing)
from beam_pipeline.{program} import main
sys.exit(main(sys.argv[1:]))
"""

BUCKET_ROWS = 100

# Of each phase of the job: the module, what holds the function, its name, and which call of it.
KILL_POINTS = {
    "reading": ("probe_rows.grouping", "module", "read_piece", 2),
    "closing chunks": ("shards.claim_checks", "module.ClaimWriter", "close", 1),
    "sorting": ("probe_rows.bucket", "module.Bucket", "histories", 3),
    "cutting rows": ("probe_rows.row_splitting", "module", "fit", 5),
    "staging": ("shards.staging", "module.StageRecords", "process", 4),
    "writing shards": ("shards.writing", "module.WriteShard", "_write", 2),
    "writing the index": ("shards.writing", "module", "_write_index", 2),
    "renaming the first shard": ("storage.many_files", "module", "_move", 1),
    "renaming another shard": ("storage.many_files", "module", "_move", 3),
    "before the data card": ("probe_rows.commit", "module", "write_card", 1),
    "before the manifest": ("probe_rows.commit", "module", "write_success", 1),
    "before _SUCCESS": ("dataset.manifest", "module", "success_stamp", 1),
}


_MANY_BUCKETS = f"""
import beam_pipeline.probe_rows.bucket as bucket
bucket.BUCKET_ROWS = {BUCKET_ROWS}
"""


def kill_script(
    module: str,
    owner: str,
    name: str,
    after: int,
    program: str = "main",
    setup: str = _MANY_BUCKETS,
) -> str:
    """Returns a script that runs a job and kills its process at the n-th call of a function.

    By default its probes are in many buckets, so that a kill comes between two of them.
    """
    return _SCRIPT.format(
        module=module, owner=owner, name=name, after=after, program=program, setup=setup
    )


def run_and_kill(point: tuple[str, str, str, int], flags: list[str], **options: str) -> None:
    """Runs a job in a process of its own, which must be killed."""
    killed = subprocess.run(
        [*warm_python(), "-c", kill_script(*point, **options), *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -9, killed.stderr
