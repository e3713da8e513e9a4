"""What schemas say about memory is what kernels do: whose elements are read, what may be overwritten, what views."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from operator_cases import BACKWARD_CASES, differentiated_nodes
from weft_graph.ir import Node
from weft_graph.schema import schema_of, schemas
from weft_kernels.kernel import KernelContext, kernel_of

Array = np.ndarray[Any, np.dtype[Any]]
DTYPE = "float64"
CLAIM = {
    schema.op_type
    for schema in schemas().values()
    if schema.views or schema.pointwise or schema.in_place is not None or schema.shape_only != ()
}


@cache
def _nodes() -> tuple[tuple[Node, tuple[Array | None, ...]], ...]:
    """Each node of the gradients' cases and of their backward graphs, with its inputs, an operator's first few."""
    seen: dict[str, int] = {}
    found = []
    for case in BACKWARD_CASES.values():
        nodes, values = differentiated_nodes(case, DTYPE)
        for node in nodes:
            if node.op_type in CLAIM and seen.get(node.op_type, 0) < 12:
                seen[node.op_type] = seen.get(node.op_type, 0) + 1
                found.append((node, tuple(values[name] if name else None for name in node.inputs)))
    return tuple(found)


def _run(node: Node, inputs: tuple[Array | None, ...], placed: tuple[Array | None, ...] = ()) -> tuple[Array, ...]:
    context = KernelContext(node.name, asked=node.outputs, placed=placed)
    return kernel_of(node)(context, inputs, schema_of(node).attributes_of(node))


def _of(claim: str) -> Iterator[tuple[Node, tuple[Array | None, ...]]]:
    return ((node, inputs) for node, inputs in _nodes() if getattr(schema_of(node), claim) not in {False, None, ()})


def test_elements_that_are_said_not_to_be_read_are_not_read() -> None:
    """They are other ones, and the results the same to the bit."""
    looked = set()
    for node, inputs in _of("shape_only"):
        without = schema_of(node).shape_only
        other = tuple(
            np.full_like(array, 1) + np.arange(array.size, dtype=array.dtype).reshape(array.shape)
            if array is not None and place in without and array.dtype.kind in "fiu"
            else array
            for place, array in enumerate(inputs)
        )
        for mine, theirs in zip(_run(node, other), _run(node, inputs), strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=f"{node.op_type} {node.name}")
        looked.add(node.op_type)
    assert {"ConvInputGrad", "ReshapeLike", "SumTo", "GatherGrad", "SliceGrad"} <= looked


def test_an_output_in_an_inputs_place_has_the_same_bits() -> None:
    looked = set()
    for node, inputs in _nodes():
        schema = schema_of(node)
        (expected, *_) = _run(node, inputs)
        for place, array in enumerate(inputs):
            allowed = schema.pointwise if schema.in_place is None else place in schema.in_place
            if not allowed or array is None or (array.shape, array.dtype) != (expected.shape, expected.dtype):
                continue
            own = array.copy()
            changed = tuple(own if at == place else given for at, given in enumerate(inputs))
            (made, *_) = _run(node, changed, placed=(own,))
            np.testing.assert_array_equal(made, expected, err_msg=f"{node.op_type} {node.name} in place of {place}")
            looked.add(node.op_type)
    assert {"Add", "Relu", "BatchNormalizationGrad"} <= looked


def test_a_kernel_that_is_given_a_place_writes_there_what_it_writes_elsewhere() -> None:
    direct = set()
    for node, inputs in _nodes():
        (expected, *_) = _run(node, inputs)
        place = np.full(expected.shape, 9, expected.dtype)
        (made, *_) = _run(node, inputs, placed=(place,))
        np.testing.assert_array_equal(made, expected, err_msg=f"{node.op_type} {node.name}")
        if made is place:
            direct.add(node.op_type)
    assert {"Add", "Mul", "Relu", "ReluGrad", "Exp", "Tanh", "BatchNormalization"} <= direct


def test_a_view_shares_its_inputs_memory_where_its_elements_can_lie_there() -> None:
    """Arrays in C's order, for which every one of them can."""
    looked = set()
    for node, inputs in _of("views"):
        data, *rest = inputs
        assert data is not None
        data = np.ascontiguousarray(data).reshape(data.shape)
        for made in _run(node, (data, *rest)):
            if node.op_type != "SumTo" or made.shape == data.shape:
                assert np.shares_memory(made, data) or not made.size, f"{node.op_type} {node.name}"
                looked.add(node.op_type)
    assert {"Reshape", "Transpose", "Slice", "Split", "Expand", "Squeeze", "Unsqueeze", "Flatten"} <= looked
