"""Softmax and its logarithm along an axis, and what labels weigh in a loss."""

from __future__ import annotations

from typing import Any

from weft_kernels.kernel import Array


def log_softmax(xp: Any, scores: Array, axis: int) -> Array:
    """ln softmax, a new array; scores are shifted by their largest first, so that nothing overflows."""
    if scores.size == 0:
        return xp.empty_like(scores)  # type: ignore[no-any-return]  # xp is Any; max of none would raise
    shifted = scores - scores.max(axis=axis, keepdims=True)
    shifted -= xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True, dtype=scores.dtype))
    return shifted  # type: ignore[no-any-return]  # xp is Any


def softmax(xp: Any, scores: Array, axis: int) -> Array:
    """Softmax, a new array; scores are shifted by their largest first, so that nothing overflows."""
    if scores.size == 0:
        return xp.empty_like(scores)  # type: ignore[no-any-return]  # xp is Any; max of none would raise
    raised = scores - scores.max(axis=axis, keepdims=True)
    xp.exp(raised, out=raised)
    raised /= raised.sum(axis=axis, keepdims=True, dtype=scores.dtype)
    return raised  # type: ignore[no-any-return]  # xp is Any


def label_weights(
    xp: Any, labels: Array, classes: int, *, weights: Array | None, ignored: int | None, dtype: Any
) -> tuple[Array, Array]:
    """(labels that can index, weight of each label): an ignored label points at class 0 and weighs nothing.

    Raises ValueError, with the label and the number of classes, where one that counts is outside [0, classes).
    """
    counted = xp.ones(labels.shape, dtype=bool) if ignored is None else labels != ignored
    wrong = counted & ((labels < 0) | (labels >= classes))
    if bool(wrong.any()):
        raise ValueError(f"label {int(labels[wrong][0])} is outside [0, {classes}), the classes of the scores")
    safe = xp.where(counted, labels, 0)
    if weights is None:
        return safe, counted.astype(dtype)
    return safe, xp.where(counted, weights[safe] if classes else 0, 0).astype(dtype, copy=False)
