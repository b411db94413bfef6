"""Programs in a warm interpreter end, print and stop as those in a new interpreter do."""

import signal
import subprocess
import sys

import pytest

from tests.support.warm_python import warm_python


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("print(len(sys.stdin.read()), sys.argv[1:], __name__)", 0),
        ("sys.exit(3)", 3),
        ("os.environ['GIVEN']", 0),
        ("1 / 0", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_it_behaves_as_python(script: str, code: int, tmp_path) -> None:
    ended = [
        subprocess.run(
            [*python, "-c", f"import os, signal, sys; {script}", "a", "b c"],
            input=b"four", capture_output=True, cwd=tmp_path, env={"GIVEN": "yes"},
        )
        for python in ([sys.executable], warm_python())
    ]  # fmt: skip
    assert [(done.returncode, done.stdout) for done in ended] == [(code, ended[0].stdout)] * 2
    assert ended[0].stderr.splitlines()[-1:] == ended[1].stderr.splitlines()[-1:]


def test_signals_reach_the_program() -> None:
    script = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(7))\nprint(flush=True)"
    )
    process = subprocess.Popen(
        [*warm_python(), "-c", f"{script}\ntime.sleep(600)"], stdout=subprocess.PIPE
    )
    assert process.stdout and process.stdout.readline() == b"\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 7


def test_a_program_ends_with_its_client() -> None:
    script = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"
    process = subprocess.Popen(
        [*warm_python(), "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout
    process.stdout.readline()
    process.kill()
    assert process.stdout.read() == b""  # the end of the pipe: nobody holds it any more
    process.wait()
