"""Users' rules as they run: the same bits for any cut, written in place."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from rule_documents import momentum, normalized, rule_document
from weft import ops
from weft.optimizer_graph import CustomOptimizer
from weft_kernels.rules import cache_blocks, compiled
from weft_kernels.rules.lookup import rule_from
from weft_kernels.rules.record import Rule
from weft_kernels.run import KernelError
from written_rules import adagrad, adam, heavy_ball

Array = np.ndarray[Any, np.dtype[Any]]


def run(rule: Rule, weight: Array, gradients: list[Array], hyper: dict[str, float]) -> tuple[Array, dict[str, Array]]:
    """Applies the rule to a copy of the weight, once for each gradient."""
    weight = weight.copy()
    state = {name: np.full_like(weight, start) for name, start in rule.state.items()}
    for step, gradient in enumerate(gradients, start=1):
        rule.apply(weight, gradient.copy(), state, step, {**rule.hyper, **hyper})
    return weight, state


def drawn(dtype: str, shape: Any, count: int, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("written", [heavy_ball, adam, adagrad], ids=lambda rule: rule.name)
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(0, 300), max_size=3), block=st.sampled_from([7, 64, 1 << 15]))
def test_any_cut_gives_the_same_bits(written: CustomOptimizer, dtype: str, cuts: list[int], block: int) -> None:
    weight, *gradients = drawn(dtype, 300, 3)
    rule = rule_from(written.document)
    whole, state = run(rule, weight, gradients, {})
    bounds = [0, *sorted(cuts), 300]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_blocks, "CACHE_ELEMENTS", block)
        parts = [
            run(rule, weight[start:stop], [gradient[start:stop] for gradient in gradients], {})
            for start, stop in pairwise(bounds)
        ]
    assert np.concatenate([part for part, _ in parts]).tobytes() == whole.tobytes()
    for name, array in state.items():
        assert np.concatenate([part[name] for _, part in parts]).tobytes() == array.tobytes()


def test_rows_of_a_table_are_updated_as_the_elements_are() -> None:
    weight, gradient = drawn("float32", (6, 5), 2)
    rule = rule_from(adam.document)
    flat, _ = run(rule, weight.reshape(-1), [gradient.reshape(-1)], {})
    rows, state = run(rule, weight, [gradient], {})
    assert rows.tobytes() == flat.tobytes()
    assert state["mean"].shape == (6, 5)


def test_arrays_that_are_not_in_one_piece_are_written_too() -> None:
    weight, gradient = drawn("float32", (6, 5), 2)
    rule = rule_from(momentum())
    expected, _ = run(rule, weight, [gradient], {})
    turned, state = np.asfortranarray(weight), {"velocity": np.zeros((6, 5), np.float32, order="F")}
    rule.apply(turned, np.asfortranarray(gradient), state, 1, rule.hyper)
    np.testing.assert_array_equal(turned, expected)


def test_a_rule_with_a_norm_sees_the_key_whole() -> None:
    weight, gradient = drawn("float32", (7, 3), 2)
    rule = rule_from(normalized())
    assert rule.whole
    given, _ = run(rule, weight, [gradient], {"lr": 0.5})
    expected = weight - 0.5 * gradient / np.sqrt(np.sum(gradient.astype(np.float64) ** 2))
    np.testing.assert_allclose(given, expected, rtol=1e-6)
    scalar, _ = run(rule, np.array(2.0), [np.array(-3.0)], {"lr": 0.5})
    assert (scalar.shape, float(scalar)) == ((), 2.5)


def test_a_rule_for_matrices_reduces_them_by_row() -> None:
    @weft.custom_optimizer(shape=("rows", "columns"), lr=0.1)
    def by_row(weight: Any, gradient: Any, lr: Any) -> Any:
        return weight - lr * gradient / ops.sqrt(ops.reduce_sum(gradient * gradient, 1, keepdims=True))

    weight, gradient = drawn("float64", (7, 3), 2)
    rule = rule_from(by_row.document)
    given, _ = run(rule, weight, [gradient], {})
    expected = weight - 0.1 * gradient / np.linalg.norm(gradient, axis=1, keepdims=True)
    np.testing.assert_allclose(given, expected, rtol=1e-14)


def test_states_may_take_each_others_place() -> None:
    """What is written first is not what is read later: a <- b, b <- a, and the weight becomes the older gradient."""
    document = rule_document(
        [("Identity", "same", ("b",)), ("Identity", "g", ("gradient",))],
        {"weight": "a", "a": "same", "b": "g"},
        state={"a": 1.0, "b": 2.0},
    )
    rule = rule_from(document)
    weight, state = np.zeros(3), {"a": np.full(3, 1.0), "b": np.full(3, 2.0)}
    rule.apply(weight, np.full(3, 9.0), state, 1, {})
    assert (weight.tolist(), state["a"].tolist(), state["b"].tolist()) == ([1.0] * 3, [2.0] * 3, [9.0] * 3)


def test_numbers_of_a_float16_key_are_not_rounded_to_float16() -> None:
    """1 - 0.999^step after one step is 0.001, of which float16 would keep three digits; 1 - 0.9999 it has not."""
    document = rule_document(
        [
            ("Pow", "p", ("beta", "step")),
            ("Sub", "c", ("one", "p")),
            ("Div", "g", ("gradient", "c")),
            ("Sub", "w", ("weight", "g")),
        ],
        {"weight": "w"},
        hyper={"beta": 0.9999},
        constants={"one": 1.0},
    )
    weight = np.zeros(1, np.float16)
    rule_from(document).apply(weight, np.full(1, 1e-4, np.float16), {}, 1, {"beta": 0.9999})
    assert float(weight[0]) == pytest.approx(-1.0, rel=2e-3)


def test_numbers_follow_step_and_hyper_parameters() -> None:
    """They are kept from one slice to the next, and no longer."""
    rule = rule_from(rule_document(
        [("Mul", "s", ("lr", "step")), ("Mul", "m", ("s", "gradient")), ("Sub", "w", ("weight", "m"))],
        {"weight": "w"}, hyper={"lr": 1.0},
    ))  # fmt: skip
    moves = []
    for step, lr in ((1, 1.0), (1, 1.0), (2, 1.0), (2, 0.5), (1, 1.0)):
        weight = np.zeros(2)
        rule.apply(weight, np.ones(2), {}, step, {"lr": lr})
        moves.append(-weight[0])
    assert moves == [1.0, 1.0, 2.0, 1.0, 1.0]


def test_what_is_no_rule_is_named() -> None:
    document = momentum()
    document["graph"]["nodes"][3]["op_type"] = "Dropout"
    with pytest.raises(ValueError, match=r"rule: node 'w' \(Dropout\): a rule takes"):
        rule_from(document)


def test_an_operator_that_fails_is_named() -> None:
    rule = rule_from(momentum())
    with pytest.raises(KernelError, match=r"node 'kept' \(Mul\)|node 'v' \(Add\)"):
        rule.apply(np.zeros(3), np.zeros(4), {"velocity": np.zeros(5)}, 1, rule.hyper)


def test_a_rule_with_a_norm_keeps_a_bounded_number_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[object] = []
    inner = compiled.bound_rule
    monkeypatch.setattr(compiled, "PROGRAMS_KEPT", 2)
    monkeypatch.setattr(compiled, "bound_rule", lambda *given: inner(*given) if not bound.append(given[2]) else None)
    rule = rule_from(normalized())
    for size in (1, 2, 2, 1, 3, 3, 1):
        run(rule, np.ones(size), [np.ones(size)], {})
    assert bound == [(1,), (2,), (3,), (1,)]
