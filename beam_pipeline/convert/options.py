"""The flags of the conversion, and the names of its files. Nothing heavy is imported here."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

from beam_pipeline.cli.flags import OneLineParser, check_flags, flag, job_parser
from beam_pipeline.errors import UsageError, printable
from beam_pipeline.shards.writer_options import check_writer_options
from beam_pipeline.storage.files import check_path

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

MANIFEST, SUCCESS, DEAD_LETTERS = "convert_manifest.json", ".SUCCESS", "dead_letters"
FORMATS = ("jsonl", "parquet", "tfrecord")
RECORDS = ("bytes", "json", "tf_example")
# group_size:1 makes each record readable by itself, as Grain reads them.
DEFAULT_RECORD_OPTIONS = "group_size:1,zstd:1"
_ON_BAD = ("fail", "dead_letter")


class RecordOptions(NamedTuple):
    """The content of an output record; see the flags of the same names."""

    input_format: str = "auto"
    record: str = "auto"
    fields: tuple[str, ...] = ()
    on_bad_record: str = "fail"
    on_bad_file: str = "fail"

    def record_of(self, file_format: str) -> str:
        """Returns the kind of record, one of RECORDS, for a file format."""
        if self.record == "auto":
            return "tf_example" if file_format == "parquet" else "bytes"
        return self.record


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """The flags, documented by their help texts; UsageError for an invalid value."""

    input: tuple[str, ...] = flag(
        "File, folder or glob, on any Beam filesystem; may be repeated.",
        action="append",
        group="input",
    )
    output: str = flag("Folder of the shards, which are named after it.", group="output")
    input_format: str = flag(
        "Format of the input; auto detects it for each file.",
        "auto",
        choices=("auto", *FORMATS),
        group="input",
    )
    record: str = flag(
        "Content of an output record: bytes of the line, the TFRecord or one column (--fields) of "
        "Parquet; json, the line if it is valid JSON; tf_example, the fields of a JSON object or "
        "row. auto is tf_example for Parquet and bytes otherwise.",
        "auto",
        choices=("auto", *RECORDS),
        group="records",
    )
    fields: str = flag(
        "Comma-separated fields of JSON objects, or columns, to keep; all if empty.",
        "",
        group="records",
    )
    on_bad_record: str = flag(
        "A record that is damaged or cannot be converted ends the run (fail) or becomes a dead "
        "letter.",
        "fail",
        choices=_ON_BAD,
        group="records",
    )
    on_bad_file: str = flag(
        "An unreadable file ends the run (fail) or becomes a dead letter.",
        "fail",
        choices=_ON_BAD,
        group="input",
    )
    num_shards: int = flag(
        "Number of shards; 0 derives it from --shard_bytes.", 0, (0, 99_999), group="output"
    )
    shard_bytes: int = flag(
        "Approximate bytes of records per shard, before compression.",
        256 << 20,
        (1, 1 << 50),
        group="output",
    )
    array_record_options: str = flag(
        "Options of the ArrayRecord writer.", DEFAULT_RECORD_OPTIONS, group="output"
    )
    overwrite: bool = flag("Replace finished records.", False, action="store_true", group="output")
    debug: bool = flag("Show Beam's log, and tracebacks.", False, action="store_true", group="run")

    def __post_init__(self) -> None:
        check_flags(self)
        for name, path in (("output", self.output), *(("input", each) for each in self.input)):
            check_path(name, path)
        if self.num_shards and self.shard_bytes != ConvertOptions.shard_bytes:
            raise UsageError(
                f"--num_shards={self.num_shards} and --shard_bytes={self.shard_bytes} both set the "
                "number of shards: pass one of them"
            )
        names = self.field_names()
        if "" in names or len(set(names)) < len(names):
            raise UsageError(
                f"--fields={printable(self.fields)}: list each name once, separated by commas"
            )
        if names and self.record == "json":
            raise UsageError("--record=json copies whole lines: leave --fields out")
        check_writer_options(self.array_record_options, DEFAULT_RECORD_OPTIONS)

    def field_names(self) -> tuple[str, ...]:
        """Returns the names of --fields."""
        return tuple(self.fields.split(",")) if self.fields else ()

    def record_options(self) -> RecordOptions:
        """Returns the options that workers need."""
        return RecordOptions(
            self.input_format,
            self.record,
            self.field_names(),
            self.on_bad_record,
            self.on_bad_file,
        )


def make_parser() -> OneLineParser:
    """Returns the parser of the flags."""
    description = "Writes JSON lines, Parquet rows or TFRecord as sharded ArrayRecord."
    example = "--input 'c4/*.jsonl.gz' --output c4-records"
    return job_parser("beam_pipeline.convert", description, example, fields(ConvertOptions))


def parse(argv: Sequence[str]) -> tuple[ConvertOptions, "PipelineOptions"]:
    """Parses a command line; UsageError if it is not valid."""
    known, rest = make_parser().parse_known_args(argv)
    values = vars(known)
    options = ConvertOptions(**{**values, "input": tuple(values["input"])})
    from beam_pipeline.jobs.beam_options import parse_beam_options

    return options, parse_beam_options(rest, [item.name for item in fields(ConvertOptions)])
