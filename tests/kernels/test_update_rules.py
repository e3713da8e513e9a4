"""Update rules against their papers' formulas in plain NumPy, and numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from weft_graph.rules import STORED_HYPER, stored_rule
from weft_kernels.rule import rules

Array = np.ndarray[Any, np.dtype[Any]]


def run(name: str, weight: Array, gradients: list[Array], hyper: dict[str, float]) -> tuple[Array, dict[str, Array]]:
    """Applies the rule to a copy of the weight, once for each gradient."""
    rule = rules()[name]
    weight = weight.copy()
    state = {part: np.zeros_like(weight) for part in rule.state}
    for step, gradient in enumerate(gradients, start=1):
        rule.apply(weight, gradient.copy(), state, step, {**rule.hyper, **hyper})
    return weight, state


def formula(name: str, weight: Array, gradients: list[Array], hyper: dict[str, float]) -> Array:
    """The textbook's form in float64, an array for each line."""
    w = weight.astype(np.float64)
    velocity = mean = variance = np.zeros_like(w)
    for t, gradient in enumerate(gradients, start=1):
        g = gradient.astype(np.float64)
        if name == "adam":
            mean = hyper["beta1"] * mean + (1 - hyper["beta1"]) * g
            variance = hyper["beta2"] * variance + (1 - hyper["beta2"]) * g**2
            mean_hat = mean / (1 - hyper["beta1"] ** t)
            variance_hat = variance / (1 - hyper["beta2"] ** t)
            w = w - hyper["rate"] * mean_hat / (np.sqrt(variance_hat) + hyper["epsilon"])
        else:
            g = g + hyper["weight_decay"] * w
            velocity = hyper.get("momentum", 0.0) * velocity + g
            w = w - hyper["rate"] * velocity
    return w


CASES = {
    "sgd": {"rate": 0.1, "weight_decay": 0.0},
    "sgd_decay": {"rate": 0.1, "weight_decay": 0.01},
    "momentum": {"rate": 0.1, "momentum": 0.9, "weight_decay": 0.0},
    "momentum_decay": {"rate": 0.1, "momentum": 0.5, "weight_decay": 0.01},
    "adam": {"rate": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "adam_without_memory": {"rate": 0.01, "beta1": 0.0, "beta2": 0.0, "epsilon": 0.1},
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
    weight, _ = run("sgd", np.array([2.0]), [np.array([1.0])], {"rate": 0.5, "weight_decay": 0.1})
    assert weight[0] == pytest.approx(1.4, rel=1e-15)


def test_momentum_by_hand() -> None:
    """v = 1, w = 1 - 0.1 = 0.9; v = 0.5 * 1 + 2 = 2.5, w = 0.9 - 0.25 = 0.65."""
    gradients = [np.array([1.0]), np.array([2.0])]
    weight, state = run("momentum", np.array([1.0]), gradients, {"rate": 0.1, "momentum": 0.5})
    assert weight[0] == pytest.approx(0.65, rel=1e-15)
    assert state["momentum"][0] == 2.5


def test_adam_by_hand() -> None:
    """Algorithm 1 with g = 0.5, -1: after step 1 both corrections cancel, so the step is the rate by the sign.

    Step 2: m = 0.9 * 0.05 - 0.1 = -0.055, over 0.19; v = 0.999 * 0.00025 + 0.001 = 0.00124975, over 0.001999.
    """
    hyper = {"rate": 0.1, "epsilon": 1e-8}
    first, _ = run("adam", np.array([1.0]), [np.array([0.5])], hyper)
    assert first[0] == pytest.approx(1 - 0.1 * 0.5 / (0.5 + 1e-8), rel=1e-14)
    second, state = run("adam", np.array([1.0]), [np.array([0.5]), np.array([-1.0])], hyper)
    move = 0.1 * (-0.055 / 0.19) / (math.sqrt(0.00124975 / 0.001999) + 1e-8)
    assert second[0] == pytest.approx(first[0] - move, rel=1e-13)
    assert state["mean"][0] == pytest.approx(-0.055, rel=1e-14)
    assert state["variance"][0] == pytest.approx(0.00124975, rel=1e-12)


@pytest.mark.parametrize("name", sorted(STORED_HYPER))
def test_a_rule_may_be_cut_anywhere_to_the_same_bits(name: str) -> None:
    """Each slice by itself gives what the whole gives, so a key may be cut over shards."""
    rng = np.random.default_rng(1)
    weight = rng.standard_normal(1000).astype(np.float32)
    gradients = [rng.standard_normal(1000).astype(np.float32) for _ in range(3)]
    whole, _ = run(name, weight, gradients, {})
    for cut in (1, 13, 512, 999):
        parts = [run(name, weight[part], [g[part] for g in gradients], {})[0] for part in np.s_[:cut, cut:]]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_stored_rules_are_those_of_the_kernels() -> None:
    assert {name: frozenset(numbers) for name, numbers in STORED_HYPER.items()} == {
        name: frozenset(rule.hyper) for name, rule in rules().items()
    }


def test_momentum_above_zero_makes_sgd_another_rule() -> None:
    hyper = {"rate": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    assert stored_rule("sgd", hyper) == ("sgd", {"rate": 0.1, "weight_decay": 0.0})
    assert stored_rule("sgd", {**hyper, "momentum": 0.9}) == ("momentum", {**hyper, "momentum": 0.9})
    with pytest.raises(KeyError, match="ftrl"):
        stored_rule("ftrl", hyper)
    with pytest.raises(KeyError, match="beta1"):
        stored_rule("adam", hyper)
