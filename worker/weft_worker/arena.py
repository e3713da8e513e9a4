"""The memory of a plan's values: one arena a run, and where in it each value lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_graph.layout.plan import ALIGNMENT, Layout
from weft_graph.layout.strides import Sizes, order_of, same_places
from weft_graph.schema import Strides
from weft_graph.types import TensorType
from weft_kernels.kernel import Array
from weft_worker.device import Device
from weft_worker.engine.engine import Engine
from weft_worker.engine.work import Variable


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """How a value lies in memory without gaps: as an array of `sizes` in C's order, whose dimensions are then `axes`
    (None where they stay). `offset` and `nbytes` are where in the arena; offset None is memory of its own.
    """

    strides: Strides
    dtype: np.dtype[Any]
    sizes: Sizes
    axes: tuple[int, ...] | None
    nbytes: int
    offset: int | None

    @classmethod
    def of(cls, type_: TensorType, strides: Strides, offset: int | None) -> ArrayLayout:
        shape = type_.static_shape
        order = order_of(shape, strides)
        assert order is not None, f"{type_} with strides {strides} has gaps, and no kernel makes it so"
        back = tuple(order.index(axis) for axis in range(len(order)))
        sizes = tuple(shape[axis] for axis in order)
        axes = None if back == tuple(range(len(order))) else back
        return cls(strides, type_.dtype.numpy, sizes, axes, type_.nbytes, offset)

    def array(self, xp: Any, arena: Array | None) -> Array:
        """The value's array in the arena; a new one without an arena."""
        array: Array
        if arena is None or self.offset is None:
            array = xp.empty(self.sizes, dtype=self.dtype)
        else:
            array = arena[self.offset : self.offset + self.nbytes].view(self.dtype).reshape(self.sizes)
        return array if self.axes is None else array.transpose(self.axes)

    def matches(self, array: Array) -> bool:
        """Whether the array, of this type, lies so."""
        size = self.dtype.itemsize
        return same_places(tuple(array.shape), tuple(step // size for step in array.strides), self.strides)


@dataclass(frozen=True, slots=True)
class Placement:
    """A layout by the places of a plan's value table.

    `values` has those that kernels make in memory of a known size, `views` those that lie in another's memory.
    """

    layout: Layout
    values: Mapping[int, ArrayLayout]
    views: frozenset[int]

    @classmethod
    def of(cls, layout: Layout, places: Mapping[str, int], types: Mapping[str, TensorType]) -> Placement:
        return cls(
            layout,
            {
                places[name]: ArrayLayout.of(types[name], strides, layout.offsets.get(name))
                for name, strides in layout.strides.items()
            },
            frozenset(places[name] for name in layout.views),
        )

    def arrays(self, xp: Any, arena: Array) -> dict[int, Array]:
        """The arrays of the values in an arena, by place."""
        return {place: value.array(xp, arena) for place, value in self.values.items() if value.offset is not None}

    def largest(self, names: Sequence[str], shown: int = 3) -> str:
        """The values that take most of the arena, for messages."""
        sizes = {names[place]: value.nbytes for place, value in self.values.items() if value.offset is not None}
        largest = sorted(sizes, key=lambda name: -sizes[name])[:shown]
        return ", ".join(f"{name!r} of {sizes[name]} bytes" for name in largest)


@dataclass(slots=True)
class _Slot:
    """Memory for one run at a time, and the variable that its work writes."""

    order: Variable
    memory: Array | None = None


class Arenas:
    """The arenas of a device, in which runs of plans take turns.

    There is one unless said otherwise: of two steps in flight the second computes almost nothing before the first has
    computed all, so a second arena would double the memory and save no time. Not safe between threads: runs are pushed
    by one.
    """

    def __init__(self, engine: Engine, device: Device, count: int = 1) -> None:
        self._engine = engine
        self._device = device
        self._slots = [_Slot(engine.variable(f"arena {number}")) for number in range(count)]

    @property
    def nbytes(self) -> int:
        """Bytes that the arenas take now."""
        return sum(slot.memory.nbytes for slot in self._slots if slot.memory is not None)

    def take(self, nbytes: int) -> tuple[Array | None, Variable]:
        """An arena of at least `nbytes`, and the variable that all work on it is to write.

        That work then starts once the run that had the arena before, which has been pushed whole, is done. Raises
        MemoryError.
        """
        slot = self._slots.pop(0)
        self._slots.append(slot)
        if nbytes and (slot.memory is None or slot.memory.nbytes < nbytes):
            slot.memory = self._memory(nbytes)
        return (slot.memory if nbytes else None), slot.order

    def _memory(self, nbytes: int) -> Array:
        xp = self._device.xp
        if xp is not np:
            with self._device.use():
                return xp.empty(nbytes, dtype=xp.uint8)  # type: ignore[no-any-return]  # xp is Any
        loose = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
        start = -loose.ctypes.data % ALIGNMENT
        return loose[start : start + nbytes]
