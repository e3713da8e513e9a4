"""Cast: a type that was said by name."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from weft_graph.ir import Node
from weft_graph.onnx_form.versions.form import Older, OldForm


def _number_of_name(old: Older) -> Sequence[Node]:
    name = old.attribute("to")
    if name not in TensorProto.DataType.keys():  # noqa: SIM118  # an enum of protobuf, not a dict
        raise old.refusal(f"{name!r} is no element type")
    return [old.becomes(to=TensorProto.DataType.Value(str(name)))]


FORMS = (OldForm("Cast", 6, _number_of_name),)
