"""Cases of convolution, pooling, normalization and dropout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradient_case import GradientCase, Reference, distinct, floats
from weft_graph.ir import AttributeValue

_CONVOLUTIONS: Sequence[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = (
    ("plain", (2, 2, 5, 4), (3, 2, 3, 2), {}),
    ("strides_pads", (1, 2, 5, 5), (2, 2, 3, 3), {"strides": (2, 2), "pads": (1, 0, 2, 1)}),
    ("dilations", (1, 1, 6, 6), (2, 1, 2, 3), {"dilations": (2, 2), "pads": (1, 1, 1, 1)}),
    ("groups", (2, 4, 4, 4), (6, 2, 2, 2), {"group": 2}),
    ("depthwise", (1, 3, 4, 4), (3, 1, 3, 3), {"group": 3, "pads": (1, 1, 1, 1)}),
    ("one_by_one", (2, 3, 3, 2), (2, 3, 1, 1), {}),
    ("stride_over_kernel", (1, 1, 7, 7), (1, 1, 2, 2), {"strides": (3, 3)}),
    ("line", (2, 2, 7), (3, 2, 3), {"strides": (2,), "pads": (1, 1)}),
    ("volume", (1, 1, 3, 3, 3), (1, 1, 2, 2, 2), {}),
    ("empty", (0, 2, 4, 4), (3, 2, 3, 3), {}),
    ("same_upper", (1, 1, 5, 6), (1, 1, 2, 3), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    ("valid", (1, 1, 5, 5), (1, 1, 3, 3), {"auto_pad": "VALID"}),
)


def _padding(attributes: Mapping[str, Any], rank: int) -> Any:
    """JAX's words for ONNX's pads."""
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return {"SAME_UPPER": "SAME", "SAME_LOWER": "SAME_LOWER", "VALID": "VALID"}[attributes["auto_pad"]]
    pads = attributes.get("pads", (0,) * 2 * rank)
    return tuple(zip(pads[:rank], pads[rank:], strict=True))


def convolution_cases() -> list[GradientCase]:
    cases = []
    for name, data, weights, attributes in _CONVOLUTIONS:
        rank = len(data) - 2

        def reference(x: Any, w: Any, b: Any = 0.0, a: dict[str, Any] = attributes, rank: int = rank) -> Any:
            result = jax.lax.conv_general_dilated(
                x,
                w,
                a.get("strides", (1,) * rank),
                _padding(a, rank),
                rhs_dilation=a.get("dilations"),
                feature_group_count=a.get("group", 1),
            )
            return result + jnp.reshape(b, (-1, *(1,) * rank))

        inputs = (floats(*data), floats(*weights, seed=1))
        cases.append(GradientCase(name, "Conv", (*inputs, floats(weights[0], seed=2)), reference, attributes))
        if name in {"plain", "groups"}:
            cases.append(GradientCase(f"{name}_no_bias", "Conv", inputs, reference, attributes))
    return cases


_POOLS: Sequence[tuple[str, tuple[int, ...], dict[str, Any], tuple[tuple[int, int], ...]]] = (
    # The last entry is what the windows reach beyond the input, written out because JAX has no ceil_mode.
    ("plain", (2, 2, 4, 4), {"kernel_shape": (2, 2), "strides": (2, 2)}, ((0, 0), (0, 0))),
    ("overlap", (1, 2, 5, 4), {"kernel_shape": (3, 2)}, ((0, 0), (0, 0))),
    ("pads", (1, 1, 5, 5), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}, ((1, 1), (1, 1))),
    ("uneven_pads", (1, 1, 4, 5), {"kernel_shape": (3, 3), "pads": (2, 0, 1, 1)}, ((2, 1), (0, 1))),
    ("ceil", (1, 1, 6, 5), {"kernel_shape": (3, 2), "strides": (2, 2), "ceil_mode": 1}, ((0, 1), (0, 1))),
    ("dilations", (1, 1, 6, 6), {"kernel_shape": (2, 2), "dilations": (2, 3)}, ((0, 0), (0, 0))),
    ("same", (1, 1, 5, 5), {"kernel_shape": (2, 2), "auto_pad": "SAME_LOWER"}, ((1, 0), (1, 0))),
    ("line", (2, 2, 6), {"kernel_shape": (3,), "strides": (2,)}, ((0, 0),)),
    ("empty", (0, 2, 4, 4), {"kernel_shape": (2, 2)}, ((0, 0), (0, 0))),
)


def _window(
    x: Any, start: float, combine: Any, attributes: Mapping[str, Any], reach: tuple[tuple[int, int], ...]
) -> Any:
    rank = len(reach)
    return jax.lax.reduce_window(
        x,
        start,
        combine,
        (1, 1, *attributes["kernel_shape"]),
        (1, 1, *attributes.get("strides", (1,) * rank)),
        ((0, 0), (0, 0), *reach),
        window_dilation=(1, 1, *attributes.get("dilations", (1,) * rank)),
    )


def _largest_at_places(x: Any, attributes: Mapping[str, Any]) -> Any:
    """JAX has no derivative of dilated windows; these have stride 1, so each place in the kernel is one slice."""
    (rows, columns), (down, across) = attributes["kernel_shape"], attributes["dilations"]
    high, wide = x.shape[2] - (rows - 1) * down, x.shape[3] - (columns - 1) * across
    parts = [
        x[:, :, i * down : i * down + high, j * across : j * across + wide] for i in range(rows) for j in range(columns)
    ]
    return jnp.max(jnp.stack(parts), axis=0)


def pool_cases() -> list[GradientCase]:
    cases = []
    for name, shape, attributes, reach in _POOLS:

        def largest(x: Any, a: dict[str, Any] = attributes, reach: Any = reach) -> Any:
            return _largest_at_places(x, a) if "dilations" in a else _window(x, -jnp.inf, jax.lax.max, a, reach)

        def mean(x: Any, a: dict[str, Any] = attributes, reach: Any = reach) -> Any:
            return _window(x, 0.0, jax.lax.add, a, reach) / _window(jnp.ones(x.shape), 0.0, jax.lax.add, a, reach)

        cases.append(GradientCase(name, "MaxPool", (distinct(*shape),), largest, attributes))
        cases.append(GradientCase(name, "AveragePool", (floats(*shape),), mean, attributes))

    ties: dict[str, AttributeValue] = {"kernel_shape": (2, 2), "pads": (1, 1, 1, 1)}

    def first_of_equals(x: Any) -> Any:
        return _window(x, -jnp.inf, jax.lax.max, ties, ((1, 1), (1, 1)))

    tied = np.round(floats(1, 1, 4, 4))
    cases.append(GradientCase("ties", "MaxPool", (tied,), first_of_equals, ties, smooth=False))

    padded: dict[str, AttributeValue] = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1}

    def mean_of_all(x: Any) -> Any:
        return _window(x, 0.0, jax.lax.add, padded, ((1, 1), (1, 1))) / 9

    cases.append(GradientCase("count_pad", "AveragePool", (floats(1, 2, 4, 4),), mean_of_all, padded))
    for shape in ((2, 3, 2, 4), (2, 3, 5), (0, 3, 2, 2), (2, 3)):
        spatial = tuple(range(2, len(shape)))
        cases.append(
            GradientCase(
                f"{shape}",
                "GlobalAveragePool",
                (floats(*shape),),
                lambda x, axes=spatial: jnp.mean(x, axis=axes, keepdims=True),
            )
        )
    return cases


def normalization_cases() -> list[GradientCase]:
    cases = []
    for shape in ((4, 3, 2, 2), (5, 3), (3, 2, 4)):
        channels = shape[1]
        statistics = (floats(channels, seed=3), floats(channels, low=0.5, seed=4))
        inputs = (floats(*shape), floats(channels, seed=1), floats(channels, seed=2), *statistics)
        axes = (0, *range(2, len(shape)))
        wide = (1, channels, *(1,) * (len(shape) - 2))

        def normal(x: Any, s: Any, b: Any, m: Any, v: Any, wide: tuple[int, ...] = wide) -> Any:
            m, v, s, b = (jnp.reshape(number, wide) for number in (m, v, s, b))
            return (x - m) / jnp.sqrt(v + 0.01) * s + b

        def trained(x: Any, s: Any, b: Any, axes: tuple[int, ...] = axes, normal: Reference = normal) -> Any:
            return normal(x, s, b, jnp.mean(x, axes), jnp.var(x, axes))

        attributes: dict[str, AttributeValue] = {"epsilon": 0.01, "training_mode": 1}
        cases.append(
            GradientCase(f"train{shape}", "BatchNormalization", inputs, trained, attributes, fixed=frozenset({3, 4}))
        )
        cases.append(GradientCase(f"infer{shape}", "BatchNormalization", inputs, normal, {"epsilon": 0.01}))
    return cases


def dropout_cases() -> list[GradientCase]:
    """The identity where nothing is dropped; the mask itself is proved in the tests of the kernel."""
    on, off = np.array(True), np.array(False)
    quarter, one = np.array(0.25), frozenset({1})
    return [
        GradientCase("plain", "Dropout", (floats(2, 3),), lambda x: x),
        GradientCase("evaluation", "Dropout", (floats(2, 3), quarter, off), lambda x: x, fixed=one),
        GradientCase("ratio_0", "Dropout", (floats(2, 3), np.array(0.0), on), lambda x: x, fixed=one),
        GradientCase("empty", "Dropout", (floats(0, 3), quarter, on), lambda x: x, fixed=one),
    ]
