"""How a training corpus is cleaned: the flags that the overlap job and the removal share."""

from dataclasses import dataclass

from beam_pipeline.cli.flags import check_flags, flag

NO_REMOVAL = "none"
_MAX_CHARS = 2**31 - 1


@dataclass(frozen=True)
class RemovalConfig:
    """What becomes of contaminated training documents in a clean corpus.

    Raises:
      UsageError: a value is not allowed.
    """

    remove: str = flag(
        "What goes: the whole document, the shared text and a margin around it, which splits the "
        "document, or the shared text alone, for which a mask stands.",
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
    mask_token: str = flag("What stands for masked text.", "⟦removed⟧", group="removal", affects="")

    def __post_init__(self) -> None:
        check_flags(self)
