"""The key of --anonymize: where it is stored, how workers read it, and its fingerprint.

The key is in a file, in Secret Manager or in an environment variable. Workers receive a
KeyReference instead of the key, since pipelines are stored, displayed and logged. Each process
reads the key itself and compares its fingerprint.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from typing import Any, Literal

from beam_pipeline.errors import ProbelineError, UsageError, one_line
from beam_pipeline.storage.files import check_regular, file_infos, is_local, read_file

Anonymization = Literal["none", "prefix_preserving"]
METHODS: tuple[Anonymization, ...] = ("none", "prefix_preserving")
KEY_VARIABLE = "PROBELINE_ANONYMIZE_KEY"

_KEY_BYTES = 32
_MAX_FILE_BYTES = 256  # of a key in hex, with white space
_SECRET = re.compile(r"projects/[^/]+/secrets/[^/]+/versions/[^/]+")
_HEX_KEY = re.compile(r"[0-9A-Fa-f]{64}")
_MAKE_ONE = "make one with: openssl rand -hex 32 > key.hex"
_MIN_DISTINCT_BYTES = 8  # fewer among 32 random bytes are less likely than guessing the key


@dataclass(frozen=True)
class KeyReference:
    """Where the key is, and its fingerprint: all that workers receive."""

    source: str  # a path, the name of a secret's version, or "" for the environment variable
    fingerprint: str  # a keyed hash, which the manifest lists


def is_secret(source: str) -> bool:
    """Returns whether a source is the name of a version in Secret Manager."""
    return _SECRET.fullmatch(source) is not None


def check_source(source: str) -> None:
    """Raises UsageError if the source is itself a key; the message does not quote it."""
    if _HEX_KEY.fullmatch(source):
        raise UsageError(
            "--anonymize_key_file is a key of 64 hex digits and must be the path of a file: others "
            f"can see a command line, so do not use this key; {_MAKE_ONE}"
        )


def is_on_this_machine(source: str) -> bool:
    """Returns whether only this machine can read the key."""
    return is_local(source) and not is_secret(source)


def described(source: str) -> str:
    """Returns the flag or variable that names the key, for messages."""
    return f"--anonymize_key_file={source}" if source else f"the variable {KEY_VARIABLE}"


def find_key(source: str) -> KeyReference:
    """Reads the key before the job begins; returns the reference for the workers."""
    if source and is_on_this_machine(source):
        source = os.path.abspath(source)  # a worker may have a different working directory
    return KeyReference(source, fingerprint(read_key(source)))


def fingerprint(key: bytes) -> str:
    """Returns 16 hex digits that identify a key without revealing it."""
    return hashlib.blake2b(key=key, digest_size=8, person=b"anonymize").hexdigest()


def read_key(source: str) -> bytes:
    """Returns the 32 bytes of a key; raises as `find_key`."""
    if not source:
        text = os.environ.get(KEY_VARIABLE)
        if text is None:
            raise UsageError(
                "--anonymize needs a key: pass its file as --anonymize_key_file, or set the "
                f"environment variable {KEY_VARIABLE}, also on remote workers; {_MAKE_ONE}"
            )
        data = text.encode(errors="surrogateescape")
    else:
        data = _read_secret(source) if is_secret(source) else _read_key_file(source)
        if data is None:
            raise UsageError(
                f"{described(source)}: there is no such file; check the path, or {_MAKE_ONE}"
            )
    return parse_key(data, described(source))


def _read_key_file(path: str) -> bytes | None:
    """Returns the content of a small regular file; None if it is missing."""
    check_regular([path])
    info = file_infos([path])[path]
    if info and info.num_bytes > _MAX_FILE_BYTES:
        raise _not_a_key(described(path), f"{info.num_bytes} bytes")
    return read_file(path)


def _not_a_key(name: str, found: str) -> UsageError:
    return UsageError(
        f"{name} has {found}: a key is {_KEY_BYTES} random bytes or {2 * _KEY_BYTES} hex digits; "
        f"{_MAKE_ONE}"
    )


def parse_key(data: bytes, name: str) -> bytes:
    """Returns the 32 bytes of a key, given as bytes or in hex; errors do not quote it."""
    text = data.strip()
    is_hex = re.fullmatch(rb"[0-9A-Fa-f]*", text) is not None
    if is_hex and len(text) == 2 * _KEY_BYTES:
        key = bytes.fromhex(text.decode())
    elif len(data) == _KEY_BYTES and not is_hex:  # 32 hex digits are half of a key
        key = data
    else:
        raise _not_a_key(name, f"{len(text)} hex digits" if is_hex else f"{len(data)} bytes")
    if len(set(key)) < _MIN_DISTINCT_BYTES:
        raise UsageError(
            f"{name} has a key with only {len(set(key))} different bytes, which is not random; "
            f"{_MAKE_ONE}"
        )
    return key


def _read_secret(name: str) -> bytes:
    try:
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import secretmanager  # noqa: F401
    except ImportError as error:
        raise ProbelineError(
            f"cannot read {name}: install the extra gcp: pip install 'probeline[gcp]'"
        ) from error
    try:
        return _secret_client().access_secret_version(name=name).payload.data
    except (GoogleAPIError, GoogleAuthError) as error:
        raise ProbelineError(
            f"cannot read {name}: {one_line(error)}; check the name, and give the account the role "
            "Secret Manager Secret Accessor"
        ) from error


def _secret_client() -> Any:
    from google.cloud import secretmanager

    return secretmanager.SecretManagerServiceClient()
