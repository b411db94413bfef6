"""How `gs://` is reached: one client a process, credentials, retries, errors of one line.

google-cloud-storage is imported when the first path comes. With STORAGE_EMULATOR_HOST set its
client asks that host, without credentials. Where there are no credentials it asks anonymously,
so that public buckets can be read.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beam_pipeline.errors import ProbelineError, one_line

if TYPE_CHECKING:
    from google.cloud.storage import Client

SCHEME = "gs://"
CLIENT_HOST = "STORAGE_EMULATOR_HOST"
_RETRY_S = 30  # what is still out of reach by then is told; the library goes on for 120
_FIRST_DELAY_S = 1.0  # before the first retry; each later one doubles it
_PROBE_S = 1  # of each of three looks for a metadata server; the library waits 3 each time
LOG_IN = (
    "run `gcloud auth application-default login` or let GOOGLE_APPLICATION_CREDENTIALS name a key "
    "file"
)
_READING_ROLE, _WRITING_ROLE = "Storage Object Viewer", "Storage Object User"


@dataclass(frozen=True)
class Access:
    """A client, and why it has no credentials if it needs some and found none."""

    client: Client
    nothing_found: str | None


def bucket_and_name(path: str) -> tuple[str, str]:
    """Splits a path; ProbelineError if it is not `gs://bucket/name`."""
    bucket, _, name = path.removeprefix(SCHEME).partition("/")
    if not path.startswith(SCHEME):
        raise ProbelineError(
            f"cannot read {path}: only local paths and {SCHEME} are supported; copy the dataset "
            "to one of them"
        )
    if not bucket or not name:
        raise ProbelineError(f"cannot read {path}: it is not {SCHEME}bucket/name; give both")
    return bucket, name


def access_to(path: str) -> Access:
    """Returns this process's access; ProbelineError, with the path, without the library."""
    try:
        import google.cloud.storage  # noqa: F401
    except ImportError as error:
        raise ProbelineError(
            f"cannot read {path}: {SCHEME} needs google-cloud-storage; install it with "
            'pip install "probeline[gcp]" or "probeline[training]"'
        ) from error
    # A forked process makes its own: connections cannot be shared.
    return _access_of(os.getpid(), os.environ.get(CLIENT_HOST))


@functools.cache
def _access_of(pid: int, emulator: str | None) -> Access:
    """Returns the client of this process; the arguments only tell one from another."""
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud.storage import Client

    credentials, nothing_found = AnonymousCredentials(), None
    if not emulator:
        try:
            credentials, _ = google.auth.default(Client.SCOPE, request=_hurried_request())
        except DefaultCredentialsError as error:
            nothing_found = one_line(error).partition(" To set up")[0].rstrip(".")
    return Access(Client(project=None, credentials=credentials), nothing_found)


def _hurried_request() -> Any:
    """Returns what google.auth looks for a metadata server with, off Google's machines in vain.

    Where nothing answers it looks three times with a pause: 6 s in all, 12 s at its own pace.
    """
    from google.auth.transport.requests import Request

    request = Request()

    def hurried(*args: Any, **kwargs: Any) -> Any:
        if "timeout" in kwargs:  # what has none is no such look
            kwargs["timeout"] = _PROBE_S
        return request(*args, **kwargs)

    return hurried


def retry() -> Any:
    """Returns how requests are retried: on 408, 429, 5xx and lost connections, for a while."""
    return patient_retry().with_timeout(_RETRY_S)


def patient_retry() -> Any:
    """Returns how requests are retried where nobody waits for the answer."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_delay(initial=_FIRST_DELAY_S)


@contextlib.contextmanager
def explained(path: str, access: Access, action: str = "read") -> Iterator[None]:
    """Raises what the client raises as one line: the path, the reason, the cure.

    `action` is "read", "write" or "remove".
    """
    import requests
    from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, Unauthorized
    from google.auth.exceptions import GoogleAuthError, InvalidOperation, RefreshError

    try:
        yield
    except (Forbidden, Unauthorized, InvalidOperation) as error:  # the last: anonymous, on a 401
        if access.nothing_found:
            reason = f"it is not public: {access.nothing_found}; {LOG_IN}"
        else:
            role = _READING_ROLE if action == "read" else _WRITING_ROLE
            reason = f"{one_line(error)}; give the account the role {role}"
        raise ProbelineError(f"cannot {action} {path}: {reason}") from error
    except NotFound as error:
        bucket = path.removeprefix(SCHEME).partition("/")[0]
        raise ProbelineError(
            f"cannot {action} {path}: there is no bucket {bucket}; check its name"
        ) from error
    except RefreshError as error:
        raise ProbelineError(f"cannot {action} {path}: {one_line(error)}; {LOG_IN}") from error
    except (GoogleAPIError, GoogleAuthError, requests.RequestException) as error:
        hint = f" ({access.nothing_found}: {LOG_IN})" if access.nothing_found else ""
        raise ProbelineError(
            f"cannot {action} {path}: {one_line(error)}; check the network and try again{hint}"
        ) from error
