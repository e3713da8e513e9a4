"""What is known is computed once, what is computed twice is computed once, a known branch is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sample_graphs import floats, ints, line, node, scalar, weight
from weft_graph.differentiation import differentiate
from weft_graph.infer import infer
from weft_graph.ir import Constant, Graph, Node, Subgraph
from weft_graph.passes.draft import Draft, Options
from weft_graph.passes.simplify import common_subexpressions, constant_folding, inline, pools_before_relu
from weft_graph.program import LOSS_SCALE, Role
from weft_graph.topological import topological_order
from weft_kernels.evaluate import evaluate
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_nodes


def draft_of(graph: Graph) -> Draft:
    ordered = replace(graph, nodes=topological_order(graph.nodes))
    return Draft(Role.TRAIN, graph, ordered, infer(graph), {name: name for name in graph.outputs})


def names(nodes: Sequence[Node]) -> list[str]:
    return [each.name for each in nodes]


def folded(nodes: Sequence[Node], **given: Any) -> Draft:
    return constant_folding(draft_of(line(nodes, **given)), Options())


class TestConstantFolding:
    def test_shapes_that_are_known_disappear(self) -> None:
        nodes = [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "last"], ["n"]),
            node("Concat", ["rest", "n"], ["to"], axis=0),
            node("Reshape", ["x", "to"], ["loss"]),
        ]
        draft = folded(nodes, inputs={"x": floats(2, 3, 4)}, constants=[ints("last", 2), ints("rest", -1)])
        assert names(draft.graph.nodes) == ["n_loss"]
        assert {c.name: c.array.tolist() for c in draft.graph.constants}["to"] == [-1, 4]

    def test_a_dimension_that_the_data_decides_stays(self) -> None:
        draft = folded([node("Shape", ["x"], ["s"]), node("Reshape", ["x", "s"], ["loss"])])
        assert names(draft.graph.nodes) == ["n_s", "n_loss"]

    def test_an_attentions_scale_is_one_number_with_the_bits_of_the_kernels(self) -> None:
        nodes = [
            node("Shape", ["x"], ["s"], start=-1),
            node("Squeeze", ["s"], ["n"]),
            node("Cast", ["n"], ["f"], to=1),
            node("Sqrt", ["f"], ["root"]),
            node("Reciprocal", ["root"], ["scale"]),
            node("Mul", ["x", "scale"], ["loss"]),
        ]
        graph = line(nodes, inputs={"x": floats("batch", 48)})
        draft = constant_folding(draft_of(graph), Options())
        assert names(draft.graph.nodes) == ["n_loss"]
        constant = next(c.array for c in draft.graph.constants if c.name == "scale")
        computed = evaluate(replace(graph, outputs=("scale",)), {"x": np.zeros((1, 48), np.float32)})["scale"]
        assert constant.dtype == computed.dtype
        assert constant.tobytes() == computed.tobytes()

    def test_a_function_that_devices_round_differently_is_the_kernels(self) -> None:
        draft = folded([node("Exp", ["c"], ["loss"])], constants=[scalar("c", 0.5, "float32")])
        assert names(draft.graph.nodes) == ["n_loss"]

    def test_a_cast_that_the_type_has_no_room_for_is_the_kernels(self) -> None:
        for value in (float("nan"), 3e9, -float("inf")):
            draft = folded([node("Cast", ["c"], ["loss"], to=6)], constants=[scalar("c", value, "float32")])
            assert names(draft.graph.nodes) == ["n_loss"], value
        draft = folded([node("Cast", ["c"], ["loss"], to=6)], constants=[scalar("c", -2.7, "float32")])
        assert draft.graph.nodes == ()
        assert draft.graph.constants[-1].array == -2

    def test_what_is_large_is_left(self) -> None:
        big = Constant("c", np.zeros(5000, np.float32))
        assert len(folded([node("Neg", ["c"], ["loss"])], constants=[big]).graph.nodes) == 1

    def test_a_folded_output_is_still_the_output(self) -> None:
        draft = folded([node("Add", ["a", "a"], ["loss"])], constants=[scalar("a", 2, "int64")])
        assert (draft.graph.nodes, draft.outputs) == ((), {"loss": "loss"})
        assert draft.program().constants[-1].array == 4


def numbered(nodes: Sequence[Node], outputs: Sequence[str], **given: Any) -> Draft:
    graph = line(nodes, outputs=outputs, **given)
    return common_subexpressions(draft_of(graph), Options())


class TestCommonSubexpressions:
    def test_the_second_of_two_equal_nodes_goes_and_its_readers_read_the_first(self) -> None:
        nodes = [node("Exp", ["x"], ["a"]), node("Exp", ["x"], ["b"]), node("Sub", ["a", "b"], ["loss"])]
        draft = numbered(nodes, ["loss", "b"])
        assert names(draft.graph.nodes) == ["n_a", "n_loss"]
        assert draft.graph.nodes[1].inputs == ("a", "a")
        assert draft.outputs == {"loss": "loss", "b": "a"}

    def test_what_equal_nodes_make_equal_is_found_in_one_pass(self) -> None:
        nodes = [
            *(node("Exp", ["x"], [f"a{k}"]) for k in range(3)),
            *(node("Neg", [f"a{k}"], [f"b{k}"]) for k in range(3)),
        ]
        assert names(numbered(nodes, ["b0", "b1", "b2"]).graph.nodes) == ["n_a0", "n_b0"]

    def test_operators_that_commute_are_compared_without_order(self) -> None:
        given = {"x": floats(3), "y": floats(3)}
        for op_type, kept in (("Add", 1), ("Mul", 1), ("Sub", 2), ("Max", 2)):
            nodes = [node(op_type, ["x", "y"], ["a"]), node(op_type, ["y", "x"], ["b"])]
            assert len(numbered(nodes, ["a", "b"], inputs=given).graph.nodes) == kept, op_type

    def test_attributes_count_with_their_defaults_and_to_the_bit(self) -> None:
        nodes = [
            node("LeakyRelu", ["x"], ["a"]),
            node("LeakyRelu", ["x"], ["b"], alpha=0.01),
            node("LeakyRelu", ["x"], ["c"], alpha=0.0),
            node("LeakyRelu", ["x"], ["d"], alpha=-0.0),
        ]
        assert names(numbered(nodes, ["a", "b", "c", "d"]).graph.nodes) == ["n_a", "n_c", "n_d"]

    def test_random_numbers_are_drawn_by_each_node(self) -> None:
        nodes = [node("Dropout", ["x", "r", "t"], [name]) for name in ("a", "b")]
        constants = [scalar("r", 0.5, "float32"), scalar("t", True, "bool")]
        assert len(numbered(nodes, ["a", "b"], constants=constants).graph.nodes) == 2

    def test_a_body_that_draws_random_numbers_is_run_by_each_node(self) -> None:
        inner = node("Dropout", ["v", "r", "t"], ["o"], "inside")
        body = Subgraph((), ("v", "r", "t"), (inner,), ("o",))
        attributes = {"then_branch": body, "else_branch": body}
        nodes = [Node("If", name, ("t", "x", "r", "t"), (name,), attributes) for name in ("a", "b")]
        constants = [scalar("r", 0.5, "float32"), scalar("t", True, "bool")]
        assert len(numbered(nodes, ["a", "b"], constants=constants).graph.nodes) == 2

    def test_groups_stay_apart(self) -> None:
        nodes = [replace(node("Exp", ["x"], [name]), group=group) for name, group in (("a", "g"), ("b", "h"))]
        assert len(numbered(nodes, ["a", "b"]).graph.nodes) == 2

    def test_constants_are_equal_to_the_bit_and_by_type(self) -> None:
        constants = [
            scalar("zero", 0.0, "float32"),
            scalar("same", 0.0, "float32"),
            scalar("minus", -0.0, "float32"),
            scalar("wide", 0.0, "float64"),
            Constant("half", np.zeros((), "float16")),
            Constant("brain", np.zeros((), "bfloat16")),
        ]
        nodes = [node("Neg", [c.name], [f"o_{c.name}"]) for c in constants]
        draft = numbered(nodes, [f"o_{c.name}" for c in constants], constants=constants)
        assert [c.name for c in draft.graph.constants] == ["zero", "minus", "wide", "half", "brain"]
        assert draft.outputs["o_same"] == "o_zero"

    def test_outputs_that_only_the_second_names_are_the_firsts(self) -> None:
        attributes = {"kernel_shape": (2, 2)}
        nodes = [
            node("MaxPool", ["x"], ["a"], **attributes),
            node("MaxPool", ["x"], ["b", "places"], **attributes),
            node("Neg", ["b"], ["loss"]),
        ]
        draft = numbered(nodes, ["loss", "places"], inputs={"x": floats(1, 1, 4, 4)})
        assert draft.graph.nodes[0].outputs == ("a", "places")
        assert names(draft.graph.nodes) == ["n_a", "n_loss"]

    def test_identity_is_what_it_reads(self) -> None:
        nodes = [node("Identity", ["w"], ["a"]), node("Identity", ["a"], ["b"]), node("Neg", ["b"], ["loss"])]
        draft = numbered(nodes, ["loss", "a"], parameters=[weight("w", 3)])
        assert draft.graph.nodes == (node("Neg", ["w"], ["loss"]),)
        assert draft.outputs == {"loss": "loss", "a": "w"}


def branch(
    *nodes: Node, outputs: Sequence[str], captured: Sequence[str] = ("v",), constants: Sequence[Constant] = ()
) -> Subgraph:
    return Subgraph((), tuple(captured), nodes, tuple(outputs), tuple(constants))


class TestInline:
    def test_the_taken_branch_stands_in_the_place_of_the_node(self) -> None:
        taken = branch(node("Exp", ["v"], ["h"]), node("Neg", ["h"], ["o"]), outputs=["o"])
        other = branch(node("Abs", ["v"], ["o"]), outputs=["o"])
        for value in (True, False):
            attributes = {"then_branch": taken if value else other, "else_branch": other if value else taken}
            graph = line(
                [Node("If", "choice", ("c", "x"), ("loss",), attributes)], constants=[scalar("c", value, "bool")]
            )
            draft = inline(draft_of(graph), Options())
            assert draft.graph.nodes == (
                Node("Exp", "n_h", ("x",), ("choice/h",)),
                Node("Neg", "n_o", ("choice/h",), ("loss",)),
            )

    def test_what_a_branch_passes_on_or_gives_twice_has_a_node(self) -> None:
        body = branch(node("Exp", ["v"], ["h"]), outputs=["v", "h", "h", "k"], constants=[scalar("k", 3.0, "float32")])
        other = branch(node("Abs", ["v"], ["a"]), outputs=["a", "a", "a", "l"], constants=[scalar("l", 4.0, "float32")])
        node_ = Node("If", "if", ("c", "x"), ("p", "q", "r", "s"), {"then_branch": body, "else_branch": other})
        graph = line([node_], outputs=["p", "q", "r", "s"], constants=[scalar("c", True, "bool")])
        draft = inline(draft_of(graph), Options())
        assert names(draft.graph.nodes) == ["n_h", "weft.branch/if", "weft.branch/if.2", "weft.branch/if.3"]
        x = np.array([[0.0, 1.0, 2.0, 3.0]], np.float32)
        flat = replace(graph, nodes=draft.graph.nodes, constants=draft.graph.constants)
        flat = replace(flat, nodes=tuple(replace(each, name=f"n{k}") for k, each in enumerate(flat.nodes)))
        for name, array in evaluate(graph, {"x": x}).items():
            np.testing.assert_array_equal(evaluate(flat, {"x": x})[name], array)

    def test_a_condition_inside_a_branch_and_one_that_follows_from_shapes(self) -> None:
        leaf = branch(node("Neg", ["w"], ["o"], "leaf"), outputs=["o"], captured=["w"])
        other = branch(node("Abs", ["w"], ["o"], "other"), outputs=["o"], captured=["w"])
        inner = Node("If", "inner", ("yes", "v"), ("o",), {"then_branch": leaf, "else_branch": other})
        outer = branch(inner, outputs=["o"], constants=[scalar("yes", False, "bool")])
        nodes = [
            node("Size", ["x"], ["n"]),
            node("Greater", ["n", "few"], ["c"]),
            Node("If", "outer", ("c", "x"), ("loss",), {"then_branch": outer, "else_branch": leaf}),
        ]
        graph = line(nodes, inputs={"x": floats(3)}, constants=[scalar("few", 2, "int64")])
        draft = inline(draft_of(graph), Options())
        assert names(draft.graph.nodes) == ["n_n", "n_c", "other"]

    def test_a_condition_that_a_step_decides_stays(self) -> None:
        body = branch(node("Neg", ["v"], ["o"]), outputs=["o"])
        nodes = [
            node("ReduceMax", ["x"], ["m"], keepdims=0),
            node("Greater", ["m", "zero"], ["c"]),
            Node("If", "choice", ("c", "x"), ("loss",), {"then_branch": body, "else_branch": body}),
        ]
        draft = draft_of(line(nodes, constants=[scalar("zero", 0.0, "float32")]))
        assert inline(draft, Options()) == draft


def test_passes_leave_their_draft_alone() -> None:
    nodes = [node("Exp", ["x"], ["a"]), node("Exp", ["x"], ["b"]), node("Sub", ["a", "b"], ["loss"])]
    draft, again = draft_of(line(nodes)), draft_of(line(nodes))
    for each in (constant_folding, common_subexpressions, inline):
        each(draft, Options())
    assert draft == again
    with pytest.raises(AttributeError):
        draft.graph = line(nodes)  # type: ignore[misc]


class TestPoolsBeforeRelu:
    """Of a row of 8 elements, windows of two."""

    @staticmethod
    def changed(*further: Node, **attributes: Any) -> Draft:
        pool = node("MaxPool", ["a"], ["loss"], kernel_shape=(1, 2), **{"strides": (1, 2), **attributes})
        graph = line([node("Relu", ["x"], ["a"]), pool, *further], inputs={"x": floats(1, 1, 1, 8)})
        return pools_before_relu(draft_of(graph), Options())

    @classmethod
    def moved(cls, *further: Node, **attributes: Any) -> list[str]:
        return [each.op_type for each in cls.changed(*further, **attributes).graph.nodes]

    def test_relu_moves_behind_the_pool_that_alone_reads_it(self) -> None:
        assert self.moved() == ["MaxPool", "Relu"]
        assert self.moved(pads=(0, 1, 0, 1)) == ["MaxPool", "Relu"]
        assert self.moved(node("Neg", ["a"], ["b"]))[:2] == ["Relu", "MaxPool"]

    def test_the_pooled_value_is_not_called_as_the_relu_s_was(self) -> None:
        draft = self.changed()
        pool, relu = draft.graph.nodes
        assert (pool.inputs, relu.inputs, relu.outputs) == (("x",), pool.outputs, ("loss",))
        assert pool.outputs == ("weft.pooled/loss",)
        assert "a" not in draft.types
        assert draft.types[pool.outputs[0]].shape == (1, 1, 1, 4)

    def test_it_stays_where_a_window_may_have_no_element(self) -> None:
        assert self.moved(ceil_mode=1) == ["Relu", "MaxPool"]
        assert self.moved(dilations=(1, 3)) == ["Relu", "MaxPool"]

    def test_values_and_gradients_are_the_same_to_the_bit(self) -> None:
        x = np.array([[[[-1.0, -2.0, 3.0, 3.0, 0.0, -1.0, 2.0, 5.0]]]], np.float32)
        found = []
        for change in (lambda draft: draft, lambda draft: pools_before_relu(draft, Options())):
            nodes = [
                node("Mul", ["x", "w"], ["y"]),
                node("Relu", ["y"], ["a"]),
                node("MaxPool", ["a"], ["p"], kernel_shape=(1, 2), strides=(1, 2)),
                node("Mul", ["p", "p"], ["square"]),
                node("ReduceSum", ["square"], ["loss"], keepdims=0),
            ]
            draft = change(draft_of(line(nodes, [weight("w", 8)], inputs={"x": floats(1, 1, 1, 8)})))
            derived = differentiate(draft.graph, "loss", source=draft.source)
            wanted = (derived.gradients["w"], "loss")
            values = {"x": x, "w": np.ones(8, np.float32), LOSS_SCALE: np.ones((), np.float32)}
            values |= {constant.name: constant.array for constant in derived.graph.constants}
            run_nodes(KernelContext(""), derived.graph.nodes, values, keep=wanted)
            found.append([values[name].tolist() for name in wanted])
        assert found[0] == found[1]
        assert found[0][0] == [0, 0, 18, 0, 0, 0, 0, 50]
