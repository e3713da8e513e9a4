"""How arrays that broadcast to one shape lie beside each other, in as few dimensions as tell them apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft_kernels.blocks import FUSED_ELEMENTS, VECTOR_BLOCK

Part = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class BroadcastShape:
    """`shape` is what the arrays broadcast to. `dims` is the same with neighbouring dimensions joined along which every
    array is full, or every array one; `full` says for each array along which of `dims` it has elements of its own."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    full: tuple[tuple[bool, ...], ...]

    def of(self, array: int) -> tuple[int, ...]:
        """The shape of array number `array` over `dims`."""
        return tuple(dim if full else 1 for dim, full in zip(self.dims, self.full[array], strict=True))

    def parts(self) -> Iterator[Part]:
        """`dims` cut into boxes of about `FUSED_ELEMENTS`, in order; each box is one run of the elements.

        A cut is behind whole blocks of elements, see `weft_kernels.blocks`; where that cannot be, there is one part.
        """
        axis = next(i for i in range(len(self.dims) + 1) if math.prod(self.dims[i + 1 :]) <= FUSED_ELEMENTS)
        inner, outer = math.prod(self.dims[axis + 1 :]), self.dims[:axis]
        aligned = VECTOR_BLOCK // math.gcd(inner, VECTOR_BLOCK)
        rows = max(FUSED_ELEMENTS // inner // aligned, 1) * aligned
        rest = tuple(slice(None) for _ in self.dims[axis + 1 :])
        if math.prod(outer) > 1 and inner * self.dims[axis] % VECTOR_BLOCK:
            yield tuple(slice(None) for _ in self.dims)
            return
        for leading in np.ndindex(*outer):
            for start in range(0, self.dims[axis], rows):
                yield (*(slice(each, each + 1) for each in leading), slice(start, start + rows), *rest)

    def taken(self, array: int, part: Part) -> Part:
        """What array number `array`, of the shape `of`, has of a part."""
        return tuple(each if full else slice(None) for each, full in zip(part, self.full[array], strict=True))


def broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> BroadcastShape:
    """Of arrays of these shapes. Raises ValueError where they do not broadcast."""
    shape = np.broadcast_shapes(*shapes)
    padded = [(1,) * (len(shape) - len(each)) + tuple(each) for each in shapes]
    dims: list[int] = []
    columns: list[tuple[bool, ...]] = []
    for size, column in zip(shape, zip(*padded, strict=True), strict=True):
        full = tuple(each == size for each in column)
        if size == 1:
            continue
        if columns and columns[-1] == full:
            dims[-1] *= size
        else:
            dims.append(size)
            columns.append(full)
    if not dims:
        dims, columns = [1], [(True,) * len(padded)]
    return BroadcastShape(shape, tuple(dims), tuple(zip(*columns, strict=True)))
