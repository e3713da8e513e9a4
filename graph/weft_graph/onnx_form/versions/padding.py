"""Pad: amounts and value that were attributes."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.ir import Node
from weft_graph.onnx_form.versions.form import Older, OldForm


def _first(old: Older) -> Sequence[Node]:
    paddings = old.ints("paddings")
    if paddings is None:
        raise old.refusal("attribute 'paddings' is missing")
    return [old.becomes(drop=("paddings",), pads=paddings)]


def _amounts_as_inputs(old: Older) -> Sequence[Node]:
    pads, data = old.ints("pads"), old.input(0)
    if pads is None:
        raise old.refusal("attribute 'pads' is missing")
    inputs = [data, old.integers(pads, "pads")]
    if old.number("value", 0.0) != 0:
        inputs.append(old.scalar_like(old.number("value", 0.0), data, "value"))
    return [old.becomes(inputs=inputs, drop=("pads", "value"))]


FORMS = (OldForm("Pad", 2, _first), OldForm("Pad", 11, _amounts_as_inputs))
