"""Reads batches of a split through `build_dataset`, as a program; options are key=value in JSON."""

import hashlib
import itertools
import json
import sys
from typing import Any

from beam_pipeline.errors import ProbelineError
from training.batches.config import DataConfig
from training.dataset import build_dataset

if __name__ == "__main__":
    options: dict[str, Any] = {"batch_size": 4, "crop_size": 256, "num_threads": 0}
    for argument in sys.argv[1:]:
        name, _, value = argument.partition("=")
        options[name] = value if value.startswith("/") else json.loads(value)
    try:
        digest = hashlib.sha256()
        for batch in itertools.islice(build_dataset(DataConfig(**options)), 6):
            for name in sorted(batch):
                digest.update(batch[name].tobytes())
        print(digest.hexdigest())
    except (ProbelineError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
