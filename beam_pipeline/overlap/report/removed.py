"""What removals of an output took: exact, from the manifests that they wrote."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from beam_pipeline.errors import UsageError
from beam_pipeline.overlap.report.removal_effects import RemovalEffects
from beam_pipeline.overlap.results.layout import REMOVAL_MANIFEST, SUCCESS_NAME
from beam_pipeline.storage import files
from beam_pipeline.storage.lines import explained_damage


class Lost(msgspec.Struct):
    """What contaminated documents lost, of all training files or for one evaluation set."""

    contaminated: int
    records_removed: int
    pieces: int
    contaminated_chars: int
    chars_removed: int


class Removed(msgspec.Struct):
    """A removal: its folder, its options, and what was lost."""

    options: dict[str, Any]
    counts: Lost
    by_evaluation_set: dict[str, Lost]
    path: str = ""

    @property
    def way(self) -> str:
        """The way of removal, such as "split"."""
        return str(self.options["remove"])


def read_removed(folders: Iterable[str], effects: RemovalEffects) -> list[Removed]:
    """Reads the manifests of removals.

    Raises:
      UsageError: a folder is no finished clean corpus, or its contaminated documents, by evaluation
        set, are not as many as this output has.
      ProbelineError: a manifest is damaged.
    """
    return [_read(folder.rstrip("/"), effects) for folder in folders]


def _read(folder: str, effects: RemovalEffects) -> Removed:
    given = f"--removed={folder}"
    if not files.exists(f"{folder}/{SUCCESS_NAME}"):
        raise UsageError(
            f"{given} is not a finished clean corpus: it has no {SUCCESS_NAME}; give the "
            "--output_path of beam_pipeline.overlap.remove"
        )
    path = f"{folder}/{REMOVAL_MANIFEST}"
    cure = "run the removal again with --overwrite"
    with explained_damage(path, cure, more=(ValueError,)), files.open_file(path) as stream:
        removed = msgspec.json.decode(stream.read(), type=Removed)
    removed.path = folder
    found = {name: lost.contaminated for name, lost in removed.by_evaluation_set.items()}
    if found != {name: taken.num_documents for name, taken in effects.by_set.items()}:
        raise UsageError(
            f"{given} was cleaned by another result: {removed.counts.contaminated:,} of its "
            f"documents were contaminated, {effects.total.num_documents:,} are in this one; give a "
            "corpus that was cleaned by this one"
        )
    return removed
