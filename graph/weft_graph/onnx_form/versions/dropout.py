"""Dropout: a ratio that was an attribute, and a mask in the type of the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft_graph.ir import Node
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.onnx_form.versions.form import Older, OldForm


def _ratio_as_input(old: Older) -> Sequence[Node]:
    """Without `training_mode` it is the identity, as it was in files that were made for inference."""
    ratio = old.constant(np.asarray(old.number("ratio", 0.5), dtype=np.float32), "ratio")
    return [old.becomes(inputs=(old.input(0), ratio), drop=("ratio", "is_test"))]


def _mask_of_booleans(old: Older) -> Sequence[Node]:
    outputs = old.node.outputs
    if len(outputs) < 2 or not outputs[1]:
        return [old.node]
    type_ = old.type_of(old.input(0))
    if type_ is None:
        raise old.refusal("the element type of its mask is not known")
    mask = old.value("mask")
    cast = old.then("Cast", (mask,), outputs[1], to=NUMBER_OF_DTYPE[type_.dtype])
    return [old.becomes(outputs=(outputs[0], mask)), cast]


FORMS = (OldForm("Dropout", 10, _mask_of_booleans), OldForm("Dropout", 12, _ratio_as_input))
