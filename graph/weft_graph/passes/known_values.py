"""What is known of a graph's values before any step: types, and numbers that follow from constants and shapes.

Whole numbers are `folding.numbers`'s. Beside them, small floats and truth values are computed here by operations that
IEEE 754 rounds correctly, and by comparisons: every device gives the same bits, so that nothing changes by computing
them once. Functions that are not (Exp, Pow) are left to the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.folding.numbers import MAX_ELEMENTS
from weft_graph.infer import Inference
from weft_graph.ir import ONNX_DOMAIN, Graph, Node
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.types import DType, TensorType

Array = np.ndarray[Any, np.dtype[Any]]
Body = Callable[[Node, Sequence[Array], TensorType], Array | None]


@dataclass(frozen=True, slots=True)
class Known:
    """The types of a graph's values, and the arrays of those that are known, constants included."""

    types: Mapping[str, TensorType]
    values: Mapping[str, Array]


def known_values(graph: Graph) -> Known:
    """What is known of a graph whose nodes are in runnable order."""
    given = {input_.name: input_.type for input_ in graph.inputs}
    given.update((parameter.name, parameter.type) for parameter in graph.parameters)
    inference = Inference(given, graph.constants)
    for node in graph.nodes:
        types = inference.add(node)
        name = node.outputs[0] if node.outputs else ""
        if name and name not in inference.known:
            value = _exact(node, [inference.known.get(read) for read in node.inputs if read], types[0])
            if value is not None:
                value.flags.writeable = False
                inference.known[name] = value
    return Known(inference.types, inference.known)


def _exact(node: Node, inputs: Sequence[Array | None], type_: TensorType) -> Array | None:
    body = _BODIES.get(node.op_type) if node.domain == ONNX_DOMAIN else None
    if body is None or not type_.is_static or type_.size > MAX_ELEMENTS or not inputs:
        return None
    known = [array for array in inputs if array is not None and array.dtype.name in _KINDS]
    if len(known) < len(inputs) or type_.dtype not in _KINDS:
        return None
    with np.errstate(all="ignore"):
        result = body(node, known, type_)
    if result is None:
        return None
    return np.array(result, dtype=type_.dtype.numpy).reshape(type_.static_shape)


_KINDS: Final = frozenset(
    {DType.BOOL, DType.INT32, DType.INT64, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64},
)


def _cast(node: Node, inputs: Sequence[Array], _type: TensorType) -> Array | None:
    """Between numbers that the other type has room for: what C leaves open is the kernel's to say."""
    (array,) = inputs
    target = DTYPE_OF_NUMBER[as_int(node.attributes["to"])].numpy
    fits = array.dtype.kind != "f" or target.kind != "i" or np.all(np.abs(array) < 2.0 ** (8 * target.itemsize - 1))
    return array.astype(target) if fits else None


def _floats(function: Callable[..., Any]) -> Body:
    """Of floats alone: whole numbers are another module's, with rules of their own."""

    def body(_node: Node, inputs: Sequence[Array], _type: TensorType) -> Array | None:
        return np.asarray(function(*inputs)) if all(array.dtype.kind == "f" for array in inputs) else None

    return body


def _same_elements(_node: Node, inputs: Sequence[Array], _type: TensorType) -> Array:
    return inputs[0]


def _of(function: Callable[..., Any]) -> Body:
    return lambda _node, inputs, _type: np.asarray(function(*inputs))


_BODIES: Final[Mapping[str, Body]] = {
    **dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"), _same_elements),
    "Cast": _cast,
    "Add": _floats(np.add),
    "Sub": _floats(np.subtract),
    "Mul": _floats(np.multiply),
    "Div": _floats(np.divide),
    "Neg": _floats(np.negative),
    "Abs": _floats(np.abs),
    "Sqrt": _floats(np.sqrt),
    "Reciprocal": _floats(np.reciprocal),
    "Floor": _floats(np.floor),
    "Ceil": _floats(np.ceil),
    "Equal": _of(np.equal),
    "Less": _of(np.less),
    "LessOrEqual": _of(np.less_equal),
    "Greater": _of(np.greater),
    "GreaterOrEqual": _of(np.greater_equal),
    "Not": _of(np.logical_not),
    "And": _of(np.logical_and),
    "Or": _of(np.logical_or),
    "Xor": _of(np.logical_xor),
    "Where": _of(np.where),
}
