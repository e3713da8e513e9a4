"""The blocks that Col2Im puts together: the windows of a convolution over the image."""

from __future__ import annotations

import math

from weft_graph.shapes.windows import PADDED_ELEMENTS, PADDED_GROWTH, Get, Windows, windows_of


def blocks_of(image: tuple[int, ...], block: tuple[int, ...], get: Get) -> Windows:
    """The windows over an image, one for each block. Raises ValueError where they do not fit or make far too much."""
    if not image or len(image) != len(block) or min(image + block) < 1:
        raise ValueError(f"image_shape {image} and block_shape {block} must be as long lists of numbers above 0")
    windows = windows_of(image, get, block)
    padded = math.prod(sum(dims) for dims in zip(windows.size, windows.begin, windows.reach, strict=True))
    if padded > max(PADDED_ELEMENTS, PADDED_GROWTH * math.prod(image)):
        raise ValueError(f"pads {windows.begin + windows.end} make {padded} elements a channel of {math.prod(image)}")
    return windows
