"""The data card of a dataset, README.md in its folder, and the facts in it.

croissant.json and `inspect` have the same facts. All follow from the manifest and the row indexes,
without a date or machine name. Users may edit the card; a README.md that does not begin with one of
CARD_HEADS is never overwritten. The card starts with the metadata of a Hugging Face dataset card
(huggingface.co/docs/hub/datasets-cards).
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset.manifest import (
    INDEX_NAME,
    SPLITS,
    Counts,
    Generation,
    Manifest,
    Split,
    Write,
)
from beam_pipeline.dataset.row_index import index_batches
from beam_pipeline.storage.files import begins_with, exists, write_durably

FORMATS = {"arrayrecord": "ArrayRecord", "tfrecord": "TFRecord"}
KEYWORDS = ("ping", "round-trip time", "latency", "network measurement", "time series")
_Cell = int | str | None  # None is unknown
Facts = dict[str, _Cell]  # by label, in the order of a table

# --- totals of row indexes ------------------------------------------------------------------------

TOTALS_COLUMNS = (
    *("row_index", "n_measurements", "num_bytes", "num_ipv6", "num_failed"),
    *("first_timestamp", "last_timestamp"),
)
# How lines add up, by the first word of a total's name.
_AGGREGATES = {"num": "sum", "max": "max", "first": "min", "last": "max"}


class Totals(NamedTuple):
    """Totals of rows; times are µs since 1970 UTC, None without rows."""

    num_rows: int = 0
    num_measurements: int = 0
    num_ipv6: int = 0
    num_failed: int = 0
    num_continued: int = 0  # probes with several rows
    max_measurements: int = 0
    max_bytes: int = 0
    first_us: int | None = None
    last_us: int | None = None

    @classmethod
    def of(cls, lines: pa.Table) -> "Totals":
        """Returns the totals of lines from `row_totals` or `added`."""
        (line,) = added(lines).to_pylist()
        return cls(**{name: value for name, value in line.items() if value is not None})


def row_totals(lines: pa.Table) -> pa.Table:
    """Returns the totals of each row, given the TOTALS_COLUMNS of its line in the row index."""
    return pa.table(
        {
            "num_rows": np.ones(len(lines), np.int64),
            "num_measurements": lines["n_measurements"],
            "num_ipv6": lines["num_ipv6"],
            "num_failed": lines["num_failed"],
            "num_continued": pc.equal(lines["row_index"], 1).cast(pa.int64()),
            "max_measurements": lines["n_measurements"],
            "max_bytes": lines["num_bytes"],
            "first_us": lines["first_timestamp"].cast(pa.int64()),
            "last_us": lines["last_timestamp"].cast(pa.int64()),
        }
    )


def added(lines: pa.Table, by: Sequence[str] = ()) -> pa.Table:
    """Adds up lines of totals: all, or those with equal values in the columns `by`."""
    aggregates = [(name, _AGGREGATES[name.partition("_")[0]]) for name in Totals._fields]
    grouped = lines.group_by(list(by), use_threads=False).aggregate(aggregates)
    return grouped.rename_columns([*by, *Totals._fields])


def read_totals(indexes: str) -> dict[str, Totals]:
    """Returns the totals of each split from a folder with the row indexes."""
    totals = {}
    for split in SPLITS:
        batches = index_batches(indexes, split, TOTALS_COLUMNS)
        parts = [added(row_totals(pa.Table.from_batches([batch]))) for batch in batches]
        totals[split] = Totals.of(pa.concat_tables(parts)) if parts else Totals()
    return totals


# --- facts ----------------------------------------------------------------------------------------


def facts(splits: Sequence[Split], totals: Totals | None = None) -> Facts:
    """Returns the facts of one or both splits; those that need `totals` are None without."""

    def share(count: int) -> str | None:
        return f"{100 * count / measurements:.2f} %" if measurements else None

    measurements = sum(split.num_measurements for split in splits)
    known = totals or Totals()
    return {
        "probes": sum(split.num_probes for split in splits),
        "of these with several rows": totals and known.num_continued,
        "rows": sum(split.num_records for split in splits),
        "measurements": measurements,
        "bytes": sum(split.num_bytes for split in splits),
        "shards": sum(len(split.shards) for split in splits),
        "first measurement, UTC": _time(known.first_us),
        "last measurement, UTC": _time(known.last_us),
        "failed pings": totals and share(known.num_failed),
        "IPv6 destinations": totals and share(known.num_ipv6),
        "measurements of the largest row": totals and known.max_measurements,
        "bytes of the largest row": totals and known.max_bytes,
    }


def _time(time_us: int | None) -> str | None:
    if time_us is None:
        return None
    return str(np.datetime_as_string(np.datetime64(time_us, "us"), "s")).replace("T", " ")


GENERATION_COLUMNS = (
    *("generation", "files", "measurements", "dead letters", "new probes", "rows"),
    *("first measurement, UTC", "last measurement, UTC"),
)


def generation_rows(manifest: Manifest) -> Iterator[tuple[_Cell, ...]]:
    """Yields the contribution of each generation, under GENERATION_COLUMNS."""
    probes = records = 0
    for number, each in enumerate(manifest.generations, 1):
        counts = each.counts
        yield (
            f"{number}: {each.started[:16].replace('T', ' ') or '–'}",
            counts.input_files,
            counts.measurements,
            counts.num_dead_letters,
            each.num_probes - probes,
            f"{each.num_records - records:+,}",
            _time(each.first_us),
            _time(each.last_us),
        )
        probes, records = each.num_probes, each.num_records


def generation_facts(generations: Sequence[Generation]) -> Facts:
    """Returns the facts of a dataset after the last of its generations so far."""
    last = generations[-1]
    times = [t for each in generations for t in (each.first_us, each.last_us) if t is not None]
    known = {
        "probes": last.num_probes,
        "rows": last.num_records,
        "measurements": sum(each.counts.measurements for each in generations),
        "first measurement, UTC": _time(min(times, default=None)),
        "last measurement, UTC": _time(max(times, default=None)),
    }
    return {**dict.fromkeys(facts([])), **known}


def splits_of(manifest: Manifest) -> dict[str, Split]:
    return {name: manifest.splits[name] for name in SPLITS}


def num_rows(manifest: Manifest) -> int:
    return sum(split.num_records for split in splits_of(manifest).values())


def title(manifest: Manifest) -> str:
    probes = sum(split.num_probes for split in splits_of(manifest).values())
    return f"{manifest.counts.measurements:,} ping measurements of {probes:,} probes"


def about(manifest: Manifest) -> str:
    """Returns the contents and the form of the dataset."""
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
    """Returns a description of the sample, "" if it is the whole input."""
    parts = [
        f"{100 * share:g} % of the {what}"
        for what in ("probes", "measurements")
        if (share := options.get(f"sample_{what}", 1)) < 1
    ]
    parts += [f"{name} {time}" for name in ("since", "until") if (time := options.get(name))]
    return ", ".join(parts)


def address_note(manifest: Manifest) -> str:
    """Returns a warning about the addresses in the dataset and their privacy."""
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
    """Yields the limits that users must know, besides `address_note`."""
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
    for text in manifest.warnings:
        yield f"Warning: {text}."
    if manifest.output_format != "arrayrecord":
        yield "Shards are TFRecord, which has no access by number: `training` does not read them."


CARD_NAME = "README.md"
_MARK = "Data card by Probeline, written with the dataset; --overwrite writes it anew."
CARD_HEAD = f"---\n# {_MARK}\n"
CARD_HEADS = (CARD_HEAD, f"<!-- {_MARK} -->")  # the second in older versions
# The location of the --anonymize key stays secret.
_PLACEHOLDERS = {"anonymize_key_file": "KEY_FILE"}
# These do not affect the bytes of a dataset.
_NOT_SHAPING = ("output", "overwrite", "append", "debug", "inline_bytes")


def command_of(options: Any, inputs: Iterable[str] | None = None) -> str:
    """Returns the command that reproduces a dataset's bytes in DATASET, given its job's options.

    `inputs` are the --input values of all generations; by default those of the options.
    """
    words = ["probeline", "rows"]
    words += [word for pattern in inputs or options.input for word in ("--input", pattern)]
    words += ["--output", "DATASET"]
    for item in fields(options):
        value = getattr(options, item.name)
        if item.name in ("input", *_NOT_SHAPING) or item.default is MISSING:
            continue
        if value != item.default:
            words.append(f"--{item.name}={_PLACEHOLDERS.get(item.name, value)}")
    return shlex.join(words)


def write_card(
    folder: str,
    manifest: Manifest,
    totals: dict[str, Totals],
    command: str,
    write: Write = write_durably,
) -> None:
    """Writes the data card, unless the folder has a README.md that is not a data card."""
    path = f"{folder}/{CARD_NAME}"
    if not exists(path) or begins_with(path, *CARD_HEADS):
        write(path, data_card(manifest, totals, command).encode())


def data_card(manifest: Manifest, totals: dict[str, Totals], command: str) -> str:
    more = []
    if letters := manifest.counts.dead_letters:
        more.append(_table(("dead letters", "rows"), ((f"`{r}`", n) for r, n in letters.items())))
    if len(manifest.generations) > 1:
        table = _table(GENERATION_COLUMNS, generation_rows(manifest))
        more += ["It was added to. What each run brought:\n", table]
    parts = [
        f"{CARD_HEAD}{_front_matter(manifest)}---\n\n# {title(manifest)}\n",
        about(manifest) + "\n",
        _table(("", *splits_of(manifest)), _facts_table(manifest, totals)),
        "## How it was made\n",
        f"{_fence(command)}sh\n{command}\n{_fence(command)}\n",
        "The same command on the same input, with the versions below, writes the same bytes, "
        "whatever the runner and the number of workers. `DATASET` is where it goes.\n",
        input_text(manifest.counts) + "\n",
        *more,
        _table(("option", "value"), [(n, f"`{v}`") for n, v in sorted(manifest.options.items())]),
        _table(("library", "version"), sorted(manifest.versions.items())),
        "## Known limits\n",
        "\n".join(f"- {limit}" for limit in (address_note(manifest), *limits(manifest))) + "\n",
        "## Reading it\n",
        _READING,
    ]
    return "\n".join(parts)


def _fence(text: str) -> str:
    """Returns a code fence longer than any run of backticks in the text."""
    return "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))


_SIZE = "size_categories"
_BOUNDS = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
_SIZES = ("n<1K", *(f"{low}<n<{high}" for low, high in pairwise(_BOUNDS)), "n>1T")


def _front_matter(manifest: Manifest) -> str:
    """Returns the Hub's metadata, without a license; the viewer shows the row index."""
    with_rows = [name for name, split in splits_of(manifest).items() if split.num_records]
    files = [{"split": name, "path": f"{name}/{INDEX_NAME}"} for name in with_rows]
    metadata = {  # JSON is YAML
        "pretty_name": title(manifest),
        "task_categories": ["time-series-forecasting"],
        "tags": KEYWORDS,
        "configs": [{"config_name": "row_index", "data_files": files}] if files else [],
    }
    lines = [f"{name}: {orjson.dumps(value).decode()}" for name, value in metadata.items()]
    return "".join(f"{line}\n" for line in (*lines, _size_line(manifest)))


def _size_line(manifest: Manifest) -> str:
    """Returns the Hub's size category of the number of rows."""
    num_digits = len(str(num_rows(manifest)))
    return f'{_SIZE}: ["{_SIZES[min(max(num_digits - 3, 0), len(_BOUNDS))]}"]'


_READING = """\
```sh
probeline inspect DATASET --html=report.html    # what is in it
probeline verify DATASET                        # that every promise is kept
```

| file | |
| --- | --- |
| `train/`, `test/` | the shards; in each `rows.parquet`, a line a record |
| `names.parquet` | the names of ends, if the input has names in place of addresses |
| `dead_letter/` | input rows that broke a rule, if there are any |
| `manifest.json` | options, counts, every shard with its checksums |
| `croissant.json` | this description for programs, in Croissant 1.1 |
| `_SUCCESS` | the checksum of the manifest; without it the dataset is not finished |
"""


def _facts_table(manifest: Manifest, totals: Mapping[str, Totals]) -> Iterator[list[_Cell]]:
    """Yields a line for each fact, with a column for each split; without `totals`, fewer."""
    columns = [facts([split], totals.get(name)) for name, split in splits_of(manifest).items()]
    for label in columns[0]:
        values = [column[label] for column in columns]
        if totals or None not in values:
            yield [label, *values]


def claims(manifest: Manifest) -> dict[str, str]:
    """Returns the card's lines that repeat the manifest, by their beginnings."""
    lines = {f"| {row[0]} |": _line(row) for row in _facts_table(manifest, {})}
    return {f"{_SIZE}:": _size_line(manifest), **lines}


def _table(head: Iterable[str], rows: Iterable[Iterable[_Cell]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---", *["---:"] * (len(lines[0]) - 1)])
    return "".join(f"{_line(cells)}\n" for cells in lines)


def _line(cells: Iterable[_Cell]) -> str:
    texts = (f"{cell:,}" if isinstance(cell, int) else cell for cell in cells)
    return f"| {' | '.join('–' if t is None else t.replace('|', '\\|') for t in texts)} |"
