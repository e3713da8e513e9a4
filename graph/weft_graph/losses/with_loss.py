"""Gives a graph that computes scores, or predictions, the loss and the metrics that it trains by."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from weft_graph.check import check
from weft_graph.errors import GraphRefusedError, ShapeError
from weft_graph.ir import Graph, Node
from weft_graph.losses.comparison import CLASSES, LOSSES, Additions, Comparison, Loss, did_you_mean, listed
from weft_graph.losses.measures import MEASURES
from weft_graph.losses.nodes import widest
from weft_graph.program import LOSS
from weft_graph.slices import backward_slice
from weft_graph.topological import topological_order

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
    raise GraphRefusedError(
        f"there is no loss or metric {word!r}{did_you_mean(word, (*MEASURES, *scalars))}; there are "
        f"{', '.join(MEASURES)}, and the model's outputs that are single floats"
        f"{': ' + listed(scalars) if scalars else ', of which it has none'}",
        node=word,
    )


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
