"""Metadata of the Flex Templates, from the flags of their jobs.

`scripts.generate` writes it to templates/NAME/metadata.json.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from beam_pipeline.cli.flags import OneLineParser, flags_of
from beam_pipeline.overlap import NGramConfig
from beam_pipeline.overlap.job import config
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.removal.options import RemovalConfig
from beam_pipeline.probe_rows import options
from beam_pipeline.sources.options import COLUMNS

_PATHS = "^gs://[^/]+/.+$"
_RENAMED = rf"({'|'.join(COLUMNS)})==?[^,=]+"
_KEY = "^(gs://[^/]+/.+|projects/[^/]+/secrets/[^/]+/versions/[^/]+)?$"
_READ, _WRITE = (
    {"paramType": kind, "regexes": [_PATHS]} for kind in ("GCS_READ_FILE", "GCS_WRITE_FOLDER")
)


@dataclass(frozen=True)
class Template:
    """A template: what its metadata says.

    Attributes:
      title: its name for a person.
      parser: parses the flags of its job.
      special: by flag, what it does not say of itself: the kind of field on Google's page, its
        label, what a value looks like, and how a template differs from a command line.
      left_out: flags of what a template does not start.
    """

    title: str
    description: str
    parser: OneLineParser
    special: Mapping[str, dict] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


TEMPLATES = {
    "probe_rows": Template(
        "Probe rows",
        "Turns ping measurements in Parquet or RIPE Atlas results into probe rows: all that a "
        "probe measured, in time order, in sharded files for training.",
        options.make_parser(),
        {
            "input": _READ
            | {
                "helpText": "File, folder or glob of measurements on gs://; several with a comma "
                "between."
            },
            "output": _WRITE | {"helpText": "Folder of the dataset on gs://."},
            "anonymize_key_file": {
                "regexes": [_KEY],
                "helpText": "Needed with anonymize: file on gs:// with the key, 32 bytes or 64 hex "
                "digits, or a secret's version, projects/P/secrets/S/versions/V.",
            },
            "inline_bytes": {
                "helpText": "Max size of payloads that go through the shuffle instead of "
                f"storage; -1 means {options.REMOTE_INLINE_BYTES}.",
            },
            "columns": {"regexes": [f"^({_RENAMED}(,{_RENAMED}|,[^,=]+)*)?$"]},
            "max_row_size_mb": {"label": "Max record size in MiB"},
            "array_record_options": {"label": "ArrayRecord options"},
            "probes_per_shard": {"label": "Probes per shard"},
        },
    ),
    "overlap": Template(
        "Train/test overlap",
        "Finds every n-gram that evaluation sets share with training documents, with its place in "
        "both.",
        config.make_parser(),
        {
            "input_path": _READ
            | {
                "helpText": "Folder, glob or file of training documents on gs://: JSON lines or "
                "JSON, plain or compressed as .gz, .zst, .bz2 or .xz, or Parquet; several with a "
                "comma between."
            },
            "decontaminate_source": {
                "regexes": ["^([^/=]+=)?gs://[^/]+/.+$"],
                "helpText": "Evaluation set on gs://: PATH as of input_path, named by its folder, "
                "or NAME=PATH; several with a comma between.",
            },
            "output_path": _WRITE | {"helpText": "Folder of the results on gs://."},
            "drop_ngrams": _READ
            | {
                "helpText": "File on gs:// of JSON lines with n-grams that are not counted as "
                "overlap, such as the overlap_boilerplate.jsonl of another result; several with a "
                "comma between."
            },
            "ngram_length": {
                "label": "N-gram length",
                "defaultValue": str(NGramConfig().ngram_length),
                "regexes": ["^[0-9]+(,[0-9]+)*$"],
                "helpText": "Tokens of an n-gram; several with a comma between. An evaluation row "
                "of fewer tokens is looked for as a whole. Default: 15.",
            },
            "processes": {
                "label": "Machines",
                "helpText": "Machines at most, as max-workers of gcloud; 0 lets Dataflow decide.",
            },
            "tokenizer": {
                "helpText": f"How texts become tokens: {', '.join(TOKENIZERS)}, or a Python "
                "function of the template's image as package.module:function, which is code that "
                "runs on every text.",
            },
            "index_memory_mb": {"label": "Memory of the index in MiB"},
        },
        ("remove_output", *(item.name for item in flags_of(RemovalConfig))),
    ),
}


def parameter(action: argparse.Action, special: Mapping[str, dict]) -> dict:
    """Returns what the metadata says of a flag."""
    name = action.dest
    told: dict = {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "helpText": (action.help or "").replace("%%", "%"),
        "isOptional": not action.required,
    }
    if not action.required:
        told["defaultValue"] = "" if action.default is None else _text(action.default)
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
    return told | special.get(name, {})


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def metadata(name: str) -> dict:
    """Returns the metadata of a template."""
    template = TEMPLATES[name]
    return {
        "name": template.title,
        "description": template.description,
        "streaming": False,
        "parameters": [
            parameter(action, template.special)
            for action in template.parser.flags
            if action.dest not in template.left_out
        ],
    }


def metadata_text(name: str) -> str:
    return json.dumps(metadata(name), indent=2) + "\n"
