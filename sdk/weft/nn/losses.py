"""Losses and metrics: scalars that are means over the batch."""

from __future__ import annotations

from weft import ops
from weft.expression import Expression
from weft.ops.generic import Name
from weft_graph.errors import ShapeError
from weft_graph.losses.comparison import classes_axis as axis_of_classes
from weft_graph.losses.comparison import classes_second


def cross_entropy(
    logits: Expression,
    labels: Expression,
    *,
    classes_axis: int | None = None,
    ignore_index: int | None = None,
    name: Name = None,
) -> Expression:
    """The mean of -log softmax(logits)[label]: logits (batch, classes), labels (batch) int32 or int64.

    As with `Model.with_loss`, classes are on axis 1 of logits of four dimensions or more, (batch, classes, height,
    width), and on the last axis of others, (batch, positions, classes), unless `classes_axis` says it otherwise; labels
    have the other dimensions. Labels that are `ignore_index` do not count. Raises ShapeError, DTypeError.
    """
    axis = axis_of_classes(logits.type, classes_axis, "logits")
    order = classes_second(logits.type.rank, axis)
    scores = logits if order is None else ops.transpose(logits, order)
    try:
        return ops.softmax_cross_entropy(scores, labels, ignore_index=ignore_index, name=name)
    except ShapeError as error:
        raise ShapeError(
            f"cross_entropy: {_mismatch(logits, labels, axis)}: {error.message}", node=error.node
        ) from None


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


def accuracy(
    logits: Expression,
    labels: Expression,
    *,
    classes_axis: int | None = None,
    ignore_index: int | None = None,
    name: Name = None,
) -> Expression:
    """The share of labels whose class has the largest logit: logits (batch, classes), labels (batch) of integers.

    `classes_axis` and `ignore_index` are those of `cross_entropy`. Raises ShapeError.
    """
    axis = axis_of_classes(logits.type, classes_axis, "logits")
    best = ops.argmax(logits, axis=axis)
    if labels.dtype != best.dtype:
        labels = ops.cast(labels, best.dtype)
    if labels.shape != best.shape:
        raise ShapeError(f"accuracy: {_mismatch(logits, labels, axis)}; labels need shape {best.shape}")
    right = ops.cast(ops.equal(best, labels), logits.dtype)
    if ignore_index is None:
        return ops.reduce_mean(right, name=name)
    counted = ops.cast(ops.logical_not(ops.equal(labels, ignore_index)), logits.dtype)
    return ops.div(ops.reduce_sum(right * counted), ops.max(ops.reduce_sum(counted), 1.0), name=name)


def _mismatch(logits: Expression, labels: Expression, axis: int) -> str:
    told = f"logits are {logits.type} and labels {labels.type}"
    return f"{told}, with classes on axis {axis} (classes_axis says another)" if logits.type.rank > 2 else told
