"""The job as `benchmarks.counted` runs it, made like a part of a far larger one.

    python -m benchmarks.scaled_job [--group_rows=8000] --input=… --output=… [flags of the job]

--group_rows sets how many rows are pre-grouped at a time, in place of 2 M: a few probes then get
chunks as small as ten thousand probes do. Requests to GCS are counted by the class that it bills
them in. The last two lines on stderr are JSON objects: Beam's counters, and these requests.
"""

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import orjson
import requests

from beam_pipeline.probe_rows import grouping
from beam_pipeline.sources import reading
from benchmarks import counted

_API = "/storage/v1/b"
_COUNTED = (
    "class_a", "class_b", "deletes", "upload_parts", "uploaded_bytes", "downloaded_bytes",
)  # fmt: skip


class GcsRequests:
    """Requests to GCS by billed class, and the bytes that they carried."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        self._lock = threading.Lock()

    def add(self, request: requests.PreparedRequest, response: requests.Response) -> None:
        if _API not in (request.url or ""):
            return  # of Google's libraries looking for credentials
        kind = billed_class(request.method or "", request.url or "")
        with self._lock:
            self.counts[kind] += 1
            if request.method in ("POST", "PUT"):
                self.counts["uploaded_bytes"] += int(request.headers.get("Content-Length") or 0)
            elif request.method == "GET":
                self.counts["downloaded_bytes"] += int(response.headers.get("Content-Length", 0))


def billed_class(method: str, url: str) -> str:
    """Returns what GCS bills a request of its JSON API as; deletes and upload parts are free.

    Source: "Operation charges" on cloud.google.com/storage/pricing. The parts of a resumable
    upload belong to the request that began it.
    """
    if method == "DELETE":
        return "deletes"
    if method == "PUT":
        return "upload_parts"
    is_list = urlsplit(url).path.endswith("/o")
    return "class_b" if method == "GET" and not is_list else "class_a"


@contextmanager
def counted_requests() -> Iterator[GcsRequests]:
    """Counts what is sent as long as the block runs, retries included."""
    found = GcsRequests()
    send = requests.Session.send

    def counting(
        session: requests.Session, request: requests.PreparedRequest, **arguments: object
    ) -> requests.Response:
        response = send(session, request, **arguments)  # type: ignore[arg-type]
        found.add(request, response)
        return response

    requests.Session.send = counting
    try:
        yield found
    finally:
        requests.Session.send = send


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--group_rows", type=int, default=grouping.UNIT_ROWS)
    args, flags = parser.parse_known_args(argv)
    grouping.UNIT_ROWS = args.group_rows
    reading.BATCH_ROWS = min(reading.BATCH_ROWS, args.group_rows)
    with counted_requests() as found:
        code = counted.main(flags)
    if code == 0:
        print(orjson.dumps(found.counts).decode(), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
