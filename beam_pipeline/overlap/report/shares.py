"""How a share of 0 to 1 is shown, on the page and in the picture: its text and its colours.

The colours are one hue from light to dark (on a dark page from dark to light), so that colour-blind
readers and grey prints keep the order. The scale is that of the square root: most shares are
small, and 0.1 % must not look like none.
"""

from typing import NamedTuple

import numpy as np

from beam_pipeline.report.formatting import percent

LIGHT = ("#eaf2fb", "#a9cce8", "#4f97cd", "#1c62a5", "#08306b")
DARK = ("#152c44", "#1f5180", "#3b86bd", "#86bfe4", "#e0f0fc")
NONE_LIGHT, NONE_DARK = "#ffffff", "#171b21"
_LUMINANCE = (0.2126, 0.7152, 0.0722)  # of red, green and blue, as WCAG 2 defines it


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
    light, dark = (NONE_LIGHT, NONE_DARK) if share <= 0 else (_at(LIGHT, share), _at(DARK, share))
    return CellColors(light, _text_color(light), dark, _text_color(dark))


def _at(ramp: tuple[str, ...], share: float) -> str:
    place = min(1.0, share) ** 0.5 * (len(ramp) - 1)
    channels = zip(*map(_channels, ramp), strict=True)
    return "#" + "".join(f"{round(np.interp(place, range(len(ramp)), c)):02x}" for c in channels)


def _channels(color: str) -> bytes:
    return bytes.fromhex(color[1:])


def _text_color(background: str) -> str:
    """Returns black or white, whichever has the higher contrast: at least 4.5 to 1."""
    parts = np.frombuffer(_channels(background), np.uint8) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    luminance = linear @ _LUMINANCE
    return "#000000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#ffffff"
