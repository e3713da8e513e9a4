"""Small files that stand for much: what nodes are written out as, and what functions stand for, is counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_models import floats, initializer, model
from weft_graph.limits import GRAPH_LIMITS
from weft_graph.onnx_form.errors import OnnxError, ReadOptions
from weft_graph.onnx_form.reader import read_model

make = helper.make_node
FEW = ReadOptions(limits=replace(GRAPH_LIMITS, nodes=2000, values=4000))


def split_apart(count: int) -> onnx.ModelProto:
    """Each node is one Split into 100 pieces and 100 nodes of Squeeze."""
    nodes = [make("SplitToSequence", ["x"], [f"s{place}"], axis=0, keepdims=0) for place in range(count)]
    return model([*nodes, make("Relu", ["x"], ["y"])], [floats("x", 100, 1)])


def joined(count: int) -> onnx.ModelProto:
    """Each node is 100 nodes of Unsqueeze and one Concat."""
    nodes = [make("SequenceConstruct", ["x"] * 100, ["s"])]
    nodes += [make("ConcatFromSequence", ["s"], [f"c{place}"], axis=0, new_axis=1) for place in range(count)]
    return model([*nodes, make("Relu", ["c0"], ["y"])])


def mapped(count: int) -> onnx.ModelProto:
    """Each node reads a body without nodes 100 times."""
    item = helper.make_tensor_value_info("i", TensorProto.FLOAT, None)
    nodes = [make("SequenceConstruct", ["x"] * 100, ["s0"])]
    body = helper.make_graph([], "b", [item], [item])
    nodes += [make("SequenceMap", [f"s{place}"], [f"s{place + 1}"], body=body) for place in range(count)]
    return model([*nodes, make("SequenceAt", [f"s{count}", "z"], ["y"])], initializers=[initializer("z", np.int64(0))])


def chosen(count: int) -> onnx.ModelProto:
    """Each node is an If with an output for each of 100 items."""
    nodes = [make("SequenceConstruct", ["x"] * 100, ["s"])]
    branch = helper.make_graph([], "b", [], [onnx.ValueInfoProto(name="s")])
    nodes += [make("If", ["c"], [f"t{place}"], then_branch=branch, else_branch=branch) for place in range(count)]
    on = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    return model([*nodes, make("Relu", ["x"], ["y"])], [floats("x", 2, 3), on])


@pytest.mark.parametrize("proto", [split_apart(20), joined(20), mapped(30), chosen(50)], ids=lambda p: "")
def test_what_a_node_is_written_out_as_is_counted(proto: onnx.ModelProto) -> None:
    with pytest.raises(OnnxError, match="are written out as more than 2000 nodes, or as nodes of more than 4000"):
        read_model(proto, FEW)


def test_a_sequence_that_grows_one_by_one_holds_no_more_items_than_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_graph.onnx_form.errors.MOST_ITEMS", 5000)
    nodes = [make("SequenceConstruct", ["x"], ["s0"])]
    nodes += [make("SequenceInsert", [f"s{place}", "x"], [f"s{place + 1}"]) for place in range(110)]
    with pytest.raises(OnnxError, match="'SequenceInsert_99' have 5050 items together; at most 5000"):
        read_model(model([*nodes, make("Relu", ["x"], ["y"])]))


def nested(depth: int, leaf: onnx.NodeProto, tail: onnx.NodeProto | None = None) -> onnx.ModelProto:
    """A call of functions that each call the one below twice."""
    opsets = [helper.make_opsetid("", 28), helper.make_opsetid("f", 1)]
    functions = [helper.make_function("f", "F0", ["a"], ["b"], [leaf], opsets)]
    for level in range(1, depth):
        calls = [make(f"F{level - 1}", [give], [made], domain="f") for give, made in (("a", "t"), ("t", "b"))]
        functions.append(helper.make_function("f", f"F{level}", ["a"], ["b"], calls, opsets))
    call = make(f"F{depth - 1}", ["x"], ["y"], domain="f", name="call")
    return model([*([] if tail is None else [tail]), call], functions=functions, domains=["f"])


def test_functions_that_multiply_are_refused_before_any_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_graph.onnx_form.scope.Scope.read", lambda *_: pytest.fail("a node was read"))
    with pytest.raises(
        OnnxError, match=r"'call' alone stands for more than 65536. Calls of functions in functions mul"
    ):
        read_model(nested(25, make("Relu", ["a"], ["b"])))


def test_functions_within_the_limit_are_read_and_circles_named() -> None:
    assert len(read_model(nested(6, make("Relu", ["a"], ["b"]))).graph.nodes) == 32
    with pytest.raises(OnnxError, match="is in a circle: F3 -> F2 -> F1 -> F0 -> F3"):
        read_model(nested(4, make("F3", ["a"], ["b"], domain="f")))


def test_of_two_branches_of_which_one_is_taken_the_larger_counts() -> None:
    def branch(word: str) -> onnx.GraphProto:
        nodes = [make("Relu", [f"{word}{place}" if place else "x"], [f"{word}{place + 1}"]) for place in range(1200)]
        return helper.make_graph(nodes, word, [], [onnx.ValueInfoProto(name=f"{word}1200")])

    choice = make("If", ["c"], ["z"], then_branch=branch("p"), else_branch=branch("q"))
    proto = nested(2, make("Relu", ["a"], ["b"]), tail=choice)
    proto.graph.initializer.append(initializer("c", np.bool_(True)))
    assert len(read_model(proto, FEW).graph.nodes) == 1202
