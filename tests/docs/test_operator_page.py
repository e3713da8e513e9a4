"""The operators' page is what the schemas and the tests' lists of cases say, and each operator is proven."""

from __future__ import annotations

import runpy
import subprocess
import sys
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


USES_THE_EXAMPLE = """
import sys
from pathlib import Path

import numpy as np

import weft
import weft_graph.operators
import weft_kernels.operators

for package, folder in ((weft_graph.operators, sys.argv[1]), (weft_kernels.operators, sys.argv[2])):
    package.__path__.append(folder)

from weft import ops
from weft.submission import trainable_of
from weft_graph.convert import convert
from weft_graph.passes.draft import Options, Precision
from weft_graph.types import DType

x = weft.input("x", ("batch", 3))
given = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
expected = (given + np.sqrt(given * given + 4)) / 2
assert np.allclose(ops.apply("Squareplus", x).eval({"x": given}), expected, rtol=1e-6)

loss = (ops.apply("Squareplus", weft.nn.Linear(3, 3)(x), b=1.0) * 2.0).mean()
trained = trainable_of(loss, None, (), "example")
def programs(**options):
    return convert(trained.graph, loss=trained.loss, metrics={}, options=Options(**options))


fused = [node.attributes["body"].nodes for node in programs().train.nodes if node.op_type == "Fused"]
assert any("Squareplus" in {each.op_type for each in body} for body in fused)
assert any("Sqrt" in {each.op_type for each in body} for body in fused), "it has a gradient"
narrow = programs(precision=Precision.BFLOAT16, fusion=False).evaluate
(node,) = (node for node in narrow.nodes if node.op_type == "Squareplus")
assert narrow.types[node.outputs[0]].dtype is DType.BFLOAT16, "it follows the product"
print("used")
"""


def test_the_example_of_an_operator_is_told_in_two_places(tmp_path: Path) -> None:
    """What the page shows is all that it takes to compute, to differentiate, and to convert."""
    schema, body = (part.partition("```")[0] for part in (DOCS / "operators.md").read_text().split("```python\n")[1:])
    for name, text in (("graph", schema), ("kernels", body)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "squareplus.py").write_text(f"from __future__ import annotations\n{text}")
    command = [sys.executable, "-c", USES_THE_EXAMPLE, str(tmp_path / "graph"), str(tmp_path / "kernels")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("used\n", "")


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
