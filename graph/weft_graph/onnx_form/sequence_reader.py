"""What sequences and settled nodes ask of the scope that reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import AttributeProto

from weft_graph.ir import AttributeValue
from weft_graph.onnx_form.attributes import attribute_values, kind_of
from weft_graph.onnx_form.draft import Draft
from weft_graph.onnx_form.frame import Frame, Value
from weft_graph.onnx_form.functions import resolved
from weft_graph.onnx_form.imported import Array
from weft_graph.types import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class SequenceReader:
    """A scope's draft and frame as `weft_graph.onnx_form.sequences.Reader`."""

    draft: Draft
    frame: Frame
    inlines: Callable[[onnx.GraphProto, Sequence[Value], str], list[Value]]
    """Adds a body's nodes where the scope is, and gives the values of its outputs."""

    def given(self, proto: onnx.NodeProto, index: int, node: str) -> Value | None:
        if index >= len(proto.input) or not proto.input[index]:
            return None
        value = self.frame.value(proto.input[index], f"node {node!r} ({proto.op_type})")
        return None if value == "" else value

    def emit(
        self, op_type: str, inputs: Sequence[str], attributes: Mapping[str, AttributeValue], node: str, outputs: int = 1
    ) -> tuple[str, ...]:
        return self.draft.emit(op_type, inputs, attributes, name=node, outputs=outputs)

    def constant(self, array: Array, node: str) -> str:
        return self.draft.constant(array, f"{node}/value")

    def known(self, value: str) -> Array | None:
        return self.draft.value_of(value)

    def type_of(self, value: str) -> TensorType | None:
        return self.draft.type_of(value)

    def attributes(self, proto: onnx.NodeProto, node: str) -> dict[str, AttributeValue]:
        return {
            name: value
            for attribute in (resolved(given, self.frame) for given in proto.attribute)
            if attribute is not None and kind_of(attribute) != AttributeProto.GRAPH
            for name, value in attribute_values(attribute, self.draft.shared.tensors, node).items()
        }

    def inlined(self, body: onnx.GraphProto, inputs: Sequence[Value], node: str) -> list[Value]:
        return self.inlines(body, inputs, node)
