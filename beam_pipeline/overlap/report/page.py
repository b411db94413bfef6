"""The overlap report as one HTML file that loads nothing.

  progress_summary.json, Report, instances → page

Jinja escapes all data, and the page's policy allows only its own script, by its hash.
"""

import base64
import hashlib
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from markupsafe import Markup

from beam_pipeline import __version__
from beam_pipeline.errors import number_of
from beam_pipeline.overlap.report.contents import LEVELS, MARGIN_CHARS, Removed, Report, Taken
from beam_pipeline.overlap.report.instances import Instance
from beam_pipeline.report.page import environment, part
from beam_pipeline.report.tables import Table, count_text, share_text

_TAKEN = ("documents", "shared spans", "shared characters", f"within {MARGIN_CHARS} characters")

_REMOVED = (
    *("contaminated documents", "dropped", "documents that remain of them"),
    *("characters", "characters removed"),
)
# Shares have one hue from light to dark (on a dark page from dark to light): the order shows to
# colour-blind readers and in grey prints.
_LIGHT = ("#eaf2fb", "#a9cce8", "#4f97cd", "#1c62a5", "#08306b")
_DARK = ("#152c44", "#1f5180", "#3b86bd", "#86bfe4", "#e0f0fc")
_NONE_LIGHT, _NONE_DARK = "#ffffff", "#171b21"
# At these shares, text changes its colour, to keep a contrast of at least 4.5 to 1.
_WHITE_ON_LIGHT, _BLACK_ON_DARK = 0.4085, 0.1987


class Summary(msgspec.Struct):
    """The part of progress_summary.json that is shown."""

    started_at: str
    ngram_lengths: list[int]
    num_eval_files: int
    num_train_files: int
    num_shards: int
    max_parallelism: int
    options: dict[str, Any]
    versions: dict[str, str]
    counts: dict[str, Any]
    warnings: list[str]

    @property
    def started(self) -> str:
        """The start of the run, to the second."""
        return f"{self.started_at[:19].replace('T', ' ')} UTC"

    @property
    def num_not_looked_up(self) -> int:
        """The number of evaluation rows that were not looked up."""
        return sum(self.counts["eval_rows_not_looked_up"].values())


class Cap(NamedTuple):
    """An option that omitted something, and its effect."""

    place: str  # the affected figures: sets or texts
    flag: str
    effect: str


def page(
    path: str,
    summary: Summary,
    report: Report,
    instances: Sequence[Instance],
    removed: Sequence[Removed] = (),
) -> bytes:
    """Returns the page, rendered from page.html.jinja, about the output at `path`."""
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
        path=path,
        summary=summary,
        report=report,
        instances=instances,
        caps=caps_of(summary, report),
        tables={table.name: table for table in _tables(summary, report, removed)},
        run_facts=_run_facts(path, summary, report),
        option_facts=_option_facts(summary),
        levels=LEVELS,
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=__version__,
    )
    return html.encode()


class CellColors(NamedTuple):
    """The colours of a cell and its text, on a light and on a dark page."""

    light: str
    light_text: str
    dark: str
    dark_text: str


def cell_colors(share: float) -> CellColors:
    """Returns the colours of a share; 0 has the colour of the page."""
    light, dark = _NONE_LIGHT, _NONE_DARK
    if share > 0:
        light, dark = _color(_LIGHT, share), _color(_DARK, share)
    light_text = "#000000" if share < _WHITE_ON_LIGHT else "#ffffff"
    dark_text = "#ffffff" if share < _BLACK_ON_DARK else "#000000"
    return CellColors(light, light_text, dark, dark_text)


def _color(ramp: Sequence[str], share: float) -> str:
    # The scale is the square root: most shares are small, and 0.1 % must not look like 0.
    place = min(1.0, share) ** 0.5 * (len(ramp) - 1)
    channels = zip(*(bytes.fromhex(color[1:]) for color in ramp), strict=True)
    return "#" + "".join(f"{round(np.interp(place, range(len(ramp)), c)):02x}" for c in channels)


def _cell_style(share: float) -> str:
    colors = cell_colors(share)._asdict().items()
    return "; ".join(f"--{name.replace('_', '-')}: {color}" for name, color in colors)


def caps_of(summary: Summary, report: Report) -> list[Cap]:
    """Returns the options that omitted something, in the order of the page."""
    options, counts = summary.options, summary.counts
    left_out = counts["eval_rows_not_looked_up"]
    dropped, most = options["drop_ngrams"], options["max_document_frequency"]
    is_precise = options["preset"] == "precise"
    boilerplate = ["preset=precise"] * is_precise
    boilerplate += [f"max_document_frequency={most}"] * bool(most)
    boilerplate += [f"drop_ngrams={path}" for path in dropped]
    where = "in more training documents" if most and not dropped else "of training documents"
    details = ("max_details_per_pair", "max_details")
    rows = [
        (
            "sets",
            [f"limit_test_instances={options['limit_test_instances']}"],
            options["limit_test_instances"],
            "only the first rows of each evaluation set were looked up",
        ),
        (
            "sets",
            boilerplate,
            report.num_boilerplate,
            f"{number_of(report.num_boilerplate, 'n-gram')} {where} not counted",
        ),
        (
            "sets",
            [f"min_tokens={options['min_tokens']}"],
            too_short := left_out.get("too short", 0),
            f"{number_of(too_short, 'shorter row')} not looked up",
        ),
        (
            "sets",
            ["degenerate=skip"],
            no_words := left_out.get("no words", 0),
            f"{number_of(no_words, 'evaluation row')} without a word not looked up",
        ),
        ("texts", ["details=none"], options["details"] == "none", "the result has no texts"),
        (
            "texts",
            [f"{name}={options[name]}" for name in details if options[name] >= 0],
            counts["details_left_out"],
            f"{counts['details_left_out']:,} matches are not in the details",
        ),
    ]
    return [
        Cap(place, " ".join(f"--{flag}" for flag in flags), effect)
        for place, flags, count, effect in rows
        if count
    ]


# --- tables ---------------------------------------------------------------------------------------


def _tables(summary: Summary, report: Report, removed: Sequence[Removed]) -> Iterator[Table]:
    """Yields the ordinary tables, named after their contents."""
    columns = [*_text("evaluation set", "fields hit"), "rows"]
    yield Table("Rows by the fields that were hit", columns, _values(report.fields), "fields")
    verdicts = "rows", "clean", "in between", "dirty", "by short texts", "not looked up"
    columns = [*_text("evaluation set", "rule"), "n", *verdicts]
    yield Table("Rows by rule", columns, _values(report.verdicts), "rules")
    removal = report.removal
    ways = list(_ways(removal.total))
    yield Table("Ways of removal", _text("--remove", "takes"), ways, "ways")
    lines = [line for one in removed for line in _removed_lines(one)]
    columns = [*_text("clean corpus", "--remove", "evaluation set"), *_REMOVED]
    yield Table("What removals took", columns, lines, "removed")
    title, columns = "Contaminated documents by evaluation set", ["evaluation set", *_TAKEN]
    yield Table(title, columns, [_values([one])[0][:-1] for one in removal.by_set], "by-set")
    title, columns = "Contaminated documents by training file", ["training file", "texts", *_TAKEN]
    files = [[one.name, one.num_texts, *_values([one])[0][1:-1]] for one in removal.by_file]
    yield Table(title, columns, files, "by-file", removal.num_files - len(files))
    title, columns = "Training files with a hit", ["training file", "distinct ids"]
    files = [[one.path, one.num_hit, _by_set(one.by_set)] for one in report.train_files]
    columns += _text("by evaluation set")
    yield Table(title, columns, files, "files", report.num_train_files - len(files))
    title, columns = "N-grams that are not counted", ["n-gram", "n", "documents"]
    ngrams = _values(report.boilerplate)
    yield Table(title, columns, ngrams, "boilerplate", report.num_boilerplate - len(ngrams))
    letters = sorted(summary.counts["dead_letters"].items(), key=lambda letter: -letter[1])
    yield Table("Records that could not be read", ["reason", "records"], letters, "dead-letters")


def _text(*headings: str) -> list[tuple[str, str]]:
    return [(heading, "text") for heading in headings]


def _values(structs: Sequence[msgspec.Struct]) -> list[tuple[Any, ...]]:
    return list(map(msgspec.structs.astuple, structs))


def _by_set(hits: dict[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in hits.items())


def _ways(taken: Taken) -> Iterator[list[str]]:
    """Describes the effect of each way of removal; empty if no document is contaminated."""
    if not taken.num_documents:
        return
    characters = number_of(taken.num_shared_chars, "character")
    yield ["document", f"{number_of(taken.num_documents, 'whole document')}"]
    yield ["mask", f"{characters}, replaced by {number_of(taken.num_spans, 'mask')}"]
    yield [
        "split",
        f"these characters and up to {MARGIN_CHARS} on each side, at most "
        f"{taken.num_margin_chars:,} in all; then pieces under 200 characters",
    ]


def _removed_lines(removed: Removed) -> Iterator[list[Any]]:
    way = str(removed.options["remove"])
    for name, lost in [("all", removed.counts), *removed.by_evaluation_set.items()]:
        yield [removed.path, way, name, *msgspec.structs.astuple(lost)]


def _run_facts(path: str, summary: Summary, report: Report) -> list[tuple[str, str]]:
    """Returns names and values about the run."""
    counts = summary.counts
    numbers = {
        "evaluation files": summary.num_eval_files,
        "evaluation rows": counts["eval_rows"],
        "evaluation rows without a text": counts.get("eval_without_text"),
        "evaluation rows without a word": counts["degenerate_eval_rows"],
        "training files": summary.num_train_files,
        "training rows": counts["train_rows"],
        "training rows without a text": counts.get("train_without_text"),
        "matches (evaluation row, training row, n-gram)": report.num_matches,
        "matches of boilerplate, not counted": counts["matches"] - report.num_matches,
        "matches in the details": counts["details"],
        "matches left out of the details": counts["details_left_out"],
        "index shards": summary.num_shards,
        "maximum number of workers (0: chosen by the runner)": summary.max_parallelism,
    }
    return [
        ("result", path),
        ("started", summary.started),
        *((f"version of {name}", version) for name, version in summary.versions.items()),
        *((name, count_text(number)) for name, number in numbers.items() if number is not None),
    ]


def _option_facts(summary: Summary) -> list[tuple[str, str]]:
    """Returns flags and values."""
    return [
        (f"--{name}", ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in summary.options.items()
    ]
