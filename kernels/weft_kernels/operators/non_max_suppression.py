"""Box by box in the order of scores, on the host: each turn takes away all that overlap the one that was chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, KernelContext

HOST_INPUTS = (0, 1, 2, 3, 4)


def run(
    context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
) -> tuple[Array, ...]:
    boxes, scores = required(inputs, 2)
    most = int(_number(inputs, 2, 0))
    overlap, lowest = _number(inputs, 3, 0), _number(inputs, 4, -math.inf)
    corners = _corners(boxes, is_centred=bool(as_int(attributes["center_point_box"])))
    chosen = [np.zeros((0, 3), dtype=np.int64)]
    for image, class_ in np.ndindex(scores.shape[:2]):
        found = _suppressed(corners[image], scores[image, class_], most, overlap, lowest)
        chosen.append(np.column_stack([np.full(len(found), image), np.full(len(found), class_), found]))
    return (context.xp.asarray(np.concatenate(chosen).astype(np.int64)),)


def _number(inputs: Sequence[Array | None], index: int, default: float) -> float:
    given = optional(inputs, index)
    return default if given is None else given.reshape(-1)[0].item()


def _corners(boxes: Array, *, is_centred: bool) -> Array:
    """(images, boxes, 4): the lower corner, then the upper one. Which dimension is which makes no difference."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if is_centred:
        first, second = first - second / 2, first + second / 2
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _suppressed(corners: Array, scores: Array, most: int, overlap: float, lowest: float) -> Array:
    """Indices of the boxes that stay, by falling score; of equal scores the first box comes first."""
    left = np.argsort(-scores, kind="stable")
    left = left[scores[left] >= lowest]
    areas = np.prod(corners[:, 2:] - corners[:, :2], axis=1)
    chosen: list[int] = []
    while left.size and len(chosen) < most:
        best, left = left[0], left[1:]
        chosen.append(int(best))
        low = np.maximum(corners[best, :2], corners[left, :2])
        high = np.minimum(corners[best, 2:], corners[left, 2:])
        shared = np.prod(np.maximum(high - low, 0), axis=1)
        union = areas[best] + areas[left] - shared
        left = left[~(shared > overlap * union)]
    return np.array(chosen, dtype=np.int64)
