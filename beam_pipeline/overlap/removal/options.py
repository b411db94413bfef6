"""The options of a removal, as the fields of a dataclass."""

import argparse
from dataclasses import dataclass, fields

from beam_pipeline.cli.flags import OneLineParser, check_range, flag, job_parser
from beam_pipeline.errors import UsageError
from beam_pipeline.storage.files import check_path

_MAX_CHARS = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class RemovalOptions:
    """The options of a removal; `python -m beam_pipeline.overlap.remove --help` explains each.

    Raises:
      UsageError: a value is not allowed.
    """

    result_path: str = flag("Folder of a finished result of the overlap job.", group="input")
    output_path: str = flag("Folder of the clean corpus.", group="output")
    remove: str = flag(
        "What goes: the whole document, the shared text and a margin around it, which splits the "
        "document, or the shared text alone, for which a mask stands.",
        "document",
        choices=("document", "split", "mask"),
        group="removal",
    )
    margin_chars: int = flag(
        "Characters that --remove=split takes on each side of shared text.",
        200,
        limits=(0, _MAX_CHARS),
        group="removal",
    )
    min_piece_chars: int = flag(
        "Shorter pieces of a split document are dropped.",
        200,
        limits=(1, _MAX_CHARS),
        group="removal",
    )
    max_pieces: int = flag(
        "A document that would be split into more pieces is dropped.",
        10,
        limits=(1, _MAX_CHARS),
        group="removal",
    )
    mask_token: str = flag("What stands for masked text.", "⟦removed⟧", group="removal")
    overwrite: bool = flag(
        "Replace a finished clean corpus.", False, action="store_true", group="output"
    )
    debug: bool = flag("Show Beam's log, and tracebacks.", False, action="store_true", group="run")

    def __post_init__(self) -> None:
        check_path("result_path", self.result_path)
        check_path("output_path", self.output_path)
        for item in fields(self):
            if limits := item.metadata["limits"]:
                check_range(item.name, getattr(self, item.name), *limits)
        if self.remove not in ("document", "split", "mask"):
            raise UsageError(f"--remove={self.remove}: give document, split or mask")


def make_parser() -> OneLineParser:
    """Returns the parser of the flags."""
    description = "Writes a training corpus anew without what evaluation sets share with it."
    example = "--result_path overlap --output_path clean --remove split"
    return job_parser("beam_pipeline.overlap.remove", description, example, fields(RemovalOptions))


def options_of(parsed: argparse.Namespace) -> RemovalOptions:
    """Returns the options of parsed flags; UsageError for a value that is not allowed."""
    return RemovalOptions(**vars(parsed))
