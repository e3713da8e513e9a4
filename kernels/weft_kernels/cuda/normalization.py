"""Normalizations on a GPU: sums of rows by `sources/normalization.cu`, and one generated kernel for what is done to
each element, which writes where the plan has the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from weft_graph.ir import Constant, Node, Subgraph
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.types import DType
from weft_kernels.cuda.fused import run_generated
from weft_kernels.cuda.kernels import images
from weft_kernels.cuda.module import MOST_BLOCKS, has_kernels, launch, launch_blocks
from weft_kernels.kernel import Array, KernelContext

_FILE: Final = "normalization.cu"
_THREADS: Final = 256
_CHUNKS: Final = 64
"""Parts that the rows of a column's sum are cut into."""

Lying = tuple[Array, int, int, int, int, int]
"""An array, the rows in it, their elements, those of a run, and the steps from row to row and from run to run."""


def fits(xp: Any, data: Array, *others: Array) -> bool:
    """Whether the kernels take data of this module and type, and other arrays of the same type."""
    alike = all(each.dtype == data.dtype for each in others)
    return has_kernels(xp) and data.dtype.kind == "f" and data.size > 0 and alike


def layers(xp: Any, data: Array, axis: int) -> Lying:
    """Each sample's elements behind `axis` as a row."""
    count = math.prod(data.shape[axis:])
    return xp.ascontiguousarray(data), data.size // count, count, count, count, 0


def channels(xp: Any, data: Array) -> Lying:
    """Each channel's elements of (batch, channels, ...) as a row, where they lie."""
    array, sample, channel = images(xp, data)
    each = math.prod(data.shape[2:])
    return array, data.shape[1], data.shape[0] * each, each, channel, sample


def statistics(
    xp: Any, data: Lying, epsilon: float, *, centred: bool = True, outs: Sequence[Array | None] = ()
) -> tuple[Array, Array, Array]:
    """(mean, variance, 1 / sqrt(variance + epsilon)) of each row, (rows,), as wide as statistics, in `outs` where those
    have memory in order for them. Without `centred` the mean is 0, and the variance the mean square."""
    array, rows, count, inner, row, run = data
    wide = _wide(array)
    made = [_rows(xp, rows, wide, outs[at] if at < len(outs) else None) for at in range(3)]
    _launch_rows(xp, "row_statistics", data, array, *made, rows, count, inner, row, run, int(centred), float(epsilon))
    return made[0], made[1], made[2]


def shares(
    xp: Any, gradient: Lying, data: Lying, mean: Array, inverse: Array, *, scale: Array | None = None
) -> tuple[Array, Array, Array, Array]:
    """What flows into each row's statistics, (rows,): sums of the gradient, of its products with the normalized data,
    and the means of both. `scale` (elements of a row) is what the gradient is multiplied by first."""
    array, rows, count, inner, row, run = data
    wide = _wide(array)
    made = [xp.empty(rows, dtype=wide) for _ in range(4)]
    steps = (rows, count, inner, *gradient[4:], row, run, int(scale is not None))
    factors = mean.reshape(-1) if scale is None else xp.ascontiguousarray(scale.astype(wide, copy=False))
    given = (gradient[0], array, mean.reshape(-1), inverse.reshape(-1), factors)
    _launch_rows(xp, "row_shares", data, *given, *made, *steps)
    return made[0], made[1], made[2], made[3]


def column_sums(xp: Any, gradient: Lying, data: Lying, mean: Array, inverse: Array) -> Array:
    """The sum over all rows, for each of their elements, of the gradient times the normalized data, (elements,)."""
    array, rows, count = data[:3]
    chunks = min(rows, _CHUNKS)
    partial = xp.empty((chunks, count), dtype=_wide(array))
    given = (gradient[0], array, mean.reshape(-1), inverse.reshape(-1), partial, rows, count, chunks)
    launch(xp, _FILE, "column_shares", partial.size, *given, types=(array.dtype,))
    total: Array = partial.sum(axis=0)
    return total


def element_by_element(xp: Any, body: Subgraph, arrays: Sequence[Array], out: Array | None) -> Array:
    """What the body makes of arrays that broadcast, in `out` or a new array."""
    made = run_generated(KernelContext("", xp, placed=(out,)), body, arrays)
    assert made is not None, "these bodies have a form in CUDA C"
    return made[0]


@lru_cache(maxsize=256)
def body(formula: str, dtype: str, **numbers: float) -> Subgraph:
    """A body from assignments `name = Operator name name`, whose last one's value is cast to `dtype`; the inputs are
    the names that nothing makes and no number has, in their order."""
    nodes: list[Node] = []
    for line in formula.strip().split(";"):
        name, call = (part.strip() for part in line.split("="))
        op_type, *reads = call.split()
        nodes.append(Node(op_type, name, tuple(reads), (name,)))
    nodes.append(Node("Cast", "cast", (nodes[-1].outputs[0],), ("cast",), {"to": NUMBER_OF_DTYPE[DType(dtype)]}))
    there = {name for node in nodes for name in node.outputs} | set(numbers)
    inputs = dict.fromkeys(name for node in nodes for name in node.inputs if name not in there)
    wide = np.float64 if dtype == "float64" else np.float32
    constants = tuple(Constant(name, np.asarray(number, wide)) for name, number in numbers.items())
    return Subgraph(tuple(inputs), (), tuple(nodes), ("cast",), constants)


def _wide(array: Array) -> Any:
    return np.dtype(np.float32) if array.dtype.itemsize == 2 else array.dtype


def _rows(xp: Any, rows: int, wide: Any, out: Array | None) -> Array:
    if out is not None and out.dtype == wide and out.size == rows and out.flags.c_contiguous:
        return out.reshape(rows)
    made: Array = xp.empty(rows, dtype=wide)
    return made


def _launch_rows(xp: Any, kernel: str, data: Lying, *args: Array | int | float) -> None:
    array, rows, count = data[:3]
    threads = min(_THREADS, 1 << max(count - 1, 31).bit_length())
    grid, block = (min(rows, MOST_BLOCKS),), (threads,)
    shared = threads * _wide(array).itemsize
    launch_blocks(xp, _FILE, kernel, grid, block, *args, types=(array.dtype,), shared_bytes=shared)
