"""ConstantOfShape of what no attribute of weft's graphs holds: an infinity, or a whole number beyond a float's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from weft_graph.ir import Node
from weft_graph.json_form import OPSET
from weft_graph.onnx_dtypes import DTYPE_OF_NUMBER
from weft_graph.onnx_form.versions.form import Older, OldForm

_EXACT: Final = 1 << 53
"""Whole numbers up to here are floats, also in JSON."""


def _expanded(old: Older) -> Sequence[Node]:
    value, number = old.attribute("value"), old.attribute("dtype")
    if not isinstance(value, int | float) or not isinstance(number, int):
        return [old.node]
    if math.isfinite(value) and abs(value) <= _EXACT:
        return [old.node]
    filled = old.constant(np.asarray(value).astype(DTYPE_OF_NUMBER[number].numpy), "value")
    return [old.becomes("Expand", (filled, old.input(0)), drop=("value", "dtype"))]


FORMS = (OldForm("ConstantOfShape", OPSET + 1, _expanded),)
