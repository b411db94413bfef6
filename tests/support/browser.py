"""Pages in a headless Chromium, the one of the system: Debian's package `chromium`.

`make chromium` installs it; without one the tests that ask for `browser` are skipped and say why,
with CI=true that is a failure. The fixture lives as long as a module's tests: Playwright keeps
an event loop in the thread, and another one cannot run beside it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests.support.engines import missing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str | None:
    """Returns where Chromium is; None if there is none."""
    given = os.environ.get("CHROMIUM_BINARY")
    return given or next(filter(None, map(shutil.which, _NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A running Chromium; skips the test (in CI fails it) if there is none."""
    path = find_chromium()
    if path is None:
        missing("pages are looked at in Chromium, and there is none here: make chromium")
    with launched(str(path)) as running:
        yield running


@contextmanager
def launched(path: str) -> Iterator[Browser]:
    """Yields a running Chromium with a profile of its own, which is thrown away."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=path,
            args=list(_FLAGS),
            chromium_sandbox=os.geteuid() != 0,  # which root cannot have
        )
        yield running
        running.close()


@dataclass
class Visit:
    """A page that is open, and what it did so far.

    Attributes:
      requests: the addresses that were asked for, that of the page first.
      complaints: errors of scripts, and what the console says is wrong.
      dialogs: what scripts said in message boxes, each of which was dismissed.
    """

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)


@contextmanager
def visit(
    browser: Browser,
    file: Path,
    width: int = 1280,
    scheme: Literal["light", "dark"] = "light",
    has_script: bool = True,
) -> Iterator[Visit]:
    """Opens a local HTML file and yields it; closes it when the block ends."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        java_script_enabled=has_script,
    )
    seen = Visit(context.new_page())
    page = seen.page
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            seen.complaints.append(message.text)

    def dismiss(dialog: Dialog) -> None:
        seen.dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("console", hear)
    page.on("dialog", dismiss)
    try:
        page.goto(file.absolute().as_uri())
        yield seen
    finally:
        context.close()
