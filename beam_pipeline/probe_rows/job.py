"""What the steps of one job run share: its options, its folders, and the lease on the output."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from beam_pipeline.dataset.options import DatasetOptions
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
    dataset_options: DatasetOptions
    workspace: Workspace
    marker: Marker | None = None  # of the lease on the output, on `gs://`

    def manifest_options(self) -> dict[str, Any]:
        """Returns the options that the manifest lists."""
        key = self.read_options.anonymize
        anonymize = {"anonymize": "none"}
        if key is not None:
            anonymize = {
                "anonymize": "prefix_preserving",
                "anonymize_key_fingerprint": key.fingerprint,
            }
        atlas_source = self.read_options.atlas_source
        return {**asdict(self.dataset_options), "atlas_source": atlas_source, **anonymize}
