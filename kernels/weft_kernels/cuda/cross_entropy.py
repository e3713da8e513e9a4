"""Softmax cross-entropy on a GPU: see `sources/cross_entropy.cu`."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from weft_kernels.cuda.module import MOST_BLOCKS, has_kernels, launch, launch_blocks
from weft_kernels.host import number
from weft_kernels.kernel import Array

_FILE: Final = "cross_entropy.cu"
_THREADS: Final = 128
_LABELS: Final = ("int32", "int64")


def fits(xp: Any, dtype: np.dtype[Any], labels: Array) -> bool:
    """Whether the kernels take scores of that type and these labels, both of this module."""
    return has_kernels(xp) and dtype.kind == "f" and labels.dtype.name in _LABELS


def label_weights(
    xp: Any, labels: Array, classes: int, *, weights: Array | None, ignored: int | None, dtype: Any
) -> Array:
    """What each label weighs, of the labels' shape: 1 or its class's weight, 0 where it is ignored.

    Waits for the device, to raise ValueError, with the label and the number of classes, where one that counts is
    outside [0, classes): nothing may learn from a label that is none.
    """
    labels = xp.ascontiguousarray(labels)
    result: Array = xp.empty(labels.shape, dtype=dtype)
    # Without class weights the kernel does not look at them.
    by_class = xp.empty(1, dtype=dtype) if weights is None else xp.ascontiguousarray(weights.astype(dtype, copy=False))
    wrong = xp.full(1, labels.size, dtype=xp.uint64)
    numbers = (labels.size, classes, int(ignored is not None), ignored or 0, int(weights is not None))
    types = (dtype, labels.dtype)
    launch(xp, _FILE, "label_weights", labels.size, labels, by_class, result, wrong, *numbers, types=types)
    row = int(number(xp, wrong[0]))
    if row < labels.size:
        label = int(number(xp, labels.reshape(-1)[row]))
        raise ValueError(f"label {label} is outside [0, {classes}), the classes of the scores")
    return result


def cross_entropy(xp: Any, scores: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
    """(log-probabilities like `scores` (batch, classes, ...), losses like `labels` (batch, ...)), both new.

    `weights` are those of `label_weights`; nothing is waited for.
    """
    scores, labels = xp.ascontiguousarray(scores), xp.ascontiguousarray(labels)
    log_prob, losses = xp.empty_like(scores), xp.empty(labels.shape, dtype=scores.dtype)
    inner = math.prod(labels.shape[1:])
    # Neighbouring threads read neighbouring numbers: of one row where its classes lie together, of many rows else.
    block = (1, _THREADS) if inner == 1 else (_THREADS, 1)
    if scores.size:
        grid = (min(-(-labels.size // block[0]), MOST_BLOCKS),)
        launch_blocks(
            xp,
            _FILE,
            "cross_entropy",
            grid,
            block,
            *(scores, labels, weights, log_prob, losses, labels.size, scores.shape[1], inner),
            types=(scores.dtype, labels.dtype),
            shared_bytes=_THREADS * max(scores.dtype.itemsize, 4),
        )
    return log_prob, losses


def cross_entropy_grad(xp: Any, log_prob: Array, labels: Array, scale: Array) -> Array:
    """scale * (softmax - one-hot label), like `log_prob` (batch, classes, ...); `scale` is like `labels`."""
    log_prob, labels, scale = (xp.ascontiguousarray(array) for array in (log_prob, labels, scale))
    result: Array = xp.empty_like(log_prob)
    numbers = (labels.size, log_prob.shape[1], math.prod(labels.shape[1:]))
    types = (log_prob.dtype, labels.dtype)
    launch(xp, _FILE, "cross_entropy_grad", log_prob.size, log_prob, labels, scale, result, *numbers, types=types)
    return result
