"""Cases of the operators that take tensors apart, widen them, and add elements up as they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradient_case import Array, GradientCase, floats, integers
from weft_graph.ir import AttributeValue


def arranging_cases() -> list[GradientCase]:
    return [*_slice_cases(), *_split_cases(), *_pad_cases(), *_widening_cases(), *_other_cases()]


_SLICES: Sequence[tuple[str, tuple[int, ...], Sequence[Sequence[int]], tuple[slice, ...]]] = (
    ("plain", (4, 3), ((1, 0), (3, 2)), (slice(1, 3), slice(0, 2))),
    ("axis", (4, 3), ((1,), (1000,), (-1,)), (slice(None), slice(1, None))),
    ("steps", (5, 4), ((0, 3), (5, -9), (0, 1), (2, -1)), (slice(0, 5, 2), slice(None, None, -1))),
    ("nothing", (4, 3), ((3,), (1,), (0,)), (slice(3, 1),)),
    ("empty", (0, 3), ((0,), (2,), (1,)), (slice(None), slice(0, 2))),
    ("from_before_the_front", (4, 3), ((-9, -4), (-20, -9), (0, 1), (-1, -2)), (slice(0, 1), slice(0, 1))),
    ("empty_backwards", (0, 3), ((-5, -1), (-9, -9), (0, 1), (-1, -1)), (slice(None), slice(None, None, -1))),
)


def _slice_cases() -> list[GradientCase]:
    cases = [
        GradientCase(
            name, "Slice", (floats(*shape), *(integers(*numbers) for numbers in lists)), lambda x, p=parts: x[p]
        )
        for name, shape, lists, parts in _SLICES
    ]
    old: Mapping[str, AttributeValue] = {"starts": (1,), "ends": (3,), "axes": (1,)}
    cases.append(GradientCase("attributes", "Slice", (floats(2, 4),), lambda x: x[:, 1:3], old))
    return cases


def _split_cases() -> list[GradientCase]:
    def split(*ends: int, axis: int = 0) -> Any:
        return lambda x: tuple(jnp.split(x, ends, axis=axis))

    return [
        GradientCase("equal", "Split", (floats(4, 3),), split(2), {"num_outputs": 2}, outputs=2),
        GradientCase("uneven", "Split", (floats(2, 5),), split(2, 4, axis=1), {"axis": -1}, outputs=3),
        GradientCase("sizes", "Split", (floats(5, 2), integers(1, 0, 4)), split(1, 1), outputs=3),
        GradientCase("attribute", "Split", (floats(5),), split(2), {"split": (2, 3)}, outputs=2),
        GradientCase("one", "Split", (floats(2, 3),), lambda x: (x,), outputs=1),
        GradientCase("empty", "Split", (floats(0, 4),), split(2, axis=1), {"axis": 1}, outputs=2),
    ]


_PADS: Sequence[tuple[str, tuple[int, ...], Sequence[tuple[int, int]]]] = (
    ("plain", (3, 4), ((1, 0), (2, 1))),
    ("crop", (4, 5), ((-1, 2), (1, -2))),
    ("line", (3,), ((2, 2),)),
    ("nothing", (2, 3), ((0, 0), (0, 0))),
)


def _pad_cases() -> list[GradientCase]:
    cases = []
    for mode in ("constant", "edge", "reflect", "wrap"):
        for name, shape, sides in _PADS:
            pads = integers(*(begin for begin, _ in sides), *(end for _, end in sides))
            inputs: tuple[Array, ...] = (floats(*shape), pads)
            cases.append(GradientCase(f"{mode}_{name}", "Pad", inputs, _padded(sides, mode), {"mode": mode}))
    value = (floats(2, 2), integers(1, -1, 0, 2), np.array(1.5))
    cases.append(GradientCase("value", "Pad", value, _padded(((1, 0), (-1, 2)), "constant")))
    cases.append(
        GradientCase("value_fixed", "Pad", value, _padded(((1, 0), (-1, 2)), "constant"), fixed=frozenset({2}))
    )
    axes = (floats(2, 3), integers(1, 2), None, integers(-1))
    cases.append(GradientCase("axes", "Pad", axes, _padded(((0, 0), (1, 2)), "constant")))
    old: Mapping[str, AttributeValue] = {"pads": (1, 0, 0, 1), "value": 0.5}
    cases.append(GradientCase("attributes", "Pad", (floats(2, 3),), _padded(((1, 0), (0, 1)), "constant"), old))
    empty = (floats(0, 2), integers(1, 0, 0, 1))
    cases.append(GradientCase("empty", "Pad", empty, _padded(((1, 0), (0, 1)), "constant")))
    return cases


def _padded(sides: Sequence[tuple[int, int]], mode: str) -> Any:
    def reference(x: Any, value: Any = 0.0) -> Any:
        kept = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(sides, x.shape, strict=True))]
        wide = [(max(a, 0), max(b, 0)) for a, b in sides]
        if mode != "constant":
            return jnp.pad(kept, wide, mode=mode)
        return jnp.pad(kept, wide, constant_values=value)

    return reference


def _widening_cases() -> list[GradientCase]:
    expansions: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "rows": ((3, 1), (3, 4)),
        "leading": ((3,), (2, 1, 3)),
        "smaller": ((2, 3), (1, 3)),
        "zero_dim": ((), (2, 2)),
        "to_empty": ((1, 3), (0, 3)),
    }
    tiles: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "both": ((2, 3), (2, 2)),
        "one": ((3,), (1,)),
        "none": ((2, 3), (0, 2)),
        "zero_dim": ((), ()),
        "empty": ((0, 3), (2, 2)),
    }
    cases = [
        GradientCase(
            name,
            "Expand",
            (floats(*shape), integers(*target)),
            lambda x, t=target: jnp.broadcast_to(x, np.broadcast_shapes(x.shape, t)),
        )
        for name, (shape, target) in expansions.items()
    ]
    cases += [
        GradientCase(name, "Tile", (floats(*shape), integers(*repeats)), lambda x, r=repeats: jnp.tile(x, r))
        for name, (shape, repeats) in tiles.items()
    ]
    return cases


def _other_cases() -> list[GradientCase]:
    cases = []
    for upper, triangle in ((1, jnp.triu), (0, jnp.tril)):
        for name, shape, k in (
            ("plain", (3, 4), 0),
            ("stack", (2, 3, 3), -1),
            ("far", (2, 3), 9),
            ("empty", (0, 3), 1),
        ):
            inputs = (floats(*shape), np.array(k))
            cases.append(
                GradientCase(f"{name}_{upper}", "Trilu", inputs, lambda x, f=triangle, k=k: f(x, k), {"upper": upper})
            )
    cases.append(GradientCase("no_k", "Trilu", (floats(3, 3),), jnp.triu))
    for exclusive in (0, 1):
        for reverse in (0, 1):
            attributes: dict[str, AttributeValue] = {"exclusive": exclusive, "reverse": reverse}
            for name, shape, axis in (("rows", (3, 2), 0), ("last", (2, 4), -1), ("empty", (2, 0), 1)):
                cases.append(
                    GradientCase(
                        f"{name}_{exclusive}{reverse}",
                        "CumSum",
                        (floats(*shape), np.array(axis)),
                        lambda x, axis=axis, e=exclusive, r=reverse: _running(x, axis, e, r),
                        attributes,
                    )
                )
    hot = (integers(2, 0, -1, 7), np.array(3), floats(2))
    cases.append(GradientCase("values", "OneHot", hot, lambda v: v[_chosen(hot[0], 3)]))
    cases.append(GradientCase("axis", "OneHot", hot, lambda v: v[_chosen(hot[0], 3)].T, {"axis": 0}))
    none = (np.zeros(0, dtype=np.int64), np.array(3), floats(2))
    cases.append(GradientCase("empty", "OneHot", none, lambda v: v[_chosen(none[0], 3)]))
    return cases


def _running(x: Any, axis: int, exclusive: int, reverse: int) -> Any:
    x = jnp.flip(x, axis) if reverse else x
    sums = jnp.cumsum(x, axis) - (x if exclusive else 0)
    return jnp.flip(sums, axis) if reverse else sums


def _chosen(indices: Array, depth: int) -> Array:
    wrapped = np.where(indices < 0, indices + depth, indices)
    return (wrapped[:, None] == np.arange(depth)).astype(np.int64)
