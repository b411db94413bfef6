"""The facts of a dataset as one HTML file, light or dark.

The page loads nothing, runs no script, and has no date or machine name, so it is deterministic.
page.html.jinja has the sections and the surrounding text.
"""

from collections.abc import Iterator

from markupsafe import Markup

from beam_pipeline.inspect.comparison import conclusion
from beam_pipeline.inspect.facts import Facts, sample_text
from beam_pipeline.inspect.index import sum_of
from beam_pipeline.inspect.plots import MAX_POINTS, plots, row_plot
from beam_pipeline.inspect.row import TOKEN_STYLES, OneContext, OneRow, row_table, row_text
from beam_pipeline.inspect.tables import tables
from beam_pipeline.report.page import environment, part
from beam_pipeline.report.tables import NONE, bytes_text, percent, span_us_text


def page(facts: Facts, row: OneRow | None, context: OneContext | None) -> bytes:
    """Returns the page as UTF-8, with an optional row and context."""
    manifest = facts.dataset.manifest
    shown_tables = {table.name: table for table in tables(facts)}
    shown_row = None
    if row:
        shown_tables["row"] = row_table(row)
        run = row.row.run
        shown_row = {
            "name": row.name,
            "text": row_text(row),
            "svg": row_plot(run),
            "num_points": min(len(run), MAX_POINTS),
            "num_measurements": len(run),
        }
    template = environment().from_string(part("beam_pipeline.inspect", "page.html.jinja"))
    html = template.render(
        style=Markup(part("beam_pipeline.inspect", "page.css")),
        title=facts.dataset.path,
        period=facts.period,
        tiles=list(_tiles(facts)),
        conclusion=conclusion(facts.comparisons),
        findings=facts.findings,
        comparisons=facts.comparisons,
        tables=shown_tables,
        plots=plots(facts),
        row=shown_row,
        context=context,
        kinds=list(TOKEN_STYLES),
        sample=sample_text(facts),
        versions=", ".join(f"{name} {value}" for name, value in sorted(manifest.versions.items())),
        options=" ".join(f"--{name}={value}" for name, value in sorted(manifest.options.items())),
    )
    return html.encode()


def _tiles(facts: Facts) -> Iterator[tuple[str, str]]:
    manifest, splits = facts.dataset.manifest, facts.splits.values()
    measurements = sum(split.num_measurements for split in splits)
    failed = sum(sum_of(split.probes["num_failed"]) for split in splits)
    yield f"{measurements:,}", "measurements"
    yield f"{sum(len(split.probes) for split in splits):,}", "probes"
    yield f"{sum(len(split.rows) for split in splits):,}", "rows"
    yield bytes_text(sum(split.num_bytes for split in manifest.splits.values())), "in shards"
    yield span_us_text(facts.period.length_us) if facts.period else NONE, "covered"
    yield percent(failed / measurements if measurements else None, 2), "of the pings failed"
    yield f"{manifest.counts.num_dead_letters:,}", "dead letters"
