"""Upsample, and Resize as it was: coordinates without an offset, and the element below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft_graph.ir import Node
from weft_graph.onnx_form.versions.form import Older, OldForm


def _mode(old: Older) -> str:
    return {"nearest": "nearest"}.get(str(old.attribute("mode", "nearest")), "linear")


def _upsample_1(old: Older) -> Sequence[Node]:
    """It scales the last two of four dimensions."""
    scales = (1.0, 1.0, float(old.number("height_scale", 1)), float(old.number("width_scale", 1)))
    return [old.becomes(drop=("height_scale", "width_scale"), scales=scales, mode=_mode(old))]


def _upsample_7(old: Older) -> Sequence[Node]:
    scales = old.attribute("scales")
    if not isinstance(scales, tuple) or not all(isinstance(scale, int | float) for scale in scales):
        raise old.refusal("attribute 'scales' is missing")
    given = old.constant(np.asarray(scales, dtype=np.float32), "scales")
    return [old.becomes(inputs=(old.input(0), given), drop=("scales",))]


def _as_resize_10(old: Older) -> Sequence[Node]:
    """Resize took Upsample's place, and was the same at first."""
    return [old.becomes("Resize")]


def _as_resize_11(old: Older) -> Sequence[Node]:
    return [
        old.becomes(
            "Resize",
            (old.input(0), "", old.input(1)),
            mode=_mode(old),
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
    ]


def _lists_left_out(old: Older) -> Sequence[Node]:
    """Before opset 13 scales, and before 18 a region, that say nothing were there as empty lists."""
    inputs = [old.input(0), *("" if _is_empty(old, index) else old.input(index) for index in range(1, 4))]
    while not inputs[-1]:
        inputs.pop()
    return [old.becomes(inputs=inputs)]


def _is_empty(old: Older, index: int) -> bool:
    known = old.known(old.input(index))
    type_ = old.type_of(old.input(index)) if old.input(index) else None
    return (known is not None and known.size == 0) or (type_ is not None and type_.shape == (0,))


FORMS = (
    OldForm("Upsample", 7, _upsample_1),
    OldForm("Upsample", 9, _upsample_7),
    OldForm("Upsample", 10, _as_resize_10),
    OldForm("Resize", 11, _as_resize_11),
    OldForm("Resize", 18, _lists_left_out),
)
