"""The context of a job run's steps: its options, its folders, and its hold on the output."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from beam_pipeline.dataset.layout import DatasetOptions
from beam_pipeline.dataset.manifest import NEXT_FOLDER, Generation, Manifest, committed_manifest
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.output_folder import JobRun
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

    run: JobRun  # holds the output
    command: str  # rebuilds the same dataset; for the data card
    read_options: ReadOptions
    anonymized_by: str = ""  # fingerprint of the key of the addresses; "" if they are real
    dataset_options: DatasetOptions
    inline_bytes: int  # payloads up to this size travel in their element, not in a file
    planned: Generation | None = None  # without its counts
    base: Manifest | None = None  # of the dataset being appended to, without its shards
    named_datasets: tuple[str, ...] = ()  # inputs, or the dataset appended to, with names of ends

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.run.folder, self.inline_bytes)

    @property
    def folder(self) -> str:
        """Where the dataset is written: the output, or a folder within it when appending."""
        return self.run.path(NEXT_FOLDER) if self.base else self.run.output

    def is_finished(self) -> bool:
        """Returns whether an attempt has done all steps except the cleanup."""
        if self.base is None or self.planned is None:
            return self.run.is_finished()
        try:
            found = Manifest.from_json(committed_manifest(self.run.output)).generations
        except ProbelineError:
            return False
        is_longer = len(found) == len(self.base.generations) + 1
        return is_longer and found[-1].started == self.planned.started

    def manifest_options(self) -> dict[str, Any]:
        """Returns the options listed in the manifest."""
        anonymize = {"anonymize": "none"}
        if self.anonymized_by:
            anonymize = {
                "anonymize": "prefix_preserving",
                "anonymize_key_fingerprint": self.anonymized_by,
            }
        return {
            **asdict(self.dataset_options),
            "atlas_source": self.read_options.atlas_source,
            "hops": self.read_options.hops,
            **self.read_options.sample.manifest_options(),
            **anonymize,
        }
