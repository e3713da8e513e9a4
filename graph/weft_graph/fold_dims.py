"""Arithmetic on dimensions that no step has filled yet: what exporters write between Shape and Reshape.

A value here is an array of objects, each a whole number or the text of a dimension (`4*batch`, or a name that only the
values of a step decide). Like `weft_graph.fold` this is no evaluator: it knows a few operators and gives up on others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_graph.fold import MAX_ELEMENTS
from weft_graph.ir import ONNX_DOMAIN, Node
from weft_graph.shapes.dims import Dim, DimensionError, product, quotient, total
from weft_graph.shapes.slicing import slices_of
from weft_graph.types import DType, TensorType

Dims = np.ndarray[Any, np.dtype[Any]]
Body = Callable[[Node, Sequence[Dims]], Dims | None]


def fold_dims(node: Node, inputs: Sequence[Dims | None], read: Sequence[TensorType], type_: TensorType) -> Dims | None:
    """The node's output 0, of the inferred `type_`, as dimensions, or None where they cannot be said.

    `inputs` has dimensions, or numbers, for each input that is known; `read` has the types of all.
    """
    if node.domain != ONNX_DOMAIN or type_.dtype not in {DType.INT32, DType.INT64} or not type_.is_static:
        return None
    if type_.size > MAX_ELEMENTS or not read:
        return None
    if node.op_type in {"Shape", "Size"}:
        result: Dims | None = _of_type(node, read[0])
    else:
        known = [array for array in inputs if array is not None]
        body = _BODIES.get(node.op_type)
        result = None if body is None or len(known) < len(inputs) else _carried_out(body, node, known)
    return None if result is None else result.reshape(type_.static_shape)


def as_dims(array: np.ndarray[Any, Any]) -> Dims:
    """Numbers as an array of objects."""
    return array.astype(object)


def _carried_out(body: Body, node: Node, known: Sequence[Dims]) -> Dims | None:
    try:
        return body(node, known)
    except (DimensionError, ValueError, IndexError):
        return None


def _of_type(node: Node, type_: TensorType) -> Dims:
    if node.op_type == "Size":
        return _array([product(type_.shape)])
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return _array(type_.shape[slice(start if isinstance(start, int) else 0, end if isinstance(end, int) else None)])


def _array(dims: Sequence[Dim]) -> Dims:
    made = np.empty(len(dims), dtype=object)
    made[:] = list(dims)
    return made


def _same_elements(_node: Node, inputs: Sequence[Dims]) -> Dims:
    return inputs[0]


def _concat(node: Node, inputs: Sequence[Dims]) -> Dims | None:
    axis = node.attributes.get("axis")
    return np.concatenate(inputs, axis=axis) if isinstance(axis, int) else None


def _gather(node: Node, inputs: Sequence[Dims]) -> Dims | None:
    data, indices = inputs
    axis = node.attributes.get("axis", 0)
    if not isinstance(axis, int) or not all(isinstance(index, int) for index in indices.flat):
        return None
    return _shaped(np.take(data, indices.astype(np.int64), axis=axis), data)


def _shaped(taken: Any, like: Dims) -> Dims:
    """NumPy gives an object of its own where one element is taken."""
    if isinstance(taken, np.ndarray):
        return taken
    made = np.empty((), dtype=like.dtype)
    made[()] = taken
    return made


def _slice(node: Node, inputs: Sequence[Dims]) -> Dims | None:
    if len(inputs) < 3 or "" in node.inputs:
        return None
    data, *lists = inputs
    if not all(isinstance(number, int) for numbers in lists for number in numbers.flat):
        return None
    return data[slices_of(data.ndim, *([int(number) for number in numbers.reshape(-1)] for numbers in lists))]


def _pairwise(combine: Callable[[Dim, Dim], Dim | None]) -> Body:
    def body(_node: Node, inputs: Sequence[Dims]) -> Dims | None:
        left, right = np.broadcast_arrays(*inputs)
        made = np.empty(left.shape, dtype=object)
        for place in np.ndindex(left.shape):
            made[place] = combine(left.item(*place), right.item(*place))
        return None if any(dim is None for dim in made.flat) else made

    return body


def _sum(a: Dim, b: Dim) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return None if _is_negative(a) or _is_negative(b) else total((a, b))


def _times(a: Dim, b: Dim) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return None if _is_negative(a) or _is_negative(b) else product((a, b))


def _over(a: Dim, b: Dim) -> Dim | None:
    """Where it comes out even for any sizes."""
    if b == 0 or _is_negative(a) or _is_negative(b):
        return None
    return quotient((a,), (b,))


def _is_negative(dim: Dim) -> bool:
    return isinstance(dim, int) and dim < 0


_BODIES: Final[Mapping[str, Body]] = {
    "Identity": _same_elements,
    "Cast": _same_elements,
    "Reshape": _same_elements,
    "Squeeze": _same_elements,
    "Unsqueeze": _same_elements,
    "Flatten": _same_elements,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Add": _pairwise(_sum),
    "Mul": _pairwise(_times),
    "Div": _pairwise(_over),
}
