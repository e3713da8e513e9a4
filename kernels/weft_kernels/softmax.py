"""Softmax and its logarithm along an axis, and what labels weigh in a loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.cuda import cross_entropy as cuda
from weft_kernels.host import any_of, number
from weft_kernels.kernel import Array


def log_softmax(xp: Any, scores: Array, axis: int) -> Array:
    """ln softmax, a new array; scores are shifted by their largest first, so that nothing overflows."""
    if scores.size == 0:
        return xp.empty_like(scores)  # type: ignore[no-any-return]  # xp is Any; max of none would raise
    shifted = scores - scores.max(axis=axis, keepdims=True)
    shifted -= xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True, dtype=scores.dtype))
    return shifted  # type: ignore[no-any-return]  # xp is Any


def softmax(xp: Any, scores: Array, axis: int, out: Array | None = None) -> Array:
    """Softmax, in `out` or a new array; scores are shifted by their largest first, so that nothing overflows."""
    if scores.size == 0:
        return xp.empty_like(scores)  # type: ignore[no-any-return]  # xp is Any; max of none would raise
    raised = xp.subtract(scores, scores.max(axis=axis, keepdims=True), out=out)
    xp.exp(raised, out=raised)
    raised /= raised.sum(axis=axis, keepdims=True, dtype=scores.dtype)
    return raised  # type: ignore[no-any-return]  # xp is Any


def label_weights(
    xp: Any, labels: Array, classes: int, *, weights: Array | None, ignored: int | None, dtype: Any
) -> tuple[Array, Array]:
    """(labels that can index, weight of each label): an ignored label points at class 0 and weighs nothing.

    Raises ValueError, with the label and the number of classes, where one that counts is outside [0, classes).
    """
    if cuda.fits(xp, dtype, labels):
        checked = cuda.label_weights(xp, labels, classes, weights=weights, ignored=ignored, dtype=dtype)
        return (labels if ignored is None else xp.where(labels == ignored, 0, labels)), checked
    counted = xp.ones(labels.shape, dtype=bool) if ignored is None else labels != ignored
    wrong = counted & ((labels < 0) | (labels >= classes))
    if any_of(xp, wrong):
        raise ValueError(
            f"label {int(number(xp, labels[wrong][0]))} is outside [0, {classes}), the classes of the scores"
        )
    safe = xp.where(counted, labels, 0)
    if weights is None:
        return safe, counted.astype(dtype)
    return safe, xp.where(counted, weights[safe] if classes else 0, 0).astype(dtype, copy=False)


def ignored_label(attributes: Mapping[str, AttributeValue]) -> int | None:
    """The label that does not count, where the node names one."""
    return as_int(attributes["ignore_index"]) if "ignore_index" in attributes else None


def log_likelihoods(
    xp: Any, scores: Array, labels: Array, *, weights: Array | None, ignored: int | None
) -> tuple[Array, Array, Array]:
    """(ln softmax of the scores (batch, classes, ...), loss of each label, weight of each label); see `label_weights`.

    A label's loss is its negative log-likelihood times its weight.
    """
    safe, weighed = label_weights(xp, labels, scores.shape[1], weights=weights, ignored=ignored, dtype=scores.dtype)
    if cuda.fits(xp, scores.dtype, safe):
        return *cuda.cross_entropy(xp, scores, safe, weighed), weighed
    log_prob = log_softmax(xp, scores, axis=1)
    likelihood = xp.take_along_axis(log_prob, xp.expand_dims(safe, 1), axis=1)[:, 0]
    return log_prob, -likelihood * weighed, weighed


def scores_gradient(xp: Any, log_prob: Array, safe: Array, scale: Array) -> Array:
    """scale * (softmax - one-hot label), a new array like `log_prob`; `scale` is like the labels `safe`."""
    if cuda.fits(xp, log_prob.dtype, safe):
        return cuda.cross_entropy_grad(xp, log_prob, safe, scale)
    result: Array = xp.exp(log_prob)
    scale, index = xp.expand_dims(scale, 1), xp.expand_dims(safe, 1)
    result *= scale
    xp.put_along_axis(result, index, xp.take_along_axis(result, index, axis=1) - scale, axis=1)
    return result
