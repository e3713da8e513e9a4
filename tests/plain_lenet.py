"""The forward pass of the digits net, written plainly in NumPy from its published definition: no code of weft's.

It is the oracle for what a job saves: loops where loops are plainest, float64 throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def convolve(images: Array, weight: Array, bias: Array, pad: int) -> Array:
    """Cross-correlation, stride 1: images (n, c, h, w), weight (m, c, k, k), bias (m)."""
    padded = np.pad(images, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    k = weight.shape[2]
    height, width = padded.shape[2] - k + 1, padded.shape[3] - k + 1
    out = np.zeros((images.shape[0], weight.shape[0], height, width))
    for row in range(k):
        for column in range(k):
            patch = padded[:, :, row : row + height, column : column + width]
            out += np.einsum("nchw,mc->nmhw", patch, weight[:, :, row, column])
    return out + bias[:, None, None]


def pool(images: Array) -> Array:
    """The maximum of each 2 x 2 window, stride 2."""
    n, c, h, w = images.shape
    return images[:, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))


def normalize(images: Array, p: Mapping[str, Array], name: str) -> Array:
    """Batch normalization with running statistics: images (n, c, h, w), epsilon 1e-5 (ONNX's default)."""
    scale, shift, mean, variance = (
        p[f"{name}.{part}"][:, None, None] for part in ("scale", "bias", "running_mean", "running_var")
    )
    return scale * (images - mean) / np.sqrt(variance + 1e-5) + shift


def logits(parameters: Mapping[str, Array], images: Array) -> Array:
    """Scores (n, 10) of images (n, 1, 8, 8), from the parameters that a job saved."""
    p = {name: value.astype(np.float64) for name, value in parameters.items()}
    x = convolve(images.astype(np.float64), p["conv1.weight"], p["conv1.bias"], pad=1)
    x = convolve(np.maximum(normalize(x, p, "norm1"), 0), p["conv2.weight"], p["conv2.bias"], pad=1)
    x = pool(np.maximum(normalize(x, p, "norm2"), 0))
    x = x.reshape(x.shape[0], -1)
    x = np.maximum(x @ p["hidden.weight"].T + p["hidden.bias"], 0)
    return x @ p["scores.weight"].T + p["scores.bias"]
