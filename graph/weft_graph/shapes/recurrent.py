"""What LSTM, GRU and RNN agree on: the shapes of weights and states, activation functions, directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weft_graph.attributes import as_float, as_floats, as_int, as_str, as_texts
from weft_graph.dimensions import Dim, agree, product, settled
from weft_graph.formals import FLOATS, optional, required
from weft_graph.ir import WEFT_DOMAIN, AttributeValue, Node
from weft_graph.schema import Attribute, Flops, Formal, GradientContext, InferContext
from weft_graph.shapes.gradients import refusal
from weft_graph.types import DType, TensorType

DIRECTIONS: Final[Mapping[str, tuple[bool, ...]]] = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}
"""Which ways each `direction` runs; True begins at the end of a sequence."""

ACTIVATIONS: Final[Mapping[str, Mapping[str, float]]] = {
    "Relu": {},
    "Tanh": {},
    "Sigmoid": {},
    "Affine": {"alpha": 1.0, "beta": 0.0},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
    "ScaledTanh": {"alpha": 1.0, "beta": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Elu": {"alpha": 1.0},
    "Softsign": {},
    "Softplus": {},
}
"""The functions that a gate may have, with the numbers that each takes and what these are unless set."""

ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "activation_alpha": Attribute(tuple, of=float),
    "activation_beta": Attribute(tuple, of=float),
    "activations": Attribute(tuple, of=str),
    "clip": Attribute(float),
    "direction": Attribute(str, default="forward"),
    "hidden_size": Attribute(int),
    "layout": Attribute(int, default=0),
}
LENGTHS: Final = frozenset({DType.INT32})

INPUTS: Final = (
    required("X", FLOATS),
    required("W", FLOATS),
    required("R", FLOATS),
    optional("B", FLOATS),
    optional("sequence_lens", LENGTHS),
    optional("initial_h", FLOATS),
)
OUTPUTS: Final = (optional("Y", FLOATS), optional("Y_h", FLOATS))


@dataclass(frozen=True, slots=True)
class Activation:
    """A gate's function and its numbers."""

    name: str
    alpha: float
    beta: float


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of cell: how many gates have weights, the functions of one direction, whether it has a second state."""

    gates: int
    functions: tuple[str, ...]
    has_memory: bool = False

    @property
    def states(self) -> int:
        return 2 if self.has_memory else 1


LSTM: Final = Cell(4, ("Sigmoid", "Tanh", "Tanh"), has_memory=True)
GRU: Final = Cell(3, ("Sigmoid", "Tanh"))
RNN: Final = Cell(1, ("Tanh",))


def activations_of(attributes: Mapping[str, AttributeValue], cell: Cell) -> tuple[tuple[Activation, ...], ...]:
    """The functions of each direction. Those that take an alpha, or a beta, use up the lists of these in order.

    Raises ValueError for a function that is none, for too few or too many of them, and for numbers left over.
    """
    ways = len(DIRECTIONS[as_str(attributes.get("direction", "forward"))])
    names = as_texts(attributes.get("activations", cell.functions * ways))
    if len(names) != len(cell.functions) * ways:
        raise ValueError(f"activations has {len(names)} functions, and must have {len(cell.functions) * ways}")
    known = {name.casefold(): name for name in ACTIVATIONS}
    given = {what: list(as_floats(attributes.get(f"activation_{what}", ()))) for what in ("alpha", "beta")}
    found = []
    for name in names:
        if name.casefold() not in known:
            raise ValueError(f"activation {name!r} is none of {', '.join(ACTIVATIONS)}")
        numbers = dict(ACTIVATIONS[known[name.casefold()]])
        for what in numbers:
            if given[what]:
                numbers[what] = given[what].pop(0)
        found.append(Activation(known[name.casefold()], numbers.get("alpha", 0.0), numbers.get("beta", 0.0)))
    for what, left in given.items():
        if left:
            raise ValueError(f"activation_{what} has {len(left)} numbers more than the functions take")
    each = len(cell.functions)
    return tuple(tuple(found[way * each : (way + 1) * each]) for way in range(ways))


@dataclass(frozen=True, slots=True)
class Sizes:
    """The dimensions of one node."""

    length: Dim
    batch: Dim
    inputs: Dim
    hidden: Dim
    ways: int
    by_sample: bool
    """Whether the batch is the first dimension (`layout` 1) and not time."""

    def state(self) -> tuple[Dim, ...]:
        return (self.batch, self.ways, self.hidden) if self.by_sample else (self.ways, self.batch, self.hidden)

    def sequence(self) -> tuple[Dim, ...]:
        if self.by_sample:
            return (self.batch, self.length, self.ways, self.hidden)
        return (self.length, self.ways, self.batch, self.hidden)


def infer_recurrent(context: InferContext, cell: Cell) -> tuple[TensorType, ...]:
    """Types of Y, Y_h and, of a cell with a memory, Y_c. Raises ShapeError or DTypeError."""
    sizes = infer_sizes(context, cell, 0)
    dtype = context.input(0).dtype
    state = TensorType(dtype, sizes.state())
    return (TensorType(dtype, sizes.sequence()), *(state,) * cell.states)


def infer_sizes(context: InferContext, cell: Cell, first: int) -> Sizes:
    """The dimensions, once everything fits; X is the input `first`, and the others follow it as in ONNX."""
    _check_attributes(context, cell)
    data, recurrent = context.input(first), context.input(first + 2)
    for name, type_ in (("X", data), ("W", context.input(first + 1)), ("R", recurrent)):
        if type_.rank != 3:
            raise context.shape_error(f"{name} must have 3 dimensions, got {type_}")
    by_sample = as_int(context.attribute("layout")) == 1
    given = context.attribute("hidden_size")
    hidden = recurrent.shape[2] if given is None else settled(recurrent.shape[2], as_int(given))
    ways = len(DIRECTIONS[as_str(context.attribute("direction"))])
    length, batch = (data.shape[1], data.shape[0]) if by_sample else data.shape[:2]
    sizes = Sizes(length, batch, data.shape[2], hidden, ways, by_sample)
    weights = product((cell.gates, hidden))
    expected: list[tuple[str, int, tuple[Dim, ...]]] = [
        ("W", 1, (ways, weights, data.shape[2])),
        ("R", 2, (ways, weights, hidden)),
        ("B", 3, (ways, product((2, weights)))),
        ("sequence_lens", 4, (batch,)),
        ("initial_h", 5, sizes.state()),
    ]
    if cell.has_memory:
        expected += [("initial_c", 6, sizes.state()), ("P", 7, (ways, product((3, hidden))))]
    for name, place, shape in expected:
        given_type = context.optional_input(first + place)
        if given_type is not None:
            _check_input(context, name, given_type, shape, data.dtype)
    return sizes


def _check_input(context: InferContext, name: str, type_: TensorType, shape: tuple[Dim, ...], dtype: DType) -> None:
    fits = type_.rank == len(shape) and all(agree(a, b) for a, b in zip(type_.shape, shape, strict=True))
    if not fits:
        raise context.shape_error(f"{name} must be of shape [{', '.join(map(str, shape))}], got {type_}")
    if name != "sequence_lens" and type_.dtype != dtype:
        raise context.dtype_error(f"{name} must have elements of {dtype}, got {type_}")


def _check_attributes(context: InferContext, cell: Cell) -> None:
    direction = as_str(context.attribute("direction"))
    if direction not in DIRECTIONS:
        raise context.shape_error(f"direction {direction!r} is none of {', '.join(DIRECTIONS)}")
    if as_int(context.attribute("layout")) not in {0, 1}:
        raise context.shape_error("layout must be 0, time first, or 1, the batch first")
    clip = context.attribute("clip")
    if clip is not None and not as_float(clip) > 0:
        raise context.shape_error(f"clip {clip} must be above 0")
    try:
        activations_of(context.node.attributes, cell)
    except ValueError as error:
        raise context.shape_error(str(error)) from None


def recurrent_flops(cell: Cell) -> Flops:
    """Products with both weights for each gate, and about ten operations on each gate's elements."""

    def flops(node: Node, reads: Sequence[TensorType | None], _writes: Sequence[TensorType]) -> int:
        data, weights, recurrent = reads[:3]
        assert data is not None
        assert weights is not None
        assert recurrent is not None
        samples = data.static_shape[0] * data.static_shape[1]
        return samples * (2 * (weights.size + recurrent.size) + 10 * cell.gates * recurrent.static_shape[2])

    return flops


def recurrent_gradient(context: GradientContext, cell: Cell, kept: Sequence[str]) -> tuple[str | None, ...]:
    """Gradients of the node's inputs by the operator of its name with `Grad`, which takes the attributes `kept`."""
    inputs = [context.input(index) for index in range(8 if cell.has_memory else 6)]
    flowing = [context.gradient(index) for index in range(1 + cell.states)]
    if all(gradient is None for gradient in flowing):
        raise refusal(context, "nothing flows into its outputs")
    # The states of every turn are in Y: the way backwards computes the gates from them, all turns at once.
    given = (*(gradient or "" for gradient in flowing), context.output(0), *inputs)
    attributes = {name: value for name in kept if (value := context.attribute(name)) is not None}
    places = gradient_places(cell)
    count = len(places) if context.needs(0) else len(places) - 1
    made = context.emit(f"{context.node.op_type}Grad", given, attributes, domain=WEFT_DOMAIN, outputs=count)
    found: list[str | None] = [None] * len(context.node.inputs)
    for place, gradient in zip(places, made, strict=False):
        if context.needs(place):
            found[place] = gradient
    return tuple(found)


def gradient_places(cell: Cell) -> tuple[int, ...]:
    """The inputs whose gradients the operator's `Grad` gives, in that order; X is the last, and may be left out."""
    return (1, 2, 3, 5, 6, 7, 0) if cell.has_memory else (1, 2, 3, 5, 0)


def gradient_formals(cell: Cell, inputs: Sequence[Formal]) -> tuple[tuple[Formal, ...], tuple[Formal, ...]]:
    """Inputs and outputs of an operator's `Grad`."""
    flowing = tuple(optional(f"{name}_gradient", FLOATS) for name in ("Y", "Y_h", "Y_c")[: 1 + cell.states])
    outputs = tuple(optional(f"{inputs[place].name}_gradient", FLOATS) for place in gradient_places(cell))
    return (*flowing, required("Y", FLOATS), *inputs), outputs


def infer_recurrent_gradient(context: InferContext, cell: Cell) -> tuple[TensorType, ...]:
    """Types of the gradients, also of inputs that are left out."""
    first = 2 + cell.states
    sizes, dtype = infer_sizes(context, cell, first), context.input(first).dtype
    weights = product((cell.gates, sizes.hidden))
    shapes: dict[int, tuple[Dim, ...]] = {
        0: context.input(first).shape,
        1: (sizes.ways, weights, sizes.inputs),
        2: (sizes.ways, weights, sizes.hidden),
        3: (sizes.ways, product((2, weights))),
        5: sizes.state(),
        6: sizes.state(),
        7: (sizes.ways, product((3, sizes.hidden))),
    }
    return tuple(TensorType(dtype, shapes[place]) for place in gradient_places(cell))
