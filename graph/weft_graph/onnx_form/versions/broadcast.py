"""Before opset 7 operators broadcast only where `broadcast` says so, and from `axis` on."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.ir import Node
from weft_graph.onnx_form.versions.form import Older, OldForm

_DROPPED = ("broadcast", "axis")
_PAIRS = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")


def _pairwise(old: Older) -> Sequence[Node]:
    """The second value's dimensions are those of the first from `axis` on: ones are put behind them."""
    axis, left, right = old.attribute("axis"), old.input(0), old.input(1)
    if not old.attribute("broadcast", 0) or not isinstance(axis, int):
        return [old.becomes(drop=_DROPPED)]
    whole, part = old.rank(left), old.rank(right)
    behind = whole - part - (axis + whole if axis < 0 else axis)
    if behind < 0:
        raise old.refusal(f"axis {axis} leaves no room for the {part} dimensions of {right!r} in {whole}")
    if behind == 0 or part == 0:
        return [old.becomes(drop=_DROPPED)]
    axes = old.integers(range(part, part + behind), "axes")
    return [old.becomes(inputs=(left, old.emit("Unsqueeze", right, axes)), drop=_DROPPED)]


def _gemm(old: Older) -> Sequence[Node]:
    return [old.becomes(drop=("broadcast",))]


def _prelu(old: Older) -> Sequence[Node]:
    """A slope for each channel stands against dimension 1."""
    data, slope = old.input(0), old.input(1)
    type_ = old.type_of(slope)
    if type_ is not None and (type_.rank != 1 or type_.shape == (1,)):
        return [old.node]
    behind = old.rank(data) - 2
    if behind < 1:
        return [old.node]
    axes = old.integers(range(1, 1 + behind), "axes")
    return [old.becomes(inputs=(data, old.emit("Unsqueeze", slope, axes)))]


FORMS = (
    *(OldForm(op_type, 7, _pairwise) for op_type in _PAIRS),
    OldForm("Gemm", 7, _gemm),
    OldForm("PRelu", 7, _prelu),
)
