"""Cases of activation functions, of functions of one number, and of what takes any number of operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradient_case import GradientCase, Reference, floats
from weft_graph.ir import AttributeValue

_SHAPES: Sequence[tuple[int, ...]] = ((2, 3), (), (0, 2))

_ALPHA, _GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
"""Selu's numbers as ONNX has them: rounded to float32."""

_FUNCTIONS: Mapping[str, tuple[Reference, float, float]] = {
    "Abs": (jnp.abs, -2.0, 2.0),
    "Reciprocal": (jnp.reciprocal, 0.5, 2.0),
    "Sin": (jnp.sin, -4.0, 4.0),
    "Cos": (jnp.cos, -4.0, 4.0),
    "Tan": (jnp.tan, -1.25, 1.25),
    "Asin": (jnp.arcsin, -0.75, 0.75),
    "Acos": (jnp.arccos, -0.75, 0.75),
    "Atan": (jnp.arctan, -2.0, 2.0),
    "Sinh": (jnp.sinh, -2.0, 2.0),
    "Cosh": (jnp.cosh, -2.0, 2.0),
    "Asinh": (jnp.arcsinh, -2.0, 2.0),
    "Acosh": (jnp.arccosh, 1.25, 3.0),
    "Atanh": (jnp.arctanh, -0.75, 0.75),
    "Erf": (jax.scipy.special.erf, -3.0, 3.0),
    "Softplus": (jax.nn.softplus, -4.0, 4.0),
    "Softsign": (jax.nn.soft_sign, -4.0, 4.0),
    "HardSwish": (jax.nn.hard_swish, -4.0, 4.0),
    "Mish": (jax.nn.mish, -4.0, 4.0),
}
"""The function in JAX, and the ends of what it is given."""

_WITH_ATTRIBUTES: Sequence[tuple[str, str, Reference, Mapping[str, AttributeValue]]] = (
    ("default", "LeakyRelu", lambda x: jax.nn.leaky_relu(x, 0.01), {}),
    ("alpha", "LeakyRelu", lambda x: jax.nn.leaky_relu(x, 0.25), {"alpha": 0.25}),
    ("default", "Elu", lambda x: jax.nn.elu(x, 1.0), {}),
    ("alpha", "Elu", lambda x: jax.nn.elu(x, 0.5), {"alpha": 0.5}),
    ("default", "Celu", lambda x: jax.nn.celu(x, 1.0), {}),
    ("alpha", "Celu", lambda x: jax.nn.celu(x, 2.0), {"alpha": 2.0}),
    ("default", "Selu", lambda x: _GAMMA * jax.nn.elu(x, _ALPHA), {}),
    ("numbers", "Selu", lambda x: 2.0 * jax.nn.elu(x, 0.5), {"alpha": 0.5, "gamma": 2.0}),
    ("default", "ThresholdedRelu", lambda x: jnp.where(x > 1.0, x, 0.0), {}),
    ("alpha", "ThresholdedRelu", lambda x: jnp.where(x > -0.5, x, 0.0), {"alpha": -0.5}),
    ("default", "HardSigmoid", lambda x: jnp.clip(0.2 * x + 0.5, 0.0, 1.0), {}),
    ("numbers", "HardSigmoid", lambda x: jnp.clip(0.5 * x + 0.25, 0.0, 1.0), {"alpha": 0.5, "beta": 0.25}),
    ("exact", "Gelu", lambda x: jax.nn.gelu(x, approximate=False), {}),
    ("tanh", "Gelu", lambda x: jax.nn.gelu(x, approximate=True), {"approximate": "tanh"}),
)

_FAR: Mapping[str, Reference] = {
    "Softplus": jax.nn.softplus,
    "Mish": jax.nn.mish,
    "Gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "Elu": jax.nn.elu,
    "Selu": lambda x: _GAMMA * jax.nn.elu(x, _ALPHA),
    "Celu": jax.nn.celu,
    "HardSwish": jax.nn.hard_swish,
    "Erf": jax.scipy.special.erf,
    "Softsign": jax.nn.soft_sign,
}
"""What must overflow nowhere, forwards or backwards."""


def activation_cases() -> list[GradientCase]:
    cases = [
        GradientCase(f"shape{list(shape)}", op_type, (floats(*shape, low=low, high=high),), reference)
        for op_type, (reference, low, high) in _FUNCTIONS.items()
        for shape in _SHAPES
    ]
    cases += [
        GradientCase(
            f"{name}_shape{list(shape)}", op_type, (floats(*shape, low=-4.0, high=4.0),), reference, attributes
        )
        for name, op_type, reference, attributes in _WITH_ATTRIBUTES
        for shape in _SHAPES
    ]
    far = np.array([-200.0, 200.0, -20.0, 20.0])
    cases += [GradientCase("far", op_type, (far,), reference, smooth=False) for op_type, reference in _FAR.items()]
    # Abs has no slope at 0, halfway between -1 and 1: JAX would give 1.
    cases.append(
        GradientCase("at_zero", "Abs", (np.array([0.0, -1.0]),), lambda x: x * jnp.array([0.0, -1.0]), smooth=False)
    )
    for name, slope in (("same", (2, 3)), ("channels", (3,)), ("one", (1,)), ("zero_dim", ())):
        inputs = (floats(2, 3), floats(*slope, seed=1))
        cases.append(GradientCase(name, "PRelu", inputs, lambda x, s: jnp.where(x < 0, x * s, x)))
    cases.append(GradientCase("empty", "PRelu", (floats(0, 3), floats(3)), lambda x, s: jnp.where(x < 0, x * s, x)))
    for op_type, step in (("Sign", jnp.sign), ("Floor", jnp.floor), ("Ceil", jnp.ceil), ("Round", jnp.round)):
        for shape in _SHAPES:
            cases.append(GradientCase(f"shape{list(shape)}", op_type, (floats(*shape),), step, flat=True))
    return cases


def several_cases() -> list[GradientCase]:
    """Max, Min, Sum and Mean of one to three operands, Clip and Mod."""
    references: Mapping[str, Reference] = {
        "Max": lambda *xs: jnp.max(jnp.stack(jnp.broadcast_arrays(*xs)), axis=0),
        "Min": lambda *xs: jnp.min(jnp.stack(jnp.broadcast_arrays(*xs)), axis=0),
        "Sum": lambda *xs: jnp.sum(jnp.stack(jnp.broadcast_arrays(*xs)), axis=0),
        "Mean": lambda *xs: jnp.mean(jnp.stack(jnp.broadcast_arrays(*xs)), axis=0),
    }
    operands: Mapping[str, Sequence[tuple[int, ...]]] = {
        "one": ((2, 3),),
        "same": ((2, 3), (2, 3)),
        "both": ((2, 1, 3), (4, 1)),
        "three": ((2, 3), (3,), ()),
        "zero_dim": ((), ()),
        "empty": ((0, 3), (1, 1)),
    }
    cases = [
        GradientCase(name, op_type, tuple(floats(*shape, seed=place) for place, shape in enumerate(shapes)), reference)
        for op_type, reference in references.items()
        for name, shapes in operands.items()
    ]
    tied = (np.array([1.0, 2.0, 2.0]), np.array([1.0, 2.0, -1.0]), np.array([1.0, 0.0, 2.0]))
    for op_type in ("Max", "Min"):
        cases.append(GradientCase("ties", op_type, tied, references[op_type], smooth=False))
    fixed = (floats(2, 3), floats(3, seed=1))
    cases.append(
        GradientCase("one_fixed", "Max", fixed, lambda x: jnp.maximum(x, fixed[1]), fixed=frozenset({1}), smooth=False)
    )
    return [*cases, *_clip_cases(), *_mod_cases()]


def _clip_cases() -> list[GradientCase]:
    data, low, high = floats(3, 4), np.array(-0.5), np.array(0.75)

    def clipped(x: Any, lowest: Any, highest: Any) -> Any:
        return jnp.minimum(jnp.maximum(x, lowest), highest)

    on_bound = np.array([-0.5, 0.75, 0.0, 2.0])
    bounds: Mapping[str, AttributeValue] = {"min": -0.5, "max": 0.75}
    return [
        GradientCase("both", "Clip", (data, low, high), clipped),
        GradientCase("crossed", "Clip", (data, high, low), clipped),
        GradientCase("min", "Clip", (data, low), jnp.maximum),
        GradientCase("max", "Clip", (data, None, high), jnp.minimum),
        GradientCase("neither", "Clip", (data,), lambda x: x),
        GradientCase("attributes", "Clip", (data,), lambda x: clipped(x, -0.5, 0.75), bounds),
        GradientCase("zero_dim", "Clip", (np.array(1.5), low, high), clipped),
        GradientCase("empty", "Clip", (floats(0, 4), low, high), clipped),
        # On a bound the whole gradient is the data's: JAX would halve it.
        GradientCase(
            "on_bound", "Clip", (on_bound,), lambda x: jnp.where(np.array([1, 1, 1, 0]), x, 0.75), bounds, smooth=False
        ),
    ]


def _mod_cases() -> list[GradientCase]:
    modes: Mapping[str, tuple[Reference, dict[str, AttributeValue]]] = {
        "fmod": (jnp.fmod, {"fmod": 1}),
        "floored": (jnp.mod, {}),
    }
    return [
        GradientCase(
            f"{mode}_{name}", "Mod", (floats(*left, low=-4.0, high=4.0), floats(*right, seed=5)), f, attributes
        )
        for mode, (f, attributes) in modes.items()
        for name, left, right in (("same", (3, 3), (3, 3)), ("rows", (4, 3), (3,)), ("empty", (0, 3), (3,)))
    ]
