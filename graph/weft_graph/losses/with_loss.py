"""Gives a graph that computes scores, or predictions, the loss and the metrics that it trains by.

`weft_graph.losses.classes` says where class scores have their classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final

from weft_graph.check import check
from weft_graph.dimensions.dims import Dim, is_unknown
from weft_graph.errors import DTypeError, GraphRefusedError, ShapeError
from weft_graph.ir import Graph, Input
from weft_graph.losses.classes import classes_axis, classes_second
from weft_graph.losses.nodes import LossNodes
from weft_graph.types import BATCH, DType, TensorType


@dataclass(frozen=True, slots=True)
class LossOptions:
    """What is made small. `loss` is one of `LOSSES`, or the name of an output that is a scalar.

    `output` is what the loss compares, the graph's only output where it is empty; `target` the input with what it
    should be, which is added where the graph has none of that name: `labels` for classes, else `target`. `classes_axis`
    is where classes are, by the rule of `losses.classes` where it is None. Targets that are `ignore_index` do not
    count. `metrics` are `accuracy`, losses, or outputs that are scalars.
    """

    loss: str
    output: str = ""
    target: str = ""
    classes_axis: int | None = None
    ignore_index: int | None = None
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WithLoss:
    """A graph that can train: `loss` and the values of `metrics` are its outputs, before those that it had."""

    graph: Graph
    loss: str
    metrics: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    """The input that the loss compares with; empty where the model computes its loss itself."""


CLASSES: Final = frozenset({"cross_entropy", "nll"})
"""Losses whose targets are numbers of classes."""

_WHOLE: Final = (DType.INT32, DType.INT64)


def with_loss(graph: Graph, options: LossOptions) -> WithLoss:
    """Raises GraphRefusedError and its kin, which say what there is to choose from."""
    adding = _Adding(graph, options)
    loss = adding.value_of(options.loss, "loss")
    metrics = {name: adding.value_of(name, name) for name in dict.fromkeys(options.metrics)}
    nodes = adding.nodes
    inputs = (*graph.inputs, *adding.added)
    outputs = tuple(dict.fromkeys((loss, *metrics.values(), *graph.outputs)))
    made = replace(
        graph,
        inputs=inputs,
        nodes=(*graph.nodes, *nodes.nodes),
        constants=(*graph.constants, *nodes.constants),
        outputs=outputs,
    )
    check(made)
    return WithLoss(made, loss, metrics, adding.target)


class _Adding:
    """The state of giving one graph its loss."""

    def __init__(self, graph: Graph, options: LossOptions) -> None:
        self.graph = graph
        self.options = options
        self.nodes = LossNodes(graph)
        self.added: list[Input] = []
        self.target = ""
        self.output = ""

    def value_of(self, word: str, stem: str) -> str:
        """The scalar that a loss or metric's word means."""
        measure = MEASURES.get(word)
        if measure is not None:
            self._find()
            return measure(self, stem)
        if word in self.graph.outputs:
            type_ = self.nodes.types[word]
            if type_.shape or not type_.dtype.is_float:
                raise ShapeError(f"output {word!r} is {type_}; a loss or metric is a single float", node=word)
            return word
        scalars = [name for name in self.graph.outputs if not self.nodes.types[name].shape]
        near = get_close_matches(word, (*MEASURES, *scalars), n=1)
        raise GraphRefusedError(
            f"there is no loss or metric {word!r}{f' (did you mean {near[0]!r}?)' if near else ''}; "
            f"there are {', '.join(MEASURES)}, and the model's outputs that are single floats"
            f"{': ' + _listed(scalars) if scalars else ', of which it has none'}",
            node=word,
        )

    @property
    def compares_classes(self) -> bool:
        """Whether targets are numbers of classes: by the loss, or where the model has its own, by the target."""
        if self.options.loss in MEASURES:
            return self.options.loss in CLASSES
        given = self.nodes.types.get(self.options.target)
        return given is not None and given.dtype in _WHOLE

    def classes_axis(self) -> int:
        return classes_axis(self.nodes.types[self.output], self.options.classes_axis, f"output {self.output!r}")

    def scores(self) -> str:
        """The output with its classes on axis 1, where ONNX's losses want them."""
        order = classes_second(self.nodes.types[self.output].rank, self.classes_axis())
        return self.output if order is None else self.nodes.add("Transpose", (self.output,), "scores", perm=order)

    def _find(self) -> None:
        """The output and the target that are compared; the target becomes an input where it is none."""
        if self.output:
            return
        self.output = self._output()
        wanted = self._wanted()
        self.target = self._target(wanted)

    def _output(self) -> str:
        outputs, name = self.graph.outputs, self.options.output
        if name and name not in outputs:
            raise GraphRefusedError(f"there is no output {name!r}; there are {_listed(outputs)}", node=name)
        if not name and len(outputs) > 1:
            raise GraphRefusedError(f"say which `output` the loss is of: there are {_listed(outputs)}")
        name = name or outputs[0]
        type_ = self.nodes.types[name]
        if not type_.dtype.is_float:
            raise DTypeError(f"output {name!r} is {type_}; a loss is of floats", node=name)
        if self.compares_classes and type_.rank < 2:
            raise ShapeError(f"output {name!r} is {type_}; scores of classes are (batch, classes, ...)", node=name)
        return name

    def _wanted(self) -> TensorType:
        """The type of a target that fits the output."""
        type_ = self.nodes.types[self.output]
        if not self.compares_classes:
            return TensorType(type_.dtype, tuple(map(self._dim, range(type_.rank), type_.shape)))
        axis = self.classes_axis()
        dims = [dim for place, dim in enumerate(type_.shape) if place != axis]
        return TensorType(DType.INT64, tuple(map(self._dim, range(len(dims)), dims)))

    def _dim(self, place: int, dim: Dim) -> Dim:
        """What a dimension is called at an input. One that only values decide has a name of its own there."""
        if isinstance(dim, int) or dim.isidentifier():
            return dim
        if is_unknown(dim):
            return f"target_{place}" if place else BATCH
        raise ShapeError(
            f"output {self.output!r} is {self.nodes.types[self.output]}, and an input has no dimension {dim!r}: feed "
            "the target through an input of the model, or give the input sizes as numbers",
            node=self.output,
        )

    def _target(self, wanted: TensorType) -> str:
        name = self.options.target or ("labels" if self.compares_classes else "target")
        inputs = {input_.name: input_.type for input_ in self.graph.inputs}
        if name in inputs:
            _check_target(name, inputs[name], wanted)
            return name
        if name in self.nodes.types and self.options.target:
            raise GraphRefusedError(f"target {name!r} is the name of another value of the graph", node=name)
        fresh = self.nodes.new_input(name, wanted)
        self.added.append(fresh)
        return fresh.name


def _check_target(name: str, type_: TensorType, wanted: TensorType) -> None:
    """Shapes are the loss operators' to check. Raises DTypeError."""
    if type_.dtype is wanted.dtype or (wanted.dtype in _WHOLE and type_.dtype in _WHOLE):
        return
    raise DTypeError(
        f"target {name!r} is the model's input of type {type_}, and the loss wants {wanted}; name another one",
        node=name,
    )


def _cross_entropy(adding: _Adding, stem: str) -> str:
    return _of_classes(adding, "SoftmaxCrossEntropyLoss", stem)


def _nll(adding: _Adding, stem: str) -> str:
    return _of_classes(adding, "NegativeLogLikelihoodLoss", stem)


def _of_classes(adding: _Adding, op_type: str, stem: str) -> str:
    if not adding.compares_classes:
        raise GraphRefusedError(f"{stem!r} compares with numbers of classes, which {adding.target!r} does not have")
    ignored = adding.options.ignore_index
    attributes: dict[str, int] = {} if ignored is None else {"ignore_index": ignored}
    return adding.nodes.add(op_type, (adding.scores(), adding.target), stem, reduction="mean", **attributes)


def _mean_squared_error(adding: _Adding, stem: str) -> str:
    difference = _difference(adding, stem)
    return adding.nodes.mean(adding.nodes.add("Mul", (difference, difference), f"{stem}/squares"), stem)


def _mean_absolute_error(adding: _Adding, stem: str) -> str:
    return adding.nodes.mean(adding.nodes.add("Abs", (_difference(adding, stem),), f"{stem}/sizes"), stem)


def _difference(adding: _Adding, stem: str) -> str:
    _check_values(adding, stem)
    return adding.nodes.add("Sub", (adding.output, adding.target), f"{stem}/difference")


def _bce_with_logits(adding: _Adding, stem: str) -> str:
    """The mean of log(1 + exp(x)) - x t, which no large x overflows."""
    _check_values(adding, stem)
    nodes = adding.nodes
    whole = nodes.add("Softplus", (adding.output,), f"{stem}/softplus")
    hit = nodes.add("Mul", (adding.output, adding.target), f"{stem}/hit")
    return nodes.mean(nodes.add("Sub", (whole, hit), f"{stem}/each"), stem)


def _check_values(adding: _Adding, stem: str) -> None:
    """Broadcasting would compare every sample with every other. Raises GraphRefusedError, ShapeError."""
    if adding.compares_classes:
        raise GraphRefusedError(f"{stem!r} compares numbers, and {adding.target!r} has numbers of classes")
    output, target = adding.nodes.types[adding.output], adding.nodes.types[adding.target]
    if output.rank != target.rank:
        raise ShapeError(f"output {adding.output!r} is {output} and target {adding.target!r} {target}; they must agree")


def _accuracy(adding: _Adding, stem: str) -> str:
    """The share of targets whose class has the largest score; of logits of yes or no, of those on the right side."""
    nodes = adding.nodes
    dtype = nodes.types[adding.output].dtype
    if not adding.compares_classes:
        if adding.options.loss != "bce_with_logits":
            raise GraphRefusedError(f"accuracy is of classes; the loss {adding.options.loss!r} compares numbers")
        zero, half = nodes.number(0.0, dtype), nodes.number(0.5, dtype)
        said = nodes.add("Greater", (adding.output, zero), f"{stem}/said")
        true = nodes.add("Greater", (adding.target, half), f"{stem}/true")
        return nodes.mean(nodes.cast(nodes.add("Equal", (said, true), f"{stem}/right"), dtype), stem)
    best = nodes.add("ArgMax", (adding.output,), f"{stem}/best", axis=adding.classes_axis(), keepdims=0)
    target = nodes.cast(adding.target, DType.INT64)
    right = nodes.cast(nodes.add("Equal", (best, target), f"{stem}/right"), dtype)
    if adding.options.ignore_index is None:
        return nodes.mean(right, stem)
    ignored = nodes.add("Equal", (target, nodes.number(adding.options.ignore_index, DType.INT64)), f"{stem}/ignored")
    counted = nodes.cast(nodes.add("Not", (ignored,), f"{stem}/counted"), dtype)
    hits = nodes.total(nodes.add("Mul", (right, counted), f"{stem}/hits"), f"{stem}/sum")
    most = nodes.add("Max", (nodes.total(counted, f"{stem}/count"), nodes.number(1.0, dtype)), f"{stem}/most")
    return nodes.add("Div", (hits, most), stem)


LOSSES: Final = ("cross_entropy", "mse", "l1", "bce_with_logits", "nll")

MEASURES: Final[Mapping[str, Callable[[_Adding, str], str]]] = {
    "cross_entropy": _cross_entropy,
    "mse": _mean_squared_error,
    "l1": _mean_absolute_error,
    "bce_with_logits": _bce_with_logits,
    "nll": _nll,
    "accuracy": _accuracy,
}
"""What a loss or a metric may be, by name; `accuracy` has no gradient, and is a metric alone."""


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
