"""Counts this process's requests to GCS, and delays them as on a network."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import requests

_API = "/storage/v1"
_COUNTED = (
    "class_a", "class_b", "deletes", "upload_parts", "uploaded_bytes", "downloaded_bytes",
)  # fmt: skip
_REQUESTS = _COUNTED[:4]


def billed_class(method: str, url: str) -> str:
    """Returns the billing class of a JSON API request; deletes and upload parts are free.

    All batches here are of deletes. The parts of a resumable upload belong to its first request.

    Source: "Operation charges" on cloud.google.com/storage/pricing.
    """
    if method == "DELETE" or urlsplit(url).path.startswith("/batch/"):
        return "deletes"
    if method == "PUT":
        return "upload_parts"
    is_list = urlsplit(url).path.endswith("/o")
    return "class_b" if method == "GET" and not is_list else "class_a"


def num_requests(counts: Counter[str]) -> int:
    """Returns the number of requests of all classes so far."""
    return sum(counts[name] for name in _REQUESTS)


@contextmanager
def counted_requests(request_s: float = 0.0) -> Iterator[Counter[str]]:
    """Yields live counts of requests by billing class and of bytes; delays each by `request_s`."""
    counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
    lock, send = threading.Lock(), requests.Session.send

    def counting(session: Any, request: requests.PreparedRequest, **arguments: Any) -> Any:
        method, url = request.method or "", request.url or ""
        if _API not in url:  # Google's libraries looking for credentials
            return send(session, request, **arguments)
        time.sleep(request_s)
        response = send(session, request, **arguments)
        is_upload = method in ("POST", "PUT")
        headers = request.headers if is_upload else response.headers
        with lock:
            counts[billed_class(method, url)] += 1
            if is_upload or method == "GET":
                transferred = "uploaded_bytes" if is_upload else "downloaded_bytes"
                counts[transferred] += int(headers.get("Content-Length") or 0)
        return response

    with mock.patch.object(requests.Session, "send", counting):
        yield counts
