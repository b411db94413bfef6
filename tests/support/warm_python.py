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
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
_PRELOADED = ("beam_pipeline.main", "beam_pipeline.overlap.job.launch", "beam_pipeline.verify")
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)


_server: subprocess.Popen[bytes] | None = None


def warm_python() -> list[str]:
    """Returns the command that stands for `python`, and starts the server at the first call."""
    global _server
    address = Path(tempfile.gettempdir(), f"warm-python-{os.getpid()}")
    if _server is None:
        _server = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", __file__, "serve", address],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert _server.stdout is not None and _server.stdout.readline() == b"ready\n"
    return [sys.executable, "-IS", __file__, "run", str(address)]


def stop() -> None:
    """Ends the server, if there is one, so that its CPU time counts as ours."""
    if _server is not None:
        _server.communicate()


def _serve(address: str) -> None:
    """Forks a program for each client; returns only in the programs."""
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # a collection in a child would copy what they share
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
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
    os.unlink(address)
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
    sys.path[:0] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
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


def _run(address: str, argv: list[str]) -> None:
    """Has a server run a program, and ends as it does."""
    request = {"argv": argv, "environment": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        for number in _PASSED_ON:
            signal.signal(number, lambda caught, _: server.sendall(bytes([caught])))
        message = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(server, [message], [0, 1, 2])
        server.sendall(message[sent:])
        status = server.recv(4)
    code = int.from_bytes(status, "big", signed=True) if status else 1
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
        _end(_run_program())
    else:
        _run(sys.argv[2], sys.argv[3:])
