"""GridSample's and RoiAlign's words, pooling by a norm, DFT's axis, Scatter's name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft_graph.ir import Node
from weft_graph.onnx_form.versions.form import Older, OldForm


def _grid_sample(old: Older) -> Sequence[Node]:
    mode = str(old.attribute("mode", "bilinear"))
    return [old.becomes(mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))]


def _roi_align(old: Older) -> Sequence[Node]:
    return [old.becomes(coordinate_transformation_mode="output_half_pixel")]


def _norm_pool(old: Older) -> Sequence[Node]:
    """The norm's power is a whole number."""
    power = old.number("p", 2.0)
    if power != int(power):
        raise old.refusal(f"power {power} is no whole number")
    return [old.becomes(p=int(power))]


def _dft(old: Older) -> Sequence[Node]:
    axis = old.constant(np.asarray(int(old.number("axis", 1)), dtype=np.int64), "axis")
    return [old.becomes(inputs=(old.input(0), old.input(1), axis), drop=("axis",))]


def _scatter(old: Older) -> Sequence[Node]:
    return [old.becomes("ScatterElements")]


FORMS = (
    OldForm("GridSample", 20, _grid_sample),
    OldForm("RoiAlign", 16, _roi_align),
    OldForm("GlobalLpPool", 2, _norm_pool),
    OldForm("LpPool", 2, _norm_pool),
    OldForm("DFT", 20, _dft),
    OldForm("Scatter", 11, _scatter),
)
