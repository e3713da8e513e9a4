"""How gradients are written: nodes added, gradients that arrive."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from weft_graph.errors import NoGradientError
from weft_graph.ir import AttributeValue
from weft_graph.schema import GradientContext

# --- Gradients written as compositions of operators: they run on every device that has the operators ------------------


def apply(context: GradientContext, op_type: str, *inputs: str, **attributes: AttributeValue) -> str:
    """The name of the one output of ONNX's operator `op_type` on the values `inputs`."""
    return context.emit(op_type, inputs, attributes)[0]


def given_attributes(context: GradientContext, names: Iterable[str]) -> dict[str, AttributeValue]:
    """The node's attributes of these names, with defaults, less those that have no value: for a gradient's body."""
    values = {name: context.attribute(name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


# ----------------------------------------------------------------------------------------------------------------------
# Small steps that gradients share: the one gradient that flows in, scalars of a value's type, no slope, refusals.


def incoming(context: GradientContext) -> str:
    """The gradient of output 0. Raises NoGradientError where only another output has one."""
    gradient = context.gradient(0)
    if gradient is None:
        raise refusal(context, "only output 0 has a gradient, and nothing flows into it")
    return gradient


def refusal(context: GradientContext, reason: str) -> NoGradientError:
    """An error that names the node; raise it."""
    node = context.node
    return NoGradientError(f"node {node.name!r} ({node.op_type}): {reason}", node=node.name)


def scalar(context: GradientContext, number: float, like: str) -> str:
    """The name of a zero-dim constant of the element type of `like`."""
    return context.constant(np.array(number, dtype=context.type_of(like).dtype.numpy))


def flat(context: GradientContext) -> tuple[str | None, ...]:
    """The gradient of steps, which have no slope wherever they have one at all: nothing flows on.

    A parameter that is reached through a step alone is refused as one that would never be trained.
    """
    return (None,) * len(context.node.inputs)
