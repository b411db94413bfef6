"""The site of docs/ builds without a warning, has no broken link, and loads nothing from elsewhere.

Links are checked in the repository, by a CommonMark parser, and in the site, by MkDocs in its
strict build.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

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


def site_path(page: str) -> str:
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
def site(folder: Path) -> Path:
    result = build(ROOT, folder)
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    return folder


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_broken_link_in_the_repository(page: str) -> None:
    for link in documents.links(page):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            assert re.fullmatch(r"https://[\w.-]+\.[a-z]{2,}(/[^\s)\]]*)?", link), link
            continue
        target = (ROOT / page).parent / parts.path if parts.path else ROOT / page
        assert target.exists() and target.resolve().is_relative_to(ROOT), f"{page}: {link}"
        if parts.fragment:
            there = documents.anchors(target.resolve().relative_to(ROOT).as_posix())
            assert parts.fragment in there, f"{page} links to {link}; there is {sorted(there)}"


# --- what the site shows --------------------------------------------------------------------------


# Longer than ten screens of a telephone: they are looked things up in.
LONG = ("docs/reference.md", "docs/format.md")


SHOWN = [page for page in PAGES if page in SITE_OF or "docs/" in page]


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_in_a_browser(site: Path, browser: "Browser", page: str) -> None:
    with visit(browser, site / site_path(page)) as seen:
        assert seen.page.locator("article h1").first.is_visible()
        assert seen.page.locator("article th:not([scope])").count() == 0
        for picture in seen.page.locator("article img").all():
            picture.scroll_into_view_if_needed()
            assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
        for width in (1280, 390):
            seen.page.set_viewport_size({"width": width, "height": 900})
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        height = seen.page.evaluate("document.querySelector('article').scrollHeight")
        assert page in LONG or height <= 10 * 900
    assert seen.complaints == []
    assert all(request.startswith(site.as_uri()) for request in seen.requests)


def test_links_and_search_work_without_a_server(site: Path, browser: "Browser") -> None:
    with visit(browser, site / "index.html", width=1400) as seen:
        seen.page.locator("article a[href='format.html']").first.click()
        seen.page.wait_for_url("**/format.html")
        seen.page.locator("article h1").wait_for()
        seen.page.click("input[name=query]")
        seen.page.keyboard.type("fingerprint")
        result = seen.page.locator(".md-search-result__link").first
        result.wait_for(timeout=20_000)
        result.click()
        seen.page.wait_for_url("**/*.html?h=*")
        assert "fingerprint" in seen.page.inner_text("article").lower()
    assert seen.complaints == []
    assert all(request.startswith(site.as_uri()) for request in seen.requests)
