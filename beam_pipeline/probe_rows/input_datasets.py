"""Finished datasets among the inputs of a job run, and what their addresses ask of it."""

from typing import NamedTuple

from beam_pipeline.dataset.rows import Dataset
from beam_pipeline.errors import UsageError
from beam_pipeline.probe_rows.options import Options
from beam_pipeline.sources import stored_rows
from beam_pipeline.sources.anonymize_key import KeyReference


class Inputs(NamedTuple):
    """What --input names: finished datasets, and patterns of files."""

    datasets: list[Dataset]
    patterns: list[str]


def sort_inputs(options: Options) -> Inputs:
    """Parts datasets from other inputs.

    Raises:
      UsageError: a path names a part of a dataset.
      ProbelineError: a dataset is not finished.
    """
    paths = list(dict.fromkeys(path.rstrip("/") or path for path in options.input))
    if options.input_format == "probe_rows":
        return Inputs([stored_rows.open_input(path) for path in paths], [])
    if options.input_format != "auto":
        return Inputs([], list(options.input))
    folders = list(filter(stored_rows.is_dataset, paths))
    patterns = [path for path in options.input if path.rstrip("/") not in folders]
    return Inputs([stored_rows.open_input(path) for path in folders], patterns)


def carried_key(inputs: Inputs, key: KeyReference | None) -> str:
    """Returns the fingerprint of the key that replaced the addresses of all inputs, "" if none.

    Args:
      key: that of --anonymize, which replaces the real addresses among the inputs.

    Raises:
      UsageError: real addresses would mix with replaced ones, or those of several keys.
    """
    by_key = {_fingerprint(dataset): dataset.path for dataset in inputs.datasets}
    if key is not None:
        by_key.pop("", None)
        by_key[key.fingerprint] = "--anonymize"
    elif inputs.patterns:
        by_key.setdefault("", inputs.patterns[0])
    if len(by_key) > 1:
        (one, one_path), (other, other_path) = list(by_key.items())[:2]
        raise UsageError(
            f"the addresses of {one_path} are {_described(one)}, those of {other_path} "
            f"{_described(other)}: give only datasets of one key, or those of one key and "
            "--anonymize with that key"
        )
    return next(iter(by_key), "")


def _fingerprint(dataset: Dataset) -> str:
    return dataset.manifest.options.get("anonymize_key_fingerprint", "")


def _described(fingerprint: str) -> str:
    return f"replaced with key {fingerprint}" if fingerprint else "real ones"
