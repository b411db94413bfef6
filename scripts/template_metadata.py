"""Writes what a Flex Template says of its parameters, from the flags of its job.

  python scripts/template_metadata.py

Into templates/probe_rows/metadata.json, for Google's console and its checks, and into the table of
docs/flex_templates.md. A test fails if either is not what this writes.
"""

import argparse
import json
import re
from pathlib import Path

from beam_pipeline import options
from beam_pipeline.measurements import COLUMNS

ROOT = Path(__file__).resolve().parent.parent
METADATA = ROOT / "templates/probe_rows/metadata.json"
DOCS = ROOT / "docs/flex_templates.md"
_TABLE = re.compile(r"(?<=<!-- parameters -->\n).*(?=<!-- /parameters -->)", re.DOTALL)

_PATHS = "^gs://[^/]+/.+$"
_RENAMED = rf"({'|'.join(COLUMNS)})=[^,=]+"
# What the flags do not say of themselves: the kind of field on Google's page, what a value looks
# like, and how a template differs from a command line.
_SPECIAL = {
    "input": {
        "paramType": "GCS_READ_FILE",
        "regexes": [_PATHS],
        "helpText": "File, folder or glob of measurements on gs://; several with a comma between.",
    },
    "output": {
        "paramType": "GCS_WRITE_FOLDER",
        "regexes": [_PATHS],
        "helpText": "Folder of the dataset on gs://.",
    },
    "columns": {"regexes": [f"^({_RENAMED}(,{_RENAMED})*)?$"]},
}
_LABELS = {
    "max_row_size_mb": "Largest record in MiB",
    "array_record_options": "ArrayRecord options",
    "probes_per_shard": "Probes a shard",
}


def parameter(action: argparse.Action) -> dict:
    """Returns what the metadata says of a flag."""
    name = action.dest
    told: dict = {
        "name": name,
        "label": _LABELS.get(name, name.replace("_", " ").capitalize()),
        "helpText": (action.help or "").replace("%%", "%"),
        "isOptional": not action.required,
    }
    if not action.required:
        told["defaultValue"] = _text(action.default)
    if action.nargs == 0:
        told |= {"paramType": "BOOLEAN", "regexes": ["^(true|false)$"]}
    elif action.choices:
        values = [str(choice) for choice in action.choices]
        told |= {
            "paramType": "ENUM",
            "enumOptions": [{"value": value, "label": value} for value in values],
            "regexes": [f"^({'|'.join(values)})$"],
        }
    elif action.type is int:
        told |= {"paramType": "NUMBER", "regexes": ["^-?[0-9]+$"]}
    elif action.type is float:
        told |= {"paramType": "NUMBER", "regexes": ["^[0-9]*[.]?[0-9]+$"]}
    else:
        told["paramType"] = "TEXT"
    return told | _SPECIAL.get(name, {})


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def metadata() -> dict:
    """Returns the metadata of the template probe_rows."""
    actions = [each for each in options.make_parser()._actions if each.dest != "help"]
    return {
        "name": "Probe rows",
        "description": "Turns ping measurements in Parquet or RIPE Atlas results into probe rows: "
        "all that a probe measured, in time order, in sharded files for training.",
        "streaming": False,
        "parameters": [parameter(action) for action in actions],
    }


def table() -> str:
    """Returns the table of the docs."""
    lines = ["| parameter | default | |", "|---|---|---|"]
    for told in metadata()["parameters"]:
        text = re.sub(r" Default: [^ ]+\.$", "", told["helpText"])
        if told["paramType"] == "ENUM":
            text += f" One of {', '.join(option['value'] for option in told['enumOptions'])}."
        default = "**needed**" if not told["isOptional"] else f"`{told['defaultValue']}`"
        default = default.replace("``", "")
        lines.append(f"| `{told['name']}` | {default} | {text} |")
    return "\n".join(lines) + "\n"


def metadata_text() -> str:
    return json.dumps(metadata(), indent=2) + "\n"


def docs_text(before: str) -> str:
    """Returns the docs with the table put in."""
    after, times = _TABLE.subn(lambda _: table(), before)
    if times != 1:
        raise SystemExit(f"{DOCS} has no place for the parameters")
    return after


if __name__ == "__main__":
    METADATA.write_text(metadata_text())
    DOCS.write_text(docs_text(DOCS.read_text()))
