"""The evaluation sets of a command line: their names and paths.

A set has the given name, or that of its folder without suffixes that executors append.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from beam_pipeline.documents.fields import DOCUMENT_NAME
from beam_pipeline.documents.lm_eval import SAMPLES
from beam_pipeline.errors import UsageError

if TYPE_CHECKING:
    from beam_pipeline.documents.files import InputFile

_RUN_HASH = re.compile(r"-[0-9a-fA-F]{6}\Z")
_TOOL_SUFFIX = "-dolma"
_WILDCARD = re.compile(r"[*?\[]")


class EvaluationSource(NamedTuple):
    """The name of an evaluation set, and its folder, glob or file."""

    name: str
    path: str


def parse_evaluation_source(text: str) -> EvaluationSource:
    """Parses PATH or NAME=PATH; PATH alone is named by `dataset_name`.

    The text before the first `=` is a name unless it has a slash: `lang=en/x.jsonl` is named
    `lang`, `./lang=en/x.jsonl` is a path.

    Raises:
      UsageError: the name or the path is empty.
    """
    name, equals, path = text.partition("=")
    if not equals or "/" in name:
        name, path = "", text
    elif not name:
        raise UsageError(f"--decontaminate_source={text} has no name before =: it is NAME=PATH")
    if not path:
        raise UsageError(f"--decontaminate_source={text} has no path: it is PATH or NAME=PATH")
    return EvaluationSource(name or dataset_name(path), path)


def evaluation_sources(given: Sequence[str]) -> list[EvaluationSource]:
    """Parses all sources; a folder whose name another folder has taken gets a longer name.

    `gsm8k/main` and `hellaswag/main` are `main` and `hellaswag-main`. Files of one folder are one
    evaluation set, and so are sources with the same NAME.

    Raises:
      UsageError: as `parse_evaluation_source`.
    """
    found: list[EvaluationSource] = []
    folders: dict[str, str | None] = {}  # by name; None if a NAME= gave it
    for source in map(parse_evaluation_source, given):
        name, folder = source.name, None
        if source.path in given:
            folder = _folder_of(source.path)
            parts = folder.rpartition("://")[2].split("/")[:-1]
            while folders.get(name, folder) != folder and parts:
                name = "-".join(filter(None, (parts.pop(), name)))
            if folders.get(name, folder) != folder:
                raise UsageError(
                    f"--decontaminate_source={source.path} would be the evaluation set {name}, as "
                    f"is another source: pass NAME={source.path}"
                )
        folders.setdefault(name, folder)
        found.append(source._replace(name=name))
    return found


def match_sources(
    given: Sequence[str], is_lm_eval: bool = False, unread: list[str] | None = None
) -> "Iterator[tuple[str, InputFile]]":
    """Yields the evaluation set and each file of all sources; `unread` as in `match_documents`.

    Of a folder of lm-evaluation-harness only samples are read. They are a set per task, named after
    it unless the source has a NAME; a task of another folder has the folder's name, too.
    """
    from beam_pipeline.documents.files import match_documents  # loads Arrow

    path_of_task: dict[str, str] = {}
    for name, path in evaluation_sources(given):
        files = match_documents([path], "--decontaminate_source", unread)
        tasks = [SAMPLES.search(file.path) if is_lm_eval else None for file in files]
        for file, task in zip(files, tasks, strict=True):
            if task and path in given:
                is_new = path_of_task.setdefault(task["task"], path) == path
                yield task["task"] if is_new else f"{name}-{task['task']}", file
            elif task or not any(tasks):
                yield name, file


def name_with_field(dataset: str, field: str) -> str:
    """Returns the name of the evaluation set of one field of a set's rows."""
    return f"{dataset}:{field}"


def dataset_name(path: str) -> str:
    """Returns the name of an evaluation set's folder, without `-1a2b3c` and `-dolma`.

    A glob has the last folder above its first wildcard; an existing local path is not a glob.

    Raises:
      UsageError: the path has no folder with a name.
    """
    name = _folder_of(path).rpartition("/")[2]
    if not name:
        raise UsageError(
            f"--decontaminate_source={path} has no folder to name the evaluation set: pass "
            f"NAME={path}"
        )
    bare = _RUN_HASH.sub("", name)
    return bare.removesuffix(_TOOL_SUFFIX) or bare or name


def _folder_of(path: str) -> str:
    """Returns the folder that names the evaluation set of a path."""
    folder = path if "://" in path else os.path.abspath(path)
    wildcard = _WILDCARD.search(folder)
    if wildcard and not os.path.exists(folder):
        folder = folder[: wildcard.start()].rpartition("/")[0]
    elif DOCUMENT_NAME.search(folder.rstrip("/")):
        folder = folder.rstrip("/").rpartition("/")[0]
    return folder.rstrip("/")
