"""Layers one after another."""

from __future__ import annotations

from collections.abc import Callable

from weft.expression import Expression, Operand
from weft.nn.layer import Layer, as_expression
from weft.records import Scope

Step = Callable[[Expression], Expression]


class Sequential(Layer):
    """Calls each step with what the one before gave. A step is a layer or any function of one expression.

    A layer in it is called after its place: `0.weight`, or `encoder.0.weight` in a Sequential named `encoder`. A layer
    with a name of its own keeps that below the Sequential's.
    """

    kind = "sequential"

    def __init__(self, *steps: Step, name: str | None = None) -> None:
        super().__init__(name)
        self.steps = steps

    @property
    def scope(self) -> Scope:
        """Nothing in front where there is no name; a second one without a name in one graph is `sequential`."""
        if self._scope is None:
            self._scope = Scope(self.name or "", given=self.name is not None, fallback=self.kind)
        return self._scope

    def __call__(self, x: Operand, /) -> Expression:
        y = as_expression(x)
        for place, step in enumerate(self.steps):
            if isinstance(step, Layer):
                step.adopt(self.scope, str(place))
            y = step(y)
        return y
