"""The colours of shares, on the page and in the picture.

One hue from light to dark (on a dark page from dark to light), which people tell apart who do not
see some colours, and which a grey print keeps. The scale is that of the square root: most shares
are small, and 0.1 % must not look like none.
"""

from typing import NamedTuple

LIGHT = ("#eaf2fb", "#a9cce8", "#4f97cd", "#1c62a5", "#08306b")
DARK = ("#152c44", "#1f5180", "#3b86bd", "#86bfe4", "#e0f0fc")
NONE_LIGHT, NONE_DARK = "#ffffff", "#171b21"
_BLACK, _WHITE = "#000000", "#ffffff"


class CellColors(NamedTuple):
    """A cell's colours on a light and on a dark page, and those of the text in it."""

    light: str
    light_text: str
    dark: str
    dark_text: str


def cell_colors(share: float) -> CellColors:
    """Returns the colours of a share of 0 to 1; nothing at all has the colour of the page."""
    light, dark = (NONE_LIGHT, NONE_DARK) if share <= 0 else (_at(LIGHT, share), _at(DARK, share))
    return CellColors(light, text_color(light), dark, text_color(dark))


def _at(ramp: tuple[str, ...], share: float) -> str:
    place = min(1.0, share) ** 0.5 * (len(ramp) - 1)
    step = min(int(place), len(ramp) - 2)
    pairs = zip(_channels(ramp[step]), _channels(ramp[step + 1]), strict=True)
    mixed = (round(one + (other - one) * (place - step)) for one, other in pairs)
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _channels(color: str) -> list[int]:
    return list(bytes.fromhex(color[1:]))


def text_color(background: str) -> str:
    """Returns black or white, whichever stands out more: 4.5 to 1 at least."""
    luminance = _luminance(background)
    return _BLACK if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else _WHITE


def _luminance(color: str) -> float:
    """Returns the relative luminance, as WCAG 2 defines it."""
    parts = [channel / 255 for channel in _channels(color)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
