"""The options of the jobs over training files; the overlap job shares those of a removal."""

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from beam_pipeline.cli.flags import (
    OneLineParser,
    check_flags,
    flag,
    flags_of,
    from_flags,
    job_parser,
)
from beam_pipeline.documents.fields import training_fields
from beam_pipeline.errors import UsageError
from beam_pipeline.storage.files import check_path

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

PARQUET, DOLMA = "parquet", "dolma"
NO_REMOVAL = "none"
_MAX_CHARS = 2**31 - 1


@dataclass(frozen=True)
class RemovalConfig:
    """What happens to contaminated training documents in a clean corpus.

    Raises:
      UsageError: a value is not allowed.
    """

    remove: str = flag(
        "What to remove: the whole document; the shared text with a margin, which splits the "
        "document; or only the shared text, replaced by a mask.",
        NO_REMOVAL,
        choices=(NO_REMOVAL, "document", "split", "mask"),
        group="removal",
        affects="",
    )
    margin_chars: int = flag(
        "Characters that --remove=split takes on each side of shared text.",
        200,
        limits=(0, _MAX_CHARS),
        group="removal",
        affects="",
    )
    min_piece_chars: int = flag(
        "Shorter pieces of a split document are dropped.",
        200,
        limits=(1, _MAX_CHARS),
        group="removal",
        affects="",
    )
    max_pieces: int = flag(
        "A document that would be split into more pieces is dropped.",
        10,
        limits=(1, _MAX_CHARS),
        group="removal",
        affects="",
    )
    allow_short_rows: bool = flag(
        "Drop documents even if rows of fewer than 8 tokens alone take more than 5 % of the "
        "training characters.",
        False,
        action="store_true",
        group="removal",
        affects="",
    )
    mask_token: str = flag("Replacement for masked text.", "⟦removed⟧", group="removal", affects="")

    min_coverage: float = flag(
        "Contaminated documents stay as they are if less than this share of their characters is in "
        "shared text.",
        0.0,
        limits=(0, 1),
        group="removal",
        affects="",
    )

    def __post_init__(self) -> None:
        check_flags(self)


def check_cut(config: RemovalConfig, text_field: str) -> None:
    """Raises UsageError if texts are to be cut that are not one top-level field."""
    if config.remove in ("split", "mask") and training_fields(text_field, "").nested:
        raise UsageError(
            f"--remove={config.remove} cuts a text that is one field of a document, not "
            f"--text_field={text_field}: pass --remove=document"
        )


@dataclass(frozen=True, kw_only=True)
class FileJobOptions:
    """The options of both commands."""

    result_path: str = flag("Folder of a finished result of the overlap job.", group="input")
    output_path: str = flag("Folder of the output.", group="output")
    input_path: str = flag(
        "Folder of the training files, if they have moved without the result.", "", group="input"
    )
    overwrite: bool = flag("Replace a finished output.", False, action="store_true", group="output")
    skip_existing: bool = flag(
        "Resume a run that died, or return its output if it is finished, where result and options "
        "are the same.",
        False,
        action="store_true",
        group="run",
    )
    debug: bool = flag("Show Beam's log, and tracebacks.", False, action="store_true", group="run")

    def __post_init__(self) -> None:
        check_flags(self)
        check_path("result_path", self.result_path)
        check_path("output_path", self.output_path)


@dataclass(frozen=True, kw_only=True)
class RemovalOptions(FileJobOptions):
    """The options of a removal; see `python -m beam_pipeline.overlap.remove --help`."""

    removal: RemovalConfig = RemovalConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.removal.remove == NO_REMOVAL:
            raise UsageError(f"--remove={NO_REMOVAL}: pass document, split or mask")
        if os.path.normpath(self.output_path) == os.path.normpath(self.result_path):
            raise UsageError(
                f"{self.output_path} is the folder of the result: write the clean corpus elsewhere"
            )


@dataclass(frozen=True, kw_only=True)
class AttributeOptions(FileJobOptions):
    """The options of attributes; see `python -m beam_pipeline.overlap.attributes --help`."""

    format: str = flag(
        "Parquet, a row per document, or JSON lines as Dolma's mixer reads them.",
        PARQUET,
        choices=(PARQUET, DOLMA),
        group="output",
    )
    attribute_name: str = flag(
        "Name of the attributes' folder and, for Dolma, prefix of their keys.",
        "overlap",
        group="output",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.attribute_name):
            raise UsageError(
                f"--attribute_name={self.attribute_name}: use only letters, digits, - and _"
            )


def removal_parser() -> OneLineParser:
    """Returns the parser of the flags of a removal."""
    description = "Writes a training corpus without the text that it shares with evaluation sets."
    example = "--result_path overlap --output_path clean --remove split"
    flags = flags_of(RemovalOptions)
    return job_parser("beam_pipeline.overlap.remove", description, example, flags)


def attributes_parser() -> OneLineParser:
    """Returns the parser of the flags of attributes."""
    description = "Writes what evaluation sets share with each training document, file by file."
    example = "--result_path overlap --output_path corpus --format dolma"
    flags = flags_of(AttributeOptions)
    return job_parser("beam_pipeline.overlap.attributes", description, example, flags)


def parse[Options: FileJobOptions](
    argv: Sequence[str], parser: OneLineParser, options: type[Options]
) -> "tuple[Options, PipelineOptions]":
    """Returns the options of a command line, and Beam's; raises UsageError for an invalid flag."""
    known: argparse.Namespace
    known, rest = parser.parse_known_args(argv)
    found = from_flags(options, vars(known))
    from beam_pipeline.jobs.beam_options import parse_beam_options

    return found, parse_beam_options(rest, [item.name for item in flags_of(options)])
