"""What a loss or metric compares: an output of a graph, or a value inside it, with an input that has the targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from weft_graph.dimensions.dims import Dim, is_unknown
from weft_graph.errors import DTypeError, GraphRefusedError, ShapeError
from weft_graph.ir import Graph, Input, Node
from weft_graph.losses.activations import LOG_SOFTMAX, SIGMOID, SOFTMAX, Activation, activation_of
from weft_graph.losses.classes import classes_axis, classes_second
from weft_graph.losses.nodes import LossNodes
from weft_graph.types import BATCH, DType, TensorType

CLASSES: Final = frozenset({"cross_entropy", "nll", "log_loss"})
"""Losses whose targets are numbers of classes."""

YES_OR_NO: Final = frozenset({"bce", "bce_with_logits"})
"""Losses whose targets are 1 for yes and 0 for no, or a probability of yes."""

LOSSES: Final = ("cross_entropy", "mse", "l1", "bce_with_logits", "nll", "bce", "log_loss")

_WHOLE: Final = (DType.INT32, DType.INT64)

_OF_INPUT: Final[Mapping[str, frozenset[str]]] = {
    "cross_entropy": frozenset({SOFTMAX, LOG_SOFTMAX}),
    "log_loss": frozenset({SOFTMAX}),
    "nll": frozenset({LOG_SOFTMAX}),
    "bce": frozenset({SIGMOID}),
    "bce_with_logits": frozenset({SIGMOID}),
}
"""The activations of an output in the place of which a loss takes their input, to the same value."""

_TAKEN_AS_LOGITS: Final = frozenset({"cross_entropy", "bce_with_logits"})
"""Losses of logits: that they are not taken of the output is worth a note."""

_REFUSED: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("log_loss", LOG_SOFTMAX): ("probabilities", "nll, which takes log-probabilities, or cross_entropy"),
    ("nll", SOFTMAX): ("log-probabilities", "log_loss, which takes probabilities, or cross_entropy"),
    ("nll", SIGMOID): ("log-probabilities", "bce, which takes a probability for each class"),
    ("bce", LOG_SOFTMAX): ("probabilities", "cross_entropy or nll"),
    ("bce_with_logits", SOFTMAX): ("logits", "bce, which takes probabilities, or cross_entropy"),
    ("bce_with_logits", LOG_SOFTMAX): ("logits", "cross_entropy or nll"),
}
"""(loss, activation): what the loss takes, and what to use in its place."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of a graph: what it is, what it compares, how much it counts.

    `loss` is one of `LOSSES`, or the name of an output that is a scalar. `output` is what it compares, the graph's only
    output where it is empty, or a value inside the graph; `target` the input with what it should be, which is added
    where the graph has none of that name: `labels` for classes, else `target`. Where there are several losses, they
    are added up, each multiplied by its `weight`. `classes_axis` is where classes are, by the rule of `losses.classes`
    where it is None. Targets that are `ignore_index` do not count.
    """

    loss: str
    output: str = ""
    target: str = ""
    weight: float = 1.0
    classes_axis: int | None = None
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        """Raises GraphRefusedError."""
        if not math.isfinite(self.weight) or self.weight == 0:
            raise GraphRefusedError(f"loss {self.loss!r} has weight {self.weight}; it must be a number other than 0")


@dataclass(slots=True)
class Additions:
    """What losses add to `graph`, and what there is to tell about them."""

    graph: Graph
    nodes: LossNodes = field(init=False)
    makers: Mapping[str, Node] = field(init=False)
    inputs: dict[str, Input] = field(default_factory=dict)
    fed: dict[str, str] = field(default_factory=dict)
    """Targets that nobody named -> the output that they are of."""
    notes: dict[str, None] = field(default_factory=dict)
    """Sentences, each once."""

    def __post_init__(self) -> None:
        self.nodes = LossNodes(self.graph)
        self.makers = {value: node for node in self.graph.nodes for value in node.outputs if value}


class Comparison:
    """What one loss compares, and metrics of the same output. Nothing is looked for, or added, before it is needed."""

    def __init__(self, loss: Loss, additions: Additions) -> None:
        self.loss = loss
        self.nodes = additions.nodes
        self._additions = additions
        self._output = ""
        self._target = ""
        self._activation: Activation | None = None

    @property
    def compares(self) -> bool:
        """Whether it has an output and a target: an output that is the loss itself has them only for metrics."""
        return self.loss.loss in LOSSES or bool(self.loss.output or self.loss.target)

    @property
    def compares_classes(self) -> bool:
        """Whether targets are numbers of classes: by the loss, or where the model has its own, by the target."""
        if self.loss.loss in LOSSES:
            return self.loss.loss in CLASSES
        given = self.nodes.types.get(self.loss.target)
        return given is not None and given.dtype in _WHOLE

    def fits(self, word: str) -> bool:
        """Whether a loss or metric can be taken of what this loss compares."""
        if word == "accuracy":
            return self.compares_classes or self.loss.loss in YES_OR_NO
        return self.compares and self.compares_classes == (word in CLASSES)

    @property
    def found_target(self) -> str:
        """The target, empty where none was needed."""
        return self._target

    @property
    def output(self) -> str:
        """The value that is compared. Raises GraphRefusedError, DTypeError, ShapeError."""
        if not self._output:
            self._output = self._find_output()
            self._activation = activation_of(self._output, self._additions.makers, self.nodes.types)
        return self._output

    @property
    def target(self) -> str:
        """The input that it is compared with, which is added where it is none. Raises GraphRefusedError and its kin."""
        if not self._target:
            self._target = self._find_target(self._wanted())
        return self._target

    @property
    def type(self) -> TensorType:
        return self.nodes.types[self.output]

    def classes_axis(self) -> int:
        """Raises ShapeError."""
        axis = classes_axis(self.type, self.loss.classes_axis, f"output {self.output!r}")
        if self.type.shape[axis] == 1:
            raise ShapeError(
                f"output {self.output!r} is {self.type}, which has one class, on axis {axis}: for targets of yes or no "
                "use bce_with_logits or bce",
                node=self.output,
            )
        return axis

    def classes_second(self, scores: str) -> str:
        """The scores with their classes on axis 1, where ONNX's losses want them."""
        order = classes_second(self.type.rank, self.classes_axis())
        return scores if order is None else self.nodes.add("Transpose", (scores,), "scores", perm=order)

    def logits(self, word: str) -> str | None:
        """What made the output, where the loss `word` is to be taken of that; None where it is taken of the output.

        Raises GraphRefusedError where the loss takes something else than the output's activation makes.
        """
        output, made = self.output, self._activation
        if made is None:
            return None
        what = f"output {output!r} is made by node {made.node.name!r}, a {made.op_type}"
        refused = _REFUSED.get((word, made.op_type))
        if refused is not None:
            takes, instead = refused
            raise GraphRefusedError(f"{what}, and {word} takes {takes}: use {instead}", node=made.node.name)
        if made.op_type == SIGMOID and word in CLASSES:
            self._note(f"{what}, whose classes do not exclude each other, and {word} is of classes that do; see bce")
        if made.op_type not in _OF_INPUT.get(word, ()):
            return None
        if made.op_type != SIGMOID and made.axis != self.classes_axis():
            raise self._other_axis(made, word, what)
        if word in _TAKEN_AS_LOGITS:
            self._note(f"{what}: {word} takes logits, so it is computed from that node's input {made.logits!r}")
        return made.logits_as_output(self.nodes)

    def _other_axis(self, made: Activation, word: str, what: str) -> GraphRefusedError:
        over = "values that are not one axis of the output" if made.axis is None else f"axis {made.axis}"
        axis = f"set classes_axis to {made.axis}, or " if made.axis else ""
        return GraphRefusedError(
            f"{what} over {over}, and {word} looks for classes on axis {self.classes_axis()}: {axis}give another value "
            f"as `output`, such as that node's input {made.logits!r}",
            node=made.node.name,
        )

    def _note(self, text: str) -> None:
        self._additions.notes[text] = None

    def _find_output(self) -> str:
        graph, name = self._additions.graph, self.loss.output
        outputs, types = graph.outputs, self.nodes.types
        if name and name not in outputs and name not in self._additions.makers:
            near = did_you_mean(name, (*outputs, *self._additions.makers))
            raise GraphRefusedError(
                f"there is no output {name!r}{near}; there are {listed(outputs)}, and the values inside the model",
                node=name,
            )
        if not name and len(outputs) > 1:
            raise GraphRefusedError(f"say which `output` the loss is of: there are {listed(outputs)}")
        name = name or outputs[0]
        type_ = types[name]
        if not type_.dtype.is_float:
            raise DTypeError(f"output {name!r} is {type_}; a loss is of floats", node=name)
        if self.compares_classes and type_.rank < 2:
            raise ShapeError(f"output {name!r} is {type_}; scores of classes are (batch, classes, ...)", node=name)
        return name

    def _wanted(self) -> TensorType:
        """The type of a target that fits the output."""
        type_ = self.type
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
            f"output {self.output!r} is {self.type}, and an input has no dimension {dim!r}: feed the target through an "
            "input of the model, or give the input sizes as numbers",
            node=self.output,
        )

    def _find_target(self, wanted: TensorType) -> str:
        """An input of the graph, or one that is added, which losses may share."""
        additions = self._additions
        name = self.loss.target or ("labels" if self.compares_classes else "target")
        given = next((input_.type for input_ in additions.graph.inputs if input_.name == name), None)
        if given is not None:
            _check_target(name, given, wanted)
            return name
        shared = additions.inputs.get(name)
        if shared is not None:
            if not self.loss.target and additions.fed.get(name) != self.output:
                raise GraphRefusedError(
                    f"output {self.output!r} would be compared with {name!r} too: name the `target` of each loss, the "
                    "same one twice where outputs share it"
                )
            if shared.type != wanted:
                raise ShapeError(
                    f"target {name!r} of output {self.output!r} should be {wanted}, and another loss has it as "
                    f"{shared.type}; name another one",
                    node=name,
                )
            return shared.name
        if name in self.nodes.types and self.loss.target:
            raise GraphRefusedError(f"target {name!r} is the name of another value of the graph", node=name)
        fresh = self.nodes.new_input(name, wanted)
        additions.inputs[name] = fresh
        if not self.loss.target:
            additions.fed[name] = self.output
        return fresh.name


def _check_target(name: str, type_: TensorType, wanted: TensorType) -> None:
    """Shapes are the loss operators' to check. Raises DTypeError."""
    if type_.dtype is wanted.dtype or (wanted.dtype in _WHOLE and type_.dtype in _WHOLE):
        return
    raise DTypeError(
        f"target {name!r} is the model's input of type {type_}, and the loss wants {wanted}; name another one",
        node=name,
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'logits'?)`, or nothing where no name is like it."""
    near = get_close_matches(name, list(dict.fromkeys(known)), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
