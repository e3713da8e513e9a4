"""Layers' operators: convolution, pooling, normalization, dropout, softmax and its loss.

Images are (batch, channels, height, width). `kernel`, `strides` and `dilations` are a number for both directions or
one for each; `pads` is a number for all sides, one for each direction, or (top, left, bottom, right).
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.expression import Expression, Operand, apply_many
from weft.ops.generic import Name, labelled, one
from weft_graph.errors import ShapeError

Pair = int | Sequence[int]


def conv(
    x: Operand,
    w: Operand,
    b: Operand | None = None,
    *,
    strides: Pair = 1,
    pads: Pair = 0,
    dilations: Pair = 1,
    group: int = 1,
    name: Name = None,
) -> Expression:
    """x (batch, c, h, w) with filters w (m, c / group, kh, kw) and bias b (m) gives (batch, m, oh, ow)."""
    return one(
        "Conv", x, w, b, strides=pair(strides), pads=sides(pads), dilations=pair(dilations), group=group, name=name
    )


def conv_transpose(
    x: Operand,
    w: Operand,
    b: Operand | None = None,
    *,
    strides: Pair = 1,
    pads: Pair = 0,
    output_padding: Pair = 0,
    dilations: Pair = 1,
    group: int = 1,
    name: Name = None,
) -> Expression:
    """x (batch, c, h, w) spread by filters w (c, m / group, kh, kw), with bias b (m), gives (batch, m, oh, ow)."""
    return one(
        "ConvTranspose",
        x,
        w,
        b,
        strides=pair(strides),
        pads=sides(pads),
        output_padding=pair(output_padding),
        dilations=pair(dilations),
        group=group,
        name=name,
    )


def max_pool(
    x: Operand, kernel: Pair = 2, *, strides: Pair | None = None, pads: Pair = 0, name: Name = None
) -> Expression:
    """The largest element of each window; `strides` is `kernel` where left out."""
    return one("MaxPool", x, **_window(kernel, strides, pads), name=name)


def average_pool(
    x: Operand,
    kernel: Pair = 2,
    *,
    strides: Pair | None = None,
    pads: Pair = 0,
    count_include_pad: bool = False,
    name: Name = None,
) -> Expression:
    """The mean of each window, of the elements inside x alone unless `count_include_pad`."""
    window = _window(kernel, strides, pads)
    return one("AveragePool", x, **window, count_include_pad=int(count_include_pad), name=name)


def global_average_pool(x: Operand, *, name: Name = None) -> Expression:
    """The mean over height and width: (batch, c, h, w) gives (batch, c, 1, 1)."""
    return one("GlobalAveragePool", x, name=name)


def global_max_pool(x: Operand, *, name: Name = None) -> Expression:
    """The largest element over height and width: (batch, c, h, w) gives (batch, c, 1, 1)."""
    return one("GlobalMaxPool", x, name=name)


def batch_normalization(
    x: Operand,
    scale: Operand,
    bias: Operand,
    running_mean: Operand,
    running_var: Operand,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    name: Name = None,
) -> tuple[Expression, Expression, Expression]:
    """x (batch, c, ...) normalized over all but c with the batch's statistics, scaled and shifted by numbers (c).

    Gives y and the new running mean and variance, running * momentum + batch * (1 - momentum). Evaluation reads the
    running statistics instead. Ioffe and Szegedy 2015.
    """
    y, mean, variance = apply_many(
        "BatchNormalization",
        (x, scale, bias, running_mean, running_var),
        {"epsilon": epsilon, "momentum": momentum, "training_mode": 1},
        requested=3,
        label=labelled(name, "BatchNormalization"),
    )
    return y, mean, variance


def dropout(x: Operand, ratio: float = 0.5, *, name: Name = None) -> Expression:
    """x with a share `ratio` of its elements zero, the others divided by 1 - ratio. The identity in evaluation."""
    if not 0 <= ratio < 1:
        raise ValueError(f"a dropout ratio is at least 0 and below 1, not {ratio}")
    return one("Dropout", x, float(ratio), True, name=name)


def softmax(x: Operand, axis: int = -1, *, name: Name = None) -> Expression:
    """exp(x) / sum(exp(x)) along `axis`."""
    return one("Softmax", x, axis=axis, name=name)


def log_softmax(x: Operand, axis: int = -1, *, name: Name = None) -> Expression:
    """log(softmax(x)) along `axis`, without overflow."""
    return one("LogSoftmax", x, axis=axis, name=name)


def softmax_cross_entropy(
    scores: Operand,
    labels: Operand,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
    name: Name = None,
) -> Expression:
    """-log softmax(scores)[label]: scores (batch, classes, ...), labels (batch, ...) int32 or int64.

    `reduction` is `mean` or `sum` over all labels, or `none`. A label equal to `ignore_index` is not counted.
    """
    return one("SoftmaxCrossEntropyLoss", scores, labels, reduction=reduction, ignore_index=ignore_index, name=name)


def negative_log_likelihood(
    log_probabilities: Operand,
    labels: Operand,
    weights: Operand | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
    name: Name = None,
) -> Expression:
    """-log_probabilities[label]: (batch, classes, ...) and labels (batch, ...), weighed by class where `weights` are.

    `reduction` is `mean` (over the sum of weights), `sum`, or `none`. A label equal to `ignore_index` is not counted.
    """
    return one(
        "NegativeLogLikelihoodLoss",
        log_probabilities,
        labels,
        weights,
        reduction=reduction,
        ignore_index=ignore_index,
        name=name,
    )


def pair(value: Pair) -> tuple[int, ...]:
    """A number for each direction."""
    return (value, value) if isinstance(value, int) else tuple(value)


def sides(value: Pair) -> tuple[int, ...]:
    """Pads in ONNX's order: the beginnings of all directions, then the ends. Raises ShapeError for an odd count."""
    if isinstance(value, int):
        return (value,) * 4
    listed = tuple(value)
    if len(listed) == 2:
        return listed * 2
    if len(listed) == 4:
        return listed
    raise ShapeError(f"pads are one number, one for each direction, or (top, left, bottom, right), not {listed}")


def _window(kernel: Pair, strides: Pair | None, pads: Pair) -> dict[str, tuple[int, ...]]:
    return {"kernel_shape": pair(kernel), "strides": pair(kernel if strides is None else strides), "pads": sides(pads)}
