"""The values of one run of a plan."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from weft_graph.shapes.dims import agree
from weft_graph.types import TensorType, array_text
from weft_kernels.kernel import Array
from weft_worker.errors import ValueMismatchError
from weft_worker.plan import Plan


class ValueTable:
    """An array for each place of a plan, from when it is made until its last reader is done. Safe between threads.

    Who may read a place when is the engine's business: a place is put once, before anybody takes it.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._arrays: list[Array | None] = [None] * len(plan.names)
        self._readers = list(plan.readers)
        self._lock = threading.Lock()
        for place, array in plan.constants.items():
            self.put(place, array)

    def put(self, place: int, array: Array) -> None:
        """Keeps the value; drops it at once where nobody reads it. Raises ValueMismatchError, naming it."""
        expected = self._plan.types[place]
        if not _fits(array, expected):
            name, came = self._plan.names[place], array_text(array)
            raise ValueMismatchError(f"value {name!r} came as {came}, the plan has {expected}")
        if self._readers[place] > 0:
            self._arrays[place] = array

    def get(self, place: int) -> Array:
        """The value, which stays."""
        array = self._arrays[place]
        assert array is not None, f"value {self._plan.names[place]!r} is not there"
        return array

    def take(self, places: Iterable[int | None]) -> list[Array | None]:
        """The values at `places`, None where a place is."""
        return [None if place is None else self.get(place) for place in places]

    def release(self, places: Iterable[int | None]) -> None:
        """One reader of each of `places` is done; a value that has none left is dropped."""
        with self._lock:
            for place in places:
                if place is None:
                    continue
                self._readers[place] -= 1
                if self._readers[place] == 0:
                    self._arrays[place] = None


def _fits(array: Array, type_: TensorType) -> bool:
    """Whether the array is of that type, some of whose dimensions the array itself may decide."""
    return (
        array.dtype == type_.dtype.numpy
        and array.ndim == type_.rank
        and all(agree(size, dim) for size, dim in zip(array.shape, type_.shape, strict=True))
    )


def described(arrays: Sequence[Array | None]) -> str:
    """The arrays' types, for messages: `inputs float32[2, 3], none`."""
    return "inputs " + (", ".join("none" if array is None else array_text(array) for array in arrays) or "none")
