"""The key of --anonymize: where it is, how workers come by it, and what the manifest tells of it.

A path, the name of a secret or an environment variable enters; what leaves for the workers is a
KeyReference, never the key: a pipeline is stored, shown and logged in places that its input is not
meant for. Each process reads the key again and compares its fingerprint.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from typing import Any, Literal

from beam_pipeline.errors import ProbelineError, UsageError, one_line
from beam_pipeline.storage.files import is_local, read_file

Anonymization = Literal["none", "prefix_preserving"]
METHODS: tuple[Anonymization, ...] = ("none", "prefix_preserving")
KEY_VARIABLE = "PROBELINE_ANONYMIZE_KEY"

_KEY_BYTES = 32
_SECRET = re.compile(r"projects/[^/]+/secrets/[^/]+/versions/[^/]+")
_HEX_KEY = re.compile(r"[0-9A-Fa-f]{64}")
_MAKE_ONE = "make one with: openssl rand -hex 32 > key.hex"
_MIN_DISTINCT_BYTES = 8  # of 32 random ones, fewer are less likely than guessing the key


@dataclass(frozen=True)
class KeyReference:
    """Where the key is, and what tells that it is the right one: all of it that travels.

    Attributes:
      source: a path, the name of a secret's version, or "" for the environment variable.
      fingerprint: a keyed hash, which the manifest shows.
    """

    source: str
    fingerprint: str


def is_secret(source: str) -> bool:
    """Tells the name of a version in Secret Manager from a path."""
    return _SECRET.fullmatch(source) is not None


def check_source(source: str) -> None:
    """Raises UsageError, without naming it, for a key where its place should stand."""
    if _HEX_KEY.fullmatch(source):
        raise UsageError(
            "--anonymize_key_file has 64 hex digits and takes the name of a file: what stands in "
            f"a command line is seen by others, so do not use this key; {_MAKE_ONE}"
        )


def is_on_this_machine(source: str) -> bool:
    """Tells whether workers elsewhere would not find the key there."""
    return is_local(source) and not is_secret(source)


def described(source: str) -> str:
    """Returns how a person gave the key."""
    return f"--anonymize_key_file={source}" if source else f"the variable {KEY_VARIABLE}"


def find_key(source: str) -> KeyReference:
    """Reads the key once, before a run begins, and returns what workers need to read it again.

    Raises:
      UsageError: there is no key, or it is none.
      ProbelineError: it cannot be read.
    """
    if source and is_on_this_machine(source):
        source = os.path.abspath(source)  # a worker may run in another folder
    return KeyReference(source, fingerprint(read_key(source)))


def fingerprint(key: bytes) -> str:
    """Returns 16 hex digits that name a key and do not lead back to it."""
    return hashlib.blake2b(key=key, digest_size=8, person=b"anonymize").hexdigest()


def as_options(reference: KeyReference | None) -> dict[str, str]:
    """Returns what the manifest tells: the method, and of a key its fingerprint."""
    if reference is None:
        return {"anonymize": "none"}
    return {
        "anonymize": "prefix_preserving",
        "anonymize_key_fingerprint": reference.fingerprint,
    }


def read_key(source: str) -> bytes:
    """Returns the 32 bytes of a key; errors as those of `find_key`."""
    if not source:
        text = os.environ.get(KEY_VARIABLE)
        if text is None:
            raise UsageError(
                "--anonymize needs a key: name its file with --anonymize_key_file, or set the "
                f"environment variable {KEY_VARIABLE}, which workers elsewhere must have, too; "
                f"{_MAKE_ONE}"
            )
        data = text.encode(errors="surrogateescape")
    elif is_secret(source):
        data = _read_secret(source)
    else:
        found = read_file(source)
        if found is None:
            raise UsageError(
                f"{described(source)}: there is no such file; check the path, or {_MAKE_ONE}"
            )
        data = found
    return parse_key(data, described(source))


def parse_key(data: bytes, name: str) -> bytes:
    """Returns the 32 bytes that a key's file holds, as they are or in hex.

    Raises:
      UsageError: it holds no key; the message has nothing of what it holds.
    """
    text = data.strip()
    is_hex = re.fullmatch(rb"[0-9A-Fa-f]*", text) is not None
    if is_hex and len(text) == 2 * _KEY_BYTES:
        key = bytes.fromhex(text.decode())
    elif len(data) == _KEY_BYTES and not is_hex:  # 32 hex digits are half of a key
        key = data
    else:
        found = f"{len(text)} hex digits" if is_hex else f"{len(data)} bytes"
        raise UsageError(
            f"{name} holds {found}: a key is {_KEY_BYTES} random bytes or {2 * _KEY_BYTES} hex "
            f"digits; {_MAKE_ONE}"
        )
    if len(set(key)) < _MIN_DISTINCT_BYTES:
        raise UsageError(
            f"{name} holds a key of {len(set(key))} different bytes, which cannot be random; "
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
            f"cannot read {name}: it takes the extra gcp: pip install 'probeline[gcp]'"
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
