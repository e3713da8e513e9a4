"""Losses that compare a prediction with a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from weft_graph.attributes import as_int, as_ints
from weft_graph.dimensions import Dim, DimensionError, is_unknown, product
from weft_graph.errors import DTypeError, GraphRefusedError, ShapeError
from weft_graph.infer import Inference
from weft_graph.ir import ONNX_DOMAIN, AttributeValue, Constant, Graph, Input, Node
from weft_graph.names import FreshNames, node_definitions, value_definitions
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.spelling import did_you_mean
from weft_graph.topological import topological_order
from weft_graph.types import BATCH, DType, Shape, TensorType

# ----------------------------------------------------------------------------------------------------------------------
# Where scores have their classes: on axis 1 of four dimensions or more, as images have them (batch, classes, height,
# width), and on the last axis else: (batch, classes), and (batch, positions, classes) as language models give them.


def classes_axis(scores: TensorType, asked: int | None, what: str) -> int:
    """The axis of the classes, `asked` or by the rule; `what` names the scores. Raises ShapeError."""
    rank = scores.rank
    if rank < 2:
        raise ShapeError(f"{what} is {scores}; scores of classes are (batch, classes, ...)")
    if asked is None:
        return 1 if rank >= 4 else rank - 1
    if not -rank <= asked < rank or asked % rank == 0:
        raise ShapeError(f"classes_axis {asked}: {what} is {scores}, whose classes can be on the axes 1 to {rank - 1}")
    return asked % rank


def classes_second(rank: int, axis: int) -> tuple[int, ...] | None:
    """The order of dimensions that brings the classes to axis 1, where ONNX's losses want them; None if they are."""
    return None if axis == 1 else (0, axis, *(place for place in range(1, rank) if place != axis))


# --- Nodes that are added to a graph, each typed as it is added -------------------------------------------------------


_LEAST_LOG: Final = -100.0


class LossNodes:
    """What a loss adds to a graph, under names that the graph has not. `types` has every value's type."""

    def __init__(self, graph: Graph) -> None:
        given = {input_.name: input_.type for input_ in graph.inputs}
        given.update((parameter.name, parameter.type) for parameter in graph.parameters)
        self._inference = Inference(given, graph.constants)
        for node in topological_order(graph.nodes):
            self._inference.add(node)
        self._values = FreshNames(definition.name for definition in value_definitions(graph))
        self._names = FreshNames(definition.name for definition in node_definitions(graph))
        self.nodes: list[Node] = []
        self.constants: list[Constant] = []

    @property
    def types(self) -> dict[str, TensorType]:
        return self._inference.types

    def add(self, op_type: str, inputs: tuple[str, ...], stem: str, **attributes: AttributeValue) -> str:
        """The first output of a new node. Raises ShapeError, DTypeError."""
        output = self._values.fresh(stem)
        node = Node(op_type, self._names.fresh(output), inputs, (output,), attributes)
        self._inference.add(node)
        self.nodes.append(node)
        return output

    def mean(self, value: str, stem: str) -> str:
        """Over all elements, a scalar."""
        return self.add("ReduceMean", (value,), stem, keepdims=0)

    def total(self, value: str, stem: str) -> str:
        """The sum of all elements, a scalar."""
        return self.add("ReduceSum", (value,), stem, keepdims=0)

    def log_probability(self, value: str, stem: str) -> str:
        """The logarithm of probabilities, -100 of one that is 0, as in PyTorch's BCELoss. In float32 at least."""
        value = self.cast(value, widest((self.types[value].dtype, DType.FLOAT32)))
        dtype = self.types[value].dtype
        least = max(float(np.finfo(dtype.value).tiny), math.exp(_LEAST_LOG))  # no number below is divided by
        is_least = self.add("Less", (value, self.number(least, dtype)), f"{stem}/is_least")
        # What is replaced is replaced before its logarithm, whose gradient would be infinite there.
        positive = self.add("Where", (is_least, self.number(1.0, dtype), value), f"{stem}/positive")
        log = self.add("Log", (positive,), f"{stem}/log")
        return self.add("Where", (is_least, self.number(_LEAST_LOG, dtype), log), f"{stem}/log_probability")

    def cast(self, value: str, dtype: DType) -> str:
        """The value itself where it is of that type."""
        if self.types[value].dtype is dtype:
            return value
        return self.add("Cast", (value,), f"{value}/{dtype.value}", to=NUMBER_OF_DTYPE[dtype])

    def number(self, value: float, dtype: DType) -> str:
        """A scalar constant."""
        constant = Constant(self._values.fresh("loss/number"), np.asarray(value, dtype.numpy))
        self._inference.add_constant(constant)
        self.constants.append(constant)
        return constant.name

    def new_input(self, stem: str, type_: TensorType) -> Input:
        """An input under the name `stem`, or one like it."""
        made = Input(self._values.fresh(stem), type_)
        self._inference.types[made.name] = type_
        return made


def widest(dtypes: Iterable[DType]) -> DType:
    """The float type of most bits; float32 for float16 beside bfloat16."""
    given = set(dtypes)
    both = {DType.FLOAT16, DType.BFLOAT16}
    return DType.FLOAT32 if given == both else max(given, key=lambda dtype: (dtype.bits, dtype))


# ----------------------------------------------------------------------------------------------------------------------
# Whether an output is made by a Softmax, LogSoftmax or Sigmoid: then a loss can be taken of its input, the logits.
#
# Exported classifiers often end in one, while the stable form of a loss takes logits: the softmax of a softmax trains
# something else, and the logarithm of a probability that was rounded to 0 is lost.


SOFTMAX: Final = "Softmax"
LOG_SOFTMAX: Final = "LogSoftmax"
SIGMOID: Final = "Sigmoid"

_RESHAPING: Final = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_PASSING: Final = frozenset({"Identity", "Cast", "Transpose", *_RESHAPING})
"""Operators that keep every element, as it is or of another float type: what they do to probabilities they can do to
logits."""


@dataclass(frozen=True, slots=True)
class Activation:
    """The node that makes an output, and `path`, the nodes from it to the output.

    `axis` is the output's axis along which a Softmax or LogSoftmax normalizes; None where it is no single axis there.
    """

    node: Node
    path: tuple[Node, ...]
    axis: int | None

    @property
    def op_type(self) -> str:
        return self.node.op_type

    @property
    def logits(self) -> str:
        """What the node reads."""
        return self.node.inputs[0]

    def logits_as_output(self, nodes: LossNodes) -> str:
        """The logits with the output's shape. Casts to a narrower type are left out: they would lose digits."""
        value = self.logits
        for node in self.path:
            if node.op_type == "Cast":
                wanted = nodes.types[node.outputs[0]].dtype
                value = nodes.cast(value, wanted) if wanted.bits > nodes.types[value].dtype.bits else value
            elif node.op_type != "Identity":
                inputs = (value, *node.inputs[1:])
                value = nodes.add(node.op_type, inputs, f"{node.outputs[0]}/logits", **node.attributes)
        return value


def activation_of(output: str, makers: Mapping[str, Node], types: Mapping[str, TensorType]) -> Activation | None:
    """What makes the value `output`, or None where it is made otherwise. `makers` has the node of each value."""
    path: list[Node] = []
    node = makers.get(output)
    while node is not None and node.domain == ONNX_DOMAIN and node.op_type in _PASSING:
        if not types[node.inputs[0]].dtype.is_float:
            return None
        path.append(node)
        node = makers.get(node.inputs[0])
    if node is None or node.domain != ONNX_DOMAIN or node.op_type not in {SOFTMAX, LOG_SOFTMAX, SIGMOID}:
        return None
    path.reverse()
    return Activation(node, tuple(path), _axis(node, path, types))


def _axis(made: Node, path: Sequence[Node], types: Mapping[str, TensorType]) -> int | None:
    """Where the axis of `made` is behind the nodes of `path`."""
    if made.op_type == SIGMOID:
        return None
    axis: int | None = as_int(made.attributes.get("axis", -1)) % types[made.inputs[0]].rank
    for node in path:
        before, after = types[node.inputs[0]].shape, types[node.outputs[0]].shape
        if axis is None:
            return None
        if node.op_type == "Transpose":
            order = as_ints(node.attributes.get("perm", tuple(reversed(range(len(before))))))
            axis = order.index(axis)
        elif node.op_type in _RESHAPING:
            axis = _reshaped(axis, before, after)
    return axis


def _reshaped(axis: int, before: Shape, after: Shape) -> int | None:
    """The axis of the same size with as many elements behind it: its elements stay beside the same others."""
    try:
        behind = product(before[axis + 1 :])
        return next(
            (at for at, dim in enumerate(after) if dim == before[axis] and product(after[at + 1 :]) == behind), None
        )
    except DimensionError:
        return None


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
            known = (*outputs, *self._additions.makers)
            near = did_you_mean(name, known) or f"; there are {listed(outputs)}, and the values inside the model"
            raise GraphRefusedError(f"there is no output {name!r}{near}", node=name)
        if not name and len(outputs) > 1:
            raise GraphRefusedError(
                f"say which `output` the loss is of: there are {listed(outputs)}; weft.fit takes it as "
                f"loss=weft.Loss({self.loss.loss!r}, {outputs[0]!r})"
            )
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


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
