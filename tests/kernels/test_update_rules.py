"""Update rules against their papers' formulas in plain NumPy, and numbers worked out by hand."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from plain_rules import formula
from weft_graph.rules.built_in import BUILT_IN, rule_name, states_of, stored_rule
from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.rules.lookup import rule_from, rules

Array = np.ndarray[Any, np.dtype[Any]]


def run(name: str, weight: Array, gradients: list[Array], hyper: dict[str, float]) -> tuple[Array, dict[str, Array]]:
    """Applies the rule to a copy of the weight, once for each gradient."""
    rule = rules()[name]
    weight = weight.copy()
    state = {part: np.zeros_like(weight) for part in rule.state}
    for step, gradient in enumerate(gradients, start=1):
        rule.apply(weight, gradient.copy(), state, step, {**rule.hyper, **hyper})
    return weight, state


CASES = {
    "sgd": {"lr": 0.1, "weight_decay": 0.0},
    "sgd_decay": {"lr": 0.1, "weight_decay": 0.01},
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0},
    "momentum_decay": {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01},
    "adam": {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "adagrad": {"lr": 0.1, "epsilon": 1e-10, "weight_decay": 0.0},
    "adagrad_decay": {"lr": 0.1, "epsilon": 0.1, "weight_decay": 0.01},
    "nesterov": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0},
    "nesterov_decay": {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01},
    "adamw": {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.1},
    "rmsprop": {"lr": 0.01, "decay": 0.9, "epsilon": 1e-8, "weight_decay": 0.0},
    "rmsprop_decay": {"lr": 0.01, "decay": 0.99, "epsilon": 0.1, "weight_decay": 0.01},
    "ftrl": {"lr": 0.1, "beta": 1.0, "l1": 0.0, "l2": 0.0},
    "ftrl_sparse": {"lr": 0.5, "beta": 0.5, "l1": 1.0, "l2": 0.1},
    "lamb": {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, "weight_decay": 0.01, "trust": 1.0},
    "lamb_plain": {"lr": 0.01, "beta1": 0.5, "beta2": 0.9, "epsilon": 0.1, "weight_decay": 0.0, "trust": 0.0},
    "lars": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "trust": 0.1},
    "lars_plain": {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.0, "trust": 0.0},
    "adam_without_memory": {"lr": 0.01, "beta1": 0.0, "beta2": 0.0, "epsilon": 0.1},
}


@pytest.mark.parametrize("size", [0, 1, 7, 1000])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_rule_is_the_formula(case: str, dtype: str, size: int) -> None:
    name, hyper = case.split("_", maxsplit=1)[0], CASES[case]
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(size).astype(dtype)
    gradients = [rng.standard_normal(size).astype(dtype) for _ in range(5)]
    given, state = run(name, weight, gradients, hyper)
    assert given.dtype == weight.dtype
    assert all(array.dtype == weight.dtype for array in state.values())
    rtol = 1e-12 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(given, formula(name, weight, gradients, hyper), rtol=rtol, atol=rtol)


def test_sgd_by_hand() -> None:
    """2 - 0.5 * (1 + 0.1 * 2) = 1.4."""
    weight, _ = run("sgd", np.array([2.0]), [np.array([1.0])], {"lr": 0.5, "weight_decay": 0.1})
    assert weight[0] == pytest.approx(1.4, rel=1e-15)


def test_momentum_by_hand() -> None:
    """v = 1, w = 1 - 0.1 = 0.9; v = 0.5 * 1 + 2 = 2.5, w = 0.9 - 0.25 = 0.65."""
    gradients = [np.array([1.0]), np.array([2.0])]
    weight, state = run("momentum", np.array([1.0]), gradients, {"lr": 0.1, "momentum": 0.5})
    assert weight[0] == pytest.approx(0.65, rel=1e-15)
    assert state["momentum"][0] == 2.5


def test_adam_by_hand() -> None:
    """Algorithm 1 with g = 0.5, -1: after step 1 both corrections cancel, so the step is the rate by the sign.

    Step 2: m = 0.9 * 0.05 - 0.1 = -0.055, over 0.19; v = 0.999 * 0.00025 + 0.001 = 0.00124975, over 0.001999.
    """
    hyper = {"lr": 0.1, "epsilon": 1e-8}
    first, _ = run("adam", np.array([1.0]), [np.array([0.5])], hyper)
    assert first[0] == pytest.approx(1 - 0.1 * 0.5 / (0.5 + 1e-8), rel=1e-14)
    second, state = run("adam", np.array([1.0]), [np.array([0.5]), np.array([-1.0])], hyper)
    move = 0.1 * (-0.055 / 0.19) / (math.sqrt(0.00124975 / 0.001999) + 1e-8)
    assert second[0] == pytest.approx(first[0] - move, rel=1e-13)
    assert state["mean"][0] == pytest.approx(-0.055, rel=1e-14)
    assert state["variance"][0] == pytest.approx(0.00124975, rel=1e-12)


def test_adagrad_by_hand() -> None:
    """s = 0.25 + 4, w = 1 - 0.5 * 2 / (sqrt(4.25) + 1); the sum starts where a document says."""
    rule = rule_from({"name": "adagrad", "state": {"sum": 0.25}})
    weight, state = np.array([1.0]), {"sum": np.full(1, rule.state["sum"])}
    rule.apply(weight, np.array([2.0]), state, 1, {"lr": 0.5, "epsilon": 1.0, "weight_decay": 0.0})
    assert state["sum"][0] == 4.25
    assert weight[0] == pytest.approx(1 - 1 / (math.sqrt(4.25) + 1), rel=1e-15)
    assert rules()["adagrad"].state == {"sum": 0.0}


def test_nesterov_by_hand() -> None:
    """v = 1, w = 1 - 0.1 * (1 + 0.5) = 0.85; v = 2.5, w = 0.85 - 0.1 * (2 + 1.25) = 0.525."""
    gradients = [np.array([1.0]), np.array([2.0])]
    weight, state = run("nesterov", np.array([1.0]), gradients, {"lr": 0.1, "momentum": 0.5})
    assert weight[0] == pytest.approx(0.525, rel=1e-15)
    assert state["momentum"][0] == 2.5


def test_adamw_by_hand() -> None:
    """The first step of Adam is the rate by the sign; the decay takes lr * 0.5 * 2 more."""
    weight, _ = run("adamw", np.array([2.0]), [np.array([4.0])], {"lr": 0.1, "weight_decay": 0.5, "epsilon": 0.0})
    assert weight[0] == pytest.approx(2 - 0.1 - 0.1, rel=1e-14)


def test_rmsprop_by_hand() -> None:
    """s = 0.25 * 4 = 1, w = 1 - 0.5 * 2 / (1 + 1); then s = 0.75 and nothing moves."""
    hyper = {"lr": 0.5, "decay": 0.75, "epsilon": 1.0}
    weight, state = run("rmsprop", np.array([1.0]), [np.array([2.0]), np.array([0.0])], hyper)
    assert (weight[0], state["square"][0]) == (0.5, 0.75)


def test_ftrl_by_hand() -> None:
    """From w = 0, lr 0.5, beta 1, l1 1, l2 2: g = 3 gives z = 3, n = 9, w = -(3 - 1) / ((1 + 3) / 0.5 + 2) = -0.2;
    g = 4: z = 3 + 4 + 0.2 * (5 - 3) / 0.5 = 7.8, n = 25, w = -6.8 / 14. A z within 1 gives exactly 0."""
    hyper = {"lr": 0.5, "beta": 1.0, "l1": 1.0, "l2": 2.0}
    first, _ = run("ftrl", np.zeros(1), [np.array([3.0])], hyper)
    assert first[0] == pytest.approx(-0.2, rel=1e-15)
    second, state = run("ftrl", np.zeros(1), [np.array([3.0]), np.array([4.0])], hyper)
    assert (state["total"][0], state["squares"][0]) == (pytest.approx(7.8, rel=1e-15), 25)
    assert second[0] == pytest.approx(-6.8 / 14, rel=1e-14)
    still, _ = run("ftrl", np.array([0.0, 5.0, 0.0]), [np.array([-1.0, 0.0, 0.5])], hyper)
    assert still.tobytes() == np.zeros(3).tobytes()


def test_a_rate_of_zero_moves_no_weight_of_ftrls() -> None:
    """A schedule may end there, and a multiplier says so of a parameter that stays."""
    weight, state = run("ftrl", np.array([3.0]), [np.array([2.0])], {"lr": 0.0})
    assert (weight[0], state["total"][0], state["squares"][0]) == (3.0, 0.0, 0.0)


def test_lamb_by_hand() -> None:
    """norm(w) = 5; the first direction is the gradient's sign, with decay (1.5, 2): norm 2.5, so twice as far."""
    hyper = {"lr": 0.1, "epsilon": 0.0, "weight_decay": 0.0, "trust": 1.0}
    weight, _ = run("lamb", np.array([3.0, 4.0]), [np.array([7.0, 0.1])], hyper)
    np.testing.assert_allclose(weight, [3 - 0.1 * 5 / 2**0.5, 4 - 0.1 * 5 / 2**0.5], rtol=1e-14)
    hyper |= {"weight_decay": 0.25, "epsilon": 1e-30}
    weight, _ = run("lamb", np.array([3.0, 4.0]), [np.array([0.0, 7.0])], hyper)
    np.testing.assert_allclose(weight, np.array([3, 4]) - 0.1 * 5 / np.hypot(0.75, 2) * np.array([0.75, 2]), rtol=1e-14)


def test_lars_by_hand() -> None:
    """norm(w) = 5, norm(g) = 10, decay 1: ratio 0.6 * 5 / 15 = 0.2; v = 0.5 * 0.2 * (g + w)."""
    hyper = {"lr": 0.5, "momentum": 0.9, "weight_decay": 1.0, "trust": 0.6}
    weight, state = run("lars", np.array([3.0, 4.0]), [np.array([6.0, -8.0])], hyper)
    np.testing.assert_allclose(state["momentum"], [0.9, -0.4], rtol=1e-14)
    np.testing.assert_allclose(weight, [2.1, 4.4], rtol=1e-14)


@pytest.mark.parametrize("name", [name for name in sorted(BUILT_IN) if not BUILT_IN[name].whole])
def test_a_rule_may_be_cut_anywhere_to_the_same_bits(name: str) -> None:
    """Each slice by itself gives what the whole gives, so a key may be cut over shards."""
    rng = np.random.default_rng(1)
    size = CACHE_ELEMENTS + 1000
    weight = rng.standard_normal(size).astype(np.float32)
    gradients = [rng.standard_normal(size).astype(np.float32) for _ in range(3)]
    whole, whole_state = run(name, weight, gradients, {})
    for cut in (1, 13, 512, CACHE_ELEMENTS - 1):
        parts = [run(name, weight[part], [g[part] for g in gradients], {}) for part in np.s_[:cut, cut:]]
        assert np.concatenate([part for part, _ in parts]).tobytes() == whole.tobytes()
        for each, array in whole_state.items():
            assert np.concatenate([state[each] for _, state in parts]).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_rule_reads_the_gradient_and_writes_where_the_key_lies(name: str, dtype: str) -> None:
    """Keys of no element, of one without a dimension, and of two dimensions. What is sent may be what was received."""
    rule = rules()[name]
    for shape in ((), (0,), (3, 5)):
        weight, gradient = np.ones(shape, dtype), np.full(shape, 0.5, dtype)
        gradient.flags.writeable = False
        state = {each: np.zeros(shape, dtype) for each in rule.state}
        hyper = {**rule.hyper, "lr": 0.5} | ({"trust": 1.0} if rule.whole else {})
        rule.apply(weight, gradient, state, 1, hyper)
        assert (weight < 1).all()
        assert all((array != 0).all() for array in state.values())


def test_stored_rules_are_those_of_the_kernels() -> None:
    assert {name: (rule.hyper, rule.state, bool(rule.whole)) for name, rule in BUILT_IN.items()} == {
        name: (rule.hyper, rule.state, rule.whole) for name, rule in rules().items()
    }


def test_arrays_that_an_update_moves() -> None:
    """Gradient and weight in, weight out, and each state both ways; LAMB reads weight and moments twice."""
    moves = {name: rule.moves for name, rule in BUILT_IN.items()}
    assert (moves["sgd"], moves["momentum"], moves["adam"], moves["lamb"], moves["lars"]) == (3, 5, 7, 10, 7)


def test_momentum_above_zero_makes_sgd_another_rule() -> None:
    hyper = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    assert stored_rule("sgd", hyper) == ("sgd", {"lr": 0.1, "weight_decay": 0.0})
    assert stored_rule("sgd", {**hyper, "momentum": 0.9}) == ("momentum", {**hyper, "momentum": 0.9})
    with pytest.raises(KeyError, match="lion"):
        stored_rule("lion", hyper)
    with pytest.raises(KeyError, match="beta1"):
        stored_rule("adam", hyper)


def test_a_state_that_starts_elsewhere_makes_a_document() -> None:
    hyper = {"lr": 0.1, "epsilon": 1e-10, "weight_decay": {"schedule": "constant", "value": 0.1}}
    assert stored_rule("adagrad", hyper, {"sum": 0.0}) == ("adagrad", hyper)
    stored, _ = stored_rule("adagrad", hyper, {"sum": 0.5})
    assert stored == {"name": "adagrad", "state": {"sum": 0.5}}
    assert (rule_name(stored), states_of(stored), rule_from(stored).state) == ("adagrad", {"sum": 0.5}, {"sum": 0.5})


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("lion", "'lion' is none of adagrad, adam, adamw, ftrl, lamb, lars, momentum, nesterov, rmsprop, sgd"),
        ({"state": {}}, "null is none of"),
        ({"name": ["sgd"], "state": {}}, "an array of 1 is none of"),
        ({"name": "adagrad"}, "field 'state' is missing"),
        ({"name": "adagrad", "state": {"total": 1.0}}, "no state 'total'; it has sum"),
        ({"name": "adagrad", "state": {"sum": math.nan}}, "/state/sum: expected a finite number"),
        ({"name": "adagrad", "state": {"sum": 1.0}, "lr": 1.0}, "unknown field 'lr'"),
        ({"name": "sgd", "state": {"sum": 1.0}}, "at most 0"),
    ],
)
def test_what_is_no_rule_is_named(rule: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        rule_from(rule)
