"""Writes `Figures` as one HTML file that needs nothing else: no network, no second file.

Whatever comes from data is escaped by Jinja, and the page's policy lets no script run but its
own, which it names by hash.
"""

import base64
import hashlib

from markupsafe import Markup

from beam_pipeline import __version__
from beam_pipeline.overlap.report.colors import CellColors, cell_colors
from beam_pipeline.overlap.report.figures import Figures
from beam_pipeline.overlap.report.words import hits_text, number_text, share_text
from beam_pipeline.report.page import environment, part

_LEGEND_SHARES = (0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 1.0)
# What is told of a run, in this order, and in which words.
_FACTS = {
    "num_eval_files": "evaluation files",
    "eval_rows": "evaluation rows",
    "eval_without_text": "evaluation rows without a text",
    "degenerate_eval_rows": "evaluation rows without a word",
    "num_train_files": "training files",
    "train_rows": "training rows",
    "train_without_text": "training rows without a text",
    "matches": "matches (evaluation row, training row, n-gram)",
    "details": "matches in the details",
    "details_left_out": "matches left out of the details",
    "num_shards": "hash ranges of the index",
    "max_parallelism": "workers at most (0: as the runner decides)",
}


def page(figures: Figures) -> bytes:
    """Returns the page."""
    templates = environment()
    templates.filters |= {
        "share": share_text,
        "hits": hits_text,
        "number": number_text,
        "cell": _cell_style,
    }
    script = _part("js")
    html = templates.from_string(_part("html.jinja")).render(
        figures=figures,
        facts=[
            (what, figures.facts[name]) for name, what in _FACTS.items() if name in figures.facts
        ],
        legend=_LEGEND_SHARES,
        style=Markup(_part("css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
        has_gaps=any(n not in one.by_length for one in figures.sets for n in figures.lengths),
        has_texts=any(d.eval_passages for i in figures.instances for d in i.documents),
    )
    return html.encode()


def _part(suffix: str) -> str:
    return part("beam_pipeline.overlap.report", f"page.{suffix}")


def _cell_style(share: float) -> str:
    colors: CellColors = cell_colors(share)
    names = ("light", "light-text", "dark", "dark-text")
    return "; ".join(f"--{name}: {color}" for name, color in zip(names, colors, strict=True))
