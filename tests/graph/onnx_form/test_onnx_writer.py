"""Graphs written as ONNX models: valid, the same when they are read again, and equal in what they compute."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnx_models import Array, floats, initializer, model, weights
from sample_graphs import lenet, mlp, normalized_mlp
from weft_graph.ir import WEFT_DOMAIN, Constant, Graph, Initializer, Input, Node, Parameter
from weft_graph.json_form import graph_to_json
from weft_graph.onnx_form.errors import Imported, OnnxError, ReadOptions
from weft_graph.onnx_form.files import read_bytes, read_file
from weft_graph.onnx_form.reader import read_model
from weft_graph.onnx_form.writer import WriteOptions, write_file, write_model
from weft_graph.passes.inference_mode import to_inference
from weft_graph.schema import schema_of
from weft_graph.types import DType, TensorType
from weft_kernels.evaluate import evaluate

make = helper.make_node
AS_IT_IS = ReadOptions(training=False)


def valid(proto: onnx.ModelProto) -> onnx.ModelProto:
    onnx.checker.check_model(proto, full_check=True)
    return proto


def document(imported: Imported) -> str:
    """The graph as text, with attributes that only repeat their default filled in."""
    nodes = [
        replace(node, attributes=dict(sorted(schema_of(node).attributes_of(node).items())))
        for node in imported.graph.nodes
    ]
    form = graph_to_json(replace(imported.graph, nodes=tuple(nodes)))
    form["constants"].sort(key=lambda constant: constant["name"])
    return json.dumps(form)


def branching() -> onnx.ModelProto:
    """An If in whose branches values from outside are read, one of them passed on as it is."""
    then = helper.make_graph([make("Mul", ["x", "w"], ["t"])], "then", [], [floats("t", 3)])
    scale = initializer("scale", np.array([3], np.float32))
    other = helper.make_graph([make("Mul", ["x", "scale"], ["e"])], "else", [], [floats("e", 3)], [scale])
    is_on = helper.make_tensor_value_info("on", TensorProto.BOOL, [])
    node = make("If", ["on"], ["y"], then_branch=then, else_branch=other)
    return model([node], [is_on, floats("x", 3)], initializers=[weights("w", 3)])


def convolution() -> onnx.ModelProto:
    nodes = [
        make("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        make("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["n"], name="bn", epsilon=1e-4),
        make("Relu", ["n"], ["r"], name="relu"),
        make("Dropout", ["r", "ratio"], ["d"], name="drop"),
        make("ReduceMean", ["d", "axes"], ["y"], name="mean", keepdims=0),
    ]
    values = [
        weights("w", 4, 3, 3, 3),
        *(initializer(n, np.linspace(1, 2, 4, dtype=np.float32)) for n in ("gamma", "beta", "mean", "var")),
    ]
    values += [initializer("ratio", np.float32(0.3)), initializer("axes", np.array([2, 3]))]
    return model(nodes, [floats("x", "N", 3, 5, 5)], initializers=values)


def halved() -> onnx.ModelProto:
    """Equal pieces, whose count newer opsets say; an attribute that the written opset lacks, at its default."""
    nodes = [
        make("Split", ["x"], ["a", "b"], name="split", axis=1, num_outputs=2),
        make("SpaceToDepth", ["a"], ["y"], name="deep", blocksize=2, mode="DCR"),
        make("Neg", ["b"], ["z"], name="neg"),
    ]
    return model(nodes, [floats("x", "N", 4, 4, 4)], ["y", "z"])


def attending() -> onnx.ModelProto:
    nodes = [make("Attention", ["q", "k", "v"], ["y"], name="look", left_window_size=-1, right_window_size=-1)]
    return model(nodes, [floats(name, "N", 2, 8, 4) for name in "qkv"])


MODELS = {"branching": branching, "convolution": convolution, "halved": halved, "attending": attending}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [True, False])
def test_a_model_that_was_read_is_written_and_read_the_same(name: str, training: bool) -> None:
    options = ReadOptions(training=training)
    first = read_model(MODELS[name](), options)
    second = read_model(valid(write_model(first.graph, first.values, WriteOptions(training=True))), AS_IT_IS)
    assert document(first) == document(second)
    assert all(np.array_equal(first.values[key], second.values[key]) for key in first.values)


def test_what_serves_is_in_inference() -> None:
    first = read_model(convolution())
    proto = valid(write_model(first.graph, first.values))
    assert "Dropout" not in {node.op_type for node in proto.graph.node}
    assert any("'drop' (Identity) was a Dropout" in warning for warning in read_model(proto).warnings)
    read = {name for node in proto.graph.node for name in node.input}
    assert {tensor.name for tensor in proto.graph.initializer} <= read
    x = np.linspace(-1, 1, 75, dtype=np.float32).reshape(1, 3, 5, 5)
    (expected,) = ReferenceEvaluator(convolution()).run(None, {"x": x})
    (result,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_onnxruntime_serves_the_same() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    first = read_model(convolution())
    x = np.linspace(-1, 1, 75, dtype=np.float32).reshape(1, 3, 5, 5)
    session = onnxruntime.InferenceSession(write_model(first.graph, first.values).SerializeToString())
    expected = evaluate(to_inference(first.graph), {"x": x}, parameters=first.values)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected["y"], rtol=1e-5)


def test_batches_stay_open() -> None:
    first = read_model(convolution())
    proto = write_model(first.graph, first.values)
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert [dim.dim_param for dim in proto.graph.output[0].type.tensor_type.shape.dim] == ["batch", ""]


def parameter(name: str, *shape: int, trainable: bool = True, row_sparse: bool = True) -> Parameter:
    type_ = TensorType(DType.FLOAT32, shape)
    return Parameter(name, type_, Initializer("ConstantOfShape", {"value": 0.0}), trainable, row_sparse)


def graph_of(*nodes: Node, parameters: tuple[Parameter, ...] = (), constants: tuple[Constant, ...] = ()) -> Graph:
    ids = Input("ids", TensorType(DType.INT64, ("batch",)))
    x = Input("x", TensorType(DType.FLOAT32, ("batch", 3)))
    return Graph("g", (ids, x), parameters, nodes, ("y",), constants)


@pytest.mark.parametrize("padding", [None, -1, 1, 9])
def test_an_embedding_is_a_gather(padding: int | None) -> None:
    attributes: dict[str, Any] = {} if padding is None else {"padding_id": padding}
    graph = graph_of(
        Node("Embedding", "e", ("table", "ids"), ("y",), attributes, WEFT_DOMAIN),
        parameters=(parameter("table", 4, 2),),
    )
    values = {"table": np.arange(1, 9, dtype=np.float32).reshape(4, 2)}
    ids = np.array([0, 3, 1, 0 if padding is None else padding])
    feeds = {"ids": ids, "x": np.zeros((4, 3), np.float32)}
    (result,) = ReferenceEvaluator(valid(write_model(graph, values))).run(None, feeds)
    np.testing.assert_array_equal(result, evaluate(graph, feeds, parameters=values)["y"])
    again = [node.op_type for node in read_model(write_model(graph, values)).graph.nodes]
    assert "Embedding" in again  # or an id below 0 would count from the end
    assert "Gather" not in again


def test_attributes_that_became_inputs_are_written_as_inputs() -> None:
    graph = graph_of(
        Node("Clip", "clip", ("x",), ("c",), {"min": -1.0, "max": 1.0}),
        Node("Split", "split", ("c",), ("a", "b"), {"axis": 1, "split": (1, 2)}),
        Node("ReduceSum", "sum", ("b",), ("y",), {"axes": (1,), "keepdims": 0}),
    )
    feeds = {"ids": np.zeros(2, np.int64), "x": np.array([[5, 0.5, -3], [0, 1, 2]], np.float32)}
    (result,) = ReferenceEvaluator(valid(write_model(graph, {}))).run(None, feeds)
    np.testing.assert_array_equal(result, evaluate(graph, feeds)["y"])


def test_roles_groups_and_stopped_gradients_come_back() -> None:
    graph = graph_of(
        Node("Gather", "g", ("table", "ids"), ("rows",), group="first"),
        Node("StopGradient", "stop", ("rows",), ("stopped",), domain=WEFT_DOMAIN),
        Node("Mul", "scale", ("stopped", "factor"), ("scaled",)),
        Node("Add", "add", ("scaled", "shift"), ("moved",)),
        Node("Add", "last", ("moved", "kept"), ("y",)),
        parameters=(
            parameter("table", 4, 3, row_sparse=False),
            parameter("factor"),
            parameter("kept", 3, trainable=False),
        ),
        constants=(Constant("shift", np.ones(3, np.float32)),),
    )
    values = {
        "table": np.zeros((4, 3), np.float32),
        "factor": np.float32(2) * np.ones((), np.float32),
        "kept": np.ones(3, np.float32),
    }
    again = read_model(valid(write_model(graph, values, WriteOptions(training=True)))).graph
    assert [(p.name, p.trainable, p.row_sparse) for p in again.parameters] == [
        ("table", True, False),
        ("factor", True, True),
        ("kept", False, True),
    ]
    assert again.nodes == graph.nodes
    assert [constant.name for constant in again.constants] == ["shift"]


NARROW = [
    DType.INT4,
    DType.UINT4,
    DType.INT2,
    DType.UINT2,
    DType.FLOAT4E2M1,
    DType.BFLOAT16,
    DType.FLOAT8E4M3FN,
    DType.BOOL,
    DType.UINT64,
]


@pytest.mark.parametrize("dtype", NARROW)
def test_constants_of_every_width_come_back(dtype: DType) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1], [0, 0, 1]]).astype(dtype.numpy)
    graph = Graph("g", (), (), (Node("Identity", "i", ("c",), ("y",)),), ("y",), (Constant("c", array),))
    again = read_bytes(write_model(graph, {}).SerializeToString()).graph
    assert again.constants[0].array.dtype == array.dtype
    assert again.constants[0].array.astype(np.float32).tolist() == array.astype(np.float32).tolist()


def test_the_opset_is_the_first_that_can_say_it() -> None:
    def opset(op_type: str, **options: Any) -> int:
        graph = graph_of(Node(op_type, "n", ("x",), ("y",)))
        return write_model(graph, {}, WriteOptions(**options)).opset_import[0].version

    assert opset("Relu") == 21
    assert opset("Swish") == 24
    assert opset("Relu", opset=13) == 13
    with pytest.raises(OnnxError, match="'n': opset 21 has no Swish"):
        opset("Swish", opset=21)
    for version in (12, 29):
        with pytest.raises(OnnxError, match="opsets 13 to 28"):
            opset("Relu", opset=version)
    reduced = graph_of(Node("ReduceMean", "mean", ("x", "axes"), ("y",)), constants=(Constant("axes", np.array([1])),))
    with pytest.raises(OnnxError, match="'mean': opset 13 has no ReduceMean that means this"):
        write_model(reduced, {}, WriteOptions(opset=13))


def test_values_must_fit() -> None:
    graph = graph_of(Node("Mul", "m", ("x", "w"), ("y",)), parameters=(parameter("w", 3),))
    with pytest.raises(OnnxError, match="'w' has no value"):
        write_model(graph, {})
    for value in (np.zeros(2, np.float32), np.zeros(3, np.float64)):
        with pytest.raises(OnnxError, match=r"'w' is float32\[3\], and its value"):
            write_model(graph, {"w": value})


def test_what_onnx_has_no_word_for_is_refused() -> None:
    graph = graph_of(Node("ReluGrad", "r", ("x", "x"), ("y",), domain=WEFT_DOMAIN))
    with pytest.raises(OnnxError, match="'r': ONNX has no word for ReluGrad"):
        write_model(graph, {})


def test_large_values_lie_beside_the_model(tmp_path: Path) -> None:
    big = Graph(
        "g",
        (Input("x", TensorType(DType.FLOAT32, (1000,))),),
        (parameter("w", 1000), parameter("v", 1000)),
        (Node("Mul", "m", ("x", "w"), ("h",)), Node("Add", "a", ("h", "v"), ("y",))),
        ("y",),
    )
    values = {"w": np.arange(1000, dtype=np.float32), "v": np.ones(1000, np.float32)}
    path = tmp_path / "model.onnx"
    write_file(path, big, values, external_from=1)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert path.stat().st_size < 1000
    onnx.checker.check_model(str(path), full_check=True)
    read = read_file(path)
    assert {key: value.tolist() for key, value in read.values.items()} == {
        key: value.tolist() for key, value in values.items()
    }
    write_file(path, big, values)
    assert read_bytes(path.read_bytes()).values["w"].tolist() == values["w"].tolist()


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    graph = graph_of(Node("ReluGrad", "r", ("x", "x"), ("y",), domain=WEFT_DOMAIN))
    with pytest.raises(OnnxError):
        write_file(tmp_path / "model.onnx", graph, {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_a_folder_that_there_is_not_is_refused_by_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "none" / "model.onnx"
    with pytest.raises(FileNotFoundError) as refused:
        write_file(path, graph_of(Node("Relu", "r", ("x",), ("y",))), {})
    assert refused.value.filename == str(path)


@pytest.mark.parametrize("graph", [lenet(), normalized_mlp(), mlp()], ids=lambda graph: graph.name)
def test_graphs_of_the_builder_are_served(graph: Graph) -> None:
    chance = np.random.default_rng(0)
    values = {
        p.name: chance.uniform(0.01, 0.05, p.type.static_shape).astype(p.type.dtype.numpy) for p in graph.parameters
    }
    feeds = {input_.name: _fed(input_.type.bind({"batch": 3}), chance) for input_ in graph.inputs}
    results = ReferenceEvaluator(valid(write_model(graph, values))).run(None, feeds)
    expected = evaluate(to_inference(graph), feeds, parameters=values)
    for name, result in zip(graph.outputs, results, strict=True):
        np.testing.assert_allclose(result, expected[name], rtol=1e-4, atol=1e-5)


def _fed(type_: TensorType, chance: np.random.Generator) -> Array:
    if type_.dtype.is_float:
        return chance.normal(size=type_.static_shape).astype(type_.dtype.numpy)
    return chance.integers(0, 2, type_.static_shape).astype(type_.dtype.numpy)
