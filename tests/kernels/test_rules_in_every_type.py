"""Each rule, built in and written as a graph, on keys of each type, from the state that it starts at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import weft
from plain_rules import formula
from rule_documents import normalized, rule_document
from weft import ops
from weft_graph.rules.built_in import BUILT_IN
from weft_kernels.rules.lookup import rule_from, rules
from weft_kernels.rules.record import Rule
from written_rules import AS_GRAPH, adam

Array = np.ndarray[Any, np.dtype[Any]]
NAMES = sorted(BUILT_IN)
TYPES = ["float16", "float32", "float64"]
DECAY = {"weight_decay": 0.1}


def rule_of(name: str, form: str) -> Rule:
    return rules()[name] if form == "built in" else rule_from(AS_GRAPH[name].document)


def run(rule: Rule, weight: Array, gradients: Sequence[Array], **hyper: float) -> tuple[Array, dict[str, Array]]:
    weight = weight.copy()
    state = {name: np.full_like(weight, start) for name, start in rule.state.items()}
    for step, gradient in enumerate(gradients, start=1):
        rule.apply(weight, gradient.copy(), state, step, {**rule.hyper, **hyper})
    return weight, state


def drawn(dtype: str, count: int = 1000, steps: int = 5) -> tuple[Array, list[Array]]:
    """Gradients a third of which are 0 in a step, and some of which are 0 in all."""
    draw = np.random.default_rng(7)
    gradients = [draw.standard_normal(count) * (draw.random(count) > 1 / 3) for _ in range(steps)]
    for gradient in gradients:
        gradient[:10] = 0
    return draw.standard_normal(count).astype(dtype), [gradient.astype(dtype) for gradient in gradients]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", ["built in", "graph"])
@pytest.mark.parametrize("name", NAMES)
def test_a_rule_with_its_defaults_is_the_formula(name: str, form: str, dtype: str) -> None:
    """float16 within the rounding of weight and state, which are stored after each step."""
    rule = rule_of(name, form)
    assert rule.whole == (name in {"lamb", "lars"})
    for hyper in ({}, DECAY) if "weight_decay" in rule.hyper else ({},):
        weight, gradients = drawn(dtype)
        given, state = run(rule, weight, gradients, **hyper)
        assert {array.dtype for array in (given, *state.values())} == {weight.dtype}
        tolerance = {"float16": 5e-3, "float32": 1e-5, "float64": 1e-12}[dtype]
        expected = formula(name, weight, gradients, {**rule.hyper, **hyper})
        np.testing.assert_allclose(given, expected, rtol=tolerance, atol=tolerance)
        still = given[:10] == weight[:10]
        moves = name == "ftrl" or rule.whole or rule.hyper.get("weight_decay", 0.0) or hyper
        assert moves or still.all(), "a gradient of 0 has moved a weight"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_the_body_by_hand_and_the_graph_are_one_rule(name: str, dtype: str) -> None:
    """State too: each goes the other's way to a rounding."""
    by_hand, graph = rules()[name], rule_from(AS_GRAPH[name].document)
    assert dict(graph.hyper) == dict(by_hand.hyper)
    assert list(graph.state.values()) == list(by_hand.state.values())
    weight, gradients = drawn(dtype)
    hyper = DECAY if "weight_decay" in by_hand.hyper else {}
    (one, one_state), (other, other_state) = (run(rule, weight, gradients, **hyper) for rule in (by_hand, graph))
    ulps = 2e-3 if dtype == "float16" else 20 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(one, other, rtol=ulps, atol=ulps)
    for mine, its in zip(one_state.values(), other_state.values(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=ulps, atol=ulps)


@pytest.mark.parametrize("form", ["built in", "graph"])
@pytest.mark.parametrize("name", ["adam", "adamw", "adagrad", "rmsprop"])
@pytest.mark.parametrize("first", [3e-3, 1e-4, -1e-6, 6e-8, 300.0, -6e4])
def test_squares_that_float16_has_no_number_for_do_no_harm(name: str, form: str, first: float) -> None:
    """One gradient, then none: the mean of the gradients outlasts a variance of 0, and an infinite sum stops all."""
    rule = rule_of(name, form)
    gradients = [np.full(3, value, np.float16) for value in (first, 0, 0, 0, 1.0)]
    moved, state = run(rule, np.full(3, 1.0, np.float16), gradients)
    expected = formula(name, np.full(3, 1.0), gradients, rule.hyper)
    # A square that is held at the largest float16 is too small: the step is, for its numerator, too large by so much.
    np.testing.assert_allclose(moved, expected, atol=(20 if abs(first) > 1e4 else 5) * rule.hyper["lr"])
    assert all(np.isfinite(array).all() and (array != 0).all() for array in state.values())


def test_a_state_is_zero_where_it_is_zero_and_no_number_where_it_is_none() -> None:
    rule = rules()["momentum"]
    _, state = run(rule, np.zeros(3, np.float16), [np.array([0.0, np.nan, -0.0], np.float16)])
    np.testing.assert_array_equal(state["momentum"], np.array([0, np.nan, 0], np.float16))


def test_float16_is_rounded_once() -> None:
    """1 + 2048 steps of 2^-11 on the way, each of which float16 would lose beside the 1."""
    nodes = [("Add", "a0", ("weight", "gradient"))]
    nodes += [("Add", f"a{number}", (f"a{number - 1}", "gradient")) for number in range(1, 200)]
    rule = rule_from(rule_document(nodes, {"weight": "a199"}))
    weight, _ = run(rule, np.ones(1, np.float16), [np.full(1, 2.0**-13, np.float16)])
    assert float(weight[0]) == pytest.approx(1 + 200 * 2.0**-13, rel=2.0**-11)


def test_a_float16_key_of_many_blocks_and_one_that_is_not_in_one_piece() -> None:
    rule = rules()["adam"]
    weight, gradients = drawn("float16", count=70_000, steps=2)
    whole, _ = run(rule, weight, gradients)
    parts = [run(rule, weight[part], [each[part] for each in gradients])[0] for part in np.s_[:33_000, 33_000:]]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    strided, state = np.zeros(140_000, np.float16)[::2], {name: np.zeros(70_000, np.float16) for name in rule.state}
    strided[:] = weight
    for step, gradient in enumerate(gradients, start=1):
        rule.apply(strided, gradient.copy(), state, step, rule.hyper)
    np.testing.assert_array_equal(strided, whole)


@pytest.mark.parametrize("shape", [(), (0,), (7, 3)])
def test_a_rule_that_needs_keys_whole_takes_float16_too(shape: tuple[int, ...]) -> None:
    """The sum of squares of a thousand is above what float16 has."""
    rule = rule_from(normalized())
    assert rule.whole
    weight, gradient = np.ones(shape, np.float16), np.full(shape, 1000.0, np.float16)
    moved, _ = run(rule, weight, [gradient], lr=0.5)
    np.testing.assert_allclose(moved, 1 - 0.5 / np.sqrt(max(weight.size, 1)), rtol=1e-3)


def test_a_whole_rules_state_is_held_in_range_too() -> None:
    @weft.custom_optimizer(shape=("rows", "columns"), state={"squares": 0.0}, lr=0.1, epsilon=1e-8)
    def by_row(weight: Any, gradient: Any, squares: Any, lr: Any, epsilon: Any) -> Any:
        squares = squares + ops.reduce_sum(gradient * gradient, 1, keepdims=True) + 0 * gradient
        return weight - lr * gradient / (ops.sqrt(squares) + epsilon), {"squares": squares}

    rule = rule_from(by_row.document)
    gradients = [np.array([[1e3, 1e3], [1e-5, 0]], np.float16), np.zeros((2, 2), np.float16)]
    moved, state = run(rule, np.ones((2, 2), np.float16), gradients)
    np.testing.assert_allclose(moved, [[1 - 0.1 / 2**0.5] * 2, [0.9, 1]], rtol=1e-3)
    assert state["squares"].tolist() == [[65504, 65504], [2.0**-24, 2.0**-24]]


def test_an_epsilon_below_float16_is_one_at_a_float16_key() -> None:
    weight, state = run(rule_from(adam.document), np.ones(2, np.float16), [np.zeros(2, np.float16)])
    assert weight.tolist() == [1, 1]
    assert state["variance"].tolist() == [0, 0]
