"""The operators' page is what the schemas and the tests' lists of cases say, and each operator is proven."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import onnx
import pytest

from gradient_cases import gradient_cases
from onnx_node_cases import WITH_BODIES, WITHOUT_CASES, cases_to_run
from weft_graph.formals import ANY, BOOLEANS, FLOATS, INT64, NARROW, NUMBERS, SUMMABLE, required
from weft_graph.schema import Attribute, OpSchema, schemas
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.types import DType

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "draw_operators.py"))


def test_the_page_is_drawn_from_the_lists(script: dict[str, Any]) -> None:
    assert (DOCS / "operators.md").read_text() == script["page"](), "run: python docs/draw_operators.py"


def test_every_operator_is_proven() -> None:
    """By ONNX's own cases where it is ONNX's, and by a gradient's case where it has a gradient."""
    of_onnx = {case.op_type for case in cases_to_run().values()}
    with_gradient_case = {(case.domain, case.op_type) for case in gradient_cases()}
    for (domain, op_type), schema in schemas().items():
        assert domain or op_type in of_onnx or op_type in {*WITH_BODIES, *WITHOUT_CASES}, op_type
        assert (schema.gradient is not None) == ((domain, op_type) in with_gradient_case), op_type


def test_every_reason_is_needed(script: dict[str, Any]) -> None:
    known = {op_type for _, op_type in schemas()}
    assert set(script["NO_GRADIENT"]) <= known
    for op_type, version in script["OTHER_MEANING"]:
        theirs = onnx.defs.get_schema(op_type, version)
        assert theirs.since_version == version
    reasons = {script["gradient"](schema) for schema in schemas().values() if script["is_users"](schema)}
    assert reasons == {
        "yes",
        "0: steps",
        "no: its outputs are no floats",
        "no: its inputs are no floats",
        *(f"no: {reason}" for reason in script["NO_GRADIENT"].values()),
    }


def test_element_types_are_told_in_families(script: dict[str, Any]) -> None:
    def told(dtypes: frozenset[DType]) -> str:
        text: str = script["types_of"](OpSchema("Op", (required("X", dtypes),), (), infer_unary))
        return text

    assert told(ANY) == "all"
    assert told(NUMBERS | BOOLEANS) == "numbers, bool"
    assert told(SUMMABLE) == "float, int32/64, uint32/64"
    assert told(NARROW) == "float8, sub-byte"
    assert told(frozenset({DType.FLOAT32, DType.FLOAT16, DType.INT8, DType.UINT8})) == "float16/32, int8, uint8"
    assert told(FLOATS - {DType.BFLOAT16}) == "float16/32/64"


def test_an_older_form_is_not_claimed(script: dict[str, Any]) -> None:
    """Softmax of opset 11 has another default axis, Dropout of opset 7 its ratio as an attribute, Add an axis."""
    taken = {
        (op_type, version): script["takes"](schemas()["", op_type], onnx.defs.get_schema(op_type, version))
        for op_type, version in (
            ("Softmax", 11),
            ("Softmax", 13),
            ("Dropout", 7),
            ("Dropout", 13),
            ("Add", 6),
            ("Add", 7),
        )
    }
    assert [key for key, is_taken in taken.items() if is_taken] == [("Softmax", 13), ("Dropout", 13), ("Add", 7)]


def test_a_schema_that_asks_for_more_is_not_claimed(script: dict[str, Any]) -> None:
    theirs = onnx.defs.get_schema("Relu", 14)
    plain = OpSchema("Relu", (required("X", FLOATS),), (required("Y", FLOATS),), infer_unary)
    with_axes = OpSchema("Relu", (required("X", FLOATS), required("axes", INT64)), plain.outputs, infer_unary)
    with_attribute = OpSchema(
        "Relu", plain.inputs, plain.outputs, infer_unary, attributes={"slope": Attribute(float, required=True)}
    )
    assert [script["takes"](schema, theirs) for schema in (plain, with_axes, with_attribute)] == [True, False, False]
