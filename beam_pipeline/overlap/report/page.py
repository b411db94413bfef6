"""The report as one HTML file that loads nothing; colours of shares, for the picture too.

Jinja escapes all data, and the page's policy allows no script but its own, which it names by hash.
Shares have one hue from light to dark (on a dark page from dark to light), so that colour-blind
readers and grey prints keep the order. The scale is that of the square root: most shares are
small, and 0.1 % must not look like none.
"""

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from beam_pipeline import __version__
from beam_pipeline.overlap.report.search_index import ROW_CHARS
from beam_pipeline.overlap.report.sets import LEVELS
from beam_pipeline.overlap.report.statistics import MAX_TABLE_ROWS, Statistics
from beam_pipeline.overlap.report.tables import (
    Table,
    option_facts,
    run_facts,
    share_text,
    started_text,
    tables_of,
)
from beam_pipeline.report.page import environment, part
from beam_pipeline.report.tables import count_text, number_of

LIGHT = ("#eaf2fb", "#a9cce8", "#4f97cd", "#1c62a5", "#08306b")
DARK = ("#152c44", "#1f5180", "#3b86bd", "#86bfe4", "#e0f0fc")
NONE_LIGHT, NONE_DARK = "#ffffff", "#171b21"
# From these shares on, text has the other colour: its contrast is at least 4.5 to 1 everywhere.
_WHITE_ON_LIGHT, _BLACK_ON_DARK = 0.4085, 0.1987


def page(statistics: Statistics, tables: Mapping[str, Table] | None = None) -> bytes:
    """Returns the page; its texts are in page.html.jinja, most of its tables in `tables`."""
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
        "level": lambda level: f"{level:.0%}".replace("%", "\u00a0%"),
        "quoted": shlex.quote,
    }
    html = templates.from_string(template).render(
        statistics=statistics,
        tables=tables_of(statistics) if tables is None else tables,
        started=started_text(statistics),
        run_facts=run_facts(statistics),
        option_facts=option_facts(statistics),
        levels=LEVELS,
        max_table_rows=MAX_TABLE_ROWS,
        row_chars=ROW_CHARS,
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
