"""Clip: bounds that were attributes."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.ir import Node
from weft_graph.onnx_form.versions.form import Older, OldForm

_LARGEST = 3.4028234663852886e38


def _bounds_as_inputs(old: Older) -> Sequence[Node]:
    """The defaults of opset 6 are float32's largest numbers, which bound nothing."""
    low, high = old.number("min", -_LARGEST), old.number("max", _LARGEST)
    data = old.input(0)
    lower = old.scalar_like(low, data, "min") if low > -3.4e38 else ""
    upper = old.scalar_like(high, data, "max") if high < 3.4e38 else ""
    inputs = (data, lower, upper) if upper else (data, lower) if lower else (data,)
    return [old.becomes(inputs=inputs, drop=("min", "max"))]


FORMS = (OldForm("Clip", 11, _bounds_as_inputs),)
