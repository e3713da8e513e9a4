"""The built-in rules against those of JAX and of ONNX's reference, where these have the same rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from weft_kernels.rules.lookup import rules

Array = np.ndarray[Any, np.dtype[Any]]
STEPS = 6
PREVIEW = "ai.onnx.preview.training"


def drawn() -> tuple[Array, list[Array]]:
    draw = np.random.default_rng(3)
    return draw.normal(size=50).astype(np.float32), [draw.normal(size=50).astype(np.float32) for _ in range(STEPS)]


def ours(name: str, hyper: dict[str, float]) -> Array:
    rule = rules()[name]
    weight, gradients = drawn()
    state = {each: np.zeros_like(weight) for each in rule.state}
    for step, gradient in enumerate(gradients, start=1):
        rule.apply(weight, gradient, state, step, {**rule.hyper, **hyper})
    return weight


@pytest.mark.parametrize(
    ("name", "theirs", "hyper"),
    [
        ("sgd", lambda jax: jax.sgd(0.1), {"lr": 0.1}),
        ("momentum", lambda jax: jax.momentum(0.1, 0.9), {"lr": 0.1, "momentum": 0.9}),
        ("nesterov", lambda jax: jax.nesterov(0.1, 0.9), {"lr": 0.1, "momentum": 0.9}),
        ("adam", lambda jax: jax.adam(0.1, 0.9, 0.99, 1e-3), {"lr": 0.1, "beta2": 0.99, "epsilon": 1e-3}),
        # JAX's Adagrad has momentum, here none, and no epsilon: where the sum is 0 nothing moves there.
        ("adagrad", lambda jax: jax.adagrad(0.1, 0.0), {"lr": 0.1, "epsilon": 1e-30}),
        # JAX has epsilon inside of the root, where a very small one is nothing.
        ("rmsprop", lambda jax: jax.rmsprop(0.1, 0.9, 1e-30), {"lr": 0.1, "decay": 0.9, "epsilon": 1e-30}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_jax_has_the_same_rule(name: str, theirs: Any, hyper: dict[str, float]) -> None:
    optimizers = pytest.importorskip("jax.example_libraries.optimizers")
    first, update, value = theirs(optimizers)
    weight, gradients = drawn()
    state = first(weight)
    for step, gradient in enumerate(gradients):
        state = update(step, gradient, state)
    np.testing.assert_allclose(ours(name, hyper), np.asarray(value(state)), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "op_type", "attributes", "hyper"),
    [
        ("momentum", "Momentum", {"alpha": 0.9, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.01},
         {"momentum": 0.9, "weight_decay": 0.01}),
        ("nesterov", "Momentum", {"alpha": 0.9, "beta": 1.0, "mode": "nesterov", "norm_coefficient": 0.01},
         {"momentum": 0.9, "weight_decay": 0.01}),
        ("adagrad", "Adagrad", {"epsilon": 1e-3, "norm_coefficient": 0.01, "decay_factor": 0.0},
         {"epsilon": 1e-3, "weight_decay": 0.01}),
        # ONNX's Adam adds epsilon before the correction of the first steps: the same where it is small.
        ("adam", "Adam", {"alpha": 0.9, "beta": 0.99, "epsilon": 1e-12}, {"beta2": 0.99, "epsilon": 1e-12}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_onnx_has_the_same_rule(name: str, op_type: str, attributes: dict[str, Any], hyper: dict[str, float]) -> None:
    kept = [f"s{number}" for number in range(len(rules()[name].state))]
    fed = ["r", "t", "w", "g", *kept]
    node = helper.make_node(op_type, fed, [f"{each}_next" for each in ("w", *kept)], domain=PREVIEW, **attributes)
    reference = ReferenceEvaluator(node)
    weight, gradients = drawn()
    arrays = [weight, *(np.zeros_like(weight) for _ in kept)]
    for step, gradient in enumerate(gradients):
        # ONNX counts the updates that were made before, from 0; its Adam's correction counts this one too, from 1.
        count = np.array(step + 1 if op_type == "Adam" else step)
        feeds = dict(zip(fed, [np.float32(0.1), count, arrays[0], gradient, *arrays[1:]], strict=True))
        arrays = reference.run(None, feeds)
    np.testing.assert_allclose(ours(name, {"lr": 0.1, **hyper}), arrays[0], rtol=2e-5, atol=2e-6)
