"""Checks for tests of a training pipeline that its dataset resumes exactly."""
# Grain comes without stubs.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import json
from collections.abc import Iterator
from typing import Any, cast

import numpy as np


def assert_resumes_exactly(dataset: Any, num_batches: int = 10) -> None:
    """Checks that an iterator continues from any of its states as if it had not stopped.

    From the state before each batch, saved as JSON, a new iterator and a used one must give the
    same batches as an uninterrupted iterator.

    Args:
      dataset: from `build_dataset`, or any Grain dataset made from one; or from
        `build_torch_dataset`, or a StatefulDataLoader of one. The latter two have one state for the
        dataset, so only new iterators are compared.
      num_batches: max number of batches to compare.

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
        states.append(json.dumps(_state(dataset, used)))
        batches.append(_next(used))
        if batches[-1] is None:
            break
    if batches[0] is None:
        raise AssertionError("the dataset has no batch, so nothing can be resumed")
    for step, state in enumerate(states):
        for iterator in _resumed(dataset, used, state):
            for number, batch in enumerate(batches[step:], step):
                message = f"batch {number}, resumed from the state before batch {step}"
                found = _next(iterator)
                if (found is None) != (batch is None):
                    raise AssertionError(f"{message}: the data end elsewhere")
                np.testing.assert_equal(found, batch, message)
    _close(used)


def _is_stateful(dataset: Any) -> bool:
    """Returns whether the dataset itself has the state of its iterator, as PyTorch's do."""
    return hasattr(dataset, "load_state_dict")


def _state(dataset: Any, iterator: Any) -> Any:
    return dataset.state_dict() if _is_stateful(dataset) else iterator.get_state()


def _resumed(dataset: Any, used: Any, state: str) -> Iterator[Any]:
    """Yields iterators that continue from a saved state."""
    if _is_stateful(dataset):
        dataset.load_state_dict(json.loads(state))
        yield iter(dataset)
        return
    new: Any = iter(dataset)
    for iterator in (new, used):
        iterator.set_state(json.loads(state))
        yield iterator
    _close(new)


def _next(iterator: Any) -> Any:
    """Returns the next batch, with tensors as arrays, or None at the end."""
    batch = next(iterator, None)
    if not isinstance(batch, dict):
        return batch
    values = cast(dict[str, Any], batch)
    return {
        name: value.numpy() if hasattr(value, "numpy") else value for name, value in values.items()
    }


def _close(iterator: Any) -> None:
    if hasattr(iterator, "close"):  # a StatefulDataLoader's iterator has none
        iterator.close()
