"""The Markdown pages of the repository, parsed: blocks, links, headings.

The parser is markdown-it-py, which follows CommonMark as repositories do; the site's is different.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.repository import ROOT

_PATTERNS = ("*.md", "docs/*.md", "benchmarks/*.md", "templates/**/*.md", "examples/**/*.md")
_ATTRIBUTE = re.compile(r"<[^>]*?\b(?:src|srcset|href)=\"([^\"]*)\"")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `line` is that of its fence, from 1."""

    page: str
    line: int
    language: str
    text: str


def pages() -> list[str]:
    """Returns the paths of all pages."""
    found = [path for pattern in _PATTERNS for path in sorted(ROOT.glob(pattern))]
    return [path.relative_to(ROOT).as_posix() for path in found]


@cache
def tokens(page: str) -> list[Token]:
    """Returns the tokens of a page, tables included."""
    return MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text())


def _inline(page: str) -> Iterator[Token]:
    for token in tokens(page):
        yield token
        yield from token.children or ()


def blocks(page: str) -> list[Block]:
    """Returns the fenced blocks of a page, in order."""
    return [
        Block(page, token.map[0] + 1, token.info.strip(), token.content)
        for token in tokens(page)
        if token.type == "fence" and token.map
    ]


def links(page: str) -> list[str]:
    """Returns the targets of links and images, those in HTML included."""
    found = []
    for token in _inline(page):
        if token.type == "link_open":
            found.append(str(token.attrs["href"]))
        elif token.type == "image":
            found.append(str(token.attrs["src"]))
        elif token.type in ("html_block", "html_inline"):
            found += _ATTRIBUTE.findall(token.content)
    return found


def code(page: str) -> list[str]:
    """Returns the code of a page: code between backticks, and fenced blocks."""
    return [t.content for t in _inline(page) if t.type in ("code_inline", "fence", "code_block")]


def _text_of(heading: Token) -> str:
    shown = ("text", "code_inline")
    return "".join(child.content for child in heading.children or () if child.type in shown)


def anchors(page: str) -> set[str]:
    """Returns the anchors that a repository's site gives to the headings of a page."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading, inline in zip(tokens(page), tokens(page)[1:]):
        if heading.type == "heading_open":
            slug = re.sub(r"[^\w\- ]", "", _text_of(inline).lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return found
