"""What If, Loop and Scan do with odd bodies, no turns and turns without end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_graphs import body, graph, op
from weft_graph.ir import Node
from weft_kernels.evaluate import evaluate
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.run import KernelError, run_node

W, X = np.arange(3.0), np.arange(12.0).reshape(4, 3)


def values(node: Node, given: dict[str, Any], **outer: Any) -> list[Array]:
    """The node's outputs, in a whole graph that is checked and inferred first."""
    whole = graph([node], {}, {name: np.asarray(array) for name, array in given.items()}, outer)
    asked = tuple(name for name in node.outputs if name)
    found = evaluate(type(whole)(whole.name, whole.inputs, (), whole.nodes, asked, whole.constants), given)
    return [found[name] for name in asked]


def counting(*outputs: str) -> Node:
    """A loop that adds w to v and gives the turn's number, v before it and w itself."""
    turned = body("i go v", "w", "go v2 i v w", op("Add", "v w", "v2"))
    return op("Loop", "m - v0 w", " ".join(outputs), body=turned)


def test_body_outputs_that_are_inputs_and_captured_values() -> None:
    last, turns, before, captured = values(counting("a", "b", "c", "d"), {"m": np.array(3), "v0": W, "w": W + 1})
    np.testing.assert_array_equal(last, W + 3 * (W + 1))
    np.testing.assert_array_equal(turns, [0, 1, 2])
    np.testing.assert_array_equal(before, [W + turn * (W + 1) for turn in range(3)])
    np.testing.assert_array_equal(captured, [W + 1] * 3)


@pytest.mark.parametrize("m", [0, -5])
def test_no_turns_give_what_began_and_outputs_of_no_parts(m: int) -> None:
    last, turns, before, captured = values(counting("a", "b", "c", "d"), {"m": np.array(m), "v0": W, "w": W})
    np.testing.assert_array_equal(last, W)
    assert [(a.shape, a.dtype) for a in (turns, before, captured)] == [((0,), "i8"), ((0, 3), "f8"), ((0, 3), "f8")]


def test_a_condition_that_is_false_from_the_start() -> None:
    turned = body("i go v", "", "go v v")
    node = op("Loop", "- go0 v0", "a b", body=turned)
    last, parts = values(node, {"go0": np.array([False]), "v0": W})
    np.testing.assert_array_equal(last, W)
    assert parts.shape == (0, 3)


def test_a_scan_of_no_parts() -> None:
    turned = body("s x", "", "s2 y", op("Add", "s x", "s2"), op("Cast", "x", "y", to=1))
    node = op("Scan", "s0 xs", "a b", body=turned, num_scan_inputs=1, scan_output_axes=(1,))
    last, parts = values(node, {"s0": W, "xs": np.zeros((0, 3))})
    np.testing.assert_array_equal(last, W)
    assert (parts.shape, parts.dtype) == ((3, 0), "f4")


def test_a_scan_of_scalars() -> None:
    turned = body("s x", "", "s2 s2", op("Add", "s x", "s2"))
    node = op("Scan", "s0 xs", "a b", body=turned, num_scan_inputs=1)
    last, sums = values(node, {"s0": np.array(1.0), "xs": W})
    assert (last.tolist(), sums.tolist()) == (4.0, [1.0, 2.0, 4.0])


def test_a_branch_that_is_not_taken_is_not_run() -> None:
    """Its index is outside: run, it would be refused."""
    wrong = body("", "w far", "y", op("Gather", "w far", "y"))
    node = op("If", "c w far", "a", then_branch=body("", "w far", "w"), else_branch=wrong)
    given = {"c": np.array(True), "w": W, "far": np.array([7, 7, 7])}
    np.testing.assert_array_equal(values(node, given)[0], W)
    with pytest.raises(KernelError, match="node 'n_y' \\(Gather\\)"):
        values(node, {**given, "c": np.array(False)})


def test_parts_of_one_output_are_alike() -> None:
    grown = body("i go v", "w", "go v2 v", op("Concat", "v w", "v2", axis=0))
    node = op("Loop", "m - w w", "a b", body=grown)
    with pytest.raises(KernelError, match=r"'v' is float64\[6\] in turn 1, and was of shape \[3\]"):
        values(node, {"m": np.array(3), "w": W})
    np.testing.assert_array_equal(
        values(op("Loop", "m - w w", "a", body=grown), {"m": np.array(1), "w": W})[0], [*W, *W]
    )


def test_turns_draw_numbers_of_their_own_and_the_same_ones_again() -> None:
    dropped = body("i go", "w half yes", "go kept", op("Dropout", "w half yes", "kept"))
    node = op("Loop", "m - w half yes", "a", body=dropped)
    given = [np.array(6), None, np.ones(32), np.array(0.5), np.array(True)]
    parts = run_node(KernelContext("", seed=3), node, given)[0]
    assert len({part.tobytes() for part in parts}) == 6
    np.testing.assert_array_equal(run_node(KernelContext("", seed=3), node, given)[0], parts)


class GivenUpError(Exception):
    """What a checkpoint raises here."""


def test_turns_without_end_are_left_when_the_run_is_given_up() -> None:
    """2^62 turns, in a loop inside a loop: what asks between turns is heard in both."""
    asked = 0

    def checkpoint() -> None:
        nonlocal asked
        asked += 1
        if asked > 50:
            raise GivenUpError

    inner = body("j on u", "", "on u2", op("Identity", "u", "u2"))
    outer = body("i go v", "many", "go v2", op("Loop", "many - v", "v2", body=inner))
    node = op("Loop", "many - v0 many", "a", body=outer)
    with pytest.raises(GivenUpError):
        run_node(KernelContext("", checkpoint=checkpoint), node, [np.array(1 << 62), None, W, np.array(1 << 62)])
    assert asked == 51


@pytest.mark.parametrize("op_type", ["Loop", "If"])
def test_counts_and_conditions_are_one_element(op_type: str) -> None:
    inner = body("i go v", "", "go v") if op_type == "Loop" else body("", "v", "v")
    if op_type == "Loop":
        node, given = op("Loop", "m - v", "a", body=inner), [np.array([1, 2]), None, W]
    else:
        node, given = op("If", "m v", "a", then_branch=inner, else_branch=inner), [np.array([True, False]), W]
    with pytest.raises(KernelError, match="must be one element, and has 2"):
        run_node(KernelContext(""), node, given)


def test_lengths_outside_a_sequence_are_refused() -> None:
    node = op("RNN", "x w r - lens", "y h")
    arrays = [np.zeros((4, 2, 3)), np.zeros((1, 5, 3)), np.zeros((1, 5, 5)), None, np.array([2, 5], np.int32)]
    with pytest.raises(KernelError, match="sequence_lens must be from 0 to 4, and has 2 and 5"):
        run_node(KernelContext(""), node, arrays)


def test_parts_of_turns_without_end_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft_kernels.operators import flow

    monkeypatch.setattr(flow, "MOST_PARTS", 4)
    given = {"v0": W, "w": W}
    assert len(values(counting("a", "b", "c", "d"), {"m": np.array(4), **given})[1]) == 4
    with pytest.raises(KernelError, match="which at most 4 turns may, and has not ended"):
        values(counting("a", "b", "c", "d"), {"m": np.array(1 << 62), **given})
    monkeypatch.setattr(flow, "MOST_PART_BYTES", 3 * W.nbytes)
    with pytest.raises(KernelError, match="its turns' parts take more than"):
        values(counting("a", "b", "c", "d"), {"m": np.array(4), **given})
    added = body("i go v", "w", "go v2", op("Add", "v w", "v2"))
    last = values(op("Loop", "m - v0 w", "a", body=added), {"m": np.array(9), **given})[0]
    np.testing.assert_array_equal(last, W * 10)
