"""Types that only a step's values decide, held against the operator's own rules once the values are there.

Inference lets pass what may be legal: a scale of `?n` numbers for 4 channels. With the arrays at hand the same
inference says whether it is, so that no kernel computes with shapes that its operator does not take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft_graph.errors import GraphError
from weft_graph.infer import Inference
from weft_graph.ir import AttributeValue, Constant, Node, Subgraph
from weft_graph.types import DType, TensorType
from weft_kernels.kernel import Array, Kernel, KernelContext

_Types = tuple[TensorType | None, ...]


def fitted(node: Node, kernel: Kernel, types: Mapping[str, TensorType]) -> Kernel:
    """The kernel, which raises ValueError with both sides where arrays are not of types that the node takes and gives.

    It is the kernel itself where all that the node reads was known; `types` has what was inferred. An operator with
    bodies checks by itself.
    """
    if not _is_open(node, types):
        return kernel
    expected = tuple(types.get(name) for name in node.outputs)
    fits: set[_Types] = set()

    def run(
        context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
    ) -> tuple[Array, ...]:
        given = tuple(None if array is None else _type(array) for array in inputs)
        if given not in fits:
            _check(node, inputs, given, expected)
            fits.clear()  # the last ones alone: a count that changes in every step would fill it without end
            fits.add(given)
        return kernel(context, inputs, attributes)

    return run


def _is_open(node: Node, types: Mapping[str, TensorType]) -> bool:
    if any(isinstance(value, Subgraph) for value in node.attributes.values()):
        return False
    return any(not types[name].is_known for name in node.inputs if name)


def _check(node: Node, inputs: Sequence[Array | None], given: _Types, expected: _Types) -> None:
    named = {name: type_ for name, type_ in zip(node.inputs, given, strict=True) if type_ is not None}
    lists = {name: array for name, array in zip(node.inputs, inputs, strict=True) if _is_list(array)}
    inference = Inference(named, [Constant(name, array) for name, array in lists.items() if array is not None])
    try:
        made = inference.add(node)
    except GraphError as error:
        raise ValueError(error.message.removeprefix(f"node {node.name!r} ({node.op_type}): ")) from None
    for name, type_, wanted in zip(node.outputs, made, expected, strict=False):
        if wanted is not None and not wanted.agrees_with(type_):
            raise ValueError(f"{name!r} is {type_} in this step, and before it was taken for {wanted}")


def _type(array: Array) -> TensorType:
    return TensorType(DType(array.dtype.name), tuple(array.shape))


def _is_list(array: Array | None) -> bool:
    """Whether it is on the host and could be a shape or axes."""
    return isinstance(array, np.ndarray) and array.ndim < 2 and array.size <= 16 and array.dtype.kind in "iu"
