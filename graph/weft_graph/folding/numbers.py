"""Arithmetic on small integer tensors that are known before any step: shapes, axes, counts.

This is no evaluator of graphs. It knows what exporters write around Reshape and its like, and gives up on the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_graph.ir import ONNX_DOMAIN, Node
from weft_graph.shapes.slicing import slices_of
from weft_graph.types import DType, TensorType

Array = np.ndarray[Any, np.dtype[Any]]
Body = Callable[[Node, Sequence[Array], TensorType], Array | None]

MAX_ELEMENTS: Final = 4096
"""A shape has at most 16 elements; what is larger is data, and is left to the kernels."""

_INTEGERS: Final = frozenset({DType.INT32, DType.INT64})


def fold(node: Node, inputs: Sequence[Array | None], type_: TensorType) -> Array | None:
    """The node's output 0, of the inferred `type_`, or None where it is not known or not worth knowing.

    `inputs` has an array for each input that is known, None for the others. The array that comes back is never
    written. Overflow wraps around, as it does in the kernels.
    """
    body = _BODIES.get(node.op_type) if node.domain == ONNX_DOMAIN else None
    if body is None or type_.dtype not in _INTEGERS or not type_.is_static or type_.size > MAX_ELEMENTS:
        return None
    known = [array for array in inputs if array is not None and array.dtype.kind in "iu"]
    if len(known) < len(inputs) or not known:
        return None
    with np.errstate(all="ignore"):
        result = body(node, known, type_)
    if result is None:
        return None
    folded = np.asarray(result, dtype=type_.dtype.numpy).reshape(type_.static_shape)
    folded.flags.writeable = False
    return folded


def fold_type(node: Node, type_: TensorType) -> Array | None:
    """What Shape and Size say of an input of that type, where the dimensions that they tell of are numbers."""
    if node.domain != ONNX_DOMAIN or node.op_type not in {"Shape", "Size"}:
        return None
    dims = type_.shape[_bounds(node)] if node.op_type == "Shape" else type_.shape
    if not all(isinstance(dim, int) for dim in dims):
        return None
    folded = np.array(dims if node.op_type == "Shape" else type_.size, dtype=np.int64)
    folded.flags.writeable = False
    return folded


def _bounds(node: Node) -> slice:
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return slice(start if isinstance(start, int) else None, end if isinstance(end, int) else None)


def _same_elements(_node: Node, inputs: Sequence[Array], _type: TensorType) -> Array:
    return inputs[0].copy()


def _divide(_node: Node, inputs: Sequence[Array], _type: TensorType) -> Array | None:
    """Integer division that rounds towards zero, as C and ONNX do; unknown where a divisor is zero."""
    dividend, divisor = inputs
    if not np.all(divisor):
        return None
    is_rounded_down = (dividend % divisor != 0) & ((dividend < 0) != (divisor < 0))
    quotient: Array = dividend // divisor + is_rounded_down
    return quotient


def _concat(node: Node, inputs: Sequence[Array], _type: TensorType) -> Array | None:
    axis = node.attributes.get("axis")
    return np.concatenate(inputs, axis=axis) if isinstance(axis, int) else None


def _slice(node: Node, inputs: Sequence[Array], _type: TensorType) -> Array | None:
    """By its lists as inputs, none left out in the middle: what is left out is not among the inputs."""
    if len(inputs) < 3 or "" in node.inputs:
        return None
    data, *lists = inputs
    taken: Array = data[slices_of(data.shape, *(numbers.reshape(-1).tolist() for numbers in lists))]
    return taken


def _gather(node: Node, inputs: Sequence[Array], _type: TensorType) -> Array | None:
    data, indices = inputs
    axis = node.attributes.get("axis", 0)
    if not isinstance(axis, int) or not np.all((indices >= -data.shape[axis]) & (indices < data.shape[axis])):
        return None
    taken: Array = np.take(data, indices, axis=axis)
    return taken


_BODIES: Final[Mapping[str, Body]] = {
    "Identity": _same_elements,
    "Cast": _same_elements,
    "Reshape": _same_elements,
    "Squeeze": _same_elements,
    "Unsqueeze": _same_elements,
    "Flatten": _same_elements,
    "Add": lambda _node, inputs, _type: inputs[0] + inputs[1],
    "Sub": lambda _node, inputs, _type: inputs[0] - inputs[1],
    "Mul": lambda _node, inputs, _type: inputs[0] * inputs[1],
    "Neg": lambda _node, inputs, _type: -inputs[0],
    "Div": _divide,
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
}
