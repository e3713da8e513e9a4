"""Gradients written as compositions of operators: they run on every device that has the operators."""

from __future__ import annotations

from collections.abc import Iterable

from weft_graph.ir import AttributeValue
from weft_graph.schema import GradientContext


def apply(context: GradientContext, op_type: str, *inputs: str, **attributes: AttributeValue) -> str:
    """The name of the one output of ONNX's operator `op_type` on the values `inputs`."""
    return context.emit(op_type, inputs, attributes)[0]


def given_attributes(context: GradientContext, names: Iterable[str]) -> dict[str, AttributeValue]:
    """The node's attributes of these names, with defaults, less those that have no value: for a gradient's body."""
    values = {name: context.attribute(name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
