"""A proxy before the GCS emulator that loses, delays, refuses and counts requests.

`FaultyGcs(endpoint, every=5)` passes requests on, but every fifth meets the next fault of FAULTS.
Retries are requests, too, so that a fault may hit them again. With `delay_s` each request takes
that long, as on a network; `longest_chain()` tells how many had to wait for one another.
`refuses` names requests that are answered with 403, as GCS answers an account without rights.
"""

import contextlib
import http.client
import http.server
import itertools
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

FAULTS = ("503", "429", "lost on the way", "answer lost", "cut answer")
# Tells of a method, and of a path and what is sent there, whether the account may not do it.
Refuses = Callable[[str, str], bool]
NO_ACCESS = (
    "worker@my-project.iam.gserviceaccount.com does not have storage.objects.{} access to the "
    "Google Cloud Storage object. Permission 'storage.objects.{}' denied on resource (or it may "
    "not exist)."
)
_RIGHTS = {"GET": "get", "POST": "create", "PUT": "create", "DELETE": "delete", "PATCH": "update"}
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class Passed(NamedTuple):
    """A request that reached the emulator: its method, object, and the size of the answer."""

    method: str
    name: str
    num_bytes: int
    start_s: float
    end_s: float


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class FaultyGcs:
    """The proxy: `endpoint` to send requests to, `faults` and `requests` to look at."""

    def __init__(
        self, endpoint: str, every: int, delay_s: float = 0.0, refuses: Refuses | None = None
    ):
        self.behind = urlsplit(endpoint).netloc
        self.faults: Counter[str] = Counter()
        self.requests: list[Passed] = []
        self._every, self._delay_s, self._refuses = every, delay_s, refuses
        self._count = itertools.count(1)
        self._next_fault = itertools.cycle(FAULTS)
        self._lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                proxy.handle(self)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do  # noqa: N815

            def log_message(self, format, *args) -> None:
                pass

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def _fault(self) -> str | None:
        with self._lock:
            if not self._every or next(self._count) % self._every:
                return None
            fault = next(self._next_fault)
            self.faults[fault] += 1
            return fault

    def handle(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        fault = self._fault()
        sent = f"{request.path} {body[:1000].decode(errors='replace')}"
        if self._refuses and self._refuses(request.command, sent):
            self.faults["403"] += 1
            right = _RIGHTS[request.command]
            answer = {"error": {"code": 403, "message": NO_ACCESS.format(right, right)}}
            kind = [("Content-Type", "application/json")]
            self._answer(request, 403, kind, json.dumps(answer).encode())
        elif fault in ("503", "429"):
            self._answer(request, int(fault), [], b"try again")
        elif fault == "lost on the way":
            _reset(request)
        else:
            status, headers, answer = self._pass_on(request, body)
            if fault == "answer lost":
                _reset(request)
            elif fault == "cut answer" and answer:
                self._answer(request, status, headers, answer, sent=len(answer) // 2)
                _reset(request)
            else:
                self._answer(request, status, headers, answer)

    def longest_chain(self) -> int:
        """Returns the most requests of which each begins when another has been answered."""
        chain, ended_s = 0, 0.0
        for request in sorted(self.requests, key=lambda request: request.end_s):
            if request.start_s >= ended_s:
                chain, ended_s = chain + 1, request.end_s
        return chain

    def _pass_on(
        self, request: http.server.BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        start_s = time.monotonic()
        time.sleep(self._delay_s)
        connection = http.client.HTTPConnection(self.behind, timeout=60)
        with contextlib.closing(connection):
            headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
            connection.request(request.command, request.path, body, headers)
            response = connection.getresponse()
            answer = response.read()
            with self._lock:
                named = re.search(rb'"name": ?"([^"]+)"', body[:1000])
                name = named[1].decode() if named else unquote(urlsplit(request.path).path)
                times = start_s, time.monotonic()
                self.requests.append(Passed(request.command, name, len(answer), *times))
            own = urlsplit(self.endpoint).netloc
            if response.headers.get_content_type() == "application/json":  # links to the data
                answer = answer.replace(self.behind.encode(), own.encode())
            kept = [
                (name, value.replace(self.behind, own))  # where an upload goes on
                for name, value in response.getheaders()
                if name.lower() not in _HOP_BY_HOP
            ]
            return response.status, kept, answer

    @staticmethod
    def _answer(
        request: http.server.BaseHTTPRequestHandler,
        status: int,
        headers: list[tuple[str, str]],
        answer: bytes,
        sent: int | None = None,
    ) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            request.send_response_only(status)
            for name, value in headers:
                request.send_header(name, value)
            request.send_header("Content-Length", str(len(answer)))
            request.end_headers()
            if request.command != "HEAD":
                request.wfile.write(answer[:sent])


def _reset(request: http.server.BaseHTTPRequestHandler) -> None:
    """Ends the connection as a failing network does: without an answer."""
    with contextlib.suppress(OSError):
        request.wfile.flush()
        request.connection.shutdown(socket.SHUT_RDWR)
    request.close_connection = True


@contextlib.contextmanager
def faulty(
    endpoint: str, every: int = 0, delay_s: float = 0.0, refuses: Refuses | None = None
) -> Iterator[FaultyGcs]:
    """Runs a proxy before the emulator; every so many requests meet a fault, with 0 none.

    Args:
      delay_s: added to every request.
    """
    proxy = FaultyGcs(endpoint, every, delay_s, refuses)
    thread = threading.Thread(target=proxy.server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()
        thread.join()
