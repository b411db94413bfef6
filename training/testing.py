"""For tests of a training pipeline: does its dataset resume exactly?"""
# Grain comes without stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import json
from typing import Any

import grain
import numpy as np


def assert_resumes_exactly(dataset: grain.IterDataset[Any], num_batches: int = 10) -> None:
    """Checks that an iterator goes on from any of its states as if it had not stopped.

    From the state before each batch, saved as JSON, a new iterator and one in use must give the
    same batches as an iterator that was not interrupted.

    Args:
      dataset: of `build_dataset`, or any dataset of Grain made from one.
      num_batches: those that are compared, if the dataset does not end before.

    Raises:
      AssertionError: a batch differs, or there is none.

    Example:

        dataset = build_dataset(DataConfig(files="rows/train", batch_size=4, crop_size=256))
        assert_resumes_exactly(dataset)
    """
    used: Any = iter(dataset)
    batches: list[Any] = []
    states: list[str] = []
    for _ in range(num_batches):
        states.append(json.dumps(used.get_state()))
        batches.append(next(used, None))  # None at the end
        if batches[-1] is None:
            break
    if batches[0] is None:
        raise AssertionError("the dataset has no batch, so nothing can be resumed")
    for step, state in enumerate(states):
        new: Any = iter(dataset)
        for iterator in (new, used):
            iterator.set_state(json.loads(state))
            for number, batch in enumerate(batches[step:], step):
                message = f"batch {number}, resumed from the state before batch {step}"
                found = next(iterator, None)
                if (found is None) != (batch is None):
                    raise AssertionError(f"{message}: the data end elsewhere")
                np.testing.assert_equal(found, batch, message)
        new.close()
    used.close()
