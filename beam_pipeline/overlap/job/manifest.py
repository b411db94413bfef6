"""The inputs and versions behind a result, to audit it and to detect whether a rerun would differ.

  progress/progress_summary.json   options and versions, from functions here, and the date
  progress/input_files.jsonl       each file: its flag, evaluation set, path, size and version

The version of a file is its generation on `gs://`, otherwise its modification time in nanoseconds.
"""

import hashlib
import platform
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import apache_beam as beam
import orjson
import pyarrow as pa
from apache_beam.io.filesystems import FileSystems

from beam_pipeline import __version__
from beam_pipeline.cli.flags import several, values_of
from beam_pipeline.documents.files import InputFile
from beam_pipeline.errors import UsageError, printable
from beam_pipeline.jobs.frame import manifest_bytes, start_time
from beam_pipeline.overlap.evaluation import EvaluationFile, source_of
from beam_pipeline.overlap.job.config import DeconConfig, flag_fields
from beam_pipeline.overlap.ngrams.tokenizers import tokenizer_named
from beam_pipeline.overlap.results.layout import INPUT_FILES, SUMMARY
from beam_pipeline.overlap.results.output_files import escape_surrogates, read_lines, write_lines
from beam_pipeline.storage.files import atomic_write, exists, open_file
from beam_pipeline.storage.matching import FileVersion

_VERSIONS_COMPARED = {
    "probeline": "the version of Probeline",
    "unicode": "the version of Unicode",
    "tokenizer": "the code of --tokenizer, by its hash,",
}


def options_of(config: DeconConfig) -> dict[str, Any]:
    """Returns the value of every flag as in JSON."""
    options, given = {}, values_of(config)
    for item in flag_fields():
        value = given[item.name]
        values = [escape_surrogates(one) if isinstance(one, str) else one for one in several(value)]
        options[item.name] = values if item.metadata.get("action") == "append" else values[0]
    return {**options, "ngram_length": list(config.ngram.lengths)}


def options_of_matches(config: DeconConfig) -> dict[str, Any]:
    """Returns the value of every flag on which the match files depend."""
    values = values_of(config)
    names = [item.name for item in flag_fields() if item.metadata["affects"] == "matches"]
    return {name: values[name] for name in names}


def versions_of(tokenizer: str) -> dict[str, str]:
    """Returns the versions that shape a result, with a hash of a custom tokenizer's code."""
    versions = {
        "probeline": __version__,
        "python": platform.python_version(),
        "apache_beam": beam.__version__,
        "pyarrow": pa.__version__,
        "unicode": unicodedata.unidata_version,
    }
    if source := source_of(tokenizer_named(tokenizer)):
        versions["tokenizer"] = hashlib.blake2b(source.encode(), digest_size=8).hexdigest()
    return versions


# --- the files of a run ---------------------------------------------------------------------------


class ListedFile(NamedTuple):
    """A file that a run read, as a line of input_files.jsonl."""

    flag: str
    eval_dataset: str | None
    path: str
    num_bytes: int
    version: int

    def __str__(self) -> str:
        of_set = f" of the evaluation set {self.eval_dataset}" if self.eval_dataset else ""
        return f"{printable(self.path)}{of_set}"


def input_files(
    training: Sequence[InputFile],
    evaluation: Sequence[EvaluationFile],
    dropped: Sequence[FileVersion] = (),
) -> Iterator[ListedFile]:
    """Yields all files of a run in the order of the output."""
    for dataset, file, _ in evaluation:
        yield ListedFile("decontaminate_source", dataset, *file.file)
    for file in training:
        yield ListedFile("input_path", None, *file.file)
    for file in dropped:
        yield ListedFile("drop_ngrams", None, *file)


def write_input_files(output: str, temp_folder: str, files: Iterable[ListedFile]) -> None:
    """Writes the list of the files of a run."""
    records = (file._asdict() for file in files)
    write_lines(FileSystems.join(output, INPUT_FILES), temp_folder, records)


# --- another run ----------------------------------------------------------------------------------


def check_same(config: DeconConfig, files: Iterable[ListedFile]) -> None:
    """Raises UsageError, with the first difference, unless a run would make the existing result."""
    output = config.output_path
    made_of = FileSystems.join(output, INPUT_FILES)
    if not exists(made_of):
        difference = "it does not tell of which files it was made"
    else:
        difference = _option_that_differs(config, read_summary(output)) or _file_that_differs(
            [ListedFile(**record) for record in read_lines(made_of)], list(files)
        )
    if difference:
        raise UsageError(
            f"--skip_existing: --output_path={output} holds the result of another run: "
            f"{difference}; choose another folder, or say --overwrite to replace it"
        )


def _option_that_differs(config: DeconConfig, summary: Mapping[str, Any]) -> str | None:
    # Options that affect nothing, such as paths, are not compared; input files are.
    compared = {item.name for item in flag_fields() if item.metadata["affects"]}
    for name, value in options_of(config).items():
        before = summary["options"].get(name)
        if before != value and name in compared:
            return f"--{name} was {_shown(before)} and is {_shown(value)}"
    versions = versions_of(config.tokenizer)
    for name in _VERSIONS_COMPARED:
        before, value = (found.get(name) for found in (summary["versions"], versions))
        if before != value:
            return f"{_VERSIONS_COMPARED[name]} was {before} and is {value}"
    return None


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _file_that_differs(before: list[ListedFile], now: list[ListedFile]) -> str | None:
    if _portable(before) == _portable(now):
        return None
    old, new = ({file[:3]: file for file in files} for files in (before, now))
    for key in {**new, **old}:
        was, found = (_shown_version(files.get(key)) for files in (old, new))
        if was != found:
            file = new.get(key) or old[key]
            return f"{file}, of --{file.flag}, was {was} and is {found}"
    return None if before == now else "--decontaminate_source had another order"


def _shown_version(file: ListedFile | None) -> str:
    return str(FileVersion(*file[2:])) if file else "not among its files"


def _portable(files: Sequence[ListedFile]) -> list[tuple[Any, ...]]:
    """Returns files with paths below the common folder of their flag and evaluation set."""
    folders = defaultdict[tuple[Any, ...], list[list[str]]](list)
    for file in files:
        folders[file[:2]].append(file.path.split("/")[:-1])
    depth_of = {}
    for key, paths in folders.items():
        levels = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
        depth_of[key] = len(list(levels))
    return [(*file[:2], file.path.split("/")[depth_of[file[:2]] :], *file[3:]) for file in files]


# --- progress_summary.json ------------------------------------------------------------------------


def summary_at_launch(
    config: DeconConfig, num_eval_files: int, num_train_files: int, warnings: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns the contents of progress_summary.json before the first stage, in their order."""
    return {
        "stage": "",
        "num_eval_files": num_eval_files,
        "num_train_files": num_train_files,
        "num_shards": 0,  # of the index
        "max_parallelism": config.processes,
        "ngram_lengths": config.lengths,
        "tokenizer": config.tokenizer,
        "fingerprint": "",
        "started_at": start_time(),  # the launcher's time, so that all attempts write the same
        "options": options_of(config),
        "versions": {},
        "counts": {},
        "warnings": warnings,
        "outputs": (),
    }


def write_summary(output: str, temp_folder: str, summary: dict[str, Any]) -> None:
    """Writes progress_summary.json, replacing that of the previous stage."""
    path = FileSystems.join(output, SUMMARY)
    with atomic_write(path, temp_folder) as stream:
        stream.write(manifest_bytes(summary))


def read_summary(output: str) -> dict[str, Any]:
    """Returns the contents of progress_summary.json."""
    with open_file(FileSystems.join(output, SUMMARY)) as stream:
        return orjson.loads(stream.read())
