"""The names of evaluation sets and the ids of their records.

The id of a record is its `id`, or a hash of all its fields. The name of an evaluation set is the
one that the user gave, or that of its folder, without the suffixes that executors append.
"""

import hashlib
import json
import os
import re
from typing import Any, NamedTuple

import msgspec

from beam_pipeline.errors import UsageError
from beam_pipeline.overlap.documents.nested_fields import values_at

_DIGEST_BYTES = 8
_packed = msgspec.msgpack.Encoder(order="deterministic").encode
_RUN_HASH = re.compile(r"-[0-9a-fA-F]{6}\Z")
_TOOL_SUFFIX = "-dolma"
_WILDCARD = re.compile(r"[*?\[]")
DOCUMENT_NAME = re.compile(r"\.(?:jsonl?(?:\.(?:gz|zst))?|parquet)\Z")


class EvaluationSource(NamedTuple):
    """An evaluation set: its name, and the folder, glob or file that holds it."""

    name: str
    path: str


def document_id(record: dict[str, Any], id_field: str = "id") -> str:
    """Returns the id of a record as text: `str` of its id if it has one, else `record_hash`."""
    named = id_field in record  # or within the record
    value = record[id_field] if named else next(values_at(record, id_field), None)
    return record_hash(record) if value is None else str(value)


def record_hash(record: dict[str, Any]) -> str:
    """Returns a 64-bit hash of a record's fields, whatever their order, as a decimal number.

    The hash is BLAKE2b of the record in MessagePack with its keys sorted; decimals, dates and times
    are text in ISO form. MessagePack cannot hold integers of more than 64 bits, lone surrogates or
    keys that are not text: such a record is hashed as ASCII JSON, its keys sorted, and values
    without a JSON form as Python's repr.
    """
    try:
        data = _packed(record)
    except (OverflowError, UnicodeEncodeError, TypeError):
        data = json.dumps(record, sort_keys=True, default=repr).encode()
    digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
    return str(int.from_bytes(digest, "big"))


def parse_evaluation_source(text: str) -> EvaluationSource:
    """Reads PATH or NAME=PATH; without a name the path gives it (`dataset_name`).

    The text before the first `=` is a name unless it has a slash: `lang=en/x.jsonl` has the name
    `lang`, `./lang=en/x.jsonl` is a path.

    Raises:
      UsageError: the name or the path is empty.
    """
    name, equals, path = text.partition("=")
    if not equals or "/" in name:
        name, path = "", text
    elif not name:
        raise UsageError(f"--decontaminate_source={text} has no name before =: it is NAME=PATH")
    if not path:
        raise UsageError(f"--decontaminate_source={text} has no path: it is PATH or NAME=PATH")
    return EvaluationSource(name or dataset_name(path), path)


def name_with_field(dataset: str, field: str) -> str:
    """Returns the name of the evaluation set that one field of another's rows is."""
    return f"{dataset}:{field}"


def dataset_name(path: str) -> str:
    """Returns the name of an evaluation set: that of its folder, without `-1a2b3c` and `-dolma`.

    The folder of a glob is the last one above its first wildcard; a local path that exists is none.

    Raises:
      UsageError: the path has no folder with a name.
    """
    folder = path if "://" in path else os.path.abspath(path)
    wildcard = _WILDCARD.search(folder)
    if wildcard and not os.path.exists(folder):
        folder = folder[: wildcard.start()].rpartition("/")[0]
    elif DOCUMENT_NAME.search(folder.rstrip("/")):
        folder = folder.rstrip("/").rpartition("/")[0]
    name = folder.rstrip("/").rpartition("/")[2]
    if not name:
        raise UsageError(
            f"--decontaminate_source={path} lies in no folder that could name the evaluation set: "
            f"give it as NAME={path}"
        )
    bare = _RUN_HASH.sub("", name)
    return bare.removesuffix(_TOOL_SUFFIX) or bare or name
