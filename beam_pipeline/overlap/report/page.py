"""The report as one HTML file that loads nothing; text and colours of shares, for the picture too.

Jinja escapes all data, and the page's policy allows no script but its own, which it names by hash.
Shares have one hue from light to dark (on a dark page from dark to light), so that colour-blind
readers and grey prints keep the order. The scale is that of the square root: most shares are
small, and 0.1 % must not look like none.
"""

import base64
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from beam_pipeline import __version__
from beam_pipeline.overlap.report.statistics import Statistics
from beam_pipeline.report.formatting import count_text, number_of, percent
from beam_pipeline.report.page import environment, part

LIGHT = ("#eaf2fb", "#a9cce8", "#4f97cd", "#1c62a5", "#08306b")
DARK = ("#152c44", "#1f5180", "#3b86bd", "#86bfe4", "#e0f0fc")
NONE_LIGHT, NONE_DARK = "#ffffff", "#171b21"
# From these shares on, text has the other colour: its contrast is at least 4.5 to 1 everywhere.
_WHITE_ON_LIGHT, _BLACK_ON_DARK = 0.4085, 0.1987


def page(statistics: Statistics) -> bytes:
    """Returns the page; its texts and tables are in page.html.jinja."""
    style, script, template = (
        part("beam_pipeline.overlap.report", f"page.{suffix}")
        for suffix in ("css", "js", "html.jinja")
    )
    templates = environment()
    templates.filters |= {
        "share": share_text,
        "number": count_text,
        "number_of": number_of,
        "cell": _cell_style,
    }
    html = templates.from_string(template).render(
        statistics=statistics,
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
    )
    return html.encode()


def _cell_style(share: float) -> str:
    colors = cell_colors(share)._asdict().items()
    return "; ".join(f"--{name.replace('_', '-')}: {color}" for name, color in colors)


class CellColors(NamedTuple):
    """A cell's colours and those of its text, on a light and on a dark page."""

    light: str
    light_text: str
    dark: str
    dark_text: str


def share_text(share: float) -> str:
    """Returns a share in percent; only none is 0 % and only all is 100 %."""
    if 0 < share < 0.0005:
        text = "<0.1 %"
    elif 0.9995 <= share < 1:
        text = ">99.9 %"
    else:
        text = percent(share, digits=0 if share in (0, 1) else 1)
    return text.replace(" ", "\u00a0")


def cell_colors(share: float) -> CellColors:
    """Returns the colours of a share; 0 has the colour of the page."""
    light, dark = (_at(LIGHT, share), _at(DARK, share)) if share > 0 else (NONE_LIGHT, NONE_DARK)
    light_text = "#000000" if share < _WHITE_ON_LIGHT else "#ffffff"
    dark_text = "#ffffff" if share < _BLACK_ON_DARK else "#000000"
    return CellColors(light, light_text, dark, dark_text)


def _at(ramp: Sequence[str], share: float) -> str:
    place = min(1.0, share) ** 0.5 * (len(ramp) - 1)
    channels = zip(*(bytes.fromhex(color[1:]) for color in ramp), strict=True)
    return "#" + "".join(f"{round(np.interp(place, range(len(ramp)), c)):02x}" for c in channels)
