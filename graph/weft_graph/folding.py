"""Values and dimensions that are known before a graph runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft_graph import dimensions as amounts
from weft_graph.dimensions import Amount, DimensionError, is_natural, minus, product, sign
from weft_graph.ir import ONNX_DOMAIN, AttributeValue, Node
from weft_graph.shapes.arranging import slices_of
from weft_graph.shapes.broadcasting import all_normalised, broadcast
from weft_graph.types import DType, TensorType

# --- Arithmetic on small integer tensors that are known before any step: shapes, axes, counts -------------------------
# This is no evaluator of graphs. It knows what exporters write around Reshape and its like, and gives up on the rest.


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


# --- Arithmetic on dimensions that no step has filled yet: what exporters write between Shape and Reshape -------------
# A value here is an array of objects: amounts, see `dimensions.amounts`, or truth values, and None where nothing is
# known of an element. Like `folding.numbers` this is no evaluator: it knows a few operators and gives up on others.


Dims = np.ndarray[Any, np.dtype[Any]]
Given = Sequence[Dims | None]
DimsBody = Callable[[Node, Given, TensorType], Dims | None]
Truth = bool | None

_FEW: Final = 16
"""Numbers of a float type that are looked at: exporters write the bounds of a range so."""

TYPES: Final = frozenset({DType.INT32, DType.INT64, DType.BOOL})

MAX_TEXT: Final = 2048
"""Characters of one element: no dimension of a type may have more, so one that is to become one is shorter."""

MAX_DIMS: Final = 32
"""Elements that are looked at: of a shape there are 16 at most, and each is an object here, not a number of NumPy's."""


def fold_dims(node: Node, inputs: Given, read: TensorType | None, type_: TensorType) -> Dims | None:
    """The node's output 0, of the inferred `type_`, or None where nothing of it can be said.

    `inputs` has, for each input of the node, an array of what is known of its elements, or None; `read` is the type of
    the first.
    """
    if node.domain != ONNX_DOMAIN or type_.dtype not in TYPES or not type_.is_static or type_.size > MAX_DIMS:
        return None
    try:
        if node.op_type in {"Shape", "Size"}:
            result = None if read is None else _of_type(node, read)
        else:
            body = _DIMS_BODIES.get(node.op_type)
            result = None if body is None or not any(map(_says_something, inputs)) else body(node, inputs, type_)
        result = None if result is None else result.reshape(type_.static_shape)
    except (DimensionError, ValueError, IndexError):
        return None
    if result is None:
        return None
    held = _each(lambda item: item if _holds(type_.dtype, item) else None, result)
    return held if _says_something(held) else None


def _holds(dtype: DType, item: Any) -> bool:
    """Whether the type has room for what would be a number; what has not wraps around, and nobody says where to.

    A text that is too long is not held either: a few nodes could double it again and again.
    """
    if isinstance(item, str):
        return len(item) <= MAX_TEXT
    if not isinstance(item, int) or dtype is DType.BOOL:
        return True
    limits = np.iinfo(dtype.value)
    return int(limits.min) <= item <= int(limits.max)


def as_dims(array: np.ndarray[Any, Any]) -> Dims | None:
    """Numbers as an array of objects, those of a float type where all are whole; None for other elements."""
    if array.dtype.kind == "f" and array.size <= _FEW and np.array_equal(array, np.trunc(array)):
        return _each(int, array.astype(object)) if np.all(np.isfinite(array)) else None
    return array.astype(object) if array.dtype.kind in "iub" else None


def nothing(type_: TensorType) -> Dims | None:
    """An array of that type of whose elements nothing is known, where it is one that this module computes with."""
    if type_.dtype not in TYPES or not type_.is_static or type_.size > MAX_DIMS:
        return None
    return np.full(type_.static_shape, None, dtype=object)


def as_numbers(dims: Dims, dtype: DType) -> np.ndarray[Any, Any] | None:
    """The same as an array of `dtype`, read-only, where every element is a number or a truth value."""
    if not all(isinstance(item, int) for item in dims.flat):
        return None
    numbers = np.array(dims.tolist(), dtype=dtype.numpy).reshape(dims.shape)
    numbers.flags.writeable = False
    return numbers


def _says_something(array: Dims | None) -> bool:
    return array is not None and (array.size == 0 or any(item is not None for item in array.flat))


def _of_type(node: Node, type_: TensorType) -> Dims:
    if node.op_type == "Size":
        return _array([product(type_.shape)])
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return _array(type_.shape[slice(start if isinstance(start, int) else 0, end if isinstance(end, int) else None)])


def _array(items: Sequence[Any]) -> Dims:
    made = np.empty(len(items), dtype=object)
    made[:] = list(items)
    return made


def _given(inputs: Given, index: int) -> Dims | None:
    return inputs[index] if index < len(inputs) else None


def _numbers(array: Dims | None) -> list[int] | None:
    """The numbers of an array that is known whole."""
    if array is None or not all(isinstance(item, int) for item in array.flat):
        return None
    return [int(item) for item in array.flat]


def _integers(attribute: AttributeValue | None) -> list[int]:
    return [item for item in attribute if isinstance(item, int)] if isinstance(attribute, tuple) else []


def _dims_same_elements(_node: Node, inputs: Given, _type: TensorType) -> Dims | None:
    return inputs[0]


def _cast(_node: Node, inputs: Given, type_: TensorType) -> Dims | None:
    """What is no whole number and no truth value comes as None and is not known."""
    if inputs[0] is None:
        return None
    if type_.dtype is DType.BOOL:
        return _each(lambda item: None if sign(item) is None else bool(sign(item)), inputs[0])
    return _each(lambda item: int(item) if isinstance(item, bool) else item, inputs[0])


def _dims_concat(node: Node, inputs: Given, _type: TensorType) -> Dims | None:
    axis = node.attributes.get("axis")
    known = [array for array in inputs if array is not None]
    return np.concatenate(known, axis=axis) if isinstance(axis, int) and len(known) == len(inputs) else None


def _dims_gather(node: Node, inputs: Given, _type: TensorType) -> Dims | None:
    data, indices, axis = inputs[0], inputs[1], node.attributes.get("axis", 0)
    chosen = _numbers(indices)
    if data is None or indices is None or chosen is None or not isinstance(axis, int):
        return None
    places = np.array(chosen, dtype=np.int64).reshape(indices.shape)
    return np.asarray(np.take(data, places, axis=axis), dtype=object)


def _dims_slice(_node: Node, inputs: Given, _type: TensorType) -> Dims | None:
    data = inputs[0]
    starts, ends, axes, steps = (_numbers(_given(inputs, index)) for index in range(1, 5))
    named = [index for index in range(1, len(_node.inputs)) if _node.inputs[index]]
    if data is None or starts is None or ends is None or any(_given(inputs, index) is None for index in named):
        return None
    if (axes is None and 3 in named) or (steps is None and 4 in named):
        return None
    return np.asarray(data[slices_of(data.shape, starts, ends, axes, steps)], dtype=object)


def _pairwise(combine: Callable[[Any, Any], Any]) -> DimsBody:
    def body(_node: Node, inputs: Given, _type: TensorType) -> Dims | None:
        result = inputs[0]
        for other in inputs[1:]:
            if result is None or other is None:
                return None
            left, right = np.broadcast_arrays(result, other)
            result = _array([combine(a, b) for a, b in zip(left.flat, right.flat, strict=True)]).reshape(left.shape)
        return result

    return body


def _elementwise(change: Callable[[Any], Any]) -> DimsBody:
    def body(_node: Node, inputs: Given, _type: TensorType) -> Dims | None:
        return None if inputs[0] is None else _each(change, inputs[0])

    return body


def _each(change: Callable[[Any], Any], array: Dims) -> Dims:
    return _array([change(item) for item in array.flat]).reshape(array.shape)


def _equal(a: Any, b: Any) -> Truth:
    """What a dimension is made of is never a number below 0."""
    if a is None or b is None:
        return None
    if any(isinstance(one, str) and isinstance(other, int) and other < 0 for one, other in ((a, b), (b, a))):
        return False
    difference = sign(minus(int(a) if isinstance(a, bool) else a, int(b) if isinstance(b, bool) else b))
    return None if difference is None else difference == 0


def _less(a: Amount, b: Amount) -> Truth:
    """Whether a < b for all sizes, or for none."""
    difference = sign(minus(b, a))
    if difference is not None:
        return difference > 0
    return False if is_natural(minus(a, b)) else None


def _not(a: Truth) -> Truth:
    return None if a is None else not a


def _and(a: Truth, b: Truth) -> Truth:
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def _where(_node: Node, inputs: Given, _type: TensorType) -> Dims | None:
    condition, left, right = inputs
    if condition is None or left is None or right is None:
        return None
    columns = np.broadcast_arrays(condition, left, right)
    chosen = [_chosen(*row) for row in zip(*(column.flat for column in columns), strict=True)]
    return _array(chosen).reshape(columns[0].shape)


def _chosen(condition: Truth, left: Any, right: Any) -> Any:
    if condition is None:
        return left if left == right else None
    return left if condition else right


def _reduced(combine: Callable[[Any, Any], Any], none: int | None) -> DimsBody:
    """The reduction of known axes by pairs; of no elements it is `none`."""

    def body(node: Node, inputs: Given, type_: TensorType) -> Dims | None:
        data, attribute = inputs[0], node.attributes.get("axes")
        named = len(node.inputs) > 1 and node.inputs[1] != ""
        axes = _numbers(inputs[1]) if named else _integers(attribute)
        if data is None or axes is None:
            return None
        if not axes and node.attributes.get("noop_with_empty_axes"):
            return data
        along = all_normalised(axes, data.ndim) or tuple(range(data.ndim))
        rest = [axis for axis in range(data.ndim) if axis not in along]
        rows = data.transpose(*rest, *along).reshape(type_.size, -1) if data.size else np.empty((type_.size, 0), object)
        return _array([_folded(combine, row, none) for row in rows])

    return body


def _folded(combine: Callable[[Any, Any], Any], row: Dims, none: int | None) -> Any:
    items = row.tolist()
    return none if not items else list(itertools.accumulate(items, combine))[-1]


def _range(_node: Node, inputs: Given, _type: TensorType) -> Dims | None:
    start, limit, step = (_numbers(array) for array in inputs)
    if start is None or limit is None or step is None:
        return None
    return _array(list(range(start[0], limit[0], step[0])))


def _filled(node: Node, _inputs: Given, type_: TensorType) -> Dims | None:
    value = node.attributes.get("value", 0)
    if not isinstance(value, int | float) or int(value) != value:
        return None
    return np.full(type_.static_shape, bool(value) if type_.dtype is DType.BOOL else int(value), dtype=object)


def _expanded(_node: Node, inputs: Given, type_: TensorType) -> Dims | None:
    data = inputs[0]
    if data is None or broadcast(data.shape, type_.shape) != type_.shape:
        return None
    return np.broadcast_to(data, type_.static_shape)


def _remainder(node: Node, inputs: Given, type_: TensorType) -> Dims | None:
    """With `fmod` the sign is the dividend's, which is the same where no number is negative."""
    wraps = bool(node.attributes.get("fmod"))
    natural = all(array is not None and all(map(is_natural, array.flat)) for array in inputs)
    return None if wraps and not natural else _pairwise(amounts.remainder)(node, inputs, type_)


def _negative(a: Amount) -> Amount:
    return minus(0, a)


def _absolute(a: Amount) -> Amount:
    return a if is_natural(a) else _negative(a) if is_natural(_negative(a)) else None


_DIMS_BODIES: Final[Mapping[str, DimsBody]] = {
    **dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"), _dims_same_elements),
    "Cast": _cast,
    "CastLike": _cast,
    "Concat": _dims_concat,
    "Gather": _dims_gather,
    "Slice": _dims_slice,
    "Where": _where,
    "Range": _range,
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Neg": _elementwise(_negative),
    "Abs": _elementwise(_absolute),
    "Not": _elementwise(_not),
    "Add": _pairwise(amounts.plus),
    "Sum": _pairwise(amounts.plus),
    "Sub": _pairwise(amounts.minus),
    "Mul": _pairwise(amounts.times),
    "Div": _pairwise(amounts.over),
    "Mod": _remainder,
    "Max": _pairwise(amounts.larger),
    "Min": _pairwise(amounts.smaller),
    "Equal": _pairwise(_equal),
    "Less": _pairwise(_less),
    "Greater": _pairwise(lambda a, b: _less(b, a)),
    "LessOrEqual": _pairwise(lambda a, b: _not(_less(b, a))),
    "GreaterOrEqual": _pairwise(lambda a, b: _not(_less(a, b))),
    "And": _pairwise(_and),
    "Or": _pairwise(lambda a, b: _not(_and(_not(a), _not(b)))),
    "ReduceProd": _reduced(amounts.times, 1),
    "ReduceSum": _reduced(amounts.plus, 0),
    "ReduceMax": _reduced(amounts.larger, None),
    "ReduceMin": _reduced(amounts.smaller, None),
}
