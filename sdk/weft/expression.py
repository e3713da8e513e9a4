"""Expressions: a value that a graph will compute, which carries the graph that computes it.

An expression's type is known at once: a wrong shape raises at the line that wrote it. Expressions are immutable, and
compared by identity; `ops.equal` compares element by element.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import ArgumentError
from weft.records import Application, ConstantRecord, InputRecord, Label, ParameterRecord, Record, Scope
from weft_graph.errors import DTypeError, ShapeError
from weft_graph.ir import Graph, Initializer
from weft_graph.types import BATCH, DType, Shape, TensorType

Array = np.ndarray[Any, np.dtype[Any]]
Scalar = bool | int | float


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """Output `index` of `record`."""

    record: Record
    index: int = 0

    __array_ufunc__ = None
    """NumPy leaves `array + expression` to the expression instead of going through its elements."""

    @property
    def type(self) -> TensorType:
        """Element type and shape; a dimension is a number or a symbol such as `batch`."""
        return self.record.types[self.index]

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def known(self) -> Array | None:
        """The value where it is known before any step: a constant, or a shape worked out of constants."""
        if isinstance(self.record, ConstantRecord):
            return self.record.array
        return self.record.known if isinstance(self.record, Application) and self.index == 0 else None

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
        return _binary("Add", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return _binary("Add", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return _binary("Sub", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return _binary("Sub", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return _binary("Mul", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return _binary("Mul", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return _binary("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return _binary("Div", other, self)

    def __matmul__(self, other: Operand) -> Expression:
        return _binary("MatMul", self, other)

    def __rmatmul__(self, other: Operand) -> Expression:
        return _binary("MatMul", other, self)

    def __pow__(self, other: Operand) -> Expression:
        return _binary("Pow", self, other)

    def __rpow__(self, other: Operand) -> Expression:
        return _binary("Pow", other, self)

    def __neg__(self) -> Expression:
        from weft.application import apply  # application needs this class

        return apply("Neg", self)

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value before it is computed; ops.where chooses element by element")

    def __iter__(self) -> Iterator[Expression]:
        raise TypeError(f"an expression of type {self.type} cannot be gone through; its elements are not known yet")

    def __repr__(self) -> str:
        return f"<Expression {_word(self.record)} {self.type}>"


Operand = Expression | Array | np.generic | Scalar | Sequence[Any]
"""What operators take: what is no expression becomes a constant."""

Feeds = Mapping[str | Expression, Any]
"""Values of inputs, by name or by the input's expression."""


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
    from weft.collect import collect  # collect needs this class

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


def input(name: str, shape: Sequence[int | str] = (BATCH,), dtype: DType | str = "float32") -> Expression:  # noqa: A001 - ONNX's word
    """A value that is fed at each step: a column of the data. `shape` begins with "batch" where rows are samples."""
    type_ = TensorType(element_type(dtype, name), _shape(shape, name))
    return Expression(InputRecord(Label(_name(name), given=True), (type_,)))


def parameter(
    name: str,
    shape: Sequence[int],
    initializer: Initializer,
    dtype: DType | str = "float32",
    *,
    trainable: bool = True,
    row_sparse: bool = True,
    scope: Scope | None = None,
) -> Expression:
    """A value that the store keeps and a rule updates; `shape` is all numbers. See `weft.nn.initializers`.

    One that only `ops.gather` (by axis 0) and `ops.embedding` read is a table: it is fetched and pushed by rows, and no
    worker holds the whole of it, unless `row_sparse` is False.
    """
    type_ = TensorType(element_type(dtype, name), _shape(shape, name))
    if not type_.is_static:
        raise ShapeError(f"parameter {name!r}: the store keeps numbers of fixed shape, this one is {type_}", node=name)
    label = Label(_name(name), scope, given=scope is None)
    return Expression(ParameterRecord(label, (type_,), initializer, trainable, row_sparse))


def constant(value: Any, dtype: DType | str | None = None, *, name: str | None = None) -> Expression:
    """A value that is part of the graph. Python's floats become float32; an array keeps its dtype unless one is given.

    The array is copied. Raises DTypeError for an element type that tensors cannot have.
    """
    array = np.asarray(value)
    if dtype is None and array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic):
        dtype = DType.FLOAT32
    wanted = element_type(dtype if dtype is not None else array.dtype.name, name or "constant")
    frozen = np.array(array, dtype=wanted.numpy, order="C", copy=True)
    frozen.flags.writeable = False
    label = Label(_name(name), given=True) if name is not None else None
    return Expression(ConstantRecord(label, (TensorType(wanted, frozen.shape),), frozen))


def _binary(op_type: str, left: Operand, right: Operand) -> Expression:
    from weft.application import apply  # application needs this class

    return apply(op_type, left, right)


def element_type(dtype: DType | str, owner: str) -> DType:
    """The element type of that name. Raises DTypeError, which says who asked for it."""
    try:
        return DType(dtype)
    except ValueError:
        allowed = ", ".join(DType)
        raise DTypeError(f"{owner!r}: there is no element type {dtype!r}; there are {allowed}", node=owner) from None


def _shape(shape: Sequence[int | str], owner: str) -> Shape:
    dims: list[Any] = []
    for dim in (shape,) if isinstance(shape, int | str) or not isinstance(shape, Iterable) else shape:
        if isinstance(dim, str):
            dims.append(_name(dim))
            continue
        try:
            dims.append(operator.index(dim))
        except TypeError:
            raise ArgumentError(
                f"{owner!r}: {dim!r} in shape {shape!r} is no dimension; one is a number, or a name such as weft.BATCH"
            ) from None
        if dims[-1] < 0:
            raise ShapeError(
                f"{owner!r}: dimension {dim} of shape {tuple(shape)} is negative; "
                "one that varies has a name, such as weft.BATCH",
                node=owner,
            )
    return tuple(dims)


def _name(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"a name is a string that is not empty, not {name!r}")
    return name


def _word(record: Record) -> str:
    """What a record is called before names are given, for people."""
    if record.label is None:
        return "constant"
    return record.label.local or (record.label.scope.name if record.label.scope else "")
