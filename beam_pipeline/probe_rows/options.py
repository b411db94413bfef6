"""The flags of the probe-rows job; `parse` separates them from Beam's, such as `--runner`."""

import argparse
from collections.abc import Mapping as Values
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from beam_pipeline.cli.flags import Once, OneLineParser, check_flags, flag, job_parser
from beam_pipeline.dataset.layout import (
    DUPLICATES,
    ENCODINGS,
    OUTPUT_FORMATS,
    RECORD_ENCODINGS,
    DatasetOptions,
)
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.shards.writer_options import check_writer_options
from beam_pipeline.sources.anonymize_key import KEY_VARIABLE, METHODS, check_source, find_key
from beam_pipeline.sources.options import (
    INPUT_FORMATS,
    RTT_UNITS,
    TABLES,
    TIME_UNITS,
    Mapping,
    ReadOptions,
    Sample,
    parse_columns,
    parse_failed,
    parse_window,
)
from beam_pipeline.storage.files import check_path

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

# In an in-memory shuffle a reference takes some 320 bytes, and a local read costs almost nothing. A
# ranged read of an object store takes milliseconds, as long as shuffling tens of kilobytes.
LOCAL_INLINE_BYTES, REMOTE_INLINE_BYTES = 0, 64 << 10
# Decompressing a row would cost a trainer more than all other work on it (docs/format.md).
DEFAULT_RECORD_OPTIONS = "group_size:1,uncompressed"


# The headings of --help.
_input, _output, _sample, _privacy, _rows, _run = (
    partial(flag, group=heading)
    for heading in ("input", "output", "sample", "privacy", "rows, splits and shards", "run")
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags, documented by their help texts."""

    input: tuple[str, ...] = _input(
        "File, folder or glob of measurements, on any Beam filesystem; repeatable.", action="append"
    )
    output: str = _output("Folder of the dataset.")
    input_format: str = _input(
        "Format of the input; auto inspects each file.", "auto", choices=("auto", *INPUT_FORMATS)
    )
    columns: str = _input(
        "Columns with other names in the input: event_time=ts,rtt=rtt_ms. A dotted name is a "
        "nested field, a number the position in text without a header, rtt=p1,p2 several RTTs per "
        "row, src_addr==192.0.2.1 a constant, src_addr=ip:packed an address as number or bytes.",
        "",
        action=Once,
    )
    time_unit: str = _input(
        "Unit of times that are numbers since 1970; iso requires ISO 8601 texts.",
        "",
        choices=TIME_UNITS,
    )
    rtt_unit: str = _input("Unit of the RTTs.", "ms", choices=RTT_UNITS)
    failed: str = _input(
        "RTTs of lost pings, besides negative ones: null, nan, zero, or a text such as timeout; "
        "several with commas.",
        "negative",
        action=Once,
    )
    ends: str = _input(
        "What src_addr and dst_addr of tables are: addresses, or names of hosts or sites, each of "
        "which gets a private IPv6 address; a text that is an address remains one.",
        "addresses",
        choices=("addresses", "names"),
    )
    atlas_source: str = _input(
        "Address of the probe in a RIPE Atlas result: from (the public one) or src_addr.",
        "from",
        choices=("from", "src_addr"),
    )
    hops: str = _input(
        "Destinations in a RIPE Atlas traceroute: last (its own, if the last hop that responded is "
        "it) or all (every hop that responded).",
        "last",
        choices=("last", "all"),
    )
    on_bad_file: str = _input(
        "Whether an unreadable file ends the run (fail) or becomes a dead letter.",
        "fail",
        choices=("fail", "dead_letter"),
    )
    sample_probes: float = _sample(
        "Share of the probes to keep, by a hash of the address: a smaller sample is a subset of a "
        "larger one.",
        1.0,
        (1e-9, 1),
    )
    sample_measurements: float = _sample(
        "Share of the measurements of the sampled probes to keep, by a hash of each.",
        1.0,
        (1e-9, 1),
    )
    since: str = _sample(
        "Start of the time window: 2026-11-01, 2026-11-01T12:00:00Z or seconds since 1970.", ""
    )
    until: str = _sample("End of the time window, exclusive; format as --since.", "")
    anonymize: str = _privacy(
        "Addresses in the output: none keeps the real ones, prefix_preserving replaces each one "
        "before anything is written.",
        "none",
        choices=METHODS,
    )
    anonymize_key_file: str = _privacy(
        "Key of --anonymize, 32 bytes or 64 hex digits: a local file, a file on gs://, or a "
        "secret's version, projects/P/secrets/S/versions/V; if empty, the environment variable "
        f"{KEY_VARIABLE}.",
        "",
    )
    measurement_encoding: str = _rows(
        "Encoding of the measurements of a row: compact, with all that training uses in a third "
        "of the bytes, or arrow, lossless.",
        "compact",
        choices=ENCODINGS,
    )
    max_row_size_mb: float = _rows("Max record size in MiB.", 8.0, (0.001, 1024))
    duplicates: str = _rows(
        "Whether equal measurements of a probe, as the dataset stores them, all stay (keep) or "
        "become one (drop).",
        "keep",
        choices=DUPLICATES,
    )
    train_ratio: float = _rows("Share of the probes in the train split.", 0.9, (0, 1))
    split_seed: int = _rows("Seed of the train/test split.", 0, (-(2**63), 2**63 - 1))
    probes_per_shard: int = _rows(
        "Average probes per shard; 0 means shards by size, a thousand of 16 to 256 MiB.",
        0,
        (0, 10**9),
    )
    num_shards: int = _rows(
        "Shards per split; 0 derives the number from bytes or --probes_per_shard.", 0, (0, 99_999)
    )
    output_format: str = _output(
        "File format of the shards: arrayrecord (for training) or tfrecord.",
        "arrayrecord",
        choices=OUTPUT_FORMATS,
    )
    record_encoding: str = _output(
        "Encoding of a record: arrow_ipc, an Arrow IPC stream, or tf_example, the same columns as "
        "a tf.train.Example.",
        "arrow_ipc",
        choices=RECORD_ENCODINGS,
    )
    array_record_options: str = _output(
        "Options of the ArrayRecord writer.", DEFAULT_RECORD_OPTIONS
    )
    inline_bytes: int = _run(
        "Max size of payloads that go through the shuffle instead of storage; -1 means "
        f"{REMOTE_INLINE_BYTES} on Dataflow or with an output on an object store, except on "
        f"runners that bound a group's size, such as Flink, and {LOCAL_INLINE_BYTES} otherwise.",
        -1,
        (-1, 1 << 20),
    )
    overwrite: bool = _output("Replace a finished dataset.", False, action="store_true")
    append: bool = _output(
        "Add the input to a finished dataset, with the dataset's options.",
        False,
        action="store_true",
    )
    debug: bool = _run("Show Beam's log, and tracebacks.", False, action="store_true")

    def __post_init__(self) -> None:
        check_flags(self)
        for flag_name, path in (("output", self.output), *(("input", each) for each in self.input)):
            check_path(flag_name, path)
        if self.num_shards and self.probes_per_shard:
            raise UsageError(
                f"--num_shards={self.num_shards} and --probes_per_shard={self.probes_per_shard} "
                "both set the number of shards: give one of them"
            )
        if self.append and self.overwrite:
            raise UsageError(
                "--append adds to a dataset and --overwrite replaces it: give one of them"
            )
        mapping = self.mapping()
        if mapping != Mapping() and self.input_format not in ("auto", *TABLES):
            raise UsageError(
                "--columns, --time_unit, --rtt_unit, --failed and --ends describe tables, not "
                f"--input_format={self.input_format}: leave one of them out"
            )
        if self.output_format == "arrayrecord":
            check_writer_options(self.array_record_options, DEFAULT_RECORD_OPTIONS)
        elif self.array_record_options != Options.array_record_options:
            raise UsageError(
                f"--array_record_options={self.array_record_options} has no effect "
                f"with --output_format={self.output_format}: leave one of them out"
            )
        check_source(self.anonymize_key_file)
        if self.anonymize_key_file and self.anonymize == "none":
            raise UsageError(
                f"--anonymize_key_file={self.anonymize_key_file} requires "
                "--anonymize=prefix_preserving: give both or neither"
            )
        for end in ("src_addr", "dst_addr"):
            if self.anonymize != "none" and mapping.names[end].constant is not None:
                raise UsageError(
                    f"--columns {end}==… with --anonymize would stand as it is in the manifest and "
                    f"in the job's options: give {end} as a column of the files, or write a "
                    "dataset without --anonymize and let it be this run's --input"
                )
        self.sample()

    def mapping(self) -> Mapping:
        """Returns how tables are read; UsageError if --columns is not valid."""
        return Mapping(
            parse_columns(self.columns),
            self.time_unit,  # type: ignore[arg-type]
            self.rtt_unit,  # type: ignore[arg-type]
            parse_failed(self.failed),
            self.ends,  # type: ignore[arg-type]
        )

    def sample(self) -> Sample:
        """Returns the sample of the flags; UsageError if it is empty."""
        window = parse_window(self.since, self.until)
        return Sample(self.sample_probes, self.sample_measurements, *window)

    def read_options(self) -> ReadOptions:
        """Returns the options of reading; ProbelineError if --anonymize has no readable key."""
        key = find_key(self.anonymize_key_file) if self.anonymize != "none" else None
        return ReadOptions(
            self.input_format,  # type: ignore[arg-type]
            self.mapping(),
            self.atlas_source,  # type: ignore[arg-type]
            self.hops,  # type: ignore[arg-type]
            key,
            skip_bad_files=self.on_bad_file == "dead_letter",
            encoding=self.measurement_encoding,  # type: ignore[arg-type]
            sample=self.sample(),
            as_stored=self.measurement_encoding == "compact"
            and (self.append or self.duplicates == "drop"),
        )

    def dataset_options(self) -> DatasetOptions:
        """Returns the options that shape the dataset's bytes."""
        values = {item.name: getattr(self, item.name) for item in fields(DatasetOptions)}
        if self.output_format != "arrayrecord":
            values["array_record_options"] = ""  # it has no effect
        return DatasetOptions(**values)


def make_parser() -> OneLineParser:
    """Returns the parser of the job's flags."""
    description = "Turns ping measurements into probe rows in sharded ArrayRecord."
    example = "--input 'data/*.parquet' --output rows"
    return job_parser("beam_pipeline.main", description, example, fields(Options))


def parse(argv: Sequence[str]) -> tuple[Options, "PipelineOptions"]:
    """Parses a command line; UsageError if it is not valid."""
    parser = make_parser()
    known, rest = parser.parse_known_args(argv)
    values = vars(known)
    if values["append"]:
        unset = {name: None for name in values if name != "input"}
        given, _ = parser.parse_known_args(argv, argparse.Namespace(**unset))
        own = {name: value for name, value in vars(given).items() if value is not None}
        values = {**values, **_options_of(values["output"], own)}
    options = Options(**{**values, "input": tuple(values["input"])})
    from beam_pipeline.jobs.beam_options import parse_beam_options

    return options, parse_beam_options(rest, [item.name for item in fields(Options)])


def _options_of(output: str, given: Values[str, Any]) -> dict[str, Any]:
    """Returns the options of the dataset to append to, without those given as flags."""
    from beam_pipeline.dataset.rows import open_whole

    check_path("output", output)
    try:
        dataset = open_whole(output, f"--output={output}")
    except ProbelineError as error:
        raise UsageError(f"--append adds to a finished dataset, but {error}") from error
    said = dataset.manifest.options
    for name in (item.name for item in fields(DatasetOptions)):
        if name in given and given[name] != said.get(name, given[name]):
            raise other_option(name, given[name], dataset.path, said[name])
    known = {item.name for item in fields(Options)}.intersection(said)
    own = {name: said[name] for name in known if said[name] != ""}
    try:
        Options(input=(output,), output=output, **own)
    except UsageError as error:
        raise UsageError(
            f"--append: the options of {dataset.path} are not valid, {error}: copy the dataset "
            "again as a whole"
        ) from error
    return {name: own[name] for name in own if name not in given}


def other_option(name: str, value: Any, path: str, said: Any) -> UsageError:
    """Returns the error for an option that is not that of the dataset to append to."""
    return UsageError(
        f"--append: {name} is {value!r}, but {path} was written with {said!r}: leave it out, or "
        "write a new dataset of all input"
    )
