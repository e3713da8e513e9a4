"""Averages beside weights: the exponential mean without bias, the plain mean, of slices as of whole arrays."""

from __future__ import annotations

import numpy as np
import pytest

from weft_kernels.averaging import AVERAGE, averaged, share_of
from weft_kernels.rules.lookup import rule_from
from weft_kernels.rules.record import Rule
from weft_kernels.rules.rows import apply_to_rows

HYPER = {"sgd": {"lr": 0.5, "weight_decay": 0.0}, "adam": rule_from("adam").hyper}
STEPS = 40


def gradients() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((STEPS, 130))


def run(rule: Rule, name: str, part: slice = slice(None)) -> tuple[list[np.ndarray], np.ndarray]:
    """The weights after each update, and the average at the end."""
    weight = np.linspace(-1, 1, 130)[part].copy()
    state = {key: np.full(weight.shape, start) for key, start in rule.state.items()}
    seen = []
    for step, gradient in enumerate(gradients(), 1):
        rule.apply(weight, gradient[part].copy(), state, step, HYPER[name])
        seen.append(weight.copy())
    return seen, weight + state[AVERAGE]


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("start", [0, 7])
def test_the_exponential_mean_is_that_of_the_formula(name: str, start: int) -> None:
    seen, found = run(averaged(rule_from(name), 0.9, start), name)
    counted = seen[start:]
    shares = np.array([0.1 * 0.9 ** (len(counted) - 1 - at) for at in range(len(counted))])
    expected = np.tensordot(shares / shares.sum(), np.array(counted), 1)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("start", [0, 7])
def test_without_a_decay_all_weights_count_alike(start: int) -> None:
    seen, found = run(averaged(rule_from("sgd"), None, start), "sgd")
    np.testing.assert_allclose(found, np.mean(seen[start:], axis=0), rtol=1e-10, atol=1e-12)


def test_until_it_starts_the_average_is_the_weight() -> None:
    seen, found = run(averaged(rule_from("sgd"), 0.9, STEPS), "sgd")
    np.testing.assert_allclose(found, seen[-1], rtol=1e-15)
    assert share_of(3, 0.9, 10) == 1.0


def test_the_weights_have_the_bits_that_they_have_without_an_average() -> None:
    rule = rule_from("adam")
    weight, state = np.linspace(-1, 1, 130), {key: np.zeros(130) for key in rule.state}
    for step, gradient in enumerate(gradients(), 1):
        rule.apply(weight, gradient.copy(), state, step, HYPER["adam"])
    assert run(averaged(rule, 0.99, 0), "adam")[0][-1].tobytes() == weight.tobytes()


def test_parts_of_an_array_have_the_bits_of_the_whole() -> None:
    rule = averaged(rule_from("adam"), 0.9, 3)
    whole = run(rule, "adam")[1]
    parts = [run(rule, "adam", slice(*cut))[1] for cut in ((0, 64), (64, 130))]
    assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_a_row_that_is_touched_late_averages_from_its_first_value() -> None:
    """The decay counts the key's updates: a row first updated at the 100th moves a tenth of the way."""
    rule = averaged(rule_from("sgd"), 0.9, 0)
    weight, state = np.ones((3, 4), np.float32), {AVERAGE: np.zeros((3, 4), np.float32)}
    apply_to_rows(rule, weight, np.ones((1, 4), np.float32), state, np.array([1]), step=100, hyper=HYPER["sgd"])
    np.testing.assert_allclose((weight + state[AVERAGE])[1], 1 - 0.5 * 0.1, rtol=1e-4)
    assert not state[AVERAGE][[0, 2]].any(), "an untouched row is its own average"
