"""A headless browser that opens a page: what it shows as text, how it measures, how it looks."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.engines import missing

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
    *("--disable-dev-shm-usage", "--enable-logging=stderr"),
    # Whatever is asked for over a network is not found.
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=2000"),
)
# Added to a copy of the page: in its place stands what the browser made of it.
_LOOK = """
<script>
addEventListener("load", () => {
  const seen = {
    text: document.body.innerText,
    width: document.documentElement.scrollWidth,
    window: innerWidth,
    cut: [...document.querySelectorAll(".scroll")]
      .filter(part => part.clientWidth && part.scrollWidth > part.clientWidth + 1)
      .map(part => part.innerText.slice(0, 60)),
    ground: getComputedStyle(document.body).backgroundColor,
    plots: [...document.querySelectorAll("svg.plot")].map(plot => ({
      name: plot.getAttribute("aria-label"),
      width: plot.getBoundingClientRect().width,
      height: plot.getBoundingClientRect().height,
      texts: [...plot.querySelectorAll("text")].map(text => text.textContent.trim()),
      outside: [...plot.querySelectorAll("text")].filter(text => {
        const box = text.getBoundingClientRect(), all = plot.getBoundingClientRect();
        return box.left < all.left - 1 || box.right > all.right + 1
          || box.top < all.top - 1 || box.bottom > all.bottom + 1;
      }).map(text => text.textContent.trim()),
    })),
    loaded: performance.getEntriesByType("resource").map(entry => entry.name),
  };
  document.body.textContent = JSON.stringify(seen);
});
</script>
"""


def browser() -> str:
    """Returns the browser's command; skips (in CI fails) if there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        missing(f"pages are looked at with a browser, and there is none of {', '.join(_NAMES)}")
    return str(found)


def seen(page: Path, width: int = 1240, dark: bool = False) -> dict[str, Any]:
    """Opens a page; returns its visible text, its widths, its plots and what it loaded.

    Fails if the page wrote an error to the browser's console.
    """
    copy = page.with_name(f"{page.stem}-seen.html")
    copy.write_text(page.read_text("utf-8") + _LOOK, "utf-8")
    result = _run(copy, width, 900, dark, "--dump-dom")
    assert "CONSOLE" not in result.stderr, result.stderr
    body = re.search(r"<body>(.*)</body>", result.stdout, re.DOTALL)
    assert body is not None, result.stdout[-2000:] + result.stderr
    return json.loads(html.unescape(body[1]))


def screenshot(
    page: Path, target: Path, height: int, width: int = 1240, dark: bool = False
) -> Path:
    """Takes a picture of a page as PNG."""
    result = _run(page, width, height, dark, f"--screenshot={target}")
    assert target.exists(), result.stderr
    return target


def _run(
    page: Path, width: int, height: int, dark: bool, *flags: str
) -> subprocess.CompletedProcess[str]:
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    command = [browser(), *_FLAGS, scheme, f"--window-size={width},{height}", *flags, page.as_uri()]
    environment = {**os.environ, "HOME": str(page.parent)}  # its profile goes with the test
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert result.returncode == 0, result.stderr
    return result
