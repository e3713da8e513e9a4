"""Any operator by its ONNX name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from weft.application import snake
from weft.expression import Expression, Operand, apply_many
from weft.records import Label
from weft_graph.schema import schemas

Name = str | Label | None
"""What a user calls a node; a layer says where in its scope it stands; None has a name made."""


def apply(
    op_type: str, *inputs: Operand | None, outputs: int | None = None, name: Name = None, **attributes: Any
) -> Expression | tuple[Expression, ...]:
    """Operator `op_type` on `inputs`; None leaves out an optional one. Attributes have ONNX's names.

    Gives an expression, or a tuple where the operator gives more than one: those that it always gives, or its first
    `outputs`. Raises UnknownOperatorError, and GraphRefusedError, ShapeError or DTypeError, which name the operator.
    """
    results = apply_many(op_type, inputs, attributes, requested=outputs, label=labelled(name, op_type))
    return results if len(results) > 1 else results[0]


def one(op_type: str, *inputs: Operand | None, name: Name = None, **attributes: Any) -> Expression:
    """The operator's first output."""
    return apply_many(op_type, inputs, attributes, requested=1, label=labelled(name, op_type))[0]


def ways_to_write(functions: Collection[str]) -> dict[str, str]:
    """Name of one of ONNX's operators, as `Tan`, `tan` or `tan_` -> the call of one of these functions that is the
    operator, or of `apply`."""
    found: dict[str, str] = {}
    for domain, operator in schemas():
        if not domain:
            own = snake(operator)
            names = [each for each in (own, f"logical_{own}") if each in functions]
            call = f"weft.ops.{names[0]}(...)" if names else f"weft.ops.apply({operator!r}, ...)"
            found |= dict.fromkeys((operator, own, f"{own}_"), call)
    return found


def labelled(name: Name, op_type: str) -> Label:
    """The wish for a name that a user's or a layer's word stands for."""
    if isinstance(name, Label):
        return name
    return Label(snake(op_type)) if name is None else Label(name, given=True)
