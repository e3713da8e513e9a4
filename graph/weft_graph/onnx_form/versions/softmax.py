"""Softmax, LogSoftmax, Hardmax: before opset 13 the input is taken as a matrix, cut at `axis`."""

from __future__ import annotations

from collections.abc import Sequence

from weft_graph.ir import Node
from weft_graph.onnx_form.versions.form import Older, OldForm


def _over_a_matrix(old: Older) -> Sequence[Node]:
    """Over the last axis alone both forms are one; else the matrix is made, and taken apart afterwards."""
    axis, data, result = int(old.number("axis", 1)), old.input(0), old.node.outputs[0]
    type_ = old.type_of(data)
    if axis == -1 or (type_ is not None and axis == type_.rank - 1):
        return [old.becomes(axis=-1)]
    if axis < 0:
        axis += old.rank(data)
    matrix, normalized = old.emit("Flatten", data, axis=axis), old.value("matrix")
    shape = old.emit("Shape", data)
    return [
        old.becomes(inputs=(matrix,), outputs=(normalized,), axis=-1),
        old.then("Reshape", (normalized, shape), result),
    ]


FORMS = tuple(OldForm(op_type, 13, _over_a_matrix) for op_type in ("Softmax", "LogSoftmax", "Hardmax"))
