"""Losses and metrics by name: each adds nodes to a graph, and gives the name of a scalar, the mean over the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from weft_graph.errors import GraphRefusedError, ShapeError
from weft_graph.losses.comparison import YES_OR_NO, Comparison
from weft_graph.types import DType

Measure = Callable[[Comparison, str], str]
"""measure(what is compared, the name of the scalar, where it is free). Raises GraphRefusedError and its kin."""


def _cross_entropy(compared: Comparison, stem: str) -> str:
    """The mean of -log softmax(logits)[label]."""
    _check_classes(compared, stem)
    return _of_logits(compared, compared.logits("cross_entropy") or compared.output, stem)


def _nll(compared: Comparison, stem: str) -> str:
    """The mean of -log-probability[label]."""
    _check_classes(compared, stem)
    logits = compared.logits("nll")
    return _of_log_probabilities(compared, compared.output, stem) if not logits else _of_logits(compared, logits, stem)


def _log_loss(compared: Comparison, stem: str) -> str:
    """The mean of -log(probability[label]), which is 100 at most."""
    _check_classes(compared, stem)
    logits = compared.logits("log_loss")
    if logits:
        return _of_logits(compared, logits, stem)
    return _of_log_probabilities(compared, compared.nodes.log_probability(compared.output, stem), stem)


def _of_logits(compared: Comparison, logits: str, stem: str) -> str:
    return _of_classes(compared, "SoftmaxCrossEntropyLoss", logits, stem)


def _of_log_probabilities(compared: Comparison, logs: str, stem: str) -> str:
    return _of_classes(compared, "NegativeLogLikelihoodLoss", logs, stem)


def _of_classes(compared: Comparison, op_type: str, scores: str, stem: str) -> str:
    ignored = compared.loss.ignore_index
    attributes: dict[str, int] = {} if ignored is None else {"ignore_index": ignored}
    inputs = (compared.classes_second(scores), compared.target)
    return compared.nodes.add(op_type, inputs, stem, reduction="mean", **attributes)


def _check_classes(compared: Comparison, stem: str) -> None:
    if not compared.compares_classes:
        raise GraphRefusedError(f"{stem!r} compares with numbers of classes, which {compared.target!r} does not have")


def _mean_squared_error(compared: Comparison, stem: str) -> str:
    difference = _difference(compared, stem)
    return compared.nodes.mean(compared.nodes.add("Mul", (difference, difference), f"{stem}/squares"), stem)


def _mean_absolute_error(compared: Comparison, stem: str) -> str:
    return compared.nodes.mean(compared.nodes.add("Abs", (_difference(compared, stem),), f"{stem}/sizes"), stem)


def _difference(compared: Comparison, stem: str) -> str:
    _check_values(compared, stem)
    return compared.nodes.add("Sub", (compared.output, compared.target), f"{stem}/difference")


def _bce_with_logits(compared: Comparison, stem: str) -> str:
    _check_values(compared, stem)
    return _bce_of(compared, compared.logits("bce_with_logits") or compared.output, stem)


def _bce_of(compared: Comparison, logits: str, stem: str) -> str:
    """The mean of log(1 + exp(x)) - x t, which no large x overflows."""
    nodes = compared.nodes
    target = nodes.cast(compared.target, nodes.types[logits].dtype)
    whole = nodes.add("Softplus", (logits,), f"{stem}/softplus")
    hit = nodes.add("Mul", (logits, target), f"{stem}/hit")
    return nodes.mean(nodes.add("Sub", (whole, hit), f"{stem}/each"), stem)


def _bce(compared: Comparison, stem: str) -> str:
    """The mean of -(t log p + (1 - t) log(1 - p)), each logarithm -100 at least."""
    _check_values(compared, stem)
    nodes = compared.nodes
    logits = compared.logits("bce")
    if logits:
        return _bce_of(compared, logits, stem)
    yes = nodes.log_probability(compared.output, f"{stem}/yes")
    one = nodes.number(1.0, compared.type.dtype)
    no = nodes.log_probability(nodes.add("Sub", (one, compared.output), f"{stem}/not"), f"{stem}/no")
    dtype = nodes.types[yes].dtype
    target = nodes.cast(compared.target, dtype)
    other = nodes.add("Sub", (nodes.number(1.0, dtype), target), f"{stem}/other")
    parts = (nodes.add("Mul", (target, yes), f"{stem}/hit"), nodes.add("Mul", (other, no), f"{stem}/miss"))
    return nodes.add("Neg", (nodes.mean(nodes.add("Add", parts, f"{stem}/each"), f"{stem}/mean"),), stem)


def _check_values(compared: Comparison, stem: str) -> None:
    """Broadcasting would compare every sample with every other. Raises GraphRefusedError, ShapeError."""
    if compared.compares_classes:
        raise GraphRefusedError(f"{stem!r} compares numbers, and {compared.target!r} has numbers of classes")
    output, target = compared.type, compared.nodes.types[compared.target]
    if output.rank != target.rank:
        raise ShapeError(
            f"output {compared.output!r} is {output} and target {compared.target!r} {target}; they must agree"
        )


def _accuracy(compared: Comparison, stem: str) -> str:
    """The share of targets whose class has the largest score; of yes or no, of those on the right side of a half."""
    nodes = compared.nodes
    dtype = compared.type.dtype
    if not compared.compares_classes:
        said, true = _said_yes(compared, stem), nodes.number(0.5, nodes.types[compared.target].dtype)
        is_true = nodes.add("Greater", (compared.target, true), f"{stem}/true")
        return nodes.mean(nodes.cast(nodes.add("Equal", (said, is_true), f"{stem}/right"), dtype), stem)
    best = nodes.add("ArgMax", (compared.output,), f"{stem}/best", axis=compared.classes_axis(), keepdims=0)
    target = nodes.cast(compared.target, DType.INT64)
    right = nodes.cast(nodes.add("Equal", (best, target), f"{stem}/right"), dtype)
    ignored = compared.loss.ignore_index
    if ignored is None:
        return nodes.mean(right, stem)
    is_ignored = nodes.add("Equal", (target, nodes.number(ignored, DType.INT64)), f"{stem}/ignored")
    counted = nodes.cast(nodes.add("Not", (is_ignored,), f"{stem}/counted"), dtype)
    hits = nodes.total(nodes.add("Mul", (right, counted), f"{stem}/hits"), f"{stem}/sum")
    most = nodes.add("Max", (nodes.total(counted, f"{stem}/count"), nodes.number(1.0, dtype)), f"{stem}/most")
    return nodes.add("Div", (hits, most), stem)


def _said_yes(compared: Comparison, stem: str) -> str:
    """Where the output says yes: of logits above 0, of probabilities above a half."""
    word, nodes = compared.loss.loss, compared.nodes
    if word not in YES_OR_NO:
        raise GraphRefusedError(f"accuracy is of classes; the loss {word!r} compares numbers")
    logits = compared.logits(word)
    half = 0.5 if word == "bce" and not logits else 0.0
    scores = logits or compared.output
    return nodes.add("Greater", (scores, nodes.number(half, nodes.types[scores].dtype)), f"{stem}/said")


MEASURES: Final[Mapping[str, Measure]] = {
    "cross_entropy": _cross_entropy,
    "mse": _mean_squared_error,
    "l1": _mean_absolute_error,
    "bce_with_logits": _bce_with_logits,
    "nll": _nll,
    "bce": _bce,
    "log_loss": _log_loss,
    "accuracy": _accuracy,
}
"""What a loss or a metric may be, by name; `accuracy` has no gradient, and is a metric alone."""
