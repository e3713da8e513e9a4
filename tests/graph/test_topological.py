"""The order in which nodes can run."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_strategies import examples
from sample_graphs import lenet, node
from weft_graph.errors import GraphRefusedError
from weft_graph.ir import Node
from weft_graph.topological import topological_order


def test_a_valid_order_stays_as_it_is() -> None:
    assert topological_order(lenet().nodes) == lenet().nodes


@examples()
@given(st.randoms(use_true_random=False))
def test_each_node_comes_after_what_it_reads(order: random.Random) -> None:
    nodes = list(lenet().nodes)
    order.shuffle(nodes)
    made: set[str] = set()
    made_by_nodes = {name for n in nodes for name in n.outputs}
    for n in topological_order(nodes):
        assert {name for name in n.inputs if name in made_by_nodes} <= made
        made.update(n.outputs)
    assert made == made_by_nodes


def test_of_nodes_that_can_run_the_first_given_comes_first() -> None:
    c, b, a = node("Relu", ["b"], ["c"]), node("Relu", ["x"], ["b"]), node("Relu", ["x"], ["a"])
    assert topological_order([c, b, a]) == (b, c, a)


def test_a_node_may_read_one_value_twice() -> None:
    double, first = node("Add", ["a", "a"], ["b"]), node("Relu", ["x"], ["a"])
    assert topological_order([double, first]) == (first, double)


def test_a_cycle_is_named_without_the_nodes_behind_it() -> None:
    nodes = [
        node("Relu", ["x"], ["start"]),
        node("Relu", ["c"], ["behind"]),
        node("Add", ["start", "c"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Relu", ["b"], ["c"]),
    ]
    with pytest.raises(GraphRefusedError) as caught:
        topological_order(nodes)
    assert caught.value.message == "nodes read each other in a cycle: 'n_a' -> 'n_b' -> 'n_c' -> 'n_a'"
    assert caught.value.pointer == "/nodes/2"
    assert caught.value.node == "n_a"


def ring(length: int) -> list[Node]:
    return [node("Relu", [f"v{(index - 1) % length}"], [f"v{index}"]) for index in range(length)]


def test_a_long_cycle_is_shortened_and_not_walked_recursively() -> None:
    with pytest.raises(GraphRefusedError, match=r"'n_v9' -> \.\.\. 19990 more -> 'n_v0'") as caught:
        topological_order(ring(20_000))
    assert len(caught.value.message) < 400


def test_a_long_chain_is_not_walked_recursively() -> None:
    chain = ring(20_000)
    chain[0] = node("Relu", ["x"], ["v0"])
    assert topological_order(chain[::-1]) == tuple(chain)
