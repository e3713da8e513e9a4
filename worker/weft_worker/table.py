"""The values of one run of a plan."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft_graph.dimensions import agree
from weft_graph.types import TensorType, array_text
from weft_kernels.kernel import Array, KernelContext
from weft_worker.errors import ValueMismatchError
from weft_worker.plan import Plan
from weft_worker.upload import Upload

Calls = dict[int, tuple[KernelContext, bool]]
"""What kernels are told, by the identity of their nodes, and whether what they make lies at the same places in every
run."""


class ValueTable:
    """An array for each place of a plan, from when it is made until its last reader is done. Safe between threads.

    Who may read a place when is the engine's business: a place is put once, before anybody takes it. `arena` has the
    arrays of an arena that the plan's values lie in, by place; a value that it lacks has memory of its own.
    `arrays` has the values by place, `readers` how many are still to read them; `calls` is kept from run to run
    together with the arena, and so is `landed`: for values from the host that are to lie at the same place in every
    run, the array in which the last one arrived.
    """

    def __init__(
        self,
        plan: Plan,
        arena: Mapping[int, Array] | None = None,
        calls: Calls | None = None,
        landed: dict[int, Array | None] | None = None,
    ) -> None:
        self._plan = plan
        self._arena = arena or {}
        self.calls: Calls = {} if calls is None else calls
        self.arrays: list[Array | None] = [None] * len(plan.names)
        self.readers = list(plan.readers)
        self._landed: dict[int, Array | None] = {} if landed is None else landed
        self.uploads: dict[int, Upload] = {}
        """Values that are on their way to the device, by place."""
        self._lock = threading.Lock()
        for place, array in plan.constants.items():
            if plan.readers[place] > 0:
                self.arrays[place] = array

    def put(self, place: int, array: Array | Upload) -> None:
        """Keeps the value; drops it at once where nobody reads it. Raises ValueMismatchError, naming it."""
        type_ = self._plan.types[place]
        if array.shape != type_.shape or array.dtype != type_.dtype.numpy:
            self._check(place, array)
        if self.readers[place] > 0:
            if isinstance(array, Upload):
                self.uploads[place] = array
            else:
                self.arrays[place] = array

    def land(self, places: Iterable[int | None]) -> None:
        """Has what is started from now on wait for those of these values that are on their way: see `Upload`."""
        for place in self.uploads.keys() & set(places):
            array = self.arrays[place] = self.uploads.pop(place).land(self._landed.get(place))
            if place in self._landed:
                self._landed[place] = array

    def keep_copies(self, places: Iterable[int]) -> None:
        """Of these values, those that lie in memory of others are copied: it is about to be written."""
        for place in self._plan.aliased.intersection(places):
            self.arrays[place] = self.get(place).copy()

    def wanted(self, xp: Any, places: Iterable[int | None]) -> tuple[Array | None, ...]:
        """For each place the array that its value is to be written to: of the arena, or new; None where its size is
        not known, and for a view. A kernel writes alike in both, and gives the same bits."""
        found: list[Array | None] = []
        for place in places:
            array = None
            if place is not None:
                array = self._arena.get(place)
                if array is None and (value := self._plan.placement.values.get(place)) is not None:
                    array = value.array(xp, None)
            found.append(array)
        return tuple(found)

    def keeps(self, places: Iterable[int | None]) -> bool:
        """Whether what `wanted` gives for these places is the same in every run with this arena."""
        return all(
            place is None or place in self._arena or place not in self._plan.placement.values for place in places
        )

    def settle(self, xp: Any, place: int, array: Array, wanted: Array | None, inputs: Iterable[Array | None]) -> None:
        """Keeps what a kernel gave, where and as the plan has it: with or without an arena it lies alike, so that sums
        along it are the same to the bit. Raises ValueMismatchError."""
        if array is wanted:
            if self.readers[place] > 0:
                self.arrays[place] = array
            return
        self._check(place, array)
        if self.readers[place] <= 0:
            return
        placement = self._plan.placement
        if not _is_at(xp, array, wanted) and place not in placement.views:
            layout = placement.values.get(place)
            in_arena = place in self._arena
            if in_arena or not _is_own(xp, array, inputs) or (layout is not None and not layout.matches(array)):
                wanted = xp.empty(array.shape, dtype=array.dtype) if wanted is None else wanted
                wanted[...] = array
                array = wanted
        self.arrays[place] = array

    def _check(self, place: int, array: Array | Upload) -> None:
        expected = self._plan.types[place]
        if not _fits(array, expected):
            name, came = self._plan.names[place], f"{array.dtype}[{', '.join(map(str, array.shape))}]"
            raise ValueMismatchError(f"value {name!r} came as {came}, the plan has {expected}")

    def get(self, place: int) -> Array:
        """The value, which stays."""
        if self.uploads:
            self.land([place])
        array = self.arrays[place]
        assert array is not None, f"value {self._plan.names[place]!r} is not there"
        return array

    def take(self, places: Iterable[int | None]) -> list[Array | None]:
        """The values at `places`, None where a place is."""
        arrays = self.arrays
        return [None if place is None else arrays[place] for place in places]

    def release(self, places: Iterable[int | None]) -> None:
        """One reader of each of `places` is done; a value that has none left is dropped."""
        readers = self.readers
        with self._lock:
            for place in places:
                if place is not None:
                    readers[place] = left = readers[place] - 1
                    if not left:
                        self.arrays[place] = None


def _fits(array: Array | Upload, type_: TensorType) -> bool:
    """Whether the array is of that type, some of whose dimensions the array itself may decide."""
    if array.dtype != type_.dtype.numpy:
        return False
    if array.shape == type_.shape:
        return True
    return array.ndim == type_.rank and all(map(agree, array.shape, type_.shape))


def _is_at(xp: Any, array: Array, wanted: Array | None) -> bool:
    """Whether the array is where it is wanted: no two values' memory overlaps in part."""
    return (
        wanted is not None
        and array.base is not None
        and array.strides == wanted.strides
        and bool(xp.may_share_memory(array, wanted))
    )


def _is_own(xp: Any, array: Array, inputs: Iterable[Array | None]) -> bool:
    """Whether the array lies in no memory of `inputs`, which may be given to another value once they are read."""
    return array.base is None or not any(xp.may_share_memory(array, read) for read in inputs if read is not None)


def described(arrays: Sequence[Array | None]) -> str:
    """The arrays' types, for messages: `inputs float32[2, 3], none`."""
    return "inputs " + (", ".join("none" if array is None else array_text(array) for array in arrays) or "none")
