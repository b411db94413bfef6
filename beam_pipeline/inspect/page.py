"""The facts of a dataset as one HTML file, light or dark.

The page loads nothing and runs no script. It holds no date and no machine, so the same dataset
gives the same page. The text around the facts is in page.html.jinja.
"""

from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from beam_pipeline.inspect.compare import conclusion
from beam_pipeline.inspect.context import OneContext
from beam_pipeline.inspect.facts import Facts, sample_text
from beam_pipeline.inspect.index import span_us_text
from beam_pipeline.inspect.plots import Plot, plots, row_plot
from beam_pipeline.inspect.row import OneRow, row_sheet, row_text
from beam_pipeline.inspect.tables import sheets
from beam_pipeline.report.formatting import NONE, bytes_text, percent
from beam_pipeline.report.page import environment, part
from beam_pipeline.report.terminal import Sheet

# The tables below each picture.
_TABLES = {
    "hours": ("hours",),
    "destinations": ("destinations",),
    "sizes": ("sizes",),
    "time": ("gaps",),
    "busiest": ("busiest_train", "busiest_test"),
    "families": ("families",),
    "dead_letters": ("dead_letters",),
}
_TOKEN_KINDS = ("start", "source", "destination", "time", "RTT", "failed")
# The links to the sections, at the top of the page.
_CONTENTS = {
    "comparison": "Train against test",
    "rtt": "RTT",
    "time": "Over time",
    "hours": "By hour",
    "destinations": "Destinations",
    "sizes": "Sizes",
    "busiest": "Probes",
    "families": "Families",
    "dead_letters": "Dead letters",
    "row": "One row",
    "context": "A training context",
}


def page(facts: Facts, row: OneRow | None, context: OneContext | None) -> bytes:
    """Returns the page as UTF-8, with a row and a context if they are given."""
    manifest = facts.dataset.manifest
    tables = {sheet.name: sheet for sheet in sheets(facts)}
    comparison = tables.get("comparison")
    pictures = list(_pictures(facts, tables))
    names = {"comparison"} if comparison else set()
    names |= {plot.name for plot, _, _ in pictures}
    names |= {name for name, one in (("row", row), ("context", context)) if one}
    template = environment().from_string(part("beam_pipeline.inspect", "page.html.jinja"))
    html = template.render(
        style=Markup(part("beam_pipeline.inspect", "page.css")),
        title=facts.dataset.path,
        subtitle=_subtitle(facts),
        contents=[(name, text) for name, text in _CONTENTS.items() if name in names],
        tiles=list(_tiles(facts)),
        conclusion=conclusion(facts.comparisons),
        findings=facts.findings,
        overview=tables["overview"],
        comparison=comparison,
        compared=list(zip(comparison.rows, facts.comparisons, strict=True)) if comparison else [],
        pictures=pictures,
        row=row and _row(row),
        context=context,
        kinds=_TOKEN_KINDS,
        sample=sample_text(facts),
        versions=", ".join(
            f"{name} {number}" for name, number in sorted(manifest.versions.items())
        ),
        options=" ".join(f"--{name}={value}" for name, value in sorted(manifest.options.items())),
    )
    return html.encode()


def _subtitle(facts: Facts) -> str:
    if facts.period is None:
        return "A dataset of probe rows without a measurement."
    return (
        "A dataset of probe rows: everything that each probe measured, in time order, "
        f"{facts.period} UTC."
    )


def _tiles(facts: Facts) -> Iterator[tuple[str, str]]:
    splits = facts.dataset.manifest.splits
    indexes = list(facts.indexes.values())
    measurements = sum(index.num_measurements for index in indexes)
    failed = sum(int(index.num_failed.sum()) for index in indexes)
    yield f"{measurements:,}", "measurements"
    yield f"{sum(len(index.probes) for index in indexes):,}", "probes"
    yield f"{sum(len(index) for index in indexes):,}", "rows"
    yield bytes_text(sum(split.num_bytes for split in splits.values())), "in shards"
    yield span_us_text(facts.period.length_us) if facts.period else NONE, "covered"
    yield percent(failed / measurements if measurements else None, 2), "of the pings failed"
    yield f"{facts.dataset.manifest.counts.num_dead_letters:,}", "dead letters"


def _pictures(facts: Facts, tables: dict[str, Sheet]) -> Iterator[tuple[Plot, list[Sheet], bool]]:
    """Yields each plot, the tables below it, and whether it has the colours of the splits."""
    for plot in plots(facts):
        below = [tables[name] for name in _TABLES.get(plot.name, ()) if name in tables]
        yield plot, below, plot.name != "dead_letters"


def _row(one: OneRow) -> dict[str, Any]:
    return {"text": row_text(one), "plot": row_plot(one), "sheet": row_sheet(one)}
