"""Forward values against the node tests of the onnx package, whose data its authors wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from case_names import by_operator, named
from onnx_node_cases import (
    LEFT_OUT,
    OTHER_TYPES,
    OUR_TYPES,
    WITH_BODIES,
    WITHOUT_CASES,
    NodeCase,
    cases_to_run,
    node_cases,
)
from weft_graph.check import check
from weft_graph.infer import infer
from weft_graph.ir import Constant, Graph, Input
from weft_graph.schema import schemas
from weft_graph.types import DType, TensorType, array_type
from weft_kernels.kernel import KernelContext, host_inputs
from weft_kernels.run import run_node

DECIDED_BY_VALUES = {"Compress", "NonMaxSuppression", "NonZero", "Unique"}
"""Operators whose output's dimensions only a step's data decide. Others' lists are constants of the graph here."""
BFLOAT16_RTOL = 2**-6
"""Two units in the last place, which is what ONNX's own runner allows."""

RUN = cases_to_run()


def test_every_case_that_is_not_run_is_listed() -> None:
    """The types that keep a case out, and the cases kept out by name, are those above: no more and no fewer."""
    seen = frozenset[str]().union(*(case.element_types for case in node_cases().values()))
    assert seen - OUR_TYPES == OTHER_TYPES
    assert set(LEFT_OUT) == {n for n, c in node_cases().items() if c.element_types <= OUR_TYPES} - RUN.keys()
    ours = {schema.op_type for (domain, _), schema in schemas().items() if not domain}
    assert ours - {case.op_type for case in RUN.values()} == {*WITHOUT_CASES, *WITH_BODIES}


@pytest.mark.parametrize("op_type", by_operator(RUN))
def test_operator_gives_what_onnx_expects(op_type: str) -> None:
    for name in by_operator(RUN)[op_type]:
        with named(name):
            _check_values(RUN[name])


def _check_values(case: NodeCase) -> None:
    node = case.node
    inputs = [case.tensors[value] if value else None for value in node.inputs]
    outputs = run_node(KernelContext(""), node, inputs)
    given = [array for value, array in zip(node.outputs, outputs, strict=True) if value]
    for array, expected in zip(given, case.expected, strict=True):
        assert array.dtype == expected.dtype
        assert array.shape == expected.shape
        rtol = max(case.rtol, BFLOAT16_RTOL) if array.dtype.name == "bfloat16" else case.rtol
        np.testing.assert_allclose(_comparable(array), _comparable(expected), rtol=rtol, atol=case.atol)


@pytest.mark.parametrize("op_type", by_operator(RUN))
def test_inferred_types_are_those_of_the_values(op_type: str) -> None:
    """The graph passes the checker, and inference gives every output its dtype and shape before anything is run."""
    for name in by_operator(RUN)[op_type]:
        with named(name):
            _check_types(RUN[name])


def _check_types(case: NodeCase) -> None:
    node = case.node
    known = host_inputs(node)
    constants = {value for place, value in enumerate(node.inputs) if place in known and value}
    graph = Graph(
        name="case",
        inputs=tuple(Input(v, array_type(a)) for v, a in case.tensors.items() if v not in constants),
        parameters=(),
        nodes=(node,),
        outputs=tuple(value for value in node.outputs if value),
        constants=tuple(Constant(value, case.tensors[value]) for value in sorted(constants)),
    )
    check(graph)
    types = infer(graph)
    for value, expected in zip(graph.outputs, case.expected, strict=True):
        wanted = TensorType(DType(expected.dtype.name), expected.shape)
        assert types[value].agrees_with(wanted) if node.op_type in DECIDED_BY_VALUES else types[value] == wanted


def _comparable(array: Any) -> Any:
    """ml_dtypes' elements as NumPy's own, all of whose differences NumPy can say."""
    return array.astype(np.float64) if array.dtype.kind == "V" else array
