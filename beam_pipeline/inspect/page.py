"""What a look at a dataset found, as one page that needs nothing beside it, light or dark.

The text around it is in page.html. Nothing is loaded from anywhere; there is no date and no
machine in it, so the same dataset gives the same page.
"""

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from string import Template

from beam_pipeline.inspect.context import OneContext
from beam_pipeline.inspect.facts import Facts, sample_text
from beam_pipeline.inspect.plots import Plot, plots, row_plot
from beam_pipeline.inspect.row import OneRow, row_sheet, row_text
from beam_pipeline.inspect.tables import VERDICT_STYLES, Sheet, sheets
from beam_pipeline.inspect.words import bytes_text, percent, period_text, span_text
from beam_pipeline.manifest import SPLITS

# Which table belongs below which picture.
_TABLE_OF = {"hours": "hours", "destinations": "destinations", "sizes": "sizes", "time": "gaps"}
_TABLES_OF_PROBES = ("busiest_train", "busiest_test")
_DISTANCES = (
    '<p class="soft">Distances go from 0, the same, to 1, nothing in common. “By chance” is how '
    "far a split by lot would put them apart in 95 of 100 cases, given how unevenly the "
    "measurements lie on the probes.</p>"
)
_OF_NO_SPLIT = ("dead_letters", "row")
_KEY = "".join(f' <span class="key {split}">{split}</span>' for split in SPLITS)
_KINDS = ("start", "source", "destination", "time", "RTT", "failed")


def page(facts: Facts, row: OneRow | None, context: OneContext | None) -> str:
    """Returns the page; a row and a context are shown in it if they are given."""
    template = files(__package__).joinpath("page.html").read_text("utf-8")
    manifest = facts.dataset.manifest
    options = " ".join(f"--{name}={value}" for name, value in sorted(manifest.options.items()))
    versions = ", ".join(f"{name} {number}" for name, number in sorted(manifest.versions.items()))
    body = [*_sections(facts)]
    body += [_row(row)] if row is not None else []
    body += [_context(context)] if context is not None else []
    return Template(template).substitute(
        title=escape(facts.dataset.path),
        subtitle=_subtitle(facts),
        tiles="\n".join(_tiles(facts)),
        body="\n".join(body),
        sample=escape(sample_text(facts)),
        made=f"Made with {escape(versions)}.<br><code>{escape(options)}</code>",
    )


def _subtitle(facts: Facts) -> str:
    if facts.period is None:
        return "A dataset of probe rows without a measurement."
    return (
        f"A dataset of probe rows: everything that each probe measured, in time order, "
        f"{escape(period_text(facts.period))} UTC."
    )


def _tiles(facts: Facts) -> Iterator[str]:
    splits = facts.dataset.manifest.splits
    indexes = list(facts.indexes.values())
    measurements = sum(index.num_measurements for index in indexes)
    failed = sum(int(index.num_failed.sum()) for index in indexes) / max(1, measurements)
    counts = facts.dataset.manifest.counts
    for value, name in (
        (f"{measurements:,}", "measurements"),
        (f"{sum(len(index.probes) for index in indexes):,}", "probes"),
        (f"{sum(len(index) for index in indexes):,}", "rows"),
        (bytes_text(sum(split.num_bytes for split in splits.values())), "in shards"),
        (span_text(facts.period.length_us) if facts.period else "–", "covered"),
        (percent(failed, 2), "of the pings failed"),
        (f"{counts.num_dead_letters:,}", "dead letters"),
    ):
        yield f'<div class="tile"><b>{escape(value)}</b><span>{name}</span></div>'


def _sections(facts: Facts) -> Iterator[str]:
    tables = {sheet.name: sheet for sheet in sheets(facts)}
    yield f'<div class="pair">{_findings(facts)}{_section_of(tables["overview"])}</div>'
    if "comparison" in tables:
        yield _section_of(tables["comparison"], _DISTANCES)
    for plot in plots(facts):
        names = _TABLES_OF_PROBES if plot.name == "busiest" else (_TABLE_OF.get(plot.name),)
        below = [tables[name] for name in (*names, plot.name) if name in tables]
        unique = list(dict.fromkeys(sheet.name for sheet in below))
        yield _picture(plot, [tables[name] for name in unique])


def _findings(facts: Facts) -> str:
    items = "\n".join(
        f'<li class="{"warning" if finding.is_warning else "note"}">{escape(finding.text)}</li>'
        for finding in facts.findings
    )
    return _section("findings", "What stands out", f'<ul class="findings">{items}</ul>')


def _section_of(sheet: Sheet, note: str = "") -> str:
    return _section(sheet.name, sheet.title, note + _table(sheet))


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}"><h2>{escape(title)}</h2>\n{content}</section>'


def _picture(plot: Plot, tables: list[Sheet]) -> str:
    details = "".join(
        f"<details><summary>{escape(sheet.title)}</summary>{_table(sheet)}</details>"
        for sheet in tables
    )
    key = "" if plot.name in _OF_NO_SPLIT else _KEY
    caption = f'<p class="soft">{escape(plot.caption)}{key}</p>'
    return _section(plot.name, plot.title, f"{caption}{plot.svg}{details}")


def _table(sheet: Sheet) -> str:
    def cell(tag: str, place: int, text: str) -> str:
        kind = ' class="text"' if place < sheet.num_text else ""
        content = escape(text)
        if text in VERDICT_STYLES:
            content = f'<span class="verdict {text}">{text}</span>'
        return f"<{tag}{kind}>{content}</{tag}>"

    head = "".join(cell("th", place, text) for place, text in enumerate(sheet.columns))
    rows = "\n".join(
        f"<tr>{''.join(cell('td', place, text) for place, text in enumerate(row))}</tr>"
        for row in sheet.rows
    )
    return (
        f'<div class="scroll"><table class="{sheet.name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(one: OneRow) -> str:
    plot = row_plot(one)
    text = f'<p>{escape(row_text(one))}</p><p class="soft">{escape(plot.caption)}</p>'
    sheet = row_sheet(one)
    details = f"<details><summary>{escape(sheet.title)}</summary>{_table(sheet)}</details>"
    return _section("row", "One row", f"{text}{plot.svg}{details}")


def _context(context: OneContext) -> str:
    legend = "".join(f'<i class="k-{kind}">{kind}</i>' for kind in _KINDS)
    lines = "\n".join(
        f'<div>{escape(measurement.text)}</div><div class="tokens">'
        + "".join(f'<i class="k-{token.kind}">{token.text}</i>' for token in measurement.tokens)
        + "</div>"
        for measurement in context.measurements
    )
    return _section(
        "context",
        "One training context",
        f'<p>{escape(context.about)}</p><p class="soft">Left what the tokens say, right the '
        f"tokens: {legend} A number is a byte; its token is 11 more.</p>"
        f'<div class="scroll"><div class="context">{lines}</div></div>',
    )
