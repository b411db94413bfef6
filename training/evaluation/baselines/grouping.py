"""Medians of values that share a key."""

import numpy as np


def grouped_medians(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the keys that occur, ascending, and the median of the values of each."""
    order = np.lexsort([values, keys])
    values = values[order]
    found, begins = np.unique(keys[order], return_index=True)
    ends = np.append(begins[1:], len(keys))
    return found, (values[(begins + ends - 1) // 2] + values[(begins + ends) // 2]) / 2
