"""Losses and metrics: scalars that are means over the batch."""

from __future__ import annotations

from weft import ops
from weft.expression import Expression
from weft.ops.generic import Name
from weft_graph.errors import ShapeError


def cross_entropy(logits: Expression, labels: Expression, *, name: Name = None) -> Expression:
    """The mean of -log softmax(logits)[label]: logits (batch, classes), labels (batch) int32 or int64."""
    return ops.softmax_cross_entropy(logits, labels, name=name)


def mean_squared_error(predicted: Expression, target: Expression, *, name: Name = None) -> Expression:
    """The mean of (predicted - target)^2 over all elements. Raises ShapeError where the shapes differ.

    They must not broadcast: (batch, 1) against (batch) would compare every sample with every other.
    """
    if predicted.shape != target.shape:
        raise ShapeError(
            f"mean_squared_error: predicted is {predicted.type} and target {target.type}; one shape is needed"
        )
    difference = predicted - target
    return ops.reduce_mean(difference * difference, name=name)


def accuracy(logits: Expression, labels: Expression, *, name: Name = None) -> Expression:
    """The share of samples whose largest logit is the label's: logits (batch, classes), labels (batch) of integers."""
    best = ops.argmax(logits, axis=1)
    if labels.dtype != best.dtype:
        labels = ops.cast(labels, best.dtype)
    if labels.shape != best.shape:
        raise ShapeError(f"accuracy: labels are {labels.type} and logits {logits.type}; labels need shape {best.shape}")
    return ops.reduce_mean(ops.cast(ops.equal(best, labels), logits.dtype), name=name)
