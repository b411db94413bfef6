"""The lengths of the n-grams of an overlap run: the part of its options with a class of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from beam_pipeline.cli.flags import check_flags, flag, several
from beam_pipeline.overlap.job.marin import warn_of

MAX_N = 2**31 - 1  # a column of the output is int32


@dataclass(frozen=True)
class NGramConfig:
    """The lengths of the n-grams that are compared.

    Args:
      ngram_length: n, in tokens, or several of them.
      stride: has no effect; every n-gram is compared.
      overlap_threshold: has no effect; every overlap is reported.

    Raises:
      UsageError: a length is not from 1 to 2**31 - 1.

    Example:

        NGramConfig([10, 15]).lengths  # (10, 15)
    """

    ngram_length: int | Sequence[int] = flag(
        "Tokens of an n-gram; may be repeated, or a list with commas. An evaluation row of fewer "
        "tokens is one n-gram.",
        15,
        limits=(1, MAX_N),
        action="append",
        group="n-grams",
    )
    # Of marin's class, without effect.
    stride: int = 0
    overlap_threshold: float = 0.0

    def __post_init__(self) -> None:
        check_flags(self)
        warn_of(self, ("stride", "overlap_threshold"))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The values of n, each once, in order."""
        return tuple(sorted(set(several(self.ngram_length))))
