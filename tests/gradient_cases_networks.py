"""Cases of reductions to norms and extremes, of normalizations, of ConvTranspose, of Einsum and of label losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradient_case import Array, GradientCase, Reference, distinct, floats, integers
from weft_graph.ir import AttributeValue


def network_cases() -> list[GradientCase]:
    return [
        *_reduction_cases(),
        *_normalization_cases(),
        *_transposed_cases(),
        *_einsum_cases(),
        *_likelihood_cases(),
    ]


_REDUCTIONS: Mapping[str, Reference] = {
    "ReduceMax": jnp.max,
    "ReduceMin": jnp.min,
    "ReduceProd": jnp.prod,
    "ReduceL1": lambda x, **how: jnp.sum(jnp.abs(x), **how),
    "ReduceL2": lambda x, **how: jnp.sqrt(jnp.sum(x * x, **how)),
    "ReduceSumSquare": lambda x, **how: jnp.sum(x * x, **how),
    "ReduceLogSum": lambda x, **how: jnp.log(jnp.sum(x, **how)),
    "ReduceLogSumExp": jax.scipy.special.logsumexp,
}


def _reduction_cases() -> list[GradientCase]:
    cases = []
    for op_type, reduce in _REDUCTIONS.items():
        low = 0.5 if op_type == "ReduceLogSum" else -2.0
        for shape, axes, keepdims in (
            ((2, 3, 4), (1,), 1),
            ((2, 3, 4), (0, -1), 0),
            ((2, 3), None, 0),
            ((), None, 0),
            ((0, 3), (1,), 0),
        ):
            inputs = (floats(*shape, low=low),) if axes is None else (floats(*shape, low=low), integers(*axes))
            cases.append(
                GradientCase(
                    f"{shape}_{axes}_{keepdims}",
                    op_type,
                    inputs,
                    lambda x, f=reduce, axes=axes, k=keepdims: f(x, axis=axes, keepdims=bool(k)),
                    {"keepdims": keepdims},
                )
            )
        old: dict[str, AttributeValue] = {"axes": (0,), "keepdims": 0}
        first = (floats(2, 3, low=low),)
        cases.append(GradientCase("attribute", op_type, first, lambda x, f=reduce: f(x, axis=(0,)), old))
        noop: dict[str, AttributeValue] = {"noop_with_empty_axes": 1}
        cases.append(GradientCase("noop", op_type, first, lambda x, f=reduce: f(x[..., None], axis=(-1,)), noop))
    tied = np.array([[1.0, 2.0, 2.0], [0.5, 0.5, 0.5]])
    rows = integers(1)
    for op_type in ("ReduceMax", "ReduceMin"):
        f = _REDUCTIONS[op_type]
        ties = GradientCase("ties", op_type, (tied, rows), lambda x, f=f: f(x, axis=1, keepdims=True), smooth=False)
        cases.append(ties)
    pooled = np.array([[[1.0, 3.0, 3.0]]])
    cases.append(
        GradientCase("ties", "GlobalMaxPool", (pooled,), lambda x: jnp.max(x, axis=2, keepdims=True), smooth=False)
    )
    zeros = np.array([[0.0, 2.0, 0.5], [0.0, 0.0, 3.0], [1.5, -0.5, 2.0]])
    cases.append(GradientCase("zeros", "ReduceProd", (zeros, rows), lambda x: jnp.prod(x, axis=1, keepdims=True)))
    # Where a norm is 0 its gradient is 0, in the middle of all its slopes: JAX has NaN.
    still = np.array([[0.0, 0.0], [3.0, -4.0]])
    slope = np.array([[0.0, 0.0], [0.6, -0.8]])
    cases.append(
        GradientCase(
            "still", "ReduceL2", (still, rows), lambda x: jnp.sum(x * slope, axis=1, keepdims=True), smooth=False
        )
    )
    far = np.array([[-700.0, 700.0, 699.0]])
    cases.append(
        GradientCase(
            "far",
            "ReduceLogSumExp",
            (far, rows),
            lambda x: jax.scipy.special.logsumexp(x, axis=1, keepdims=True),
            smooth=False,
        )
    )
    for shape in ((2, 3, 2, 4), (2, 3, 5), (0, 3, 2, 2), (2, 3)):
        spatial = tuple(range(2, len(shape)))
        cases.append(
            GradientCase(
                f"{shape}", "GlobalMaxPool", (distinct(*shape),), lambda x, s=spatial: jnp.max(x, axis=s, keepdims=True)
            )
        )
    return cases


def _normal(x: Any, axes: Sequence[int], epsilon: float) -> Any:
    mean = jnp.mean(x, axis=tuple(axes), keepdims=True)
    return (x - mean) / jnp.sqrt(jnp.var(x, axis=tuple(axes), keepdims=True) + epsilon)


def _normalization_cases() -> list[GradientCase]:
    cases = []
    layers: Sequence[tuple[str, tuple[int, ...], int, tuple[int, ...], tuple[int, ...] | None]] = (
        ("last", (4, 5), -1, (5,), (5,)),
        ("two", (2, 3, 4), 1, (3, 4), (3, 4)),
        ("all", (2, 3), 0, (2, 3), (3,)),
        ("no_bias", (2, 3, 4), -1, (4,), None),
        ("one_scale", (3, 4), 1, (1,), ()),
        ("empty", (0, 4), -1, (4,), (4,)),
    )
    for name, shape, axis, scale, bias in layers:
        inputs: tuple[Array, ...] = (floats(*shape), floats(*scale, seed=1))
        inputs = inputs if bias is None else (*inputs, floats(*bias, seed=2))
        axes = range(axis % len(shape), len(shape))
        attributes: dict[str, AttributeValue] = {"axis": axis, "epsilon": 0.01}
        cases.append(
            GradientCase(
                name,
                "LayerNormalization",
                inputs,
                lambda x, s, b=0.0, axes=axes: _normal(x, axes, 0.01) * s + b,
                attributes,
            )
        )
    for shape, groups in (((2, 4, 3, 2), 2), ((3, 4, 2), 4), ((2, 6), 3), ((2, 3, 4), 1), ((0, 4, 3), 2)):
        inputs = (floats(*shape), floats(shape[1], seed=1), floats(shape[1], seed=2))

        def grouped(x: Any, s: Any, b: Any, shape: tuple[int, ...] = shape, groups: int = groups) -> Any:
            rows = jnp.reshape(x, (shape[0], groups, int(np.prod(shape[1:])) // groups))
            beside = (-1, *(1,) * (len(shape) - 2))
            return jnp.reshape(_normal(rows, (2,), 0.01), shape) * s.reshape(beside) + b.reshape(beside)

        cases.append(
            GradientCase(
                f"{shape}_{groups}", "GroupNormalization", inputs, grouped, {"num_groups": groups, "epsilon": 0.01}
            )
        )
        if len(shape) > 2:

            def single(x: Any, s: Any, b: Any, shape: tuple[int, ...] = shape, f: Any = grouped) -> Any:
                return f(x, s, b, shape, shape[1])

            cases.append(GradientCase(f"{shape}", "InstanceNormalization", inputs, single, {"epsilon": 0.01}))
    return [*cases, *_response_cases(), *_norm_cases()]


def _response_cases() -> list[GradientCase]:
    cases = []
    for name, shape, size in (
        ("odd", (2, 5, 2), 3),
        ("even", (1, 4, 2, 2), 2),
        ("wide", (2, 3), 9),
        ("empty", (0, 3), 3),
    ):
        attributes: dict[str, AttributeValue] = {"size": size, "alpha": 0.5, "beta": 0.75, "bias": 2.0}

        def response(x: Any, size: int = size) -> Any:
            square, channels = x * x, x.shape[1]
            bounds = [(max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1)) for c in range(channels)]
            around = jnp.stack([jnp.sum(square[:, low:high], axis=1) for low, high in bounds], axis=1)
            return x / (2.0 + 0.5 / size * around) ** 0.75

        cases.append(GradientCase(name, "LRN", (floats(*shape),), response, attributes))
    return cases


def _norm_cases() -> list[GradientCase]:
    cases = []
    for p, norm in ((1, lambda x, a: jnp.sum(jnp.abs(x), a, keepdims=True)), (2, _root_of_squares)):
        for name, shape, axis in (("rows", (3, 4), 0), ("last", (2, 3, 4), -1), ("empty", (0, 3), 1)):
            attributes: dict[str, AttributeValue] = {"axis": axis, "p": p}
            cases.append(
                GradientCase(
                    f"{name}_{p}",
                    "LpNormalization",
                    (floats(*shape),),
                    lambda x, axis=axis, norm=norm: x / norm(x, axis),
                    attributes,
                )
            )
    zero = np.array([[0.0, 0.0], [3.0, 4.0]])
    cases.append(
        GradientCase(
            "zero_norm",
            "LpNormalization",
            (zero,),
            lambda x: jnp.concatenate([0 * x[:1], x[1:] / _root_of_squares(x[1:], -1)]),
            smooth=False,
        )
    )
    return cases


def _root_of_squares(x: Any, axis: int) -> Any:
    return jnp.sqrt(jnp.sum(x * x, axis, keepdims=True))


_TRANSPOSED: Sequence[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any], Sequence[tuple[int, int]]]] = (
    # The last entry is what JAX pads the input by, once it is spread by the strides.
    ("plain", (2, 2, 3, 4), (2, 3, 3, 2), {}, ((2, 2), (1, 1))),
    ("strides", (1, 2, 3, 3), (2, 2, 3, 2), {"strides": (2, 3)}, ((2, 2), (1, 1))),
    ("pads", (1, 2, 3, 4), (2, 2, 3, 3), {"strides": (2, 2), "pads": (1, 0, 2, 1)}, ((1, 0), (2, 1))),
    ("extra", (1, 1, 3, 3), (1, 2, 2, 2), {"strides": (2, 2), "output_padding": (1, 0)}, ((1, 2), (1, 1))),
    ("dilations", (1, 1, 3, 3), (1, 1, 2, 2), {"dilations": (2, 1)}, ((2, 2), (1, 1))),
    ("groups", (2, 4, 3, 2), (4, 3, 2, 2), {"group": 2}, ((1, 1), (1, 1))),
    ("line", (2, 2, 5), (2, 3, 3), {"strides": (2,), "pads": (1, 1)}, ((1, 1),)),
    ("shape", (1, 1, 3), (1, 1, 3), {"strides": (2,), "output_shape": (6,)}, ((1, 2),)),
    ("larger_shape", (1, 1, 3), (1, 1, 3), {"strides": (2,), "output_shape": (8,)}, ((2, 3),)),
    ("same", (1, 1, 4), (1, 2, 3), {"strides": (2,), "auto_pad": "SAME_UPPER"}, ((2, 1),)),
    ("empty", (0, 2, 3), (2, 2, 2), {}, ((1, 1),)),
)


def _transposed_cases() -> list[GradientCase]:
    cases = []
    for name, data, weights, attributes, padding in _TRANSPOSED:
        group, rank = attributes.get("group", 1), len(data) - 2

        def reference(
            x: Any, w: Any, b: Any = 0.0, a: Any = attributes, p: Any = padding, group: int = group, rank: int = rank
        ) -> Any:
            # The convolution whose input is spread: kernels are turned around, and channels change places in a group.
            apart = jnp.reshape(w, (group, w.shape[0] // group, *w.shape[1:])).swapaxes(1, 2)
            turned = jnp.flip(jnp.reshape(apart, (-1, w.shape[0] // group, *w.shape[2:])), range(2, 2 + rank))
            result = jax.lax.conv_general_dilated(
                x,
                turned,
                (1,) * rank,
                p,
                lhs_dilation=a.get("strides", (1,) * rank),
                rhs_dilation=a.get("dilations"),
                feature_group_count=group,
            )
            return result + jnp.reshape(b, (-1, *(1,) * rank))

        inputs = (floats(*data), floats(*weights, seed=1), floats(weights[1] * group, seed=2))
        cases.append(GradientCase(name, "ConvTranspose", inputs, reference, attributes))
    without = _TRANSPOSED[0]
    plain = cases[0].reference
    cases.append(GradientCase("no_bias", "ConvTranspose", (floats(*without[1]), floats(*without[2])), plain))
    return cases


_EQUATIONS: Sequence[tuple[str, Sequence[tuple[int, ...]]]] = (
    ("ij->ji", ((2, 3),)),
    ("ij->i", ((2, 3),)),
    ("ij->", ((2, 3),)),
    ("i,i", ((3,), (3,))),
    ("ij,jk->ik", ((2, 3), (3, 4))),
    ("bij,bjk->bik", ((2, 2, 3), (2, 3, 2))),
    ("bhqd,bhkd->bhqk", ((2, 1, 3, 2), (2, 1, 4, 2))),
    ("i,j->ij", ((2,), (3,))),
    ("ij,kl->i", ((2, 3), (2, 2))),
    ("ij,jk,kl->il", ((2, 3), (3, 2), (2, 2))),
    ("...ij,...jk->...ik", ((2, 1, 2, 3), (4, 3, 2))),
    ("...i,...i->...", ((2, 1, 3), (4, 3))),
    ("->", ((),)),
    (",i->i", ((), (3,))),
    ("ij,jk->ik", ((0, 3), (3, 2))),
    ("ij,jk->ik", ((2, 0), (0, 2))),
    ("ii->i", ((3, 3),)),
    ("ii", ((3, 3),)),
    ("iij,j->ij", ((2, 2, 3), (3,))),
    ("iji->j", ((2, 3, 2),)),
    ("...ii->...i", ((2, 3, 3),)),
    ("...ii,...i->...", ((1, 3, 3), (2, 3))),
    ("iikk,jj->ij", ((2, 2, 3, 3), (2, 2))),
    ("iii,i->", ((2, 2, 2), (2,))),
    ("...ij,jj->i...", ((2, 3, 2), (2, 2))),
)


def _einsum_cases() -> list[GradientCase]:
    cases = [
        GradientCase(
            f"{equation}_{place}",
            "Einsum",
            tuple(floats(*shape, seed=number) for number, shape in enumerate(shapes)),
            lambda *xs, e=equation: jnp.einsum(e, *xs),
            {"equation": equation},
        )
        for place, (equation, shapes) in enumerate(_EQUATIONS)
    ]
    square = floats(3, 3, seed=4)
    diagonal: Mapping[str, AttributeValue] = {"equation": "ii,ij->j"}
    inputs = (square, floats(3, 2))
    cases.append(
        GradientCase(
            "diagonal_fixed",
            "Einsum",
            inputs,
            lambda x: jnp.einsum("ii,ij->j", square, x),
            diagonal,
            fixed=frozenset({0}),
        )
    )
    return cases


def _likelihood_cases() -> list[GradientCase]:
    labels, images = integers(2, 0, 1, 2, 0), integers(0, 2, 1, 1, 0, 2, 2, 1).reshape(2, 4)
    weights = floats(3, low=0.5, seed=3)
    cases = []
    for reduction in ("mean", "sum", "none"):
        for name, scores, classes, weight, ignored in (
            ("plain", floats(5, 3), labels, None, None),
            ("ignored", floats(5, 3), np.where(labels == 1, -100, labels), None, -100),
            ("weighed", floats(2, 3, 4), images, weights, 1),
        ):
            cases.append(_likelihood(f"{name}_{reduction}", scores, classes, reduction, weight, ignored))
    cases.append(_likelihood("int32", floats(5, 3), labels.astype(np.int32), "mean", None, None))
    cases.append(_likelihood("empty", floats(0, 3), integers(), "sum", None, None))
    return cases


def _likelihood(
    name: str, scores: Array, labels: Array, reduction: str, weights: Array | None, ignored: int | None
) -> GradientCase:
    def reference(x: Any) -> Any:
        counted = jnp.ones(labels.shape) if ignored is None else jnp.asarray(labels != ignored, dtype=jnp.float64)
        safe = jnp.where(counted > 0, labels, 0)
        weight = counted if weights is None else counted * jnp.asarray(weights)[safe]
        losses = -weight * jnp.take_along_axis(x, jnp.expand_dims(safe, 1), axis=1)[:, 0]
        return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / weight.sum()}[reduction]

    attributes: dict[str, AttributeValue] = {"reduction": reduction}
    if ignored is not None:
        attributes["ignore_index"] = ignored
    inputs = (scores, labels) if weights is None else (scores, labels, weights)
    return GradientCase(name, "NegativeLogLikelihoodLoss", inputs, reference, attributes, fixed=frozenset({2}))
