"""LAMB and LARS: norms that are a function of the elements alone, and what follows from them at their edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from weft_kernels.blocks import CACHE_ELEMENTS
from weft_kernels.rules import cache_blocks
from weft_kernels.rules.built_in import lamb, lars
from weft_kernels.rules.lookup import rules
from weft_kernels.rules.square_sums import LANES, SquareSum
from weft_kernels.rules.trust import ratio

Array = np.ndarray[Any, np.dtype[Any]]
NAMES = ("lamb", "lars")
SIZE = 2 * CACHE_ELEMENTS + 777


def norm(values: Array, part: int) -> float:
    total = SquareSum()
    for start in range(0, len(values), part):
        total.add(values[start : start + part])
    return total.root()


def run(name: str, weight: Array, gradients: list[Array], **hyper: float) -> list[Array]:
    rule = rules()[name]
    arrays = [weight.copy(), *(np.zeros_like(weight) for _ in rule.state)]
    for step, gradient in enumerate(gradients, start=1):
        rule.apply(arrays[0], gradient, dict(zip(rule.state, arrays[1:], strict=True)), step, {**rule.hyper, **hyper})
    return arrays


@pytest.mark.parametrize("size", [0, 1, 2, 63, LANES - 1, LANES, LANES + 1, SIZE])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_norm_is_the_exact_sums_to_rounding(size: int, dtype: str) -> None:
    values = np.random.default_rng(size).normal(size=size).astype(dtype)
    exact = math.sqrt(math.fsum(float(value) * float(value) for value in values))
    assert norm(values, LANES) == pytest.approx(exact, rel=1e-14)


def test_a_norm_adds_up_by_lanes_and_halves() -> None:
    """Additions of IEEE's in the order that the module's text says, with Python's numbers."""
    values = np.random.default_rng(1).normal(size=3 * LANES + 5)
    lanes = [0.0] * LANES
    for place, value in enumerate(values.tolist()):
        lanes[place % LANES] += value * value
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[place] + lanes[half + place] for place in range(half)]
    assert norm(values, LANES) == math.sqrt(lanes[0])


def test_a_norm_is_the_same_however_it_is_taken_in() -> None:
    values = np.random.default_rng(2).normal(size=SIZE).astype(np.float32)
    assert len({norm(values, part * LANES) for part in (1, 3, 8, 100)}) == 1
    assert norm(np.append(values, np.zeros(5, np.float32)), LANES) == norm(values, LANES)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_no_bit_depends_on_the_size_of_blocks(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(3)
    weight = draw.normal(size=SIZE).astype(dtype)
    gradients = [draw.normal(size=SIZE).astype(dtype) for _ in range(2)]
    expected = run(name, weight, gradients)
    for block in (LANES, 4 * LANES, 1 << 20):
        for module in (cache_blocks, lamb, lars):
            monkeypatch.setattr(module, "CACHE_ELEMENTS", block)
        for found, array in zip(run(name, weight, gradients), expected, strict=True):
            assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_shapes_do_not_matter(name: str) -> None:
    draw = np.random.default_rng(4)
    weight, gradient = draw.normal(size=(2, 6, 5, 7)).astype(np.float32), draw.normal(size=420)
    flat = run(name, weight.reshape(-1), [gradient.astype(np.float32)])
    shaped = run(name, weight, [gradient.astype(np.float32).reshape(weight.shape)])
    assert [array.tobytes() for array in shaped] == [array.tobytes() for array in flat]


@pytest.mark.parametrize(("name", "plain"), [("lamb", "adamw"), ("lars", "momentum")])
def test_without_trust_there_is_no_ratio(name: str, plain: str) -> None:
    """LAMB is then AdamW, LARS momentum with the rate inside of it: as long as the rate stays, no other course."""
    draw = np.random.default_rng(5)
    weight, gradients = draw.normal(size=500), [draw.normal(size=500) for _ in range(4)]
    hyper = {"lr": 0.01, "weight_decay": 0.1}
    shared = {name: value for name, value in rules()[name].hyper.items() if name in rules()[plain].hyper}
    found, *_ = run(name, weight, gradients, **hyper, trust=0.0)
    np.testing.assert_allclose(found, run(plain, weight, gradients, **{**shared, **hyper})[0], rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_a_share_of_the_weights_norm_whatever_the_gradients(name: str) -> None:
    weight, gradient = np.full(1000, 2.0, np.float32), np.random.default_rng(6).normal(size=1000).astype(np.float32)
    for scale in (1e-10, 1.0, 1e10):
        moved, *_ = run(name, weight, [gradient * np.float32(scale)], lr=1.0, trust=0.25, weight_decay=0.0,
                        **({"epsilon": 1e-37} if name == "lamb" else {}))  # fmt: skip
        assert np.linalg.norm(moved - weight) == pytest.approx(0.25 * np.linalg.norm(weight), rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_zero_move_and_a_gradient_of_zero_does_no_harm(name: str) -> None:
    moved, *_ = run(name, np.zeros(8, np.float32), [np.ones(8, np.float32)], lr=0.5)
    np.testing.assert_allclose(moved, -0.5, rtol=1e-5)
    for weight in (np.zeros(8, np.float32), np.ones(8, np.float32)):
        still, *_ = run(name, weight, [np.zeros(8, np.float32)], weight_decay=0.0)
        np.testing.assert_array_equal(still, weight)


def test_the_ratio_is_one_where_there_is_none() -> None:
    assert ratio(3.0, 2.0, 0.5) == 0.75
    for weight, update, trust in ((0.0, 2.0, 0.5), (3.0, 0.0, 0.5), (3.0, 2.0, 0.0), (math.nan, 2.0, 1.0)):
        assert ratio(weight, update, trust) == 1.0


def test_float16_norms_are_not_float16s() -> None:
    """The sum of squares is 2.6e6, above what float16 has."""
    weight, gradient = np.full(1000, 51.0, np.float16), np.full(1000, 100.0, np.float16)
    moved, *_ = run("lars", weight, [gradient], lr=1.0, trust=0.5, weight_decay=0.0)
    np.testing.assert_allclose(moved, 25.5, rtol=1e-3)
