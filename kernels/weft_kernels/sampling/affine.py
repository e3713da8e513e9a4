"""The places of an image in coordinates from -1 to 1, with a 1 behind them: what affine matrices are applied to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft_kernels.kernel import Array


def homogeneous_places(xp: Any, shape: Sequence[int], dtype: Any, *, align_corners: bool) -> Array:
    """(places, dimensions + 1): the coordinates of each place, those of the last dimension first, then 1.

    -1 and 1 are the centres of the outermost elements, or their outer edges.
    """
    rank = len(shape)
    result: Array = xp.ones((*shape, rank + 1), dtype=dtype)
    for axis, size in enumerate(shape):
        steps = xp.arange(size, dtype=dtype)
        if align_corners:
            along = steps * (2 / (size - 1)) - 1 if size > 1 else steps * 0
        else:
            along = (2 * steps + 1) / max(size, 1) - 1
        result[..., rank - 1 - axis] = along.reshape(-1, *(1,) * (rank - 1 - axis))
    return result.reshape(math.prod(shape), rank + 1)
