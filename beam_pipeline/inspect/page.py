"""The facts of a dataset as one HTML file, light or dark.

The page loads nothing, runs no script, and has no date or machine name, so it is deterministic.
page.html.jinja has the sections and the surrounding text.
"""

from collections.abc import Iterator

from markupsafe import Markup

from beam_pipeline.dataset.data_card import facts
from beam_pipeline.inspect.figures import Figures
from beam_pipeline.inspect.findings import Report, sample_text
from beam_pipeline.inspect.plots import plots, row_plot
from beam_pipeline.inspect.row import TOKEN_STYLES, OneContext, OneRow, row_table, row_text
from beam_pipeline.inspect.tables import tables
from beam_pipeline.report.page import environment, part
from beam_pipeline.report.tables import NONE, bytes_text, span_us_text


def page(report: Report, row: OneRow | None, context: OneContext | None) -> bytes:
    """Returns the page as UTF-8, with an optional row and context."""
    figures, manifest = report.figures, report.figures.dataset.manifest
    shown_tables = {table.name: table for table in tables(report)}
    if row:
        shown_tables["row"] = row_table(row)
    template = environment().from_string(part("beam_pipeline.inspect", "page.html.jinja"))
    html = template.render(
        style=Markup(part("beam_pipeline.inspect", "page.css")),
        title=figures.dataset.path,
        period=figures.period,
        tiles=list(_tiles(figures)),
        report=report,
        tables=shown_tables,
        plots=plots(figures) | ({"row": row_plot(row.row.run)} if row else {}),
        row_name=row and row.name,
        row_text=row and row_text(row),
        context=context,
        kinds=list(TOKEN_STYLES),
        sample=sample_text(figures),
        versions=", ".join(f"{name} {value}" for name, value in sorted(manifest.versions.items())),
        options=" ".join(f"--{name}={value}" for name, value in sorted(manifest.options.items())),
    )
    return html.encode()


def _tiles(figures: Figures) -> Iterator[tuple[str, str]]:
    manifest, totals = figures.dataset.manifest, figures.totals
    known = facts(list(manifest.splits.values()), totals)
    for name in ("measurements", "probes", "rows"):
        yield f"{known[name]:,}", name
    yield bytes_text(sum(split.num_bytes for split in manifest.splits.values())), "in shards"
    yield span_us_text(figures.period.length_us) if figures.period else NONE, "covered"
    yield str(known["failed pings"] or NONE), "of the pings failed"
    yield f"{manifest.counts.num_dead_letters:,}", "dead letters"
