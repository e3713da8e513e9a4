"""Cases of operators of element types, of quantization, of random numbers, and of what stands beside them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradient_case import GradientCase, floats, integers


def cast_like_cases() -> list[GradientCase]:
    """To its own type: whatever the other one is, `test_casting` tries it."""
    return [GradientCase("same", "CastLike", (floats(2, 3), floats(4)), lambda x: x, fixed=frozenset({1}))]


def activation_cases() -> list[GradientCase]:
    cases = []
    for alpha in (1.0, 1.75):
        swish = _swish(alpha)
        attributes = {"alpha": alpha}
        for shape in ((2, 3), (), (0, 2)):
            named = f"{alpha}, {list(shape)}"
            cases.append(GradientCase(named, "Swish", (floats(*shape),), swish, attributes))
            gate, value = floats(*shape), floats(*shape, seed=1)
            cases.append(GradientCase(named, "SwiGLU", (gate, value), lambda a, b, f=swish: f(a) * b, attributes))
    for limit, bias in ((0.5, 0.0), (1.0, 0.25), (1.0, -0.25)):
        cases.append(
            GradientCase(
                f"{limit}, {bias}",
                "Shrink",
                (np.array([-2.0, -1.5, -0.75, 0.0, 0.25, 0.75, 1.5, 2.0]),),
                lambda x, limit=limit, bias=bias: jnp.where(x < -limit, x + bias, jnp.where(x > limit, x - bias, 0.0)),
                {"lambd": limit, "bias": bias},
            )
        )
    cases.append(GradientCase("rows", "Hardmax", (floats(3, 4),), _hardmax, flat=True))
    return cases


def _swish(alpha: float) -> Any:
    return lambda x: x * jax.nn.sigmoid(alpha * x)


def _hardmax(x: Any) -> Any:
    return jax.nn.one_hot(jnp.argmax(x, axis=-1), x.shape[-1])


def product_cases() -> list[GradientCase]:
    """With zeros: one, two in a row, and none; from either end."""
    data = floats(3, 4)
    zeros = data.copy()
    zeros[0, 1] = zeros[1, 0] = zeros[1, 2] = 0.0
    cases = []
    for exclusive in (0, 1):
        for reverse in (0, 1):
            attributes = {"exclusive": exclusive, "reverse": reverse}
            for name, array, axis in (("plain", data, 1), ("zeros", zeros, -1), ("columns", zeros, 0)):
                cases.append(
                    GradientCase(
                        f"{name}, {exclusive}, {reverse}",
                        "CumProd",
                        (array, integers(axis)),
                        lambda x, axis=axis, e=exclusive, r=reverse: _running_product(x, axis, e, r),
                        attributes,
                    )
                )
    cases.append(GradientCase("one", "CumProd", (floats(2, 1), integers(1)), lambda x: x))
    cases.append(GradientCase("empty", "CumProd", (floats(2, 0), integers(1)), lambda x: x))
    return cases


def _running_product(x: Any, axis: int, exclusive: int, reverse: int) -> Any:
    """By products written out, since JAX's own gradient of cumprod divides by zero."""
    x = jnp.moveaxis(x, axis, 0)
    rows = list(x[::-1] if reverse else x)
    made = []
    for count in range(len(rows)):
        product = jnp.ones_like(rows[0])
        for row in rows[: count + 1 - exclusive]:
            product = product * row
        made.append(product)
    return jnp.moveaxis(jnp.stack(made[::-1] if reverse else made), 0, axis)


def determinant_cases() -> list[GradientCase]:
    singular = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.5, -1.0, 2.0]])
    return [
        GradientCase("one", "Det", (floats(1, 1),), _determinant),
        GradientCase("two", "Det", (floats(2, 2),), _determinant),
        GradientCase("stack", "Det", (floats(2, 3, 3),), _determinant),
        GradientCase("singular", "Det", (singular,), _determinant),
        GradientCase("zeros", "Det", (np.zeros((2, 2)),), _determinant),
    ]


def _determinant(x: Any) -> Any:
    """By its first row, a polynomial, whose gradient singular matrices have too."""
    if x.shape[-1] == 1:
        return x[..., 0, 0]
    minors = (jnp.delete(x[..., 1:, :], column, axis=-1) for column in range(x.shape[-1]))
    return sum((-1) ** column * x[..., 0, column] * _determinant(minor) for column, minor in enumerate(minors))


def quantization_cases() -> list[GradientCase]:
    """The scale of numbers that are stored in a byte."""
    data = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    zero = np.array([1, -2, 0], np.int8)
    return [
        GradientCase(name, "DequantizeLinear", inputs, reference, attributes)
        for name, inputs, reference, attributes in (
            ("tensor", (data, floats()), lambda s: data * s, {}),
            ("axis", (data, floats(3), zero), lambda s: (data - zero[:, None]) * s[:, None], {"axis": 0}),
            ("one", (data, floats(1)), lambda s: data * s, {}),
        )
    ]


def drawn_cases() -> list[GradientCase]:
    """Nothing flows through a draw, nor through a matrix that has its shape alone of the input."""
    shape = (3, 2)
    return [
        GradientCase("any", op_type, (floats(*shape, low=0.1, high=0.9),), jnp.zeros_like, flat=True, smooth=False)
        for op_type in ("Bernoulli", "RandomUniformLike", "RandomNormalLike", "EyeLike")
    ]
