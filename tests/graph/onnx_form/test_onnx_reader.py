"""What a model's parts become: parameters and constants, names, dimensions, training, functions, sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_models import Array, floats, initializer, model, run, weights
from weft_graph.convert import convert
from weft_graph.errors import GraphError, GraphRefusedError
from weft_graph.ir import Graph, Node
from weft_graph.onnx_form.errors import OnnxError, ReadOptions
from weft_graph.onnx_form.reader import read_model

make = helper.make_node
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


def roles(proto: onnx.ModelProto, options: ReadOptions | None = None) -> dict[str, str]:
    graph = read_model(proto, options).graph
    found = {parameter.name: "trains" if parameter.trainable else "kept" for parameter in graph.parameters}
    return found | {constant.name: "constant" for constant in graph.constants}


def normalized() -> onnx.ModelProto:
    """x -> Conv -> BatchNormalization -> Clip, times a single number."""
    nodes = [
        make("Conv", ["x", "w"], ["c"], name="conv"),
        make("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["n"], name="bn1"),
        make("Clip", ["n", "low"], ["d"], name="clip"),
        make("Mul", ["d", "factor"], ["y"], name="mul"),
    ]
    values = [
        weights("w", 4, 3, 1, 1),
        *(weights(name, 4) for name in ("gamma", "beta", "mean", "var")),
        initializer("low", np.float32(0)),
        initializer("factor", np.float32(2)),
        weights("unread", 7),
    ]
    return model(nodes, [floats("x", "N", 3, 2, 2)], initializers=values)


def test_the_rule_for_initializers() -> None:
    assert roles(normalized()) == {
        "w": "trains",
        "gamma": "trains",
        "beta": "trains",
        "mean": "kept",
        "var": "kept",
        "low": "constant",
        "factor": "constant",
    }


def test_patterns_override_the_rule() -> None:
    options = ReadOptions(parameters=("factor", "w"), constants=("g*",), untrained=("w", "beta"))
    assert roles(normalized(), options) == {
        "w": "kept",
        "gamma": "constant",
        "beta": "kept",
        "mean": "kept",
        "var": "kept",
        "low": "constant",
        "factor": "trains",
    }
    ids = initializer("ids", np.array([0, 1]))
    with pytest.raises(OnnxError, match=r"'ids' is int64\[2\], and cannot be a parameter"):
        read_model(model([make("Gather", ["x", "ids"], ["y"])], initializers=[ids]), ReadOptions(parameters=("*",)))


def test_what_is_no_weight_stays_a_constant() -> None:
    """Numbers that say how an operator works, masks of infinities, what reaches the output through integers alone."""
    nodes = [
        make("Resize", ["x", "", "scales"], ["r"]),
        make("Add", ["r", "mask"], ["a"]),
        make("Cast", ["table"], ["i"], to=TensorProto.INT64),
        make("Gather", ["a", "i"], ["g"], axis=3),
        make("Greater", ["g", "threshold"], ["t"]),
        make("Cast", ["t"], ["y"], to=TensorProto.FLOAT),
        make("Mul", ["a", "w"], ["z"]),
    ]
    values = [
        initializer("scales", np.array([1, 1, 2, 2], np.float32)),
        initializer("mask", np.array([[0, -np.inf]] * 2, np.float32)),
        initializer("table", np.array([0, 1], np.float32)),
        initializer("threshold", np.array([0.5, 1], np.float32)),
        weights("w", 2),
        initializer("empty", np.zeros((0,), np.float32)),
    ]
    nodes.append(make("Concat", ["z", "z"], ["zz"], axis=0))
    found = roles(model(nodes, [floats("x", 1, 1, 1, 1)], ["y", "zz"], values))
    assert found == {
        "scales": "constant",
        "mask": "constant",
        "table": "constant",
        "threshold": "constant",
        "w": "trains",
    }


def test_tied_weights_stay_one_key() -> None:
    """Also where the exporter gives the other use another name."""
    nodes = [
        make("Gather", ["table", "ids"], ["e"]),
        make("Identity", ["table"], ["head.weight"]),
        make("Transpose", ["head.weight"], ["t"], perm=[1, 0]),
        make("MatMul", ["e", "t"], ["y"]),
    ]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    graph = read_model(model(nodes, [ids], initializers=[weights("table", 5, 3)])).graph
    assert [parameter.name for parameter in graph.parameters] == ["table"]
    assert [node.inputs for node in graph.nodes][1] == ("table",)


def test_bfloat16_weights_are_kept_in_float32() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [2, 3])
    value = np.array([1, 2, 3], dtype=ml_dtypes.bfloat16)
    imported = read_model(model([make("Mul", ["x", "w"], ["y"])], [x], initializers=[initializer("w", value)]))
    assert str(imported.graph.parameters[0].type) == "float32[3]"
    assert imported.values["w"].dtype == np.float32
    cast, mul = imported.graph.nodes
    assert (cast.op_type, cast.inputs, mul.inputs) == ("Cast", ("w",), ("x", "w/bfloat16"))
    half = model([make("Identity", ["w"], ["y"])], [x], initializers=[initializer("w", np.ones(2, np.float16))])
    assert str(read_model(half).graph.parameters[0].type) == "float16[2]"


def test_what_pytorch_says_of_an_initializer_decides() -> None:
    proto = normalized()
    lines = [
        "# inputs",
        "p_factor: PARAMETER target='factor'",
        "b_w: BUFFER target='w' persistent=True",
        "x: USER_INPUT",
    ]
    proto.graph.metadata_props.add(key=SIGNATURE, value="\n".join(lines))
    found = roles(proto)
    assert (found["factor"], found["w"], found["gamma"]) == ("trains", "constant", "constant")


def test_a_sparse_initializer_is_filled_with_zeros() -> None:
    proto = model([make("Add", ["x", "w"], ["y"])])
    values, places = initializer("w", np.array([5, 6], np.float32)), initializer("", np.array([[0, 1], [1, 2]]))
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 3]))
    (result,) = run(proto, {"x": np.zeros((2, 3), np.float32)})
    assert result.tolist() == [[0, 5, 0], [0, 0, 6]]


def test_inputs_that_are_initializers_are_not_fed() -> None:
    """As in files of the first three versions of the format."""
    graph = read_model(
        model([make("Add", ["x", "w"], ["y"])], [floats("x", 3), floats("w", 3)], initializers=[weights("w", 3)])
    ).graph
    assert [input_.name for input_ in graph.inputs] == ["x"]


def test_constants_beyond_the_limit_ask_for_parameters() -> None:
    big = initializer("big", np.zeros((1 << 24) + 1, np.int32))
    proto = model(
        [make("Gather", ["big", "i"], ["y"])], [helper.make_tensor_value_info("i", 7, [2])], initializers=[big]
    )
    with pytest.raises(OnnxError, match="'big' take more than 67108864 bytes"):
        read_model(proto)


NAMES = ["a\nb", "weft.x", "", "n" * 400, "n" * 400 + "2", "w"]


def test_names_are_made_legal_and_stay_apart() -> None:
    nodes = [make("Relu", ["x"], ["weft.y"], name="weft.node"), make("Neg", ["weft.y"], ["a\nb"], name="a\nb")]
    nodes += [make("Abs", ["a\nb"], ["n" * 400], name="a\nb"), make("Abs", ["n" * 400], ["n" * 400 + "2"])]
    graph = read_model(model(nodes, outputs=["n" * 400 + "2"])).graph
    assert [node.name for node in graph.nodes] == ["_weft.node", "a_b", "a_b.2", "Abs_3"]
    assert [node.outputs[0] for node in graph.nodes[:2]] == ["_weft.y", "a_b"]
    assert all(len(node.outputs[0]) <= 256 for node in graph.nodes)
    assert graph.nodes[2].outputs != graph.nodes[3].outputs
    again = read_model(model(nodes, outputs=["n" * 400 + "2"])).graph
    assert [node.outputs for node in again.nodes] == [node.outputs for node in graph.nodes]


def shapes(proto: onnx.ModelProto, options: ReadOptions | None = None) -> dict[str, tuple[int | str, ...]]:
    return {input_.name: input_.type.shape for input_ in read_model(proto, options).graph.inputs}


def two(first: Any, second: Any) -> onnx.ModelProto:
    nodes = [make("ReduceSum", [name], [f"s{name}"], keepdims=0) for name in "xz"]
    return model([*nodes, make("Add", ["sx", "sz"], ["y"])], [floats("x", *first), floats("z", *second)])


def test_what_most_inputs_begin_with_is_the_batch() -> None:
    assert shapes(two(["N", "T"], ["N"])) == {"x": ("batch", "T"), "z": ("batch",)}
    assert shapes(two(["T", "N"], ["N"]), ReadOptions(batch="N")) == {"x": ("T", "batch"), "z": ("batch",)}
    assert shapes(two([3, "N"], ["b"])) == {"x": (3, "N"), "z": ("batch",)}
    assert shapes(two(["N", "batch"], ["N"])) == {"x": ("batch", "batch_2"), "z": ("batch",)}


def test_dimensions_without_a_name_get_one() -> None:
    assert shapes(two([None, None], [None])) == {"x": ("batch", "x_1"), "z": ("batch",)}
    assert shapes(two(["N", None], [None])) == {"x": ("batch", "x_1"), "z": ("z_0",)}


def test_dimensions_are_plain_words() -> None:
    assert shapes(two(["N", "2*s0 + 1"], ["N", "1d"])) == {"x": ("batch", "_2_s0___1"), "z": ("batch", "_1d")}


def test_shapes_may_be_given() -> None:
    options = ReadOptions(shapes={"x": ("N", 4), "z": ()})
    assert shapes(two([1, 4], ["q"]), options) == {"x": ("batch", 4), "z": ()}
    proto = model([make("Relu", ["x"], ["y"])], [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)])
    with pytest.raises(OnnxError, match=r"input 'x'.*does not say its shape.*`shapes`"):
        read_model(proto)
    assert shapes(proto, ReadOptions(shapes={"x": (2, "batch")})) == {"x": (2, "batch")}
    with pytest.raises(OnnxError, match="names 'w', which is no input; there are 'x'"):
        read_model(proto, ReadOptions(shapes={"x": (2,), "w": ()}))
    with pytest.raises(OnnxError, match="no input has a dimension 'M'"):
        read_model(proto, ReadOptions(batch="M", shapes={"x": ("N",)}))


def node_of(nodes: Sequence[Node], name: str) -> Node:
    return next(found for found in nodes if found.name == name)


def node(graph: Graph, name: str) -> Node:
    return node_of(graph.nodes, name)


def dropping() -> onnx.ModelProto:
    nodes = [make("Dropout", ["x", "ratio"], ["d"], name="block.1.drop"), make("Mul", ["d", "w"], ["y"])]
    return model(nodes, initializers=[initializer("ratio", np.float32(0.25)), weights("w", 3)])


def test_training_is_switched_on() -> None:
    graph = read_model(normalized()).graph
    assert node(graph, "bn1").attributes["training_mode"] == 1
    imported = read_model(dropping())
    ratio, is_on = node(imported.graph, "block.1.drop").inputs[1:]
    constants = {constant.name: constant.array for constant in imported.graph.constants}
    assert (constants[ratio], bool(constants[is_on])) == (0.25, True)


def test_frozen_nodes_stay_in_inference() -> None:
    graph = read_model(normalized(), ReadOptions(frozen=("bn*",))).graph
    assert node(graph, "bn1").attributes["training_mode"] == 0
    assert len(node(read_model(dropping(), ReadOptions(frozen=("block.*",))).graph, "block.1.drop").inputs) == 2


def test_without_training_nodes_stay_as_the_file_has_them() -> None:
    graph = read_model(normalized(), ReadOptions(training=False)).graph
    assert "training_mode" not in node(graph, "bn1").attributes


def test_running_statistics_get_their_new_values() -> None:
    """The converter finds the parameters behind a switched BatchNormalization."""
    proto = normalized()
    proto.graph.node.append(make("ReduceMean", ["y"], ["loss"], keepdims=0))
    proto.graph.output[0].name = "loss"
    train = convert(read_model(proto).graph, loss="loss", metrics={}).train
    sent = {node.attributes["key"]: node.inputs[0] for node in train.nodes if node.op_type == "Send"}
    assert sent["mean"] == node_of(train.nodes, "bn1").outputs[1]
    assert sent["var"] == node_of(train.nodes, "bn1").outputs[2]


def test_statistics_that_are_computed_are_not_kept() -> None:
    proto = normalized()
    proto.graph.node.insert(0, make("Abs", ["var"], ["positive"]))
    next(n for n in proto.graph.node if n.name == "bn1").input[4] = "positive"
    imported = read_model(proto)
    assert len(imported.warnings) == 1
    assert "'bn1' (BatchNormalization) stays in inference" in imported.warnings[0]


def test_what_an_exporter_folded_is_told() -> None:
    proto = model(
        [make("Conv", ["x", "w"], ["c"], name="conv"), make("Identity", ["c"], ["y"], name="id")],
        [floats("x", 1, 3, 2, 2)],
        initializers=[weights("w", 4, 3, 1, 1)],
    )
    conv, identity = proto.graph.node
    for entry in (
        ("pkg.onnxscript.rewriter.rule_name", "FuseBatchNormIntoConv"),
        ("pkg.torch.onnx.name_scopes", "['', 'bn', 'x']"),
    ):
        conv.metadata_props.add(key=entry[0], value=entry[1])
    identity.metadata_props.add(
        key="pkg.torch.onnx.class_hierarchy", value="['Net', 'torch.nn.modules.dropout.Dropout', 'aten.clone']"
    )
    identity.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'drop', 'clone']")
    folded, dropped = read_model(proto).warnings
    assert "node 'conv' (Conv): BatchNormalization of module 'bn' was folded" in folded
    assert "node 'id' (Identity): Dropout of module 'drop' was left out" in dropped


def scale_function() -> onnx.FunctionProto:
    """y = alpha * x + bias, in opset 11, where `Clip` still has attributes."""
    alpha = make("Constant", [], ["a"])
    alpha.attribute.append(
        onnx.AttributeProto(name="value_float", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    )
    nodes = [alpha, make("Mul", ["x", "a"], ["scaled"]), make("Add", ["scaled", "bias"], ["y"])]
    return helper.make_function("own", "Scale", ["x", "bias"], ["y"], nodes, [helper.make_opsetid("", 13)], ["alpha"])


def test_functions_are_inlined() -> None:
    nodes = [
        make("Scale", ["x", "w"], ["h"], name="first", domain="own", alpha=2.0),
        make("Scale", ["h", "w"], ["y"], name="second", domain="own", alpha=0.5),
    ]
    proto = model(nodes, initializers=[weights("w", 3)], functions=[scale_function()], domains=["own"])
    graph = read_model(proto).graph
    assert [found.name for found in graph.nodes] == ["first/Mul_1", "first/Add_2", "second/Mul_1", "second/Add_2"]
    assert graph.nodes[1].outputs == ("h",)
    x = np.ones((2, 3), np.float32)
    w = np.linspace(-1, 1, 3, dtype=np.float32)
    np.testing.assert_allclose(run(proto, {"x": x})[0], (2 * x + w) / 2 + w, rtol=1e-6)


def test_functions_inside_bodies_and_functions() -> None:
    inner = helper.make_function(
        "own",
        "Twice",
        ["x"],
        ["y"],
        [make("Scale", ["x", "x"], ["y"], domain="own", alpha=1.0)],
        [helper.make_opsetid("", 28), helper.make_opsetid("own", 1)],
    )
    then = helper.make_graph([make("Twice", ["x"], ["t"], domain="own")], "then", [], [onnx.ValueInfoProto(name="t")])
    other = helper.make_graph([make("Neg", ["x"], ["e"])], "else", [], [onnx.ValueInfoProto(name="e")])
    is_on = helper.make_tensor_value_info("on", TensorProto.BOOL, [])
    proto = model(
        [make("If", ["on"], ["y"], then_branch=then, else_branch=other)],
        [is_on, floats("x", 2)],
        functions=[inner, scale_function()],
        domains=["own"],
    )
    x = np.array([1, 2], np.float32)
    for on, factor in ((True, 2), (False, -1)):
        assert run(proto, {"on": np.array(on), "x": x})[0].tolist() == (factor * x).tolist()


def test_recursive_functions_are_refused() -> None:
    first = helper.make_function(
        "own", "A", ["x"], ["y"], [make("B", ["x"], ["y"], domain="own")], [helper.make_opsetid("own", 1)]
    )
    second = helper.make_function(
        "own", "B", ["x"], ["y"], [make("A", ["x"], ["y"], domain="own")], [helper.make_opsetid("own", 1)]
    )
    proto = model([make("A", ["x"], ["y"], name="call", domain="own")], functions=[first, second], domains=["own"])
    with pytest.raises(OnnxError, match="in a circle: A -> B -> A"):
        read_model(proto)


def test_functions_that_multiply_are_bounded() -> None:
    opsets = [helper.make_opsetid("", 28), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "F0", ["x"], ["y"], [make("Relu", ["x"], ["y"])], opsets)]
    for level in range(1, 8):
        calls = [make(f"F{level - 1}", ["x"], [f"y{turn}" if turn else "y"], domain="own") for turn in range(16)]
        functions.append(helper.make_function("own", f"F{level}", ["x"], ["y"], calls, opsets))
    with pytest.raises(OnnxError, match="65536 nodes"):
        read_model(model([make("F7", ["x"], ["y"], domain="own")], functions=functions, domains=["own"]))


def int_constant(name: str, value: Any) -> onnx.NodeProto:
    return make("Constant", [], [name], value=initializer("", np.asarray(value, np.int64)))


X = np.arange(12, dtype=np.float32).reshape(2, 6)
SEQUENCES: dict[str, tuple[list[onnx.NodeProto], Array]] = {
    "split_and_places": (
        [
            int_constant("lengths", [2, 4]),
            int_constant("last", -1),
            make("SplitToSequence", ["x", "lengths"], ["s"], axis=1),
            make("SequenceAt", ["s", "last"], ["y"]),
        ],
        X[:, 2:],
    ),
    "split_evenly": (
        [
            int_constant("four", 4),
            int_constant("one", 1),
            make("SplitToSequence", ["x", "four"], ["s"], axis=1),
            make("SequenceAt", ["s", "one"], ["y"]),
        ],
        X[:, 4:],
    ),
    "split_without_dimension": (
        [
            int_constant("one", 1),
            make("SplitToSequence", ["x"], ["s"], axis=0, keepdims=0),
            make("SequenceAt", ["s", "one"], ["y"]),
        ],
        X[1],
    ),
    "construct_and_join": (
        [make("SequenceConstruct", ["x", "x"], ["s"]), make("ConcatFromSequence", ["s"], ["y"], axis=1)],
        np.concatenate([X, X], axis=1),
    ),
    "stack": (
        [make("SequenceConstruct", ["x", "x"], ["s"]), make("ConcatFromSequence", ["s"], ["y"], axis=0, new_axis=1)],
        np.stack([X, X]),
    ),
    "insert_and_erase": (
        [
            make("SequenceEmpty", [], ["e"]),
            make("SequenceInsert", ["e", "x"], ["one"]),
            make("Neg", ["x"], ["n"]),
            int_constant("zero", 0),
            make("SequenceInsert", ["one", "n", "zero"], ["two"]),
            make("SequenceErase", ["two", "zero"], ["left"]),
            make("Identity", ["left"], ["same"]),
            make("SequenceAt", ["same", "zero"], ["y"]),
        ],
        X,
    ),
    "length": ([make("SequenceConstruct", ["x", "x"], ["s"]), make("SequenceLength", ["s"], ["y"])], np.asarray(2)),
    "optional": ([make("Optional", ["x"], ["o"]), make("OptionalGetElement", ["o"], ["y"])], X),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_that_are_known_are_taken_apart(name: str) -> None:
    nodes, expected = SEQUENCES[name]
    (result,) = run(model(nodes, [floats("x", 2, 6)]), {"x": X})
    np.testing.assert_array_equal(result, expected)


def test_a_sequence_of_unknown_places_is_refused_by_name() -> None:
    place = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    nodes = [make("SequenceConstruct", ["x", "x"], ["s"]), make("SequenceAt", ["s", "i"], ["y"], name="at")]
    with pytest.raises(OnnxError, match=r"'at' .SequenceAt.: input 1 is not known before a step"):
        read_model(model(nodes, [floats("x", 2), place]))


def test_inputs_that_are_known_settle_what_follows() -> None:
    """The same place, once its value is said; and a branch that is always taken is read alone."""
    place = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    nodes = [
        make("Neg", ["x"], ["n"]),
        make("SequenceConstruct", ["x", "n"], ["s"]),
        make("SequenceAt", ["s", "i"], ["y"]),
    ]
    imported = read_model(model(nodes, [floats("x", 2), place]), ReadOptions(values={"i": np.asarray(1)}))
    assert [input_.name for input_ in imported.graph.inputs] == ["x"]
    assert imported.graph.nodes[-1].inputs == ("n",)
    then = helper.make_graph([make("Neg", ["x"], ["t"])], "then", [], [floats("t", 2)])
    other = helper.make_graph([make("Abs", ["x"], ["e"])], "else", [], [floats("e", 2)])
    branching = make("If", ["on"], ["y"], then_branch=then, else_branch=other)
    always = model([branching], [floats("x", 2)], initializers=[initializer("on", np.asarray(False))])
    assert [node.op_type for node in read_model(always).graph.nodes] == ["Abs", "Identity"]


def test_a_loop_that_gathers_a_sequence_is_written_out() -> None:
    body = helper.make_graph(
        [
            make("Cast", ["turn"], ["f"], to=TensorProto.FLOAT),
            make("Mul", ["x", "f"], ["item"]),
            make("SequenceInsert", ["before", "item"], ["after"]),
        ],
        "body",
        [onnx.ValueInfoProto(name=name) for name in ("turn", "on", "before")],
        [onnx.ValueInfoProto(name=name) for name in ("on", "after")],
    )
    nodes = [
        int_constant("three", 3),
        make("SequenceEmpty", [], ["none"]),
        make("Loop", ["three", "", "none"], ["all"], body=body, name="loop"),
        make("ConcatFromSequence", ["all"], ["y"], axis=0),
    ]
    (result,) = run(model(nodes, [floats("x", 1)]), {"x": np.array([2], np.float32)})
    assert result.tolist() == [0, 2, 4]
    count = helper.make_tensor_value_info("three", TensorProto.INT64, [])
    with pytest.raises(OnnxError, match=r"'loop'.*not known before a step"):
        read_model(model(nodes[1:], [floats("x", 1), count]))


def test_a_tensor_operator_reads_no_sequence() -> None:
    nodes = [make("SequenceConstruct", ["x", "x"], ["s"]), make("Relu", ["s"], ["y"], name="relu")]
    with pytest.raises(OnnxError, match=r"'relu' .Relu. reads 's', a sequence"):
        read_model(model(nodes))


REFUSED: dict[str, tuple[onnx.ModelProto, str]] = {
    "no graph": (onnx.ModelProto(), "no graph"),
    "a cycle": (
        model([make("Add", ["x", "b"], ["a"], name="p"), make("Relu", ["a"], ["b"], name="q")], outputs=["b"]),
        "cycle: 'p' -> 'q'",
    ),
    "nothing defines": (model([make("Relu", ["ghost"], ["y"], name="r")]), "'r' .*'ghost', which nothing defines"),
    "an output nothing defines": (model([make("Relu", ["x"], ["z"])]), "'y', which nothing defines"),
    "no output": (model([make("Relu", ["x"], ["y"])], outputs=[]), "no output"),
    "defined twice": (model([make("Relu", ["x"], ["y"]), make("Neg", ["x"], ["y"])]), "'y'.* is defined already"),
    "two initializers": (
        model([make("Add", ["x", "w"], ["y"])], initializers=[weights("w", 3)] * 2),
        "'w'.*defined already",
    ),
    "strings": (model([make("Constant", [], ["y"], value_string="hi", name="c")]), "'c' .Constant.*value_string"),
    "no opset of a domain": (model([make("Relu", ["x"], ["y"], domain="com.ms", name="r")]), "'r'.*'com.ms'"),
    "no operator": (model([make("Frobnicate", ["x"], ["y"])]), "no operator 'Frobnicate'"),
    "one attribute twice": (
        onnx.ModelProto.FromString(model([make("Relu", ["x"], ["y"])]).SerializeToString()),
        "twice",
    ),
    "dimension below 0": (two([-2, 3], [1]), "dimension 0 is -2"),
    "a function twice": (
        model([make("Relu", ["x"], ["y"])], functions=[scale_function()] * 2),
        "'own.Scale' is defined twice",
    ),
    "a sparse tensor": (model([make("Relu", ["x"], ["y"])]), "outside"),
    "a map": (model([make("Relu", ["x"], ["y"])]), "map_type"),
}
REFUSED["one attribute twice"][0].graph.node[0].attribute.extend([helper.make_attribute("axis", 1)] * 2)
REFUSED["a sparse tensor"][0].graph.sparse_initializer.append(
    helper.make_sparse_tensor(initializer("w", np.ones(1, np.float32)), initializer("", np.array([9])), [2])
)
REFUSED["a map"][0].graph.input[0].type.Clear()
REFUSED["a map"][0].graph.input[0].type.map_type.key_type = 7


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(name: str) -> None:
    proto, message = REFUSED[name]
    with pytest.raises(GraphRefusedError, match=message):
        read_model(proto)


TENSORS: dict[str, tuple[TensorProto, str]] = {
    "short": (TensorProto(name="w", data_type=1, dims=[3], raw_data=b"\0" * 8), "takes 12 bytes, and there are 8"),
    "short field": (
        TensorProto(name="w", data_type=1, dims=[3], float_data=[1]),
        "takes 3 elements, and float_data has 1",
    ),
    "huge": (TensorProto(name="w", data_type=1, dims=[1 << 62, 1 << 62]), "outside 0 to"),
    "huge, no data": (TensorProto(name="w", data_type=1, dims=[1 << 39]), "elements, and float_data has 0"),
    "negative": (TensorProto(name="w", data_type=1, dims=[-1], raw_data=b"\0" * 4), "outside 0 to"),
    "many dimensions": (TensorProto(name="w", data_type=1, dims=[1] * 17, raw_data=b"\0" * 4), "17 dimensions"),
    "strings": (TensorProto(name="w", data_type=8, dims=[1], string_data=[b"a"]), "STRING"),
    "no type": (TensorProto(name="w", dims=[1]), "UNDEFINED"),
    "complex": (TensorProto(name="w", data_type=14, dims=[1], raw_data=b"\0" * 8), "COMPLEX64"),
    "an unknown type": (TensorProto(name="w", data_type=99, dims=[1]), "type 99"),
    "external": (TensorProto(name="w", data_type=1, dims=[1], data_location=1), "not given with its folder"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_what_is_wrong_with_a_tensor_is_named(name: str) -> None:
    tensor, message = TENSORS[name]
    with pytest.raises(OnnxError, match=f"'w'.*{message}"):
        read_model(model([make("Add", ["x", "w"], ["y"])], initializers=[tensor]))


def test_bodies_are_not_nested_without_end() -> None:
    branch = helper.make_graph([make("Neg", ["x"], ["b"])], "g", [], [onnx.ValueInfoProto(name="b")])
    for _ in range(12):
        inner = make("If", ["on"], ["b"], then_branch=branch, else_branch=branch)
        branch = helper.make_graph([inner], "g", [], [onnx.ValueInfoProto(name="b")])
        branch.node[0].attribute.pop()
    is_on = helper.make_tensor_value_info("on", TensorProto.BOOL, [])
    proto = model([make("If", ["on"], ["y"], then_branch=branch, else_branch=branch)], [is_on, floats("x", 2)])
    with pytest.raises(GraphError, match="nested more than 8 deep"):
        read_model(proto)


def test_frozen_parameters_do_not_train_and_a_pattern_of_nothing_is_told() -> None:
    read = read_model(normalized(), ReadOptions(frozen=("*", "encoder.*")))
    assert not any(parameter.trainable for parameter in read.graph.parameters)
    assert read.warnings == ("frozen 'encoder.*' is no parameter's name and no node's",)
