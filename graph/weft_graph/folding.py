"""Values and dimensions that are known before a graph runs: shapes, axes, counts, scales.

This is no evaluator of graphs. It knows what exporters write around Reshape and its like, and gives up on the rest.
What an operator does with known values is a fact of its schema (`weft_graph.schema.Folding`). `by_element` and
`by_pairs` make those of operators that go element by element, in their rows; the others stand below.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from weft_graph.dimensions import DimensionError, product, sign
from weft_graph.ir import AttributeValue, Node
from weft_graph.schema import Folding, Known, schema_of
from weft_graph.shapes.arranging import slices_of
from weft_graph.shapes.broadcasting import all_normalised, broadcast
from weft_graph.types import DType, TensorType

# --- Values that are known whole --------------------------------------------------------------------------------------
# Only by operations that IEEE 754 rounds correctly, and on whole numbers, which wrap around as they do in the kernels:
# every device gives the same bits. Functions that are rounded otherwise (Exp, Pow) are left to the kernels.

MAX_ELEMENTS: Final = 4096
"""A shape has at most 16 elements; what is larger is data, and is left to the kernels."""

_EXACT: Final = frozenset({DType.BOOL, DType.INT32, DType.INT64, DType.FLOAT16, DType.FLOAT32, DType.FLOAT64})


def fold(node: Node, inputs: Sequence[Known | None], type_: TensorType) -> Known | None:
    """The node's output 0, of the inferred `type_`, or None where it is not known or not worth knowing.

    `inputs` has an array for each input that is known, None for the others. The array that comes back is never
    written.
    """
    folding = schema_of(node).folding
    if folding is None or folding.values is None or type_.dtype not in _EXACT:
        return None
    if not inputs or not type_.is_static or type_.size > MAX_ELEMENTS:
        return None
    known = [
        array for array in inputs if array is not None and (array.dtype.kind in "iu" or array.dtype.name in _EXACT)
    ]
    if len(known) < len(inputs):
        return None
    with np.errstate(all="ignore"):
        result = folding.values(node, known, type_)
    if result is None:
        return None
    folded = np.array(result, dtype=type_.dtype.numpy).reshape(type_.static_shape)
    folded.flags.writeable = False
    return folded


def fold_type(node: Node, type_: TensorType) -> Known | None:
    """What Shape and Size say of an input of that type, where the dimensions that they tell of are numbers."""
    folding = schema_of(node).folding
    return None if folding is None or folding.of_type is None else as_numbers(folding.of_type(node, type_), DType.INT64)


# --- Arithmetic on dimensions that no step has filled yet: what exporters write between Shape and Reshape -------------
# A value here is an array of objects: amounts, see `weft_graph.dimensions`, or truth values, and None where nothing is
# known of an element.

_Given = Sequence[Known | None]
_Truth = bool | None

_FEW: Final = 16
"""Numbers of a float type that are looked at: exporters write the bounds of a range so."""

TYPES: Final = frozenset({DType.INT32, DType.INT64, DType.BOOL})

MAX_TEXT: Final = 2048
"""Characters of one element: no dimension of a type may have more, so one that is to become one is shorter."""

MAX_DIMS: Final = 32
"""Elements that are looked at: of a shape there are 16 at most, and each is an object here, not a number of NumPy's."""


def fold_dims(node: Node, inputs: _Given, read: TensorType | None, type_: TensorType) -> Known | None:
    """The node's output 0, of the inferred `type_`, or None where nothing of it can be said.

    `inputs` has, for each input of the node, an array of what is known of its elements, or None; `read` is the type of
    the first.
    """
    folding = schema_of(node).folding
    if folding is None or type_.dtype not in TYPES or not type_.is_static or type_.size > MAX_DIMS:
        return None
    result = None
    try:
        if folding.of_type is not None:
            result = None if read is None else folding.of_type(node, read)
        elif folding.amounts is not None and any(map(_says_something, inputs)):
            result = folding.amounts(node, inputs, type_)
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


def as_dims(array: np.ndarray[Any, Any]) -> Known | None:
    """Numbers as an array of objects, those of a float type where all are whole; None for other elements."""
    if array.dtype.kind == "f" and array.size <= _FEW and np.array_equal(array, np.trunc(array)):
        return _each(int, array.astype(object)) if np.all(np.isfinite(array)) else None
    return array.astype(object) if array.dtype.kind in "iub" else None


def nothing(type_: TensorType) -> Known | None:
    """An array of that type of whose elements nothing is known, where it is one that this module computes with."""
    if type_.dtype not in TYPES or not type_.is_static or type_.size > MAX_DIMS:
        return None
    return np.full(type_.static_shape, None, dtype=object)


def as_numbers(dims: Known, dtype: DType) -> np.ndarray[Any, Any] | None:
    """The same as an array of `dtype`, read-only, where every element is a number or a truth value."""
    if not all(isinstance(item, int) for item in dims.flat):
        return None
    numbers = np.array(dims.tolist(), dtype=dtype.numpy).reshape(dims.shape)
    numbers.flags.writeable = False
    return numbers


def _says_something(array: Known | None) -> bool:
    return array is not None and (array.size == 0 or any(item is not None for item in array.flat))


def _array(items: Sequence[Any]) -> Known:
    made = np.empty(len(items), dtype=object)
    made[:] = list(items)
    return made


def _each(change: Callable[[Any], Any], array: Known) -> Known:
    return _array([change(item) for item in array.flat]).reshape(array.shape)


def _given(inputs: _Given, index: int) -> Known | None:
    return inputs[index] if index < len(inputs) else None


def _numbers(array: Known | None) -> list[int] | None:
    """The numbers of an array that is known whole."""
    if array is None or not all(isinstance(item, int) for item in array.flat):
        return None
    return [int(item) for item in array.flat]


def _integers(attribute: AttributeValue | None) -> list[int]:
    return [item for item in attribute if isinstance(item, int)] if isinstance(attribute, tuple) else []


# --- What operators say of their outputs ------------------------------------------------------------------------------


def by_element(values: Callable[[Any], Any] | None = None, amounts: Callable[[Any], Any] | None = None) -> Folding:
    """Of an operator on each element: NumPy's function, and what it makes of an amount."""

    def told(_node: Node, inputs: _Given, _type: TensorType) -> Known | None:
        return None if amounts is None or inputs[0] is None else _each(amounts, inputs[0])

    return Folding(_computed(values), amounts and told)


def by_pairs(values: Callable[..., Any] | None = None, amounts: Callable[[Any, Any], Any] | None = None) -> Folding:
    """Of an operator on two or more inputs that broadcast, from the left: NumPy's function, and what it makes of two
    amounts."""
    return Folding(_computed(values), None if amounts is None else pairwise(amounts))


def pairwise(combine: Callable[[Any, Any], Any]) -> Callable[[Node, _Given, TensorType], Known | None]:
    """What an operator says that combines the elements of two or more inputs, from the left."""

    def told(_node: Node, inputs: _Given, _type: TensorType) -> Known | None:
        result = inputs[0]
        for other in inputs[1:]:
            if result is None or other is None:
                return None
            left, right = np.broadcast_arrays(result, other)
            result = _array([combine(a, b) for a, b in zip(left.flat, right.flat, strict=True)]).reshape(left.shape)
        return result

    return told


def reduced_by(combine: Callable[[Any, Any], Any], none: int | None) -> Folding:
    """Of the reduction of known axes by pairs of amounts; of no elements it is `none`."""

    def told(node: Node, inputs: _Given, type_: TensorType) -> Known | None:
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

    return Folding(amounts=told)


def _computed(values: Callable[..., Any] | None) -> Callable[[Node, Sequence[Known], TensorType], Known | None] | None:
    return None if values is None else lambda _node, inputs, _type: values(*inputs)


def _folded(combine: Callable[[Any, Any], Any], row: Known, none: int | None) -> Any:
    items = row.tolist()
    return none if not items else list(itertools.accumulate(items, combine))[-1]


def _moved(_node: Node, inputs: Sequence[Any], _type: TensorType) -> Any:
    return inputs[0]


def _converted(_node: Node, inputs: Sequence[Known], type_: TensorType) -> Known | None:
    """Between numbers that the other type has room for: what C leaves open is the kernel's to say."""
    array, target = inputs[0], type_.dtype.numpy
    fits = array.dtype.kind != "f" or target.kind != "i" or np.all(np.abs(array) < 2.0 ** (8 * target.itemsize - 1))
    return array.astype(target) if fits else None


def _converted_amounts(_node: Node, inputs: _Given, type_: TensorType) -> Known | None:
    """What is no whole number and no truth value comes as None and is not known."""
    if inputs[0] is None:
        return None
    if type_.dtype is DType.BOOL:
        return _each(lambda item: None if sign(item) is None else bool(sign(item)), inputs[0])
    return _each(lambda item: int(item) if isinstance(item, bool) else item, inputs[0])


def _concat(node: Node, inputs: Sequence[Known | None], _type: TensorType) -> Known | None:
    axis = node.attributes.get("axis")
    known = [array for array in inputs if array is not None]
    return np.concatenate(known, axis=axis) if isinstance(axis, int) and len(known) == len(inputs) else None


def _slice(node: Node, inputs: Sequence[Known], _type: TensorType) -> Known | None:
    """By its lists as inputs, none left out in the middle: what is left out is not among the inputs."""
    if len(inputs) < 3 or "" in node.inputs:
        return None
    data, *lists = inputs
    return np.asarray(data[slices_of(data.shape, *(numbers.reshape(-1).tolist() for numbers in lists))])


def _gather(node: Node, inputs: Sequence[Known], _type: TensorType) -> Known | None:
    data, indices = inputs
    axis = node.attributes.get("axis", 0)
    if not isinstance(axis, int) or not np.all((indices >= -data.shape[axis]) & (indices < data.shape[axis])):
        return None
    return np.asarray(np.take(data, indices, axis=axis))


def _dims_gather(node: Node, inputs: _Given, _type: TensorType) -> Known | None:
    data, indices, axis = inputs[0], inputs[1], node.attributes.get("axis", 0)
    chosen = _numbers(indices)
    if data is None or indices is None or chosen is None or not isinstance(axis, int):
        return None
    places = np.array(chosen, dtype=np.int64).reshape(indices.shape)
    return np.asarray(np.take(data, places, axis=axis), dtype=object)


def _dims_slice(node: Node, inputs: _Given, _type: TensorType) -> Known | None:
    data = inputs[0]
    starts, ends, axes, steps = (_numbers(_given(inputs, index)) for index in range(1, 5))
    named = [index for index in range(1, len(node.inputs)) if node.inputs[index]]
    if data is None or starts is None or ends is None or any(_given(inputs, index) is None for index in named):
        return None
    if (axes is None and 3 in named) or (steps is None and 4 in named):
        return None
    return np.asarray(data[slices_of(data.shape, starts, ends, axes, steps)], dtype=object)


def _where(_node: Node, inputs: _Given, _type: TensorType) -> Known | None:
    condition, left, right = inputs
    if condition is None or left is None or right is None:
        return None
    columns = np.broadcast_arrays(condition, left, right)
    chosen = [_chosen(*row) for row in zip(*(column.flat for column in columns), strict=True)]
    return _array(chosen).reshape(columns[0].shape)


def _chosen(condition: _Truth, left: Any, right: Any) -> Any:
    if condition is None:
        return left if left == right else None
    return left if condition else right


def _range(_node: Node, inputs: _Given, _type: TensorType) -> Known | None:
    start, limit, step = (_numbers(array) for array in inputs)
    if start is None or limit is None or step is None:
        return None
    return _array(list(range(start[0], limit[0], step[0])))


def _filled(node: Node, _inputs: _Given, type_: TensorType) -> Known | None:
    value = node.attributes.get("value", 0)
    if not isinstance(value, int | float) or int(value) != value:
        return None
    return np.full(type_.static_shape, bool(value) if type_.dtype is DType.BOOL else int(value), dtype=object)


def _expanded(_node: Node, inputs: _Given, type_: TensorType) -> Known | None:
    data = inputs[0]
    if data is None or broadcast(data.shape, type_.shape) != type_.shape:
        return None
    return np.broadcast_to(data, type_.static_shape)


def _shape(node: Node, type_: TensorType) -> Known:
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return _array(type_.shape[slice(start if isinstance(start, int) else 0, end if isinstance(end, int) else None)])


FOLD_MOVED: Final = Folding(_moved, _moved)
"""Of an operator whose elements stay in their order."""
FOLD_CAST: Final = Folding(_converted, _converted_amounts)
FOLD_CONCAT: Final = Folding(_concat, _concat)
FOLD_SLICE: Final = Folding(_slice, _dims_slice)
FOLD_GATHER: Final = Folding(_gather, _dims_gather)
FOLD_WHERE: Final = Folding(_computed(np.where), _where)
FOLD_RANGE: Final = Folding(amounts=_range)
FOLD_FILLED: Final = Folding(amounts=_filled)
FOLD_EXPANDED: Final = Folding(amounts=_expanded)
FOLD_SHAPE: Final = Folding(of_type=_shape)
FOLD_SIZE: Final = Folding(of_type=lambda _node, type_: _array([product(type_.shape)]).reshape(()))
