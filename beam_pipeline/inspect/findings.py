"""What stands out in a dataset, as sentences."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from beam_pipeline.dataset.data_card import address_note, input_text
from beam_pipeline.dataset.manifest import Manifest
from beam_pipeline.errors import number_of
from beam_pipeline.inspect.comparison import Comparison, Verdict, compare, split_sides
from beam_pipeline.inspect.figures import Figures
from beam_pipeline.report.tables import bytes_text, percent, span_us_text

_MANY_DEAD_LETTERS = 0.01
_BUSY_PROBE = 0.1
_MANY_FAILED = 0.2
_FEW_TEST_PROBES = 30


class Finding(NamedTuple):
    """A sentence; `is_warning` if it matters before the dataset is used."""

    text: str
    is_warning: bool = False


class Report(NamedTuple):
    """A dataset's figures, the comparison of its splits, and what stands out, warnings first.

    `verdict` and `conclusion` are on whether test is like train; None if one of them is empty.
    """

    figures: Figures
    comparisons: list[Comparison]
    findings: list[Finding]
    verdict: Verdict | None
    conclusion: str


def report_on(figures: Figures) -> Report:
    comparisons = compare(*split_sides(figures))
    judged = sorted(
        (one for one in comparisons if one.verdict), key=lambda one: -(one.distance or 0)
    )
    found = chain(
        _about_splits(figures),
        _about_differences(judged),
        _about_input(figures.dataset.manifest),
        _about_pings(figures),
        _about_gaps(figures),
    )
    findings = sorted(found, key=lambda finding: not finding.is_warning)
    return Report(figures, comparisons, findings, *_conclusion(judged))


def _conclusion(judged: Sequence[Comparison]) -> tuple[Verdict | None, str]:
    if not judged:
        return None, ""
    names = {
        verdict: ", ".join(one.name for one in judged if one.verdict == verdict)
        for verdict in ("unlike", "differs", "alike")
    }
    number = sum(one.verdict == "alike" for one in judged)
    if number == len(judged):
        return "alike", f"The test set is like the train set in all {number} respects compared."
    verbs = {"unlike": "is unlike", "differs": "differs from"}
    parts = [
        f"{verb} the train set in {names[each]}" for each, verb in verbs.items() if names[each]
    ]
    parts.append(f"is like it in {number} of {len(judged)} respects")
    return "unlike" if names["unlike"] else "differs", f"The test set {'; '.join(parts)}."


def _about_splits(figures: Figures) -> Iterator[Finding]:
    manifest, splits = figures.dataset.manifest, figures.splits
    for name, split in splits.items():
        if not len(split.rows):
            ratio = manifest.options.get("train_ratio")
            yield Finding(f"There is no {name} set: --train_ratio={ratio} gave it no probe.", True)
    if 0 < (probes := len(splits["test"].probes)) < _FEW_TEST_PROBES:
        text = f"The test set has only {number_of(probes, 'probe')}: results on it depend on which "
        yield Finding(f"{text}ones they are.", True)


def _about_differences(judged: Sequence[Comparison]) -> Iterator[Finding]:
    for one in judged:
        if one.verdict == "alike":
            continue
        words = "differ" if one.verdict == "differs" else "are UNLIKE each other"
        text = f"In {one.name}, train and test {words}: {one.one} against {one.other} "
        text += f"(distance {one.distance:.2f})"
        if one.chance is not None:
            is_chance = (one.distance or 0) <= one.chance
            few = "so few probes carry them that chance" if is_chance else "chance"
            text += f"; {few} alone goes up to {one.chance:.2f}"
        yield Finding(f"{text}.", True)


def _about_input(manifest: Manifest) -> Iterator[Finding]:
    counts = manifest.counts
    is_warning = counts.num_dead_letters >= max(1, _MANY_DEAD_LETTERS * counts.rows_read)
    yield Finding(input_text(counts), is_warning)
    if manifest.options.get("anonymize", "none") != "none":
        yield Finding(address_note(manifest).replace("`", ""))
    yield from (Finding(f"{text}.", True) for text in manifest.warnings)


def _about_pings(figures: Figures) -> Iterator[Finding]:
    for name, split in figures.splits.items():
        if len(split.probes) > 1 and (top := split.busiest[0])["share"] >= _BUSY_PROBE:
            text = f"One probe, {top['probe']}, has {percent(top['share'], 0)} of the measurements "
            yield Finding(f"{text}of {name}.", True)
        share = split.totals.num_failed / (split.totals.num_measurements or 1)
        if share >= _MANY_FAILED:
            yield Finding(f"{percent(share, 0)} of the pings of {name} failed.", True)


def _about_gaps(figures: Figures) -> Iterator[Finding]:
    if periods := figures.empty:
        others = number_of(len(periods) - 1, "shorter period")
        more = f", nor in {others}" if len(periods) > 1 else ""
        length = span_us_text(periods[0].length_us)
        yield Finding(f"There is no sampled measurement from {periods[0]} ({length}){more}.", True)


def sample_text(figures: Figures) -> str:
    """Describes the basis of the statistics in a sentence."""
    parts = []
    for name, split in figures.splits.items():
        sample, lines = split.sample, split.rows.lines
        num_bytes = int(lines.num_bytes[sample.lines].sum())
        parts.append(
            f"{name}: {len(sample.lines):,} of {number_of(len(lines), 'row')} "
            f"({bytes_text(num_bytes)}), {len(sample):,} of "
            f"{number_of(split.totals.num_measurements, 'measurement')}"
        )
    return (
        "Exact, from rows.parquet and the manifest: sizes, failed pings, IPv6, probes, dead "
        f"letters. RTT, hours, destinations and silences from rows read, {'; '.join(parts)}. The "
        "same dataset gives the same sample."
    )
