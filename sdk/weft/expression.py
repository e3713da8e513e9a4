"""Expressions: a value that a graph will compute, which carries the graph that computes it.

An expression's type is known at once: a wrong shape raises at the line that wrote it. Expressions are immutable. `==`
and hashing are by identity, so that expressions can be keys; `ops.equal` compares element by element, as `<` does.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Never

import numpy as np

from weft.application import application
from weft.arguments import no_attribute
from weft.collect import collect
from weft.declared import element_type
from weft.records import Array, Label, Record, Value
from weft_graph.errors import DTypeError, ShapeError
from weft_graph.ir import ONNX_DOMAIN, Graph
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.types import DType

if TYPE_CHECKING:
    from weft.evaluation import Feeds

Scalar = bool | int | float

_END: Final = np.iinfo(np.int64).max
"""Behind the last element, of whatever length."""


@dataclass(frozen=True, slots=True, eq=False)
class Expression(Value):
    """A value of a graph, with the operators, indices and methods of NumPy."""

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

    def __abs__(self) -> Expression:
        return apply("Abs", self)

    def __lt__(self, other: Operand) -> Expression:
        return apply("Less", self, other)

    def __le__(self, other: Operand) -> Expression:
        return apply("LessOrEqual", self, other)

    def __gt__(self, other: Operand) -> Expression:
        return apply("Greater", self, other)

    def __ge__(self, other: Operand) -> Expression:
        return apply("GreaterOrEqual", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]  # as NumPy's; a dictionary asks `==` alone
        """Whether elements differ."""
        return NotImplemented if other is None else apply("Not", apply("Equal", self, other))  # type: ignore[arg-type]

    __hash__ = object.__hash__

    def __and__(self, other: Operand) -> Expression:
        return apply("And", self, other)

    def __rand__(self, other: Operand) -> Expression:
        return apply("And", other, self)

    def __or__(self, other: Operand) -> Expression:
        return apply("Or", self, other)

    def __ror__(self, other: Operand) -> Expression:
        return apply("Or", other, self)

    def __invert__(self) -> Expression:
        return apply("Not", self)

    def __getitem__(self, index: Any) -> Expression:
        """NumPy's basic indexing: integers, slices, `...` and None. One index may be integers, as an array or an
        expression. Raises ShapeError for an index out of range, TypeError for what is no index, such as a mask."""
        return _indexed(self, index if isinstance(index, tuple) else (index,))

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.rank

    @property
    def T(self) -> Expression:  # noqa: N802 - NumPy's word
        """The dimensions in reverse order."""
        return self.transpose()

    def sum(self, axis: Axes = None, *, keepdims: bool = False) -> Expression:
        """The sum over `axis`, an integer or several; over all where left out."""
        return self._reduced("ReduceSum", axis, keepdims)

    def mean(self, axis: Axes = None, *, keepdims: bool = False) -> Expression:
        """The mean over `axis`."""
        listed = None if axis is None else _int64(axis).tolist()
        return apply("ReduceMean", self, axes=listed, keepdims=int(keepdims))

    def max(self, axis: Axes = None, *, keepdims: bool = False) -> Expression:
        """The largest element over `axis`. Equals share the gradient."""
        return self._reduced("ReduceMax", axis, keepdims)

    def min(self, axis: Axes = None, *, keepdims: bool = False) -> Expression:
        """The smallest element over `axis`. Equals share the gradient."""
        return self._reduced("ReduceMin", axis, keepdims)

    def prod(self, axis: Axes = None, *, keepdims: bool = False) -> Expression:
        """The product over `axis`."""
        return self._reduced("ReduceProd", axis, keepdims)

    def argmax(self, axis: int, *, keepdims: bool = False) -> Expression:
        """The int64 index of the largest element along `axis`, the first where several are."""
        return apply("ArgMax", self, axis=axis, keepdims=int(keepdims))

    def argmin(self, axis: int, *, keepdims: bool = False) -> Expression:
        """The int64 index of the smallest element along `axis`, the first where several are."""
        return apply("ArgMin", self, axis=axis, keepdims=int(keepdims))

    def reshape(self, *shape: Any) -> Expression:
        """The same elements in another shape, given as numbers or as one sequence. One of them may be -1.

        `x.shape[0]` keeps the batch, as 0 does at the place of any dimension.
        """
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence | np.ndarray) else shape
        return apply("Reshape", self, _int64(_sizes(self, list(wanted))))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Expression:
        """One dimension of all, or of those from `start_dim` to `end_dim`: `x.flatten(1)` keeps the batch."""
        if not self.rank:
            return self.reshape(1)
        start, end = (_axis(self, dim, self.rank) for dim in (start_dim, end_dim))
        return self.reshape(*self.shape[:start], -1, *self.shape[end + 1 :])

    def transpose(self, *axes: Any) -> Expression:
        """Dimension i of the result is dimension `axes[i]`, given as numbers or one sequence; reversed without any."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
        if order and len(order) != self.rank:
            raise ShapeError(f"transpose has {len(order)} axes, and {self.type} {self.rank}; swapaxes exchanges two")
        return apply("Transpose", self, perm=[_axis(self, axis, self.rank) for axis in order] or None)

    def permute(self, *dims: Any) -> Expression:
        """As `transpose`, by PyTorch's name."""
        return self.transpose(*dims)

    def swapaxes(self, one: int, other: int) -> Expression:
        """Two dimensions exchanged."""
        order = list(range(self.rank))
        at, to = _axis(self, one, self.rank), _axis(self, other, self.rank)
        order[at], order[to] = to, at
        return self.transpose(order)

    def squeeze(self, axis: Axes = None) -> Expression:
        """Without the dimensions `axis`, which have length 1; without all such where left out."""
        return apply("Squeeze", self, None if axis is None else _int64(axis))

    def unsqueeze(self, axis: int | Sequence[int]) -> Expression:
        """With dimensions of length 1 at the places `axis` of the result."""
        return apply("Unsqueeze", self, _int64(axis))

    def astype(self, dtype: DType | str) -> Expression:
        """With another element type. Floats are cut towards zero on the way to integers."""
        return apply("Cast", self, to=NUMBER_OF_DTYPE[element_type(dtype, "astype")])

    def _reduced(self, op_type: str, axis: Axes, keepdims: bool) -> Expression:
        return apply(op_type, self, None if axis is None else _int64(axis), keepdims=int(keepdims))

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value before it is computed; ops.where chooses element by element")

    def __iter__(self) -> Iterator[Expression]:
        raise TypeError(f"an expression of type {self.type} cannot be gone through; its elements are not known yet")

    def __repr__(self) -> str:
        return f"<Expression {_word(self.record)} {self.type}>"

    if not TYPE_CHECKING:  # where names that are not there are errors already

        def __getattr__(self, name: str) -> Never:
            if name.startswith("_"):  # protocols, which are looked for in vain often
                raise AttributeError(name)
            known = [each for each in dir(type(self)) if not each.startswith("_")]
            # Its operators are made of expressions, and only this error has to know their names.
            ops = import_module("weft.ops")
            functions = {**ops.ways_to_write(ops.__all__), **{each: f"weft.ops.{each}(x)" for each in ops.__all__}}
            raise AttributeError(no_attribute("an expression", name, known, functions))


Operand = Expression | Array | np.generic | Scalar | Sequence[Any]
"""What operators take: what is no expression becomes a constant."""

Axes = int | Sequence[int] | None


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


_COMPUTED: Final = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "MatMul", "And", "Or", "Xor", "Where"})
"""Operators of which a Python bool among the operands was most likely to be a comparison."""


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
    if op_type in _COMPUTED and any(one is True or one is False for one in inputs):
        told = "write weft.ops.equal(a, b) for a == b, which says whether both are the same object"
        raise DTypeError(f"{op_type}: {next(one for one in inputs if isinstance(one, bool))} is no operand; {told}")
    record = application(op_type, inputs, attributes, requested=requested, label=label, domain=domain)
    return tuple(Expression(record, index) for index in range(len(record.types)))


def _indexed(x: Expression, index: tuple[Any, ...]) -> Expression:
    """Slices come first, in one node; then one choice of elements; then dimensions of length 1 go and come."""
    cuts: list[tuple[int, int, int, int]] = []  # start, end, step, axis
    chosen: list[tuple[int, Any]] = []
    gone: list[int] = []
    new: list[int] = []
    axis = kept = 0
    for each in _spelled_out(x, index):
        if each is None:
            new.append(kept)
            kept += 1
            continue
        if isinstance(each, slice):
            if each != slice(None):
                cuts.append((*_bounds(each), axis))
            kept += 1
        elif isinstance(each, Expression | np.ndarray | list):
            integers = _integers(each)
            chosen.append((axis, integers))
            kept += integers.ndim
        else:
            place = _place(each)
            size = x.shape[axis]
            if not isinstance(size, int):
                chosen.append((axis, np.asarray(place, np.int64)))
            elif not -size <= place < size:
                raise ShapeError(f"index {place} is out of range for dimension {axis} of {x.type}")
            else:
                cuts.append((place, place + 1 if place != -1 else _END, 1, axis))
                gone.append(axis)
        axis += 1
    if sum(getattr(integers, "ndim", 0) > 0 for _, integers in chosen) and len(chosen) + len(gone) > 1:
        raise TypeError("an index has integers for one dimension only; index in several steps: x[i][:, j]")
    if cuts:
        starts, ends, steps, axes = (_int64(numbers) for numbers in zip(*cuts, strict=True))
        x = apply("Slice", x, starts, ends, axes, steps)
    for where, integers in reversed(chosen):
        x = apply("Gather", x, integers, axis=where)
        gone = [each + getattr(integers, "ndim", 0) - 1 if each > where else each for each in gone]
    x = apply("Squeeze", x, _int64(gone)) if gone else x
    return apply("Unsqueeze", x, _int64(new)) if new else x


def _spelled_out(x: Expression, index: tuple[Any, ...]) -> tuple[Any, ...]:
    """The index with something for each dimension. Raises ShapeError, TypeError."""
    used = sum(each is not None and each is not Ellipsis for each in index)
    if used > x.rank:
        raise ShapeError(f"{used} indices are too many for {x.type}")
    gaps = [place for place, each in enumerate(index) if each is Ellipsis]
    if len(gaps) > 1:
        raise TypeError("an index has one `...` at most")
    at = gaps[0] if gaps else len(index)
    return (*index[:at], *(slice(None),) * (x.rank - used), *index[at + 1 :])


def _integers(index: Expression | Array | list[Any]) -> Expression | Array:
    integers = index if isinstance(index, Expression) else np.asarray(index)
    kind = np.dtype(integers.dtype.numpy if isinstance(integers, Expression) else integers.dtype)
    if kind.kind not in "iu":
        raise TypeError(f"an index of {kind} is no choice of elements; ops.where(mask, a, b) has a shape that is known")
    return integers


def _bounds(cut: slice) -> tuple[int, int, int]:
    """Start, end and step as ONNX has them. Raises ValueError for a step of 0."""
    step = 1 if cut.step is None else _place(cut.step)
    if not step:
        raise ValueError("the step of a slice is not 0")
    first, last = (0, _END) if step > 0 else (_END, -_END)
    return first if cut.start is None else _place(cut.start), last if cut.stop is None else _place(cut.stop), step


def _place(value: Any) -> int:
    if not isinstance(value, bool | np.bool_):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{value!r} is no index; one is an integer, a slice, `...`, None, or an array of integers")


def _axis(x: Expression, axis: Any, rank: int) -> int:
    """The dimension, counted from the front. Raises ShapeError."""
    place = operator.index(axis)
    if not -rank <= place < rank:
        raise ShapeError(f"there is no dimension {place} in {x.type}, which has {rank}")
    return place % rank


def _sizes(x: Expression, shape: list[Any]) -> list[int]:
    """A shape as Reshape takes it: 0 for a dimension that stays, -1 for the only one that is not known otherwise."""
    sizes = [
        operator.index(size) if hasattr(size, "__index__") else 0 if size in x.shape[place : place + 1] else -1
        for place, size in enumerate(shape)
    ]
    if sizes.count(-1) > 1:
        raise ShapeError(f"reshape: {shape} has more than one dimension that is not known, for {x.type}")
    return sizes


def _int64(values: int | Sequence[int]) -> Array:
    return np.atleast_1d(np.asarray(values, np.int64))


def _word(record: Record) -> str:
    """What a record is called before names are given, for people."""
    if record.label is None:
        return "constant"
    return record.label.local or (record.label.scope.name if record.label.scope else "")
