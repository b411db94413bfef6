"""The JSON schema of a dataset's manifest; `scripts.generate` writes it into docs/."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from beam_pipeline.dataset.manifest import READABLE_VERSIONS, SPLITS, KnownOptions, Manifest

PATH = Path(__file__).parents[1] / "docs" / "manifest.schema.json"
_ATTRIBUTE = re.compile(r"^ {6}([\w, ]+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def schema() -> bytes:
    """Returns the schema, of the types that the manifest is decoded to."""
    _, parts = msgspec.json.schema_components(
        (Manifest, KnownOptions), ref_template="#/$defs/{name}"
    )
    for part in parts.values():
        _describe(part)
    manifest = parts.pop("Manifest")
    properties = manifest["properties"]
    properties["format_version"] |= {"enum": list(READABLE_VERSIONS)}
    properties["options"] |= {"$ref": "#/$defs/KnownOptions"}
    properties["splits"] |= {"required": list(SPLITS)}
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**dialect, **manifest, "$defs": parts}, indent=2).encode() + b"\n"


def _describe(part: dict[str, Any]) -> None:
    """Makes the docstring of a type the texts of its parts."""
    docstring = part.get("description", "")
    for names, text in _ATTRIBUTE.findall(docstring.partition("Attributes:")[2]):
        for name in names.split(", "):
            if name in part["properties"]:
                part["properties"][name]["description"] = " ".join(text.split())
    part["description"] = docstring.partition("\n")[0]
