"""Expressions: a value that a graph will compute, which carries the graph that computes it.

An expression's type is known at once: a wrong shape raises at the line that wrote it. Expressions are immutable, and
compared by identity; `ops.equal` compares element by element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.application import application
from weft.collect import collect
from weft.records import Array, Label, Record, Value
from weft_graph.ir import ONNX_DOMAIN, Graph

if TYPE_CHECKING:
    from weft.evaluation import Feeds

Scalar = bool | int | float


@dataclass(frozen=True, slots=True, eq=False)
class Expression(Value):
    """A value of a graph, with the operators of Python and NumPy."""

    __array_ufunc__ = None
    """NumPy leaves `array + expression` to the expression instead of going through its elements."""

    def eval(
        self,
        feeds: Feeds | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        seed: int = 0,
        training: bool = False,
    ) -> Array:
        """The value, computed here and now. `feeds` has an array for each input, by name or by its expression.

        It is the value of inference: BatchNorm reads its running statistics, Dropout passes its input on. With
        `training` it is that of a training step: BatchNorm takes the batch's statistics, Dropout drops, by `seed`.

        `parameters` are values by name, as `JobHandle.values()` and `weft.load` bring them; first values drawn from
        `seed` where left out.

        Raises ArgumentError for what is no mapping; GraphRefusedError for a feed that is missing or unknown, or a
        missing parameter; DTypeError for elements of another kind; FeedError for another shape; EvaluatorError where no
        evaluator is installed.
        """
        from weft.evaluation import evaluate  # looks up entry points, which only who evaluates needs

        return evaluate((self,), {} if feeds is None else feeds, parameters=parameters, seed=seed, training=training)[0]

    def graph(self, name: str = "graph") -> Graph:
        """The graph that computes this expression, and nothing more: the graph to serve."""
        return graph(self, name=name)

    def __add__(self, other: Operand) -> Expression:
        return apply("Add", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return apply("Add", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return apply("Sub", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return apply("Sub", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return apply("Mul", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return apply("Mul", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return apply("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return apply("Div", other, self)

    def __matmul__(self, other: Operand) -> Expression:
        return apply("MatMul", self, other)

    def __rmatmul__(self, other: Operand) -> Expression:
        return apply("MatMul", other, self)

    def __pow__(self, other: Operand) -> Expression:
        return apply("Pow", self, other)

    def __rpow__(self, other: Operand) -> Expression:
        return apply("Pow", other, self)

    def __neg__(self) -> Expression:
        return apply("Neg", self)

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value before it is computed; ops.where chooses element by element")

    def __iter__(self) -> Iterator[Expression]:
        raise TypeError(f"an expression of type {self.type} cannot be gone through; its elements are not known yet")

    def __repr__(self) -> str:
        return f"<Expression {_word(self.record)} {self.type}>"


Operand = Expression | Array | np.generic | Scalar | Sequence[Any]
"""What operators take: what is no expression becomes a constant."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Outputs that belong to one graph."""

    outputs: tuple[Expression, ...]

    def eval(
        self,
        feeds: Feeds | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        seed: int = 0,
        training: bool = False,
    ) -> tuple[Array, ...]:
        """The outputs' values, computed in one go; see `Expression.eval`."""
        from weft.evaluation import evaluate  # looks up entry points, which only who evaluates needs

        return evaluate(
            self.outputs, {} if feeds is None else feeds, parameters=parameters, seed=seed, training=training
        )

    def graph(self, name: str = "graph") -> Graph:
        """The graph that computes all outputs, and nothing more."""
        return graph(*self.outputs, name=name)


def group(*outputs: Expression | Group) -> Group:
    """Joins outputs, in order; a group among them adds its own."""
    return Group(tuple(flat(outputs)))


def graph(*outputs: Expression | Group, name: str = "graph") -> Graph:
    """The graph that computes these outputs, and nothing more, in an order that can be run.

    Raises GraphRefusedError, naming them, where two inputs, parameters or layers were given one name.
    """
    return collect(tuple(flat(outputs)), name).graph


def flat(outputs: Sequence[Expression | Group]) -> Iterator[Expression]:
    """The single outputs of expressions and groups."""
    for output in outputs:
        if isinstance(output, Group):
            yield from output.outputs
        elif isinstance(output, Expression):
            yield output
        else:
            raise TypeError(f"an output is an expression, not {type(output).__name__}: {output!r}")


def apply(op_type: str, *inputs: Operand | None, **attributes: Any) -> Expression:
    """The operator's first output; see `apply_many`."""
    return apply_many(op_type, inputs, attributes, requested=1)[0]


def apply_many(
    op_type: str,
    inputs: Sequence[Operand | None],
    attributes: Mapping[str, Any],
    *,
    requested: int | None = None,
    label: Label | None = None,
    domain: str = ONNX_DOMAIN,
) -> tuple[Expression, ...]:
    """The operator's first `requested` outputs; those that it always gives, where left out.

    None among the inputs leaves out an optional one, None as an attribute takes the default. A Python number takes the
    element type of the operand beside it. Raises UnknownOperatorError, ShapeError, DTypeError, GraphRefusedError.
    """
    record = application(op_type, inputs, attributes, requested=requested, label=label, domain=domain)
    return tuple(Expression(record, index) for index in range(len(record.types)))


def _word(record: Record) -> str:
    """What a record is called before names are given, for people."""
    if record.label is None:
        return "constant"
    return record.label.local or (record.label.scope.name if record.label.scope else "")
