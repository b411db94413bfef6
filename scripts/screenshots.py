"""Makes the pictures of docs/inspect.md and of the README again, with Chromium.

  .venv/bin/python -m scripts.screenshots

The dataset is that of docs/inspect.md: the commands are read from there and run.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, FloatRect, Page

from tests.support.browser import find_chromium, launched, visit

ROOT = Path(__file__).parents[1]
_CONTEXT = "--context=7,train:60,1"
# The page down to the end of this section, and so much of a context.
_LAST_SECTION, _CONTEXT_HEIGHT = "#rtt", 575
_MARGIN, _WIDTH = 14, 1240


def make_page(folder: Path) -> Path:
    """Runs the commands of the docs in a folder and returns the page, with a context in it."""
    text = (ROOT / "docs" / "inspect.md").read_text("utf-8")
    commands = re.findall(r"^```sh\n(probeline generate .*?)^```", text, re.M | re.S)
    for line in commands[0].replace("\\\n", " ").splitlines():
        _, *arguments = shlex.split(line)
        if "inspect" in arguments:
            arguments.append(_CONTEXT)
        subprocess.run(
            [sys.executable, "-m", "beam_pipeline.cli.probeline", *arguments],
            check=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    return folder / "report.html"


def take(browser: Browser, page: Path, folder: Path) -> None:
    """Takes both pictures of a page into a folder."""
    with visit(browser, page, _WIDTH) as seen:
        last = seen.page.locator(_LAST_SECTION).bounding_box()
        context = seen.page.locator("#context").bounding_box()
        assert last and context, "the page lacks a section"
        top = FloatRect(x=0, y=0, width=_WIDTH, height=last["y"] + last["height"] + _MARGIN)
        _shoot(seen.page, folder / "inspect.png", top)
        place = FloatRect(
            x=context["x"] - _MARGIN,
            y=context["y"] - _MARGIN,
            width=context["width"] + 2 * _MARGIN,
            height=_CONTEXT_HEIGHT,
        )
        _shoot(seen.page, folder / "inspect_context.png", place)


def _shoot(page: Page, path: Path, clip: FloatRect) -> None:
    """Takes a picture of 256 colours, which is a third in size and looks the same."""
    page.screenshot(path=path, clip=clip, full_page=True)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def main() -> int:
    """Makes the pictures; returns the exit code."""
    chromium = find_chromium()
    if chromium is None:
        print("error: there is no Chromium here: make chromium", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, launched(chromium) as browser:
        take(browser, make_page(Path(folder)), ROOT / "docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
