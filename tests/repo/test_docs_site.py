"""The site of docs/: it builds without a warning, its links lead somewhere, it loads nothing.

Links are followed twice: in the repository, by tests.support.documents, and in the site, by MkDocs
in its strict build, which is also shown to fail. What the site makes of a page is counted against
what a CommonMark parser makes of it, since MkDocs reads lists and tables by rules of its own.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.support import documents
from tests.support.browser import visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = documents.ROOT
PAGES = documents.pages()
SITE_OF = {
    "README.md": "index.html",
    "CONTRIBUTING.md": "contributing.html",
    "CHANGELOG.md": "changes.html",
    "benchmarks/README.md": "benchmarks/index.html",
    "examples/README.md": "examples/index.html",
}


def made_of(page: str) -> str:
    return SITE_OF.get(page, page.removeprefix("docs/").replace(".md", ".html"))


def build(root: Path, site: Path) -> subprocess.CompletedProcess:
    """Builds the site of a copy of the project, as `make docs` does."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = build(ROOT, folder)
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    return folder


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for link in documents.links(page):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            assert re.fullmatch(r"https://[\w.-]+\.[a-z]{2,}(/[^\s)\]]*)?", link), link
            assert not link.endswith((".", ",", "'")), link
            continue
        target = (ROOT / page).parent / parts.path if parts.path else ROOT / page
        assert target.exists(), f"{page} links to {link}"
        assert target.resolve().is_relative_to(ROOT), f"{page} links to {link}"
        if parts.fragment:
            there = documents.anchors(target.resolve().relative_to(ROOT).as_posix())
            assert parts.fragment in there, f"{page} links to {link}; there is {sorted(there)}"


@pytest.mark.parametrize("page", PAGES)
def test_no_link_is_left_in_the_text(page: str) -> None:
    """A link that is written wrong, or whose definition is missing, is text."""
    for text in documents.prose(page):
        assert "](" not in text and not re.search(r"\]\s*\[|(^|\s)\[\w+\]$", text), text


def nav_of(items: list | dict | str) -> list[str]:
    if isinstance(items, str):
        return [items]
    values = items.values() if isinstance(items, dict) else items
    return [page for item in values for page in nav_of(item)]


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without making what its tags name."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def test_every_page_is_in_the_nav_once() -> None:
    config: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)
    listed = [page.replace(".md", ".html") for page in nav_of(config["nav"])]
    listed = [re.sub(r"README\.html$", "index.html", page) for page in listed]
    ours = [page for page in PAGES if page.startswith("docs/") or page in SITE_OF]
    assert Counter(listed) == Counter(made_of(page) for page in ours)


# --- the strict build -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("docs/format.md", "[x](no.md)", "no.md"),
        ("docs/format.md", "[x](engines.md#nowhere)", "#nowhere"),
        ("docs/format.md", "[x](../no/file.sh)", "../no/file.sh"),
        ("README.md", "[x](docs/engines.md#nowhere)", "#nowhere"),
        ("README.md", '<img src="docs/no.png">', "docs/no.png"),
        ("docs/new.md", "# Not in the nav", "new.md"),
    ],
)
def test_a_mistake_fails_the_build(tmp_path: Path, path: str, text: str, complaint: str) -> None:
    root = tmp_path / "project"
    root.mkdir()
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml"):
        shutil.copyfile(ROOT / name, root / name)
    for name in ("docs", "scripts"):
        shutil.copytree(ROOT / name, root / name)
    for source in ROOT.iterdir():
        if not source.name.startswith(".") and not (root / source.name).exists():
            (root / source.name).symlink_to(source)
    with (root / path).open("a") as file:
        file.write(f"\n{text}\n")
    result = build(root, tmp_path / "site")
    assert result.returncode == 1
    warnings = [line for line in result.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1 and complaint in result.stderr, result.stderr


# --- what the site shows --------------------------------------------------------------------------


class Elements(HTMLParser):
    """Counts the elements of a page's article; those of the site are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._inside = self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "article":
            self._inside += 1
        if self._inside:
            self._pre += tag == "pre"
            if not (tag == "code" and self._pre):
                self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._inside -= tag == "article"
        self._pre -= tag == "pre"


WRITTEN = [page for page in PAGES if page in SITE_OF or "docs/" in page]
WRITTEN.remove("docs/reference.md")  # its contents come from docstrings


@pytest.mark.parametrize("page", WRITTEN)
def test_the_site_shows_a_page_as_a_repository_does(site: Path, page: str) -> None:
    expected = documents.counts(page)
    found = Elements()
    found.feed((site / made_of(page)).read_text())
    assert {kind: found.counts[kind] for kind in expected} == expected


SHOWN = (  # page, width, colours: a table, a block of code and a picture among them
    ("index.html", 1400, "light"),
    ("engines.html", 1280, "dark"),
    ("learning.html", 900, "light"),
    ("training.html", 400, "light"),
    ("sources/templates/tpu/settings.sh.html", 1280, "dark"),
)


@pytest.mark.parametrize(("page", "width", "scheme"), SHOWN)
def test_a_page_in_a_browser(site: Path, browser: "Browser", page, width, scheme) -> None:
    with visit(browser, site / page, width=width, scheme=scheme) as seen:
        for kind in ("h1", "pre code") if "sources" in page else ("h1", "table", "pre code"):
            element = seen.page.locator(f"article {kind}").first
            element.scroll_into_view_if_needed()
            assert element.is_visible() and element.inner_text().strip()
        for picture in seen.page.locator("article img").all():
            picture.scroll_into_view_if_needed()
            assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        shades = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        assert (max(seen.page.evaluate(shades)) < 128) == (scheme == "dark")
    assert seen.complaints == []
    assert all(request.startswith(site.as_uri()) for request in seen.requests)


def test_links_lead_to_pages_that_show(site: Path, browser: "Browser") -> None:
    """From README's page, made of another folder's file, into docs and to a source."""
    with visit(browser, site / "index.html", width=1400) as seen:
        seen.page.locator("article a[href='format.html']").first.click()
        assert "The dataset" in seen.page.inner_text("article h1")
        seen.page.goto((site / "training.html").as_uri())
        seen.page.locator("article a", has_text="settings.sh").first.click()
        assert "RESTART_DELAY_S" in seen.page.inner_text("article pre")
    assert seen.complaints == []


def test_the_search_works_without_a_server(site: Path, browser: "Browser") -> None:
    with visit(browser, site / "index.html", width=1400) as seen:
        seen.page.click("input[name=query]")
        seen.page.keyboard.type("fingerprint")
        result = seen.page.locator(".md-search-result__link").first
        result.wait_for(timeout=20_000)
        assert "matching documents" in seen.page.inner_text(".md-search-result__meta")
        result.click()
        seen.page.wait_for_url("**/*.html?h=*")
        assert "fingerprint" in seen.page.inner_text("article").lower()
    assert seen.complaints == []
    assert all(request.startswith(site.as_uri()) for request in seen.requests)
