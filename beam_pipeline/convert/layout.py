"""The files of the output: shards that are called as their folder, dead letters, the manifest."""

import os
import re
from typing import NamedTuple

from beam_pipeline.jobs.output_folder import OutputFiles
from beam_pipeline.shards.writing import shard_path
from beam_pipeline.storage.files import is_local

MANIFEST, SUCCESS, DEAD_LETTERS = "convert_manifest.json", ".SUCCESS", "dead_letters"
_TEMPLATE, _SUFFIX = "-SSSSS-of-NNNNN", ".array_record"


class Layout(NamedTuple):
    """The paths of an output."""

    output: str  # without a slash at its end
    name: str

    def shard(self, shard: int, num_shards: int) -> str:
        """Returns the path of a shard, `c4/c4-00000-of-00010.array_record`."""
        return shard_path(f"{self.output}/{self.name}", _TEMPLATE, _SUFFIX, shard, num_shards)

    def output_files(self) -> OutputFiles:
        """Returns the files that a run may remove."""
        shards = rf"{re.escape(self.name)}-\d+-of-\d+{re.escape(_SUFFIX)}"
        return OutputFiles(
            flag="output",
            name="set of records",
            success=SUCCESS,
            patterns={
                "": rf"{shards}|{re.escape(MANIFEST)}|({MANIFEST}|{re.escape(SUCCESS)})\.\d+\.tmp",
                DEAD_LETTERS: r"dead_letter_\d+-of-\d+\.parquet",
            },
        )


def layout_of(output: str) -> Layout:
    """Returns the layout of --output."""
    folder = output.rstrip("/") or "/"
    whole = os.path.abspath(folder) if is_local(folder) else folder
    return Layout(folder, whole.rpartition("/")[2] or "records")
