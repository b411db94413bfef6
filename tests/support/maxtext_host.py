"""One host of a pod as a process: python -m tests.support.maxtext_host HOST ARGUMENT …

Runs `training.train` as a user does, under jax.distributed if there are several hosts, and keeps
what was fed: a test holds it against what one host is fed without interruption.
"""

import json
import sys
import time
from pathlib import Path

import jax


def main(host: dict, arguments: list[str]) -> int:
    """Returns the exit code of the command.

    Args:
      host: its index, how many there are (count), the coordinator's port, the folder for what was
        fed, and seconds (pace_s) that every batch takes at least, so that a signal finds a step.
    """
    if host["count"] > 1:
        jax.distributed.initialize(f"127.0.0.1:{host['port']}", host["count"], host["index"])
    from training import train
    from training.maxtext.feed import FeedIterator

    give = FeedIterator.__next__

    def give_and_keep(iterator: FeedIterator) -> dict:
        batch = give(iterator)
        if iterator.feed.dataset.plans[0].shards.split == "train":
            step = iterator.feed.first_step + iterator.get_state()["step"] - 1
            line = json.dumps(
                {"count": host["count"], "step": step, "inputs": batch["inputs"].tolist()}
            )
            with open(Path(host["folder"]) / f"fed-{host['index']}.jsonl", "a") as file:
                file.write(line + "\n")
        time.sleep(host["pace_s"])
        return batch

    FeedIterator.__next__ = give_and_keep
    return train.main(arguments)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
