"""Operators that read images between their elements, or lay them out anew: resizing, grids, pixel shuffles, unpooling.

Images are (batch, channels, height, width).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.expression import Expression, Operand, apply_many
from weft.ops.generic import Name, labelled, one
from weft.ops.neural import Pair, pair, sides


def resize(
    x: Operand,
    scales: float | Sequence[float] | None = None,
    *,
    sizes: Pair | None = None,
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    rounding: str = "round_prefer_floor",
    antialias: bool = False,
    name: Name = None,
) -> Expression:
    """x, `scales` times as high and wide, or of the height and width `sizes`.

    `mode` is nearest, linear or cubic; `coordinates` (ONNX's coordinate_transformation_mode) says which places the
    results stand for, `rounding` (nearest_mode) which element is the nearest; `antialias` widens what is read where
    the image shrinks. Raises ShapeError unless exactly one of `scales` and `sizes` is given.
    """
    factors = (scales, scales) if isinstance(scales, int | float) else scales
    return one(
        "Resize",
        x,
        None,
        None if factors is None else np.asarray(factors, dtype=np.float32),
        None if sizes is None else np.asarray(pair(sizes), dtype=np.int64),
        axes=(2, 3),
        mode=mode,
        coordinate_transformation_mode=coordinates,
        nearest_mode=rounding,
        antialias=int(antialias),
        name=name,
    )


def grid_sample(
    x: Operand,
    grid: Operand,
    *,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
    name: Name = None,
) -> Expression:
    """x (batch, c, h, w) at the places grid (batch, oh, ow, 2), (x, y) from -1 to 1, gives (batch, c, oh, ow).

    `mode` is linear, nearest or cubic; `padding` (zeros, border, reflection) is what is beyond the edges. Volumes
    (batch, c, d, h, w) take grids (batch, ..., 3). Jaderberg et al. 2015.
    """
    return one("GridSample", x, grid, mode=mode, padding_mode=padding, align_corners=int(align_corners), name=name)


def affine_grid(
    theta: Operand, size: Sequence[int] | Expression, *, align_corners: bool = False, name: Name = None
) -> Expression:
    """Where matrices theta (batch, 2, 3) send the places of images of `size` (batch, c, h, w): `grid_sample`'s grid."""
    shape = size if isinstance(size, Expression) else np.asarray(size, dtype=np.int64)
    return one("AffineGrid", theta, shape, align_corners=int(align_corners), name=name)


def depth_to_space(x: Operand, blocksize: int, *, mode: str = "DCR", name: Name = None) -> Expression:
    """(batch, c, h, w) as (batch, c / blocksize ** 2, h * blocksize, w * blocksize).

    A pixel shuffle (Shi et al. 2016) is `mode="CRD"`.
    """
    return one("DepthToSpace", x, blocksize=blocksize, mode=mode, name=name)


def space_to_depth(x: Operand, blocksize: int, *, mode: str = "DCR", name: Name = None) -> Expression:
    """The reverse of `depth_to_space`."""
    return one("SpaceToDepth", x, blocksize=blocksize, mode=mode, name=name)


def max_pool_with_indices(
    x: Operand, kernel: Pair = 2, *, strides: Pair | None = None, pads: Pair = 0, name: Name = None
) -> tuple[Expression, Expression]:
    """`max_pool`, and where each largest element lies in the flattened x: what `max_unpool` takes."""
    window = {
        "kernel_shape": pair(kernel),
        "strides": pair(kernel if strides is None else strides),
        "pads": sides(pads),
    }
    pooled, indices = apply_many("MaxPool", (x,), window, requested=2, label=labelled(name, "MaxPool"))
    return pooled, indices


def max_unpool(
    x: Operand,
    indices: Operand,
    kernel: Pair = 2,
    *,
    strides: Pair | None = None,
    pads: Pair = 0,
    name: Name = None,
) -> Expression:
    """Each element of x where `max_pool_with_indices` found it, zeros elsewhere; windows as there."""
    return one(
        "MaxUnpool",
        x,
        indices,
        kernel_shape=pair(kernel),
        strides=pair(kernel if strides is None else strides),
        pads=sides(pads),
        name=name,
    )
