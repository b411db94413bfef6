"""Reads batches of a split through `build_dataset`, as a program; options are key=value in JSON."""

import hashlib
import itertools
import json
import sys
from collections.abc import Sequence
from typing import Any

from beam_pipeline.cli.command import run_command
from training.batches.config import DataConfig
from training.dataset import build_dataset


def run(argv: Sequence[str]) -> None:
    options: dict[str, Any] = {"batch_size": 4, "crop_size": 256, "num_threads": 0}
    for argument in argv:
        name, _, value = argument.partition("=")
        options[name] = value if value.startswith("/") else json.loads(value)
    digest = hashlib.sha256()
    for batch in itertools.islice(build_dataset(DataConfig(**options)), 6):
        for name in sorted(batch):
            digest.update(batch[name].tobytes())
    print(digest.hexdigest())


if __name__ == "__main__":
    sys.exit(run_command(None, run, "stopped"))
