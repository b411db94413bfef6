"""Tokenizers with offsets in the original text.

A text becomes tokens, each with its range [start, end) of code points. This is the reference
implementation with Python's `lower` and `re`, which tests compare with `token_kernels`, a hundred
times as fast. The whole text is lower-cased first, since lower case depends on context (final
sigma) and may change the length (U+0130).
"""

import functools
import importlib
import re
import string
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple, cast

from beam_pipeline.errors import ProbelineError, UsageError, one_line

_PUNCTUATION = rf"[\s{re.escape(string.punctuation)}]+"
_WHITESPACE = r"\s+"
EXPANDS = "\u0130"  # the only character whose lower case is longer: i and a combining dot
MULTILINGUAL = "multilingual"
_PIECE_CHARS = 1 << 20
# Scripts without spaces: lines may break between any two letters or syllables (classes ID, CJ and
# SA of https://www.unicode.org/reports/tr14/), and words are found with a dictionary, if at all
# (https://www.unicode.org/reports/tr29/). Digits are excluded, since they form numbers, and so is
# Tibetan, since punctuation separates its syllables.
_UNSPACED_SCRIPTS = {
    "Thai": "\u0e01-\u0e3a\u0e40-\u0e4e",
    "Lao": "\u0e80-\u0ebd\u0ec0-\u0ece\u0edc-\u0edf",
    "Myanmar": "\u1000-\u103f\u1050-\u108f\u109a-\u109d\ua9e0-\ua9ef\ua9fa-\ua9fe"
    "\uaa60-\uaa76\uaa7a-\uaa7f",
    "Khmer": "\u1780-\u17d3\u17d7\u17dc\u17dd",
    "Tai Le": "\u1950-\u197f",
    "New Tai Lue": "\u1980-\u19cf",
    "Tai Tham": "\u1a20-\u1a7f\u1aa7",
    "Tai Viet": "\uaa80-\uaadd",
    "Ahom": "\U00011700-\U0001172f\U00011740-\U00011746",
    "Han": "\u2e80-\u2fd5\u3005-\u3007\u3021-\u302d\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00016fe3\U00016ff0-\U00016ff1\U00020000-\U0003fffd",
    "Hiragana, Katakana": "\u3031-\u3035\u303c\u3041-\u3096\u3099-\u309a\u309d-\u309f"
    "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001affe"
    "\U0001b000-\U0001b16f",
    "Bopomofo": "\u3105-\u312f\u31a0-\u31bf",
    "Yi": "\ua000-\ua48c",
    "Tangut, Khitan, Nushu": "\U00016fe0-\U00016fe1\U00016fe4\U00017000-\U00018d7f"
    "\U0001b170-\U0001b2fb",
}
UNSPACED = f"[{''.join(_UNSPACED_SCRIPTS.values())}]"


@functools.cache
def spaces_and_punctuation() -> str:
    """Returns the expression of white space, ASCII and full-width punctuation, and category P."""
    others = "".join(map(chr, range(0x80, 0x20000)))  # category P ends below
    kinds = map(unicodedata.category, others)
    found = [char for char, kind in zip(others, kinds, strict=True) if kind[0] == "P"]
    full_width = [chr(ord(char) - ord("!") + 0xFF01) for char in string.punctuation]
    return rf"[\s{re.escape(''.join([string.punctuation, *full_width, *found]))}]+"


class Token(NamedTuple):
    """A token as compared, and its range of code points in the original text."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Tokenizer:
    """How a text becomes tokens."""

    name: str  # or the import path of a function
    # Regular expression of text between tokens; "" is `spaces_and_punctuation`.
    separators: str = _PUNCTUATION
    lowercase: bool = True  # the whole text first
    keep_empty: bool = True  # whether a separator at an end of the text leaves an empty token
    # Regular expression of a character that is a token by itself; not with `keep_empty`.
    characters: str = ""
    # Replaces all of the above: takes a text, returns Tokens or (text, start, end).
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
        """Yields where a text may be cut after a place: [start, end) of runs of separators.

        A built-in tokenizer makes the same tokens of the parts as of the whole: a cut between two
        other characters adds no empty token, and lower case does not depend on what follows.
        """
        for run in self.separator_pattern.finditer(text, start):
            is_between = start < run.start() and run.end() < len(text)
            if is_between and any(map(_ends_context, run[0])):
                yield run.span()

    def _split(self, token: Token) -> Iterator[Token]:
        """Yields the characters of a token that are tokens, and the text between them."""
        start = token.start
        for part in re.split(f"({self.characters})", token.text):
            yield Token(part, start, start + len(part))
            start += len(part)

    def _call(self, function: Callable[[str], list[Token]], text: str) -> list[Token]:
        """Returns the tokens of a user's function; raises ProbelineError for an invalid one."""
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
    """Returns whether a character ends the context that decides a capital sigma's lower case."""
    return f"A{char}\u03a3".lower()[-1] == "\u03c3"


def pieces_of(text: str, tokenizer: Tokenizer) -> Iterator[tuple[int, str]]:
    """Yields the pieces of a text, cut at borders of a tokenizer, each with its first place."""
    start = 0
    has_borders = tokenizer.function is None
    while has_borders and (border := next(tokenizer.borders(text, start + _PIECE_CHARS), None)):
        yield start, text[start : border[0]]
        start = border[1]
    yield start, text[start:]


def origins(text: str) -> list[int]:
    """Returns the place in a text of each place in its lower case, including the end."""
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
    """Returns a built-in tokenizer by name, or that of `package.module:function`.

    Raises UsageError if the name is unknown, or the function cannot be imported.
    """
    if name in TOKENIZERS:
        return TOKENIZERS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UsageError(
            f"--tokenizer={name} is unknown: give {', '.join(TOKENIZERS)} or module:function"
        )
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise UsageError(f"--tokenizer={name} cannot be imported: {one_line(error)}") from error
    if not callable(function):
        raise UsageError(f"--tokenizer={name} is a {type(function).__name__}, not a function")
    return Tokenizer(name, function=cast(Callable[[str], list[Token]], function))


def effective_lengths(lengths: tuple[int, ...], num_tokens: int) -> list[int]:
    """Returns the distinct min(n, num_tokens) for a text, ascending; empty without tokens."""
    return sorted({min(n, num_tokens) for n in lengths if num_tokens})
