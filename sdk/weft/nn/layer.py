"""What layers have in common: a place in the naming, and parameters made on first use."""

from __future__ import annotations

from abc import ABC, abstractmethod

from weft.expression import Expression, Operand
from weft.leaves import parameter
from weft.nn.initializers import Init
from weft.records import Label, Scope
from weft_graph.errors import ShapeError
from weft_graph.types import DType


class Layer(ABC):
    """A callable from expression to expression. `kind` is what it is called without a name.

    Invariant: `_parameters` has each parameter once, by its local name; what is made on the first call is read by all
    later ones.
    """

    kind: str

    def __init__(self, name: str | None) -> None:
        if name is not None and not name:
            raise ValueError("a layer's name is not empty; leave it out to have one made")
        self.name = name
        self._scope: Scope | None = None
        self._parameters: dict[str, Expression] = {}

    @abstractmethod
    def __call__(self, x: Operand, /) -> Expression:
        """What the layer makes of `x`. Raises ShapeError where it does not fit."""

    @property
    def scope(self) -> Scope:
        """The layer's place in the naming, fixed when it is first read."""
        if self._scope is None:
            self._scope = Scope(self.name or self.kind, given=self.name is not None)
        return self._scope

    def adopt(self, parent: Scope, place: str) -> None:
        """Put the layer below `parent`, called by its own name or else `place`. A layer that has a place keeps it."""
        if self._scope is None:
            self._scope = Scope(self.name or place, parent, given=self.name is not None)

    def label(self, local: str = "") -> Label:
        """A wish for a node's name: the layer's own, or `local` below it.

        The node of a layer that only has a place, `0`, is called after its kind as well: `0.linear`.
        """
        has_place_alone = self.name is None and self.scope.parent is not None
        return Label(local or (self.kind if has_place_alone else ""), self.scope)

    def parameter(
        self,
        local: str,
        shape: tuple[int, ...],
        init: Init,
        dtype: DType,
        *,
        trainable: bool = True,
        row_sparse: bool = True,
        lazy_update: bool = True,
    ) -> Expression:
        """The parameter `local`, made on the first call. Raises ShapeError where another call asks for another type."""
        made = self._parameters.get(local)
        if made is None:
            made = parameter(
                local,
                shape,
                init(shape),
                dtype,
                trainable=trainable,
                row_sparse=row_sparse,
                lazy_update=lazy_update,
                scope=self.scope,
            )
            self._parameters[local] = made
        if made.shape != shape or made.dtype != dtype:
            wanted = f"{dtype}[{', '.join(map(str, shape))}]"
            raise ShapeError(
                f"layer {self.scope.name!r}: its {local} is {made.type} since the layer's first call; "
                f"this call needs {wanted}",
                node=self.scope.name,
            )
        return made

    def check_size(self, x: Expression, axis: int, argument: str, size: int) -> None:
        """Raises ShapeError, naming the layer, where dimension `axis` of `x` is not `size`."""
        found = x.shape[axis] if -x.rank <= axis < x.rank else None
        if found != size:
            raise ShapeError(
                f"layer {self.scope.name!r} has {argument}={size}, and is called with {x.type}: dimension {axis} is "
                f"not {size}",
                node=self.scope.name,
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or self.kind}>"


def as_expression(x: Operand) -> Expression:
    """`x`, or a constant of it."""
    from weft.leaves import constant  # a name that the initializers also use

    return x if isinstance(x, Expression) else constant(x)


def at_least_one(what: str, count: int) -> int:
    """`count`. Raises ValueError where it is below 1."""
    if count < 1:
        raise ValueError(f"{what} must be at least 1, not {count}")
    return count
