"""The options of reading measurements, and their values. Nothing heavy is imported here."""

from dataclasses import dataclass
from typing import Literal

from beam_pipeline.dataset.options import Encoding
from beam_pipeline.sources.anonymize_key import KeyReference

COLUMNS = ("event_time", "src_addr", "dst_addr", "ip_version", "rtt")
InputFormat = Literal["parquet", "atlas_json", "atlas_bigquery", "probe_rows"]
INPUT_FORMATS: tuple[InputFormat, ...] = ("parquet", "atlas_json", "atlas_bigquery", "probe_rows")
AtlasSource = Literal["from", "src_addr"]
ATLAS_SOURCES: tuple[AtlasSource, ...] = ("from", "src_addr")


@dataclass(frozen=True)
class ReadOptions:
    """How to read the input.

    Attributes:
      input_format: of all files, or "auto" to recognise each by its content.
      columns: the input's name of each of COLUMNS.
    """

    input_format: InputFormat | Literal["auto"] = "auto"
    columns: tuple[tuple[str, str], ...] = tuple((name, name) for name in COLUMNS)
    atlas_source: AtlasSource = "from"  # which address of a result is the probe's
    anonymize: KeyReference | None = None  # the key with which addresses are replaced
    skip_bad_files: bool = False  # an unreadable file becomes a dead letter
    encoding: Encoding = "arrow"  # of the rows: what it cannot hold becomes a dead letter

    @property
    def names(self) -> dict[str, str]:
        return dict(self.columns)
