"""Products in a half type: what computes in which, one Cast for each value, float32 for all that leaves the program."""

from __future__ import annotations

import numpy as np
import pytest

from program_run import first_parameters, run_program
from sample_graphs import floats, lenet, line, mlp, normalized_mlp, scalar, weight
from weft_graph.convert import convert
from weft_graph.infer import infer
from weft_graph.ir import Graph, Node
from weft_graph.passes.draft import Draft, Options, Precision
from weft_graph.passes.precision import precision as narrowed
from weft_graph.program import LOSS, Program, Programs, Role
from weft_graph.program_text.passes import Recorder, passes_text
from weft_graph.schema import schemas
from weft_graph.types import DType
from weft_graph.weft_domain import SEND

HALVES = [Precision.BFLOAT16, Precision.FLOAT16]


def converted(graph: Graph, precision: Precision) -> Programs:
    # Fused nodes have no type that a reader of this test would know.
    return convert(graph, loss=graph.outputs[0], metrics={}, options=Options(precision=precision, fusion=False))


def types_by_operator(program: Program) -> dict[str, set[DType]]:
    """Element types of each operator's first output, forward nodes alone."""
    found: dict[str, set[DType]] = {}
    for node in program.nodes:
        if not node.name.startswith("weft."):
            found.setdefault(node.op_type, set()).add(program.types[node.outputs[0]].dtype)
    return found


@pytest.mark.parametrize("precision", HALVES)
def test_products_and_what_follows_them_are_narrow_and_the_loss_is_not(precision: Precision) -> None:
    low, found = DType(precision.value), types_by_operator(converted(lenet(), precision).train)
    for op_type in ("Conv", "Gemm", "Relu", "MaxPool", "Flatten"):
        assert found[op_type] == {low}, op_type
    assert found["SoftmaxCrossEntropyLoss"] == {DType.FLOAT32}


def test_normalizations_compute_in_float32() -> None:
    program = converted(normalized_mlp(), Precision.BFLOAT16).train
    (norm,) = [node for node in program.nodes if node.op_type == "BatchNormalization"]
    assert {program.types[name].dtype for name in (*norm.inputs, *filter(None, norm.outputs))} == {DType.FLOAT32}


@pytest.mark.parametrize("graph", [lenet(), mlp(), normalized_mlp()], ids=lambda graph: graph.name)
def test_what_leaves_the_program_is_float32_and_nothing_is_cast_twice(graph: Graph) -> None:
    programs = converted(graph, Precision.BFLOAT16)
    for program in (programs.train, programs.evaluate):
        assert {program.types[value].dtype for value in program.outputs.values()} == {DType.FLOAT32}
        casts = [(node.inputs, node.attributes["to"]) for node in program.nodes if node.op_type == "Cast"]
        assert len(casts) == len(set(casts))
    sent = [node.inputs[0] for node in programs.train.nodes if node.op_type == SEND]
    assert sent
    assert {programs.train.types[value].dtype for value in sent} == {DType.FLOAT32}


def test_float32_changes_nothing_and_neither_does_any_for_a_graph_in_float64() -> None:
    usual = convert(lenet(), loss=lenet().outputs[0], metrics={}, options=Options(fusion=False))
    assert converted(lenet(), Precision.FLOAT32).train.nodes == usual.train.nodes
    double = mlp(DType.FLOAT64)
    assert converted(double, Precision.BFLOAT16).train.nodes == converted(double, Precision.FLOAT32).train.nodes


@pytest.mark.parametrize(("precision", "within"), [(Precision.BFLOAT16, 0.02), (Precision.FLOAT16, 0.002)])
def test_gradients_are_those_of_float32_within_the_types_digits(precision: Precision, within: float) -> None:
    generator = np.random.default_rng(1)
    wide, narrow = converted(mlp(), Precision.FLOAT32), converted(mlp(), precision)
    feeds = {
        each.name: generator.standard_normal(each.type.bind({"batch": 6}).static_shape).astype(np.float32)
        if each.type.dtype is DType.FLOAT32
        else generator.integers(0, 3, 6)
        for each in mlp().inputs
    }
    parameters = first_parameters(wide)
    expected, found = (run_program(each.train, feeds, parameters, 6) for each in (wide, narrow))
    assert found.keys() == expected.keys()
    assert float(found[LOSS]) == pytest.approx(float(expected[LOSS]), rel=within)
    for key in parameters:
        gradient = expected[f"send/{key}"]
        far = np.linalg.norm(found[f"send/{key}"] - gradient) / np.linalg.norm(gradient)
        assert 0 < far < 2 * within, key


def test_the_listing_of_passes_says_what_computes_in_what() -> None:
    recorder, graph = Recorder(), lenet()
    convert(graph, loss=graph.outputs[0], metrics={}, options=Options(precision=Precision.FLOAT16), watch=recorder)
    text = " ".join(passes_text(recorder.runs).split())
    assert "+ 10 Cast" in text
    assert "in float16: 3 Relu, 2 Conv, 2 MaxPool, 2 Gemm and Flatten; 1 other node as before" in text


def test_no_operator_is_a_product_and_follows_what_it_reads() -> None:
    assert [schema.op_type for schema in schemas().values() if schema.product and schema.follows] == []
    assert {schema.domain for schema in schemas().values() if schema.product or schema.follows} == {""}


def test_what_follows_takes_its_inputs_of_one_type() -> None:
    """A number of another kind, as Dropout's ratio, keeps its own."""
    graph = line(
        [
            Node("MatMul", "product", ("x", "w"), ("y",)),
            Node("Dropout", "dropout", ("y", "ratio"), ("loss",)),
        ],
        [weight("w", 4, 4)],
        inputs={"x": floats("batch", 4)},
        constants=[scalar("ratio", 0.1, "float32")],
    )
    draft = Draft(Role.TRAIN, graph, graph, infer(graph), {"loss": "loss"})
    changed = narrowed(draft, Options(precision=Precision.BFLOAT16))
    (dropout,) = (each for each in changed.graph.nodes if each.op_type == "Dropout")
    assert changed.types[dropout.inputs[0]].dtype is DType.BFLOAT16
    assert changed.types[dropout.inputs[1]].dtype is DType.FLOAT32
