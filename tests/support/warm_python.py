"""A Python interpreter that starts with the product's imports done, for programs under test.

Importing Beam takes some 3 CPU-seconds, which most tests of a command line would spend again. Here
a server imports everything once for each test process and forks a child for each program:

  client (this file as a program)    server             keeper                program
    connects, sends its argv,  --->  accepts, forks -->  forks  ----------->  runs -m or -c
    environment, folder, stdio                           waits; passes on     like `python` would
    ends as the program did    <-----------------------  signals and status

`[*warm_python(), "-m", …]` takes the place of `[sys.executable, "-m", …]`.
Tests that measure start-up, memory or imports, or that kill whole process groups, start a real one.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
_PRELOADED = (
    *("beam_pipeline.probe_rows.launch", "beam_pipeline.overlap.job.launch"),
    *("beam_pipeline.overlap.summary", "beam_pipeline.verify.terminal"),
)
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)
# JAX keeps what a program has compiled, for another one with the same jax_cache_dir, however small.
_VARIABLES = {"OPENBLAS_NUM_THREADS": "1", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
TRAINING = ("training.maxtext.iterators", "maxtext.trainers.pre_train.train")  # 15 CPU-seconds


_servers: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}


def warm_python(*more: str) -> list[str]:
    """Returns the command that stands for `python`, and starts its server at the first call.

    Args:
      more: modules that are imported beforehand, too; each choice of them has a server.
    """
    if sys.platform != "linux":
        return [sys.executable]  # elsewhere sockets have no abstract names, and forks are unsafe
    server = _servers.get(more)
    if server is None:
        server = _servers[more] = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", __file__, "serve", *more],
            cwd=ROOT,
            env={**os.environ, **_VARIABLES, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert server.stdout is not None and b"ready\n" in server.stdout, "its imports failed"
    return [sys.executable, "-IS", __file__, "run", str(server.pid)]


def _address_of(server: int) -> str:
    """Returns the socket of a server, in the kernel's abstract names: it leaves no file."""
    return f"\0warm-python-{server}"


def cpu_seconds() -> float:
    """Returns the CPU-seconds of the running servers and of their programs that have ended."""
    spent = 0
    for server in _servers.values():
        if server.poll() is None:
            fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
            spent += sum(map(int, fields[11:15]))
    return spent / os.sysconf("SC_CLK_TCK")


def stop() -> None:
    """Ends the servers, so that their CPU time counts as ours."""
    for server in _servers.values():
        server.communicate()


def _serve(more: Sequence[str]) -> None:
    """Forks a program for each client; returns only in the programs."""
    for name in (*_PRELOADED, *more):
        importlib.import_module(name)
    importlib.import_module("tests.support.quick_beam").install()
    gc.freeze()  # a collection in a child would copy what they share
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(_address_of(os.getpid()))
        listening.listen()
        print("ready", flush=True)
        while True:
            readable, _, _ = select.select([listening, sys.stdin], [], [])
            while _reap():
                pass
            if sys.stdin in readable:
                break
            client, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _keep(client)
                return
            client.close()
    while _reap(wait=True):
        pass
    os._exit(0)


def _reap(wait: bool = False) -> bool:
    """Takes the status of a keeper, with its CPU time; returns whether there was one."""
    try:
        return os.waitpid(-1, 0 if wait else os.WNOHANG)[0] > 0
    except ChildProcessError:
        return False


def _keep(client: socket.socket) -> None:
    """Forks the program and stays with it until it ends; returns only in the program."""
    message, stdio, _, _ = socket.recv_fds(client, 1 << 22, 3)
    while not message.endswith(b"\n"):
        message += client.recv(1 << 22)
    program = os.fork()
    if program == 0:
        client.close()
        _become(json.loads(message), stdio)
        return
    for number in stdio:
        os.close(number)
    ended = os.pidfd_open(program)
    while True:
        readable, _, _ = select.select([ended, client], [], [])
        if ended in readable:
            _, status = os.waitpid(program, 0)
            with contextlib.suppress(BrokenPipeError):
                client.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
            os._exit(0)
        received = client.recv(1)
        os.kill(program, received[0] if received else signal.SIGKILL)


def _become(request: dict, stdio: list[int]) -> None:
    for standard, number in enumerate(stdio):
        os.dup2(number, standard)
        os.close(number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    tempfile.tempdir = None  # as TMPDIR says now
    sys.argv[:] = request["argv"]


def _run_program() -> int:
    """Does what `python` does with `-m MODULE …` or `-c SCRIPT …`; returns the exit code."""
    try:
        _run_main(*sys.argv)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _run_main(kind: str, target: str, *arguments: str) -> None:
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = [] if os.environ.get("PYTHONSAFEPATH") else [os.getcwd()]
    sys.path[:0] = [*here, *filter(None, given)]
    sys.argv[:] = [kind, *arguments]
    if kind == "-m":
        sys.modules.pop(target, None)  # runpy warns of modules that are imported twice
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(target, "<string>", "exec"), main.__dict__)


def _end(code: int) -> NoReturn:
    """Ends as an interpreter does, but does not take its modules apart, which costs a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(server: str, argv: list[str]) -> None:
    """Has a server run a program, and ends as it does."""
    request = {"argv": argv, "environment": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(_address_of(int(server)))
        for number in _PASSED_ON:
            signal.signal(number, lambda caught, _: connection.sendall(bytes([caught])))
        message = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [message], [0, 1, 2])
        connection.sendall(message[sent:])
        status = connection.recv(4)
    code = int.from_bytes(status, "big", signed=True) if status else 1
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2:])
        _end(_run_program())
    else:
        _run(sys.argv[2], sys.argv[3:])
