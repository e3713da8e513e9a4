"""A graph with its losses and measures added."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from weft_graph.check import check
from weft_graph.errors import GraphRefusedError, ShapeError
from weft_graph.ir import Graph, Node
from weft_graph.losses.comparison import (
    CLASSES,
    LOSSES,
    YES_OR_NO,
    Additions,
    Comparison,
    Loss,
    listed,
    widest,
)
from weft_graph.program import LOSS
from weft_graph.spelling import did_you_mean
from weft_graph.topological import backward_slice, topological_order
from weft_graph.types import DType

# ----------------------------------------------------------------------------------------------------------------------
# Losses and metrics by name: each adds nodes to a graph, and gives the name of a scalar, the mean over the batch.


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
        raise GraphRefusedError(f"accuracy is of classes; the loss {word!r} compares numbers: leave the metric out")
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


_MOST_NAME: Final = 128
"""Characters of a metric's name."""

_SHOWN: Final = 8
"""Parameters that a note names."""


@dataclass(frozen=True, slots=True)
class WithLoss:
    """A graph that can train: `loss` and the values of `metrics` are its outputs, before those that it had."""

    graph: Graph
    loss: str
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Metric -> the graph's output. Where there are several losses, each is one of them."""
    targets: tuple[str, ...] = ()
    """The inputs that losses compare with; none where the model computes its loss itself."""
    notes: tuple[str, ...] = ()
    """Sentences about what was taken otherwise than the words say, and what does not train."""


def losses_of(
    words: Sequence[str],
    outputs: Sequence[str] = (),
    targets: Sequence[str] = (),
    classes_axis: int | None = None,
    ignore_index: int | None = None,
) -> tuple[Loss, ...]:
    """Losses as texts say them: `0.5*mse` is `mse` with weight 0.5. `outputs` and `targets` are of the losses in their
    order, one for each, or none; an empty text leaves one out. Axis and index are of all losses of classes.

    Raises GraphRefusedError.
    """
    for what, given in (("output", outputs), ("target", targets)):
        if given and len(given) != len(words):
            raise GraphRefusedError(
                f"there are {len(words)} losses, and `{what}` is given {len(given)} times: give one for each loss, in "
                "their order, or none"
            )
    pairs = zip(words, outputs or [""] * len(words), targets or [""] * len(words), strict=True)
    return tuple(_of_text(word, output, target, classes_axis, ignore_index) for word, output, target in pairs)


def _of_text(text: str, output: str, target: str, classes_axis: int | None, ignore_index: int | None) -> Loss:
    head, star, tail = text.partition("*")
    try:
        word, weight = (tail.strip(), float(head)) if star else (text, 1.0)
    except ValueError:
        word, weight = text, 1.0
    of_classes = (classes_axis, ignore_index) if word not in LOSSES or word in CLASSES else (None, None)
    return Loss(word, output, target, weight, *of_classes)


def with_loss(graph: Graph, losses: Sequence[Loss], metrics: Sequence[str] = ()) -> WithLoss:
    """The graph with the sum of `losses`, each by its weight, and with `metrics`: `accuracy`, losses, or outputs that
    are scalars.

    A metric is of what the loss compares; of several losses, of each that it fits, and then its name begins with the
    output's. Parameters that lead to no loss do not train any more. Raises GraphRefusedError and its kin, which say
    what there is to choose from.
    """
    if not losses:
        raise GraphRefusedError("there is no loss; one is needed, or several")
    additions = Additions(graph)
    compared = [Comparison(loss, additions) for loss in losses]
    named: dict[str, str] = {}
    if len(compared) == 1:
        values = [_loss_value(compared[0], additions, LOSS)]
    else:
        values = [_loss_value(each, additions, _name_of(each)) for each in compared]
        for each, value in zip(compared, values, strict=True):
            named[_metric_name(_name_of(each), named)] = value
    loss = _weighted_sum(additions, losses, values)
    for word in dict.fromkeys(metrics):
        _add_metric(word, compared, additions, named)
    made = replace(
        graph,
        inputs=(*graph.inputs, *additions.inputs.values()),
        nodes=(*graph.nodes, *additions.nodes.nodes),
        constants=(*graph.constants, *additions.nodes.constants),
        outputs=tuple(dict.fromkeys((loss, *named.values(), *graph.outputs))),
    )
    made, resting = _rest(made, loss, named.values())
    check(made)
    targets = tuple(dict.fromkeys(each.found_target for each in compared if each.found_target))
    return WithLoss(made, loss, named, targets, (*additions.notes, *resting))


def _loss_value(compared: Comparison, additions: Additions, stem: str) -> str:
    word = compared.loss.loss
    return MEASURES[word](compared, stem) if word in LOSSES else _own(word, additions)


def _own(word: str, additions: Additions) -> str:
    """An output of the graph that is a loss or metric itself. Raises GraphRefusedError, ShapeError."""
    outputs, types = additions.graph.outputs, additions.nodes.types
    if word in outputs:
        type_ = types[word]
        if type_.shape or not type_.dtype.is_float:
            raise ShapeError(f"output {word!r} is {type_}; a loss or metric is a single float", node=word)
        return word
    if word in MEASURES:
        raise GraphRefusedError(f"{word} has no gradient: it can be a metric, and no loss; there are {listed(LOSSES)}")
    scalars = [name for name in outputs if not types[name].shape]
    own = "the model's outputs that are single floats"
    near = did_you_mean(word, (*MEASURES, *scalars))
    if near and scalars:
        near += f" Or write one of {own}: {listed(scalars)}"
    elif not near:
        found = f": {listed(scalars)}" if scalars else ", of which it has none"
        near = f"; there are {', '.join(MEASURES)}, and {own}{found}"
    raise GraphRefusedError(f"there is no loss or metric {word!r}{near}", node=word)


def _weighted_sum(additions: Additions, losses: Sequence[Loss], values: Sequence[str]) -> str:
    """One loss of weight 1 is itself."""
    nodes = additions.nodes
    dtype = widest(nodes.types[value].dtype for value in values)
    terms: list[str] = []
    for loss, value in zip(losses, values, strict=True):
        term = nodes.cast(value, dtype)
        if loss.weight != 1:
            term = nodes.add("Mul", (term, nodes.number(loss.weight, dtype)), f"{value}/weighted")
        terms.append(term)
    return terms[0] if len(terms) == 1 else nodes.add("Sum", tuple(terms), LOSS)


def _add_metric(word: str, compared: Sequence[Comparison], additions: Additions, named: dict[str, str]) -> None:
    if word not in MEASURES:
        named[_metric_name(word, named)] = _own(word, additions)
        return
    if len(compared) == 1:
        named[word] = MEASURES[word](compared[0], word)
        return
    # Where it fits none, the first says what it compares.
    fitting = [each for each in compared if each.fits(word)] or compared[:1]
    pairs = {(each.output, each.target): each for each in fitting if each.loss.loss != word}
    for each in pairs.values():
        name = word if len(pairs) == 1 else f"{each.output}_{word}"
        named[_metric_name(name, named)] = MEASURES[word](each, name)


def _name_of(compared: Comparison) -> str:
    """What one of several losses is called as a metric."""
    word = compared.loss.loss
    return f"{compared.output}_{word}" if word in LOSSES else word


def _metric_name(name: str, taken: Container[str]) -> str:
    """The name with what a metric's may not have as `_`, with a number where it is taken; `loss` is the whole loss."""
    plain = re.sub(r"[^A-Za-z0-9_.\-]", "_", name)[:_MOST_NAME].lstrip(".-") or "metric"
    number, made = 1, plain
    while made in taken or made == LOSS:
        number += 1
        made = f"{plain}_{number}"
    return made


def _rest(graph: Graph, loss: str, metrics: Iterable[str]) -> tuple[Graph, list[str]]:
    """The graph in which what leads to no loss stays as it is, and a sentence about it where there is such."""
    ordered = topological_order(graph.nodes)
    _, trained = backward_slice(ordered, [loss])
    _, computed = backward_slice(ordered, [loss, *metrics])
    idle = {each.name: None for each in graph.parameters if each.trainable and each.name not in trained}
    graph = replace(
        graph,
        parameters=tuple(replace(each, trainable=False) if each.name in idle else each for each in graph.parameters),
        nodes=tuple(node if computed & set(node.outputs) else _in_inference(node) for node in graph.nodes),
    )
    if not idle:
        return graph, []
    more = f" and {len(idle) - _SHOWN} more" if len(idle) > _SHOWN else ""
    return graph, [f"parameters that lead to no loss do not train: {listed(list(idle)[:_SHOWN])}{more}"]


def _in_inference(node: Node) -> Node:
    """BatchNormalization that no loss and no metric needs would be computed for its running statistics alone."""
    if node.op_type != "BatchNormalization" or any(node.outputs[1:]):
        return node
    return replace(node, attributes={**node.attributes, "training_mode": 0})
