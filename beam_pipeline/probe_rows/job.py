"""What the steps of one job run share: its options, its folders, and the lease on the output."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from beam_pipeline.dataset.layout import DatasetOptions
from beam_pipeline.dataset.manifest import NEXT_FOLDER, Generation, Manifest
from beam_pipeline.jobs.output_lease import Marker
from beam_pipeline.sources.options import ReadOptions


class Workspace(NamedTuple):
    """Where a job run keeps temporary files."""

    folder: str  # of this job run alone, visible to every worker
    inline_bytes: int  # payloads of up to this size travel in their element, not in a file

    def below(self, name: str) -> str:
        """Returns the folder for one kind of file."""
        return f"{self.folder}/{name}"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job run."""

    output: str
    command: str  # makes the same dataset again, for the data card
    read_options: ReadOptions
    anonymized_by: str = ""  # the fingerprint of the key of the addresses; "" if they are real
    dataset_options: DatasetOptions
    workspace: Workspace
    marker: Marker | None = None  # of the lease on the output, on `gs://`
    planned: Generation | None = None  # without what is counted
    base: Manifest | None = None  # of the dataset that the run adds to; its shards are not listed

    @property
    def folder(self) -> str:
        """Where the dataset is written: the output, or within it if it takes another's place."""
        output = self.output.rstrip("/")
        return f"{output}/{NEXT_FOLDER}" if self.base else output

    def manifest_options(self) -> dict[str, Any]:
        """Returns the options that the manifest lists."""
        anonymize = {"anonymize": "none"}
        if self.anonymized_by:
            anonymize = {
                "anonymize": "prefix_preserving",
                "anonymize_key_fingerprint": self.anonymized_by,
            }
        return {
            **asdict(self.dataset_options),
            "atlas_source": self.read_options.atlas_source,
            **self.read_options.sample.manifest_options(),
            **anonymize,
        }
