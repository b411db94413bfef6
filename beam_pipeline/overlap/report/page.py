"""Writes `Statistics` as one HTML file that needs nothing else: no network, no second file.

Jinja escapes whatever comes from data, and the page's policy allows no script but its own, which
it names by hash.
"""

import base64
import hashlib

from markupsafe import Markup

from beam_pipeline import __version__
from beam_pipeline.overlap.report.shares import cell_colors, share_text
from beam_pipeline.overlap.report.statistics import Statistics
from beam_pipeline.report.formatting import count_text, number_of
from beam_pipeline.report.page import environment, part


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
