"""The manifest of a dataset, and its commit: `write_success`.

A dataset is committed once `_SUCCESS` exists and has the checksum of `manifest.json`. Two runs over
the same input differ only in their `generations`, which have dates. An appending run writes the
next generation, a whole dataset, to NEXT_FOLDER, and moves it out after its commit; meanwhile
readers use NEXT_FOLDER. Types, ranges and paths are validated here. Unknown fields and options are
ignored, since incompatible changes change the format version.
"""

import dataclasses
import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import orjson
from msgspec import Meta

from beam_pipeline.dataset.layout import Duplicates, Encoding, OutputFormat, RecordEncoding
from beam_pipeline.errors import ProbelineError, program
from beam_pipeline.storage.files import checksum_text, crc32c, is_local, read_file, write_durably

FORMAT_VERSION = 2
READABLE_VERSIONS = (1, 2)
SPLITS = ("train", "test")
MANIFEST_NAME, SUCCESS_NAME, INDEX_NAME = "manifest.json", "_SUCCESS", "rows.parquet"
NAMES_NAME = "names.parquet"
DEAD_LETTER_FOLDER, NEXT_FOLDER = "dead_letter", ".probeline-next"

Write = Callable[[str, bytes], None]  # writes a file, given its path
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Time = Annotated[str, Meta(pattern=r"^([0-9T:.-]+Z)?$")]
Checksum = Annotated[str, Meta(pattern="^[0-9a-f]{8}$")]
Sha256 = Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")]  # "" if an older version wrote the file
# A file in a folder of the dataset, never outside it.
FilePath = Annotated[str, Meta(pattern=r"^[a-z_]+/[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=200)]


class KnownOptions(TypedDict, total=False):
    """Options used by readers, with the limits of their flags; older manifests lack some."""

    measurement_encoding: Encoding
    record_encoding: RecordEncoding
    output_format: OutputFormat
    array_record_options: str
    max_row_size_mb: Annotated[float, Meta(ge=0.001, le=1024)]
    train_ratio: Annotated[float, Meta(ge=0, le=1)]
    split_seed: int
    probes_per_shard: Annotated[int, Meta(ge=0)]
    num_shards: Count
    anonymize: Literal["none", "prefix_preserving"]
    anonymize_key_fingerprint: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    sample_probes: Annotated[float, Meta(gt=0, le=1)]
    sample_measurements: Annotated[float, Meta(gt=0, le=1)]
    since: Time
    until: Time
    duplicates: Duplicates


@dataclass(frozen=True)
class Shard:
    """One file of records; `path` is relative to the dataset."""

    path: FilePath
    num_records: Count
    num_measurements: Count
    num_bytes: Count
    crc32c: Checksum
    sha256: Sha256 = ""


@dataclass(frozen=True)
class LetterFile:
    """One file of dead letters; `path` is relative to the dataset."""

    path: FilePath
    num_bytes: Count
    crc32c: Checksum
    sha256: Sha256 = ""


@dataclass(frozen=True)
class NamesFile:
    """`names.parquet`: the names of ends, where the input has names in place of addresses."""

    num_names: Count
    num_bytes: Count
    crc32c: Checksum
    sha256: Sha256 = ""


@dataclass(frozen=True)
class Split:
    """The train or the test split, and the checksums of its `rows.parquet`."""

    num_probes: Count
    num_records: Count
    num_measurements: Count
    num_bytes: Count
    shards: list[Shard] = field(default_factory=list[Shard])
    index_crc32c: Checksum = ""
    index_sha256: Sha256 = ""


@dataclass(frozen=True)
class Counts:
    """The input by outcome: `rows_read` is the sum of all others except `input_files`."""

    input_files: Count
    rows_read: Count
    measurements: Count
    dead_letters: dict[str, Count]
    rows_left_out: Count = 0  # not in the sample
    duplicates_dropped: Count = 0

    def plus(self, other: "Counts") -> "Counts":
        names = [item.name for item in dataclasses.fields(self) if item.name != "dead_letters"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        letters = Counter(self.dead_letters) + Counter(other.dead_letters)
        return Counts(**sums, dead_letters=dict(sorted(letters.items())))

    @property
    def num_dead_letters(self) -> int:
        return sum(self.dead_letters.values())

    @property
    def accounted(self) -> int:
        """The rows with a known outcome, which must equal `rows_read`."""
        left_out = self.rows_left_out + self.duplicates_dropped
        return self.measurements + self.num_dead_letters + left_out


@dataclass(frozen=True)
class SourceFile:
    """An input file; `version` is its generation on `gs://`, else its modification time in ns."""

    path: str
    num_bytes: Count
    version: Int64


@dataclass(frozen=True)
class Generation:
    """The contribution of one run to a dataset; the first run created it.

    Attributes:
      started: start of the run, UTC, ISO 8601; "" in older versions.
      input: the values of --input.
      options: of reading, which may differ between generations.
      versions: of the libraries.
      counts: the input of this run by outcome.
      num_probes, num_records: of the dataset after the run.
      first_us, last_us: first and last time of its measurements, µs since 1970; None if unknown.
      files_digest: hash of the paths, sizes and versions of the input files; "" if unknown.
      files: the input files, if they are few.
      warnings: sentences about input files without a measurement and values of a wrong unit.
    """

    started: str
    input: list[str]
    options: dict[str, Any]
    versions: dict[str, str]
    counts: Counts
    num_probes: Count
    num_records: Count
    first_us: Int64 | None = None
    last_us: Int64 | None = None
    files_digest: str = ""
    files: list[SourceFile] = field(default_factory=list[SourceFile])
    warnings: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Manifest:
    """The contents of `manifest.json`.

    Attributes:
      format_version: of docs/format.md.
      options: those that determine the bytes of the shards, by the name of their flag.
      versions: of the libraries that determine them.
      counts: the input rows by outcome.
      splits: "train" and "test": counts, shards and their checksums.
      dead_letter_files: the files of dead letters; empty in older manifests.
      generations: the contributions of all runs, in order; empty in older manifests.
      names: the file with the names of ends; None without any.

    Example:

        manifest = open_dataset("rows").manifest
        {name: split.num_measurements for name, split in manifest.splits.items()}
    """

    format_version: int
    options: dict[str, Any]
    versions: dict[str, str]
    counts: Counts
    splits: dict[str, Split]
    dead_letter_files: list[LetterFile] = field(default_factory=list[LetterFile])
    generations: list[Generation] = field(default_factory=list[Generation])
    names: NamesFile | None = None

    @property
    def warnings(self) -> list[str]:
        """The warnings of all generations."""
        return [text for generation in self.generations for text in generation.warnings]

    @property
    def output_format(self) -> str:
        """The file format of the shards; ArrayRecord in manifests older than the option."""
        return self.options.get("output_format", "arrayrecord")

    @property
    def array_record_options(self) -> str:
        """The options of the shards' writer; empty for another format, or if they are unknown."""
        return self.options.get("array_record_options", "")

    def to_json(self) -> bytes:
        """Returns the file's bytes: sorted keys, two spaces, a final newline."""
        form = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
        values = dataclasses.asdict(self)
        for name in ("dead_letter_files", "generations", "names"):
            if not values[name]:
                del values[name]
        return orjson.dumps(values, option=form)

    @staticmethod
    def from_json(data: bytes) -> "Manifest":
        """Inverts `to_json`; ValueError if the bytes are not a manifest."""
        manifest = msgspec.json.decode(data, type=Manifest)
        options = msgspec.convert(manifest.options, KnownOptions)
        is_replaced = options.get("anonymize", "none") != "none"
        if is_replaced != ("anonymize_key_fingerprint" in options):
            raise ValueError("one of anonymize and anonymize_key_fingerprint contradicts the other")
        for name in SPLITS:
            if name not in manifest.splits:
                raise ValueError(f"it has no split {name!r}")
        files = [(name, shard) for name, split in manifest.splits.items() for shard in split.shards]
        files += [(DEAD_LETTER_FOLDER, file) for file in manifest.dead_letter_files]
        for folder, file in files:
            if not file.path.startswith(f"{folder}/"):
                raise ValueError(f"it lists {file.path} as a file of {folder}")
        return manifest


def wrong_sums(manifest: Manifest) -> Iterator[str]:
    """Yields the counts of a manifest, its generations and splits that do not add up."""
    counts = manifest.counts
    if sorted(manifest.splits) != sorted(SPLITS):
        yield f"its splits are {sorted(manifest.splits)}, not {sorted(SPLITS)}"
    if counts.rows_read != counts.accounted:
        yield (
            f"rows_read is {counts.rows_read}, {counts.measurements} measurements, "
            f"{counts.num_dead_letters} dead letters, {counts.rows_left_out} rows left out and "
            f"{counts.duplicates_dropped} duplicates are {counts.accounted}"
        )
    if manifest.generations:
        added_up = reduce(Counts.plus, (generation.counts for generation in manifest.generations))
        if added_up != counts:
            yield f"its generations add up to {added_up}, counts is {counts}"
        last = manifest.generations[-1]
        for column in ("num_probes", "num_records"):
            total = sum(getattr(split, column) for split in manifest.splits.values())
            if (said := getattr(last, column)) != total:
                yield f"{column} of the last generation is {said}, the splits' sum {total}"
    written = sum(split.num_measurements for split in manifest.splits.values())
    if counts.measurements != written:
        yield f"measurements is {counts.measurements}, the splits' sum {written}"
    for name, split in manifest.splits.items():
        for column in ("num_records", "num_measurements", "num_bytes"):
            said, total = getattr(split, column), sum(getattr(s, column) for s in split.shards)
            if said != total:
                yield f"{column} of {name} is {said}, its shards' {total}"


def success_stamp(manifest: bytes) -> bytes:
    """Returns the contents of `_SUCCESS` for a manifest of these bytes."""
    return f"{checksum_text(crc32c(manifest))}\n".encode()


def write_success(folder: str, manifest: bytes, write: Write = write_durably) -> None:
    """Commits the dataset: writes the manifest and then `_SUCCESS`, each atomically."""
    write(f"{folder}/{MANIFEST_NAME}", manifest)
    write(f"{folder}/{SUCCESS_NAME}", success_stamp(manifest))


def committed_manifest(folder: str) -> bytes:
    """Returns the bytes of a manifest; ProbelineError unless `_SUCCESS` has its checksum."""
    stamp = read_file(f"{folder}/{SUCCESS_NAME}")
    if stamp is None and is_local(folder) and not os.path.isdir(folder):
        beside = os.path.dirname(os.path.abspath(folder))
        names = os.listdir(beside) if os.path.isdir(beside) else []
        near = difflib.get_close_matches(os.path.basename(folder), names, n=1)
        cure = f"did you mean {near[0]}?" if near else "check the path"
        raise ProbelineError(
            f"{folder} is not a finished dataset: it has no {SUCCESS_NAME}, as {beside} has "
            f"no such folder; {cure}"
        )
    if stamp is None:
        raise ProbelineError(
            f"{folder} is not a finished dataset: it has no {SUCCESS_NAME}; run "
            f"{program('rows', 'beam_pipeline.main')} to the end, or check the path"
        )
    data = read_file(f"{folder}/{MANIFEST_NAME}")
    if data is None:
        raise ProbelineError(f"{folder} has no {MANIFEST_NAME}: copy the dataset as a whole")
    found, said = checksum_text(crc32c(data)), stamp.decode(errors="replace").strip()
    if found != said:
        raise ProbelineError(
            f"{folder}/{MANIFEST_NAME} has checksum {found}, {SUCCESS_NAME} says {said!r}: one of "
            "the files was changed or belongs to another dataset; copy the dataset again as a whole"
        )
    return data
