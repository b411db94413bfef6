"""A column of an index or of a text's tokens while it is filled: one array that grows."""

import numpy as np
import numpy.typing as npt


class Column:
    """An array that grows, in one block: the system takes large ones back, but not many small ones.

    Args:
      room: the expected size; what is not used of it takes no memory.
    """

    def __init__(self, kind: npt.DTypeLike, room: int):
        self._array, self._size = np.empty(room, kind), 0

    def add(self, values: np.ndarray) -> None:
        """Adds values behind the others."""
        start, self._size = self._size, self._size + len(values)
        if self._size > len(self._array):
            self._array.resize(self._size * 9 // 8, refcheck=False)
        self._array[start : self._size] = values

    def taken(self) -> np.ndarray:
        """Returns the array, and forgets it."""
        array, self._array = self._array[: self._size], self._array[:0].copy()
        return array
