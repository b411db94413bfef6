"""Every flag of the probe-rows job, once: name, default, limits and help are the fields below.

`parse` splits a command line into these and what goes on to Beam, such as `--runner`. A dash and
an underscore in a flag are the same. Contradictions and values outside their limits are one line
each; a flag that neither we nor Beam know is an error, not a silent no-op.
"""

import argparse
import contextlib
import difflib
import io
import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from apache_beam.options.pipeline_options import (
    DebugOptions,
    PipelineOptions,
    StandardOptions,
)

from beam_pipeline.errors import UsageError
from beam_pipeline.files import is_local
from beam_pipeline.flags import OneLineParser, normalise_flags
from beam_pipeline.inputs import INPUT_FORMATS, ReadOptions
from beam_pipeline.measurements import COLUMNS
from beam_pipeline.probe_rows import OUTPUT_FORMATS, DatasetOptions
from beam_pipeline.row_codec import ENCODINGS, RECORD_ENCODINGS

IN_MEMORY_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_LOCAL_RUNNERS = (IN_MEMORY_RUNNER, "PrismRunner")
# These check flags of their own, which Beam's Python side does not know.
_RUNNERS_WITH_OWN_FLAGS = ("PortableRunner", "FlinkRunner", "SparkRunner")
# A reference through a shuffle in memory costs some 320 bytes, and a local read next to nothing. A
# ranged read of an object store costs milliseconds, as much as the shuffle of tens of kilobytes.
_LOCAL_INLINE_BYTES, _REMOTE_INLINE_BYTES = 256, 64 << 10
# Decompressing a row costs a trainer more than all else that it does with it (docs/format.md).
DEFAULT_RECORD_OPTIONS = "group_size:1,uncompressed"


def _flag(help_text: str, default: Any = MISSING, **argument: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **argument})


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags; `help` of each says what it means."""

    input: tuple[str, ...] = _flag(
        "File, folder or glob of measurements, on any Beam filesystem; may be given again.",
        action="append",
    )
    output: str = _flag("Folder of the dataset.")
    input_format: str = _flag(
        "What the input is; auto looks at each file.", "auto", choices=("auto", *INPUT_FORMATS)
    )
    columns: str = _flag(
        "Names of columns that differ in the input, as event_time=ts,rtt=rtt_ms.", ""
    )
    atlas_source: str = _flag(
        "Which address of a RIPE Atlas result is the probe's: from, the public one, or src_addr.",
        "from",
        choices=("from", "src_addr"),
    )
    on_bad_file: str = _flag(
        "An unreadable file ends the run (fail) or becomes a dead letter.",
        "fail",
        choices=("fail", "dead_letter"),
    )
    measurement_encoding: str = _flag(
        "How a row holds its measurements: compact, all that training uses in a third of the "
        "bytes, or arrow, lossless.",
        "compact",
        choices=ENCODINGS,
    )
    max_row_size_mb: float = _flag("Largest record in MiB.", 8.0, type=float)
    train_ratio: float = _flag("Share of the probes that go to train.", 0.9, type=float)
    split_seed: int = _flag("Another seed, another split of the probes.", 0, type=int)
    probes_per_shard: int = _flag("Probes a shard, on average.", 1000, type=int)
    num_shards: int = _flag("Shards a split; 0 lets probes and bytes decide.", 0, type=int)
    output_format: str = _flag(
        "File format of the shards: arrayrecord, which training reads, or tfrecord.",
        "arrayrecord",
        choices=OUTPUT_FORMATS,
    )
    record_encoding: str = _flag(
        "What a record of a shard is: arrow_ipc, an Arrow IPC stream, or tf_example, the same "
        "columns as a tf.train.Example.",
        "arrow_ipc",
        choices=RECORD_ENCODINGS,
    )
    array_record_options: str = _flag("Options of the ArrayRecord writer.", DEFAULT_RECORD_OPTIONS)
    inline_bytes: int = _flag(
        "Payloads up to this size travel through the shuffle, larger ones through storage; -1 "
        f"is {_LOCAL_INLINE_BYTES}, and {_REMOTE_INLINE_BYTES} on Dataflow or where the output is "
        "on an object store, but not on runners that bound a group's size, such as Flink.",
        -1,
        type=int,
    )
    overwrite: bool = _flag("Replace a finished dataset.", False, action="store_true")
    debug: bool = _flag("Show Beam's log, and tracebacks.", False, action="store_true")

    def __post_init__(self) -> None:
        _check_range("max_row_size_mb", self.max_row_size_mb, 0.001, 1024)
        _check_range("train_ratio", self.train_ratio, 0, 1)
        _check_range("split_seed", self.split_seed, -(2**63), 2**63 - 1)
        _check_range("probes_per_shard", self.probes_per_shard, 1, 10**9)
        _check_range("num_shards", self.num_shards, 0, 99_999)
        _check_range("inline_bytes", self.inline_bytes, -1, 1 << 20)
        default = {item.name: item.default for item in fields(self)}
        if self.num_shards and self.probes_per_shard != default["probes_per_shard"]:
            raise UsageError(
                f"--num_shards={self.num_shards} and --probes_per_shard={self.probes_per_shard} "
                "both set the number of shards: give one of them"
            )
        if self.columns and self.input_format.startswith("atlas"):
            raise UsageError(
                f"--columns renames the columns of plain Parquet, not of "
                f"--input_format={self.input_format}: leave one of them out"
            )
        if self.output_format != "arrayrecord":
            if self.array_record_options != default["array_record_options"]:
                raise UsageError(
                    f"--array_record_options={self.array_record_options} says nothing of "
                    f"--output_format={self.output_format}: leave one of them out"
                )
        else:
            _check_array_record_options(self.array_record_options)
        self.read_options()

    def read_options(self) -> ReadOptions:
        """Returns the part that reading needs."""
        return ReadOptions(self.input_format, _renamed(self.columns), self.atlas_source)  # type: ignore[arg-type]

    def dataset_options(self) -> DatasetOptions:
        """Returns the part that shapes the dataset's bytes."""
        values = {item.name: getattr(self, item.name) for item in fields(DatasetOptions)}
        if self.output_format != "arrayrecord":
            values["array_record_options"] = ""  # nothing of it is in the bytes
        return DatasetOptions(**values)

    def inline_bytes_for(self, beam_options: PipelineOptions) -> int:
        """Returns --inline_bytes, or what suits the runner."""
        if self.inline_bytes >= 0:
            return self.inline_bytes
        runner = beam_options.view_as(StandardOptions).runner
        # Flink sorts a group within its managed memory: little may be inline.
        is_bounded = runner in _RUNNERS_WITH_OWN_FLAGS
        if is_bounded or (runner in _LOCAL_RUNNERS and is_local(self.output)):
            return _LOCAL_INLINE_BYTES
        return _REMOTE_INLINE_BYTES


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or math.isnan(value):
        raise UsageError(f"--{name}={value} is outside of {low} to {high}")


def _check_array_record_options(options: str) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    try:
        # The options are parsed before the file is opened; nothing is written to /dev/null.
        ArrayRecordWriter("/dev/null", options).close()
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"--array_record_options={options} is not understood by ArrayRecord: "
            f"{' '.join(str(error).split())}; try {DEFAULT_RECORD_OPTIONS}"
        ) from error


def _renamed(columns: str) -> tuple[tuple[str, str], ...]:
    """Parses --columns into a name for each of COLUMNS."""
    names = {name: name for name in COLUMNS}
    for part in filter(None, columns.split(",")):
        column, _, name = part.partition("=")
        if column not in names or not name:
            raise UsageError(
                f"--columns={columns}: {part!r} is not COLUMN=NAME with a column of "
                f"{', '.join(COLUMNS)}"
            )
        names[column] = name
    if len(set(names.values())) < len(names):
        raise UsageError(f"--columns={columns} takes two columns from the same one of the input")
    return tuple(names.items())


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of our flags."""
    parser = OneLineParser(
        prog="python -m beam_pipeline.main",
        description="Turns ping measurements into probe rows in sharded ArrayRecord.",
        epilog="All other flags go to Apache Beam, such as --runner=DataflowRunner.",
        allow_abbrev=False,
    )
    for item in fields(Options):
        argument = dict(item.metadata)
        help_text = argument.pop("help").replace("%", "%%")
        if item.default is MISSING:
            argument["required"] = True
        else:
            argument["default"] = item.default
            if "action" not in argument and item.default != "":
                help_text += f" Default: {item.default}."
        parser.add_argument(f"--{item.name}", help=help_text, **argument)
    return parser


def parse(argv: Sequence[str]) -> tuple[Options, PipelineOptions]:
    """Parses a command line.

    Raises:
      UsageError: one line on what is wrong with it.
    """
    known, rest = make_parser().parse_known_args(normalise_flags(argv))
    values = vars(known)
    options = Options(**{**values, "input": tuple(values["input"])})
    return options, _beam_options(rest)


def _beam_options(argv: list[str]) -> PipelineOptions:
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            beam_options = PipelineOptions(argv)
            beam_options.get_all_options()
    except SystemExit as error:
        reason = complaint.getvalue().strip().splitlines()[-1:] or [""]
        raise UsageError(
            f"Beam does not take {' '.join(argv)}: {reason[0].partition('error: ')[2]}"
        ) from error
    standard = beam_options.view_as(StandardOptions)
    if standard.runner in (None, "DirectRunner"):
        # The DirectRunner of this Beam first tries to download Prism.
        standard.runner = IN_MEMORY_RUNNER
    if standard.runner == "PrismRunner":
        # Prism 2.77 splits a bundle that takes long, also between two elements of one key, and
        # then runs both parts at once: the key's state, half a probe, would be lost.
        beam_options.view_as(DebugOptions).add_experiment("prism_disable_sdf_split")
    if standard.streaming:
        raise UsageError("--streaming: probe rows are made of files that end; leave it out")
    if standard.runner not in _RUNNERS_WITH_OWN_FLAGS:
        _refuse_unknown(argv)
    return beam_options


def beam_parser() -> argparse.ArgumentParser:
    """Returns a parser of all flags that Beam knows."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for kind in PipelineOptions.__subclasses__():
        if "_add_argparse_args" in kind.__dict__:
            try:
                kind._add_argparse_args(parser)  # type: ignore[attr-defined]
            except argparse.ArgumentError:
                continue  # two of Beam's classes share a flag
    return parser


def _refuse_unknown(argv: list[str]) -> None:
    """Raises UsageError for the first flag that Beam would ignore."""
    parser = beam_parser()
    _, unknown = parser.parse_known_args(argv)
    if not unknown:
        return
    flag = unknown[0].partition("=")[0]
    ours = [f"--{item.name}" for item in fields(Options)]
    beams = [name for action in parser._actions for name in action.option_strings]
    near = difflib.get_close_matches(flag, ours + beams, n=1)
    cure = f"did you mean {near[0]}?" if near else "--help lists the flags"
    raise UsageError(f"{flag} is neither a flag of Probeline nor of Beam: {cure}")
