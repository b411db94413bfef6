"""Facts of a dataset that its descriptions share: README.md, for people, and croissant.json.

They follow from the manifest and the row indexes, and have no date and no machine.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from beam_pipeline.dataset.manifest import SPLITS, Counts, Manifest, Split
from beam_pipeline.dataset.row_index import index_batches

FACT_COLUMNS = (
    *("row_index", "n_measurements", "num_bytes", "num_ipv6", "num_failed"),
    *("first_timestamp", "last_timestamp"),
)
FORMATS = {"arrayrecord": "ArrayRecord", "tfrecord": "TFRecord"}
KEYWORDS = ("ping", "round-trip time", "latency", "network measurement", "time series")


class SplitTotals(NamedTuple):
    """Totals of the row index of a split; times are µs since 1970 UTC."""

    num_ipv6: int = 0
    num_failed: int = 0
    max_measurements: int = 0
    max_bytes: int = 0
    probes_with_several_rows: int = 0
    first_us: int | None = None
    last_us: int | None = None


def totals_of(batches: Iterable[pa.RecordBatch]) -> SplitTotals:
    """Returns the totals of a row index, of which FACT_COLUMNS are read."""
    by_batch = [_batch_totals(batch) for batch in batches if batch.num_rows]
    functions = (sum, sum, max, max, sum, min, max)
    columns = zip(*by_batch, strict=True)
    return SplitTotals(*(add(column) for add, column in zip(functions, columns, strict=False)))


def _batch_totals(batch: pa.RecordBatch) -> tuple[int, ...]:
    row_index, n_measurements, num_bytes, num_ipv6, num_failed, first, last = (
        batch.column(name).cast(pa.int64()).to_numpy() for name in FACT_COLUMNS
    )
    several = (row_index == 1).sum()
    ends = (n_measurements.max(), num_bytes.max(), several, first.min(), last.max())
    return tuple(map(int, (num_ipv6.sum(), num_failed.sum(), *ends)))


def read_totals(indexes: str) -> dict[str, SplitTotals]:
    """Returns the totals of each split; `indexes` is a folder with the row indexes."""
    return {split: totals_of(index_batches(indexes, split, FACT_COLUMNS)) for split in SPLITS}


def splits_of(manifest: Manifest) -> dict[str, Split]:
    """Returns the splits in the order in which they are described."""
    return {name: manifest.splits[name] for name in SPLITS}


def num_rows(manifest: Manifest) -> int:
    """Returns the rows of all splits."""
    return sum(split.num_records for split in splits_of(manifest).values())


def title(manifest: Manifest) -> str:
    """Returns what the dataset is, in one line."""
    probes = sum(split.num_probes for split in splits_of(manifest).values())
    return f"{manifest.counts.measurements:,} ping measurements of {probes:,} probes"


def about(manifest: Manifest) -> str:
    """Returns what the dataset holds, and in which form."""
    return (
        "Everything that each probe (source address) measured, in time order, as probe rows in "
        f"sharded {FORMATS[manifest.output_format]}: one record is one row of one probe, at "
        f"most {manifest.options.get('max_row_size_mb', '–')} MiB. Made by Probeline "
        f"{manifest.versions.get('probeline', '–')} for training transformers; a probe is in one "
        "split only."
    )


def input_text(counts: Counts) -> str:
    """Returns the input by outcome, in one sentence."""
    text = (
        f"{counts.input_files:,} input files, {counts.rows_read:,} rows read: "
        f"{counts.measurements:,} measurements and {counts.num_dead_letters:,} dead letters"
    )
    if counts.rows_left_out:
        text += f"; {counts.rows_left_out:,} rows are not in the sample"
    if counts.duplicates_dropped:
        text += f"; {counts.duplicates_dropped:,} duplicates were dropped"
    return f"{text}."


def _sample_text(options: dict[str, Any]) -> str:
    """Returns what is in the sample, "" if it is all of the input."""
    parts = [
        f"{100 * share:g} % of the {what}"
        for what in ("probes", "measurements")
        if (share := options.get(f"sample_{what}", 1)) < 1
    ]
    parts += [f"{name} {time}" for name in ("since", "until") if (time := options.get(name))]
    return ", ".join(parts)


def address_note(manifest: Manifest) -> str:
    """Returns whose addresses are in the dataset, and what they can give away."""
    method = manifest.options.get("anonymize", "none")
    if method == "none":
        return (
            "Source addresses are where probes stand, often in homes: treat them as personal data "
            "where the law does. Nothing here says who may use the measurements for what."
        )
    return (
        f"Addresses are not the real ones (`--anonymize={method}`): equal ones stay equal and "
        "common prefixes common, under a key that whoever made the dataset keeps. Timing, RTTs "
        "and volumes are real and can give a probe away."
    )


def limits(manifest: Manifest) -> Iterator[str]:
    """Yields what a user of the dataset has to know of it, besides `address_note`."""
    options = manifest.options
    if sample := _sample_text(options):
        yield f"This is a sample of the input: {sample}, chosen by hashes. The rest is not in it."
    if options.get("duplicates") == "drop":
        yield (
            "Of measurements of a probe with the same time, destination and RTT, as stored here, "
            "one is in it: failed pings of one moment to one destination count once."
        )
    yield (
        "Nothing was judged but the rules of the format: a wrong clock, a probe that moved, or an "
        "RTT of a cache looks like any other measurement. Failed pings have RTT -1."
    )
    if options.get("measurement_encoding") == "compact":
        yield (
            "Times are whole seconds, rounded down; RTTs are off by at most 0.5 µs below 2.048 ms "
            "and 0.049 % above (`compact`)."
        )
    else:
        yield "Times are in microseconds and RTTs 32-bit floats, as they came in (`arrow`)."
    if options.get("record_encoding") == "tf_example":
        yield (
            "`time_span_seconds` is a 32-bit float; the exact span is between the two timestamps."
        )
    ratio = options.get("train_ratio")
    share = "–" if ratio is None else f"{100 * ratio:g} %"
    yield (
        f"Probes were split by a hash of their address, {share} of them to train; "
        "measurements and destinations were not. Test tells how a model does on new probes to "
        "known destinations at known times, not on new destinations or in the future."
    )
    for name, split in splits_of(manifest).items():
        if not split.num_probes:
            yield f"There is no {name} set."
    if manifest.counts.num_dead_letters:
        is_real = options.get("anonymize", "none") == "none"
        what = "with their values" if is_real else "without their values"
        yield f"Dead letters are not in it; `dead_letter/` has them, {what}."
    if manifest.output_format != "arrayrecord":
        yield "Shards are TFRecord, which has no access by number: `training` does not read them."
