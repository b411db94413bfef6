"""The data card of a dataset: README.md in its folder, for whoever finds it.

Enter the manifest, what rows.parquet sums up to, and the command; leaves Markdown. It follows from
the data and the command alone: no date, no run, no machine. It is for people, who may add to it:
no checksum covers it. A README.md without our first line is somebody else's and stays.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset.manifest import Counts, Manifest

CARD_NAME = "README.md"
FIRST_LINE = (
    "<!-- Data card by Probeline, written with the dataset; --overwrite writes it anew. -->"
)
# Where the key of --anonymize lies is nobody's business.
_PLACES = {"anonymize_key_file": "KEY_FILE"}
# What these say is not in the bytes of a dataset.
_OF_THE_RUN_ONLY = ("output", "overwrite", "debug", "inline_bytes")
CARD_COLUMNS = (
    *("row_index", "n_measurements", "num_bytes", "num_ipv6", "num_failed"),
    *("first_timestamp", "last_timestamp"),
)


@dataclass
class SplitTotals:
    """What rows.parquet of a split sums up to; times are µs since 1970 UTC."""

    num_ipv6: int = 0
    num_failed: int = 0
    most_measurements: int = 0
    most_bytes: int = 0
    probes_of_several_rows: int = 0
    first_us: int | None = None
    last_us: int | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds lines of rows.parquet, of which CARD_COLUMNS are looked at."""
        if not batch.num_rows:
            return
        column = {name: batch.column(name) for name in CARD_COLUMNS}
        self.num_ipv6 += int(column["num_ipv6"].to_numpy().sum(dtype=np.int64))
        self.num_failed += int(column["num_failed"].to_numpy().sum(dtype=np.int64))
        most = int(column["n_measurements"].to_numpy().max())
        self.most_measurements = max(self.most_measurements, most)
        self.most_bytes = max(self.most_bytes, int(column["num_bytes"].to_numpy().max()))
        self.probes_of_several_rows += int((column["row_index"].to_numpy() == 1).sum())
        first = int(column["first_timestamp"].cast(pa.int64()).to_numpy().min())
        last = int(column["last_timestamp"].cast(pa.int64()).to_numpy().max())
        self.first_us = first if self.first_us is None else min(first, self.first_us)
        self.last_us = last if self.last_us is None else max(last, self.last_us)


def totals_of(batches: Iterable[pa.RecordBatch]) -> SplitTotals:
    """Returns what the lines of one rows.parquet sum up to."""
    totals = SplitTotals()
    for batch in batches:
        totals.add(batch)
    return totals


def command_of(options: Any) -> str:
    """Returns the command that makes a dataset of the same bytes, --output left open.

    Args:
      options: the dataclass of the job's flags, `options.Options`.
    """
    words = ["python", "-m", "beam_pipeline.main"]
    for pattern in options.input:
        words += ["--input", pattern]
    words += ["--output", "DATASET"]
    for item in fields(options):
        value = getattr(options, item.name)
        if item.name in ("input", *_OF_THE_RUN_ONLY) or item.default is MISSING:
            continue
        if value != item.default:
            words.append(f"--{item.name}={_PLACES.get(item.name, value)}")
    return shlex.join(words)


def data_card(manifest: Manifest, totals: dict[str, SplitTotals], command: str) -> str:
    """Returns the Markdown of the card."""
    measurements = manifest.counts.measurements
    probes = sum(split.num_probes for split in manifest.splits.values())
    parts = [
        f"{FIRST_LINE}\n\n# {measurements:,} ping measurements of {probes:,} probes\n",
        "Everything that each probe (source address) measured, in time order, as *probe rows* in "
        f"sharded {_FORMATS[manifest.output_format]}: one record is one row of one probe, at "
        f"most {manifest.options.get('max_row_size_mb', '–')} MiB. Made by Probeline "
        f"{manifest.versions.get('probeline', '–')} for training transformers; a probe is in one "
        "split only.\n",
        _table(("", *manifest.splits), _numbers(manifest, totals)),
        "## How it was made\n",
        f"{_fence(command)}sh\n{command}\n{_fence(command)}\n",
        "The same command on the same input, with the versions below, writes the same bytes, "
        "whatever the runner and the number of workers. `DATASET` is where it goes.\n",
        _of_input(manifest.counts),
        _table(("option", "value"), [(n, f"`{v}`") for n, v in sorted(manifest.options.items())]),
        _table(("library", "version"), sorted(manifest.versions.items())),
        "## Known limits\n",
        "\n".join(f"- {limit}" for limit in _limits(manifest)) + "\n",
        "## Reading it\n",
        _READING,
    ]
    return "\n".join(parts)


def _fence(text: str) -> str:
    """Returns backticks that end no sooner than the text."""
    return "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))


_FORMATS = {"arrayrecord": "ArrayRecord", "tfrecord": "TFRecord"}
_READING = """\
```sh
python -m beam_pipeline.inspect DATASET --html=report.html    # what is in it
python -m beam_pipeline.verify DATASET                        # that every promise is kept
```

| file | |
| --- | --- |
| `train/`, `test/` | the shards; in each `rows.parquet`, a line a record |
| `dead_letter/` | input rows that broke a rule, if there are any |
| `manifest.json` | options, counts, every shard with its checksum |
| `_SUCCESS` | the checksum of the manifest; without it the dataset is not finished |
"""


def _numbers(manifest: Manifest, totals: dict[str, SplitTotals]) -> Iterator[tuple[str, ...]]:
    splits = manifest.splits
    yield "probes", *(f"{split.num_probes:,}" for split in splits.values())
    several = (totals[name].probes_of_several_rows for name in splits)
    yield "of these with several rows", *(f"{number:,}" for number in several)
    yield "rows", *(f"{split.num_records:,}" for split in splits.values())
    yield "measurements", *(f"{split.num_measurements:,}" for split in splits.values())
    yield "bytes", *(f"{split.num_bytes:,}" for split in splits.values())
    yield "shards", *(f"{len(split.shards):,}" for split in splits.values())
    yield "first measurement, UTC", *(_time(totals[name].first_us) for name in splits)
    yield "last measurement, UTC", *(_time(totals[name].last_us) for name in splits)
    for what, column in (("failed pings", "num_failed"), ("IPv6 destinations", "num_ipv6")):
        pairs = ((getattr(totals[name], column), split.num_measurements)
                 for name, split in splits.items())  # fmt: skip
        yield what, *(f"{100 * part / whole:.2f} %" if whole else "–" for part, whole in pairs)
    yield "measurements of the largest row", *(f"{totals[n].most_measurements:,}" for n in splits)
    yield "bytes of the largest row", *(f"{totals[name].most_bytes:,}" for name in splits)


def _time(time_us: int | None) -> str:
    if time_us is None:
        return "–"
    return str(np.datetime_as_string(np.datetime64(time_us, "us"), "s")).replace("T", " ")


def _of_input(counts: Counts) -> str:
    text = (
        f"{counts.input_files:,} input files, {counts.rows_read:,} rows read: "
        f"{counts.measurements:,} measurements and {counts.num_dead_letters:,} dead letters.\n"
    )
    if not counts.dead_letters:
        return text
    letters = [(f"`{reason}`", f"{count:,}") for reason, count in counts.dead_letters.items()]
    return text + "\n" + _table(("dead letters", "rows"), letters)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---", *["---:"] * (len(lines[0]) - 1)])
    return "".join(f"| {' | '.join(cell.replace('|', '\\|') for cell in x)} |\n" for x in lines)


def _limits(manifest: Manifest) -> Iterator[str]:
    options = manifest.options
    method = options.get("anonymize", "none")
    if method == "none":
        yield (
            "Source addresses are where probes stand, often in homes: treat them as personal data "
            "where the law does. Nothing here says who may use the measurements for what."
        )
    else:
        yield (
            f"Addresses are not the real ones (`--anonymize={method}`): equal ones stay equal and "
            "common prefixes common, under a key that whoever made the dataset keeps. Timing, RTTs "
            "and volumes are real and can give a probe away."
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
    yield (
        f"Probes were split by a hash of their address, {_ratio(options)} of them to train; "
        "measurements and destinations were not. Test tells how a model does on new probes to "
        "known destinations at known times, not on new destinations or in the future."
    )
    for name, split in manifest.splits.items():
        if not split.num_probes:
            yield f"There is no {name} set."
    if manifest.counts.num_dead_letters:
        what = "with their values" if method == "none" else "without their values"
        yield f"Dead letters are not in it; `dead_letter/` has them, {what}."
    if manifest.output_format != "arrayrecord":
        yield "Shards are TFRecord, which has no access by number: `training` does not read them."


def _ratio(options: dict[str, Any]) -> str:
    ratio = options.get("train_ratio")
    return "–" if ratio is None else f"{100 * ratio:g} %"
