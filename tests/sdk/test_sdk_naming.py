"""Names: what the user gave, else made of the operator's; unique, and the same each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft import nn, ops
from weft_graph.errors import GraphRefusedError
from weft_graph.ir import Graph, Initializer

ZERO = Initializer("ConstantOfShape", {"value": 0.0})


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes]


def parameters(graph: Graph) -> list[str]:
    return [parameter.name for parameter in graph.parameters]


def test_nodes_are_called_after_their_operator_and_numbered_from_the_second() -> None:
    x = weft.input("x", (2,))
    assert names(ops.relu(ops.relu(ops.global_average_pool(weft.input("i", (1, 1, 2, 2))))).graph()) == [
        "global_average_pool", "relu", "relu_2",
    ]  # fmt: skip
    assert names((ops.relu(x) + ops.relu(x)).graph()) == ["relu", "relu_2", "add"]


def test_one_graph_leaves_no_trace_in_another() -> None:
    def build() -> Graph:
        return nn.Linear(2, 2)(ops.relu(weft.input("x", ("batch", 2)))).graph()

    assert names(build()) == names(build())
    assert parameters(build()) == ["linear.weight", "linear.bias"]


def test_a_name_that_was_asked_for_is_never_taken_by_one_that_was_made() -> None:
    x = weft.input("relu", (2,))
    inner = ops.relu(x)
    outer = ops.relu(inner, name="relu_2")
    assert names(ops.relu(outer).graph()) == ["relu_3", "relu_2", "relu_4"]


def test_the_output_of_a_named_node_has_its_name() -> None:
    loss = ops.reduce_mean(weft.input("x", ("batch",)), name="loss")
    assert loss.graph().outputs == ("loss",)


def test_further_outputs_are_called_after_what_they_are() -> None:
    x, one = weft.input("x", ("batch", 3)), weft.constant([1.0, 1, 1])
    y, mean, variance = ops.batch_normalization(x, one, one, one, one, name="bn")
    assert weft.graph(y, mean, variance).outputs == ("bn", "bn.running_mean", "bn.running_var")


def test_constants_are_called_after_the_first_node_that_reads_them() -> None:
    x = weft.input("x", ("batch", 4))
    graph = ops.reshape(x * 2.0, [0, 2, 2], name="cut").graph()
    assert [constant.name for constant in graph.constants] == ["mul.B", "cut.shape"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: weft.input("a", (2,)), lambda: weft.input("a", (2,))),
        (lambda: weft.input("a", (2,)), lambda: weft.parameter("a", (2,), ZERO)),
        (lambda: weft.input("a", (2,)), lambda: ops.relu(weft.input("b", (2,)), name="a")),
        (lambda: weft.constant([1.0, 2.0], name="a"), lambda: weft.parameter("a", (2,), ZERO)),
    ],
)
def test_one_name_for_two_things_is_refused(first: object, second: object) -> None:
    with pytest.raises(GraphRefusedError, match="both named 'a'"):
        (first() + second()).graph()  # type: ignore[operator]  # each gives an expression


def test_one_input_in_two_places_is_one_input() -> None:
    x = weft.input("x", (2,))
    assert len((x + ops.relu(x)).graph().inputs) == 1


def test_two_layers_of_one_name_are_refused() -> None:
    x = weft.input("x", ("batch", 2))
    with pytest.raises(GraphRefusedError, match="'fc'"):
        nn.Linear(2, 2, name="fc")(nn.Linear(2, 2, name="fc")(x)).graph()


def test_layers_without_a_name_are_numbered_as_a_whole() -> None:
    x = weft.input("x", ("batch", 2))
    graph = nn.Linear(2, 2)(nn.Linear(2, 2)(x)).graph()
    assert parameters(graph) == ["linear.weight", "linear.bias", "linear_2.weight", "linear_2.bias"]
    assert names(graph) == ["linear", "linear_2"]


def test_a_layer_called_twice_has_its_parameters_once() -> None:
    layer, x = nn.Linear(2, 2), weft.input("x", ("batch", 2))
    graph = layer(layer(x)).graph()
    assert parameters(graph) == ["linear.weight", "linear.bias"]
    assert names(graph) == ["linear", "linear_2"]


def test_a_sequential_calls_layers_after_their_place() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.relu, nn.Linear(3, 2, bias=False))
    graph = net(weft.input("x", ("batch", 2))).graph()
    assert parameters(graph) == ["0.weight", "0.bias", "2.weight"]
    assert names(graph) == ["0.linear", "relu", "2.linear"]


def test_a_named_sequential_stands_in_front_and_a_layer_s_own_name_behind() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, name="out", bias=False))
    net = nn.Sequential(inner, nn.Linear(2, 2, bias=False), name="net")
    assert parameters(net(weft.input("x", ("batch", 2))).graph()) == [
        "net.0.0.weight", "net.0.0.bias", "net.0.out.weight", "net.1.weight",
    ]  # fmt: skip


def test_a_second_sequential_without_a_name_gets_one() -> None:
    def tower() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 2, bias=False))

    x = weft.input("x", ("batch", 2))
    graph = (tower()(x) + tower()(x) + tower()(x)).graph()
    assert parameters(graph) == ["0.weight", "sequential.0.weight", "sequential_2.0.weight"]


def test_cutting_a_collected_graph_keeps_every_name() -> None:
    x = weft.input("x", ("batch", 2))
    first, second = nn.Linear(2, 2)(x), nn.Linear(2, 2)(x)
    whole = weft.graph(first, second)
    served = weft.cut(whole, "linear_2", name="served")
    assert parameters(served) == ["linear_2.weight", "linear_2.bias"]
    assert served.nodes == (whole.nodes[1],)
    assert served.name == "served"


def test_cutting_at_what_is_not_there_is_refused() -> None:
    graph = ops.relu(weft.input("x", (2,))).graph()
    with pytest.raises(GraphRefusedError, match=r"no value 'y'; the last of its values are 'relu'$"):
        weft.cut(graph, "y")
    with pytest.raises(GraphRefusedError, match=r"no value 'rleu'; did you mean 'relu'\?"):
        weft.cut(graph, "rleu")
    with pytest.raises(GraphRefusedError, match="at least one"):
        weft.cut(graph)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=25))
def test_names_are_unique_in_any_graph_and_collecting_again_gives_the_same(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    values = [weft.input("x", ("batch", 2))]
    layer = nn.Linear(2, 2)
    for number, (kind, left, right, is_named) in enumerate(steps):
        a, b = values[left % len(values)], values[right % len(values)]
        name = f"relu_{number}" if is_named else None
        values.append([ops.relu(a, name=name), ops.add(a, b, name=name), layer(a), nn.Linear(2, 2)(a) * 2][kind])
    graph = weft.graph(*values[::-1])
    defined = [i.name for i in graph.inputs] + parameters(graph) + [c.name for c in graph.constants]
    defined += [value for node in graph.nodes for value in node.outputs]
    assert len(set(defined)) == len(defined)
    assert len(set(names(graph))) == len(graph.nodes)
    again = weft.graph(*values[::-1])
    assert (again.nodes, again.parameters, again.outputs) == (graph.nodes, graph.parameters, graph.outputs)
