"""Tokenizers with offsets in the original text.

A text becomes tokens, each with its range [start, end) of code points. This is the plain form, by
Python's own `lower` and `re`; `token_kernels` does the same a hundred times as fast, and tests
compare the two. The whole text is lower-cased first, since lower case depends on context (final
sigma) and may change the length (U+0130).
"""

import functools
import importlib
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple, cast

from beam_pipeline.errors import ProbelineError, UsageError, one_line
from beam_pipeline.overlap.ngrams.characters import UNSPACED, spaces_and_punctuation

_PUNCTUATION = rf"[\s{re.escape(string.punctuation)}]+"
_WHITESPACE = r"\s+"
EXPANDS = "\u0130"  # the only character whose lower case is longer: i and a combining dot
MULTILINGUAL = "multilingual"
_PIECE_CHARS = 1 << 22


class Token(NamedTuple):
    """A token in the form that is compared, and its place in the original text in code points."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Tokenizer:
    """How a text becomes tokens."""

    name: str  # or the import path of a function
    # A regular expression of the text between tokens; "" is `spaces_and_punctuation`.
    separators: str = _PUNCTUATION
    lowercase: bool = True  # the whole text first
    keep_empty: bool = True  # a separator at an end of the text leaves an empty token there
    # A regular expression of a character that is a token of its own; not with `keep_empty`.
    characters: str = ""
    # Replaces all this: takes a text, returns Tokens or (text, start, end).
    function: Callable[[str], list[Token]] | None = None

    @functools.cached_property
    def separator_pattern(self) -> re.Pattern[str]:
        """The compiled form of `separators`."""
        return re.compile(self.separators or spaces_and_punctuation())

    def tokenize(self, text: str) -> list[Token]:
        """Returns the tokens of a text, in order."""
        if self.function is not None:
            return self._call(self.function, text)
        lowered = text.lower() if self.lowercase else text
        tokens, start = [], 0
        for separator in self.separator_pattern.finditer(lowered):
            tokens.append(Token(lowered[start : separator.start()], start, separator.start()))
            start = separator.end()
        tokens.append(Token(lowered[start:], start, len(lowered)))
        if self.characters:
            tokens = [part for token in tokens for part in self._split(token)]
        if not self.keep_empty:
            tokens = [token for token in tokens if token.text]
        if len(lowered) == len(text):
            return tokens
        origin = origins(text)
        return [Token(token.text, origin[token.start], origin[token.end]) for token in tokens]

    def borders(self, text: str, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yields where a text may be cut behind a place: [start, end) of runs of separators.

        A built-in tokenizer makes the same tokens of the parts as of the text: no empty token comes
        into being between two other characters, and lower case does not depend on what is beyond.
        """
        for run in self.separator_pattern.finditer(text, start):
            is_between = start < run.start() and run.end() < len(text)
            if is_between and any(map(_ends_context, run[0])):
                yield run.span()

    def _split(self, token: Token) -> Iterator[Token]:
        """Yields the characters in a token that are tokens, and what is between them."""
        start = token.start
        for part in re.split(f"({self.characters})", token.text):
            yield Token(part, start, start + len(part))
            start += len(part)

    def _call(self, function: Callable[[str], list[Token]], text: str) -> list[Token]:
        """Returns the tokens of a function of the user; ProbelineError for what is none."""
        try:
            tokens = list(function(text))
        except (Exception, SystemExit) as error:
            raise ProbelineError(
                f"--tokenizer={self.name} fails on a text of {len(text)} characters with "
                f"{type(error).__name__}: {one_line(error)}; correct the function"
            ) from error
        last = 0
        for token in tokens:
            match token:
                case (str(), Integral() as start, Integral() as end) if (
                    last <= start <= end <= len(text)
                ):
                    last = start
                case _:
                    raise ProbelineError(
                        f"--tokenizer={self.name} returns {repr(token)[:100]} for a text of "
                        f"{len(text)} characters: a token is (text, start, end), in order and "
                        "with start and end in the text; correct the function"
                    )
        return [Token(text, int(start), int(end)) for text, start, end in tokens]


@functools.cache
def _ends_context(char: str) -> bool:
    """Tells whether the lower case of a capital sigma depends on nothing beyond a character."""
    return f"A{char}\u03a3".lower()[-1] == "\u03c3"


def pieces_of(text: str, tokenizer: Tokenizer) -> Iterator[tuple[int, str]]:
    """Yields the pieces of a text between some of a tokenizer's borders, and where each begins."""
    start = 0
    while border := next(tokenizer.borders(text, start + _PIECE_CHARS), None):
        yield start, text[start : border[0]]
        start = border[1]
    yield start, text[start:]


def origins(text: str) -> list[int]:
    """Returns the place in a text of each place in its lower case, the end included."""
    places: list[int] = []
    for at, char in enumerate(text):
        places += [at] * (2 if char == EXPANDS else 1)
    return [*places, len(text)]


TOKENIZERS = {
    tokenizer.name: tokenizer
    for tokenizer in (
        Tokenizer("default"),
        Tokenizer("no_lowercase", lowercase=False),
        Tokenizer("drop_empty", keep_empty=False),
        Tokenizer("whitespace", _WHITESPACE, lowercase=False, keep_empty=False),
        Tokenizer("whitespace_lower", _WHITESPACE, keep_empty=False),
        Tokenizer(MULTILINGUAL, "", keep_empty=False, characters=UNSPACED),
    )
}


def tokenizer_named(name: str) -> Tokenizer:
    """Returns a tokenizer by its name or as `package.module:function`.

    Raises:
      UsageError: the name is unknown, or the function cannot be imported.
    """
    if name in TOKENIZERS:
        return TOKENIZERS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UsageError(
            f"--tokenizer={name} is none of {', '.join(TOKENIZERS)}, nor package.module:function"
        )
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a module of the user's may raise anything
        raise UsageError(f"--tokenizer={name} cannot be imported: {one_line(error)}") from error
    if not callable(function):
        raise UsageError(f"--tokenizer={name} is a {type(function).__name__}, not a function")
    return Tokenizer(name, function=cast(Callable[[str], list[Token]], function))


def effective_lengths(lengths: tuple[int, ...], num_tokens: int) -> list[int]:
    """Returns the n of a text's n-grams: min(n, num_tokens) for each length, each once."""
    return sorted({min(n, num_tokens) for n in lengths if num_tokens})
