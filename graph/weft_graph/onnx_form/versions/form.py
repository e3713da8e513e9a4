"""What an older form of an operator is, and what its rewriting sees and does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft_graph.ir import AttributeValue, Node
from weft_graph.onnx_form.draft import Draft
from weft_graph.onnx_form.errors import Array, OnnxError
from weft_graph.types import TensorType


@dataclass(frozen=True, slots=True)
class Older:
    """One node of an older form. What comes before it in the newer form is emitted, in the newest form."""

    node: Node
    draft: Draft
    version: int

    def attribute(self, name: str, default: AttributeValue | None = None) -> AttributeValue | None:
        return self.node.attributes.get(name, default)

    def ints(self, name: str) -> tuple[int, ...] | None:
        """A list attribute, or None where the node has none. Raises OnnxError where it is no list of numbers."""
        value = self.attribute(name)
        if value is None:
            return None
        if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            return tuple(int(item) for item in value)
        raise self.refusal(f"attribute {name!r} is no list of whole numbers")

    def number(self, name: str, default: float) -> float:
        """An attribute that is a number. Raises OnnxError where it is none."""
        value = self.attribute(name, default)
        if isinstance(value, int | float):
            return value
        raise self.refusal(f"attribute {name!r} is no number")

    def input(self, index: int) -> str:
        """Input `index`, '' where the node leaves it out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else ""

    def becomes(
        self,
        op_type: str = "",
        inputs: Sequence[str] | None = None,
        *,
        drop: Sequence[str] = (),
        outputs: Sequence[str] | None = None,
        **attributes: AttributeValue,
    ) -> Node:
        """The node with what is said changed, and without the attributes to drop."""
        left = {name: value for name, value in self.node.attributes.items() if name not in drop}
        return replace(
            self.node,
            op_type=op_type or self.node.op_type,
            inputs=self.node.inputs if inputs is None else tuple(inputs),
            outputs=self.node.outputs if outputs is None else tuple(outputs),
            attributes={**left, **attributes},
        )

    def emit(self, op_type: str, *inputs: str, **attributes: AttributeValue) -> str:
        """A node before this one; its only output's name."""
        return self.draft.emit(op_type, inputs, attributes, name=self.node.name)[0]

    def then(self, op_type: str, inputs: Sequence[str], output: str, **attributes: AttributeValue) -> Node:
        """A node that comes after this one and gives one of its outputs."""
        return Node(
            op_type, self.draft.shared.node_name(f"{self.node.name}/{op_type}"), tuple(inputs), (output,), attributes
        )

    def value(self, word: str) -> str:
        """A new name for a value between this node and one that comes after."""
        return self.draft.shared.value_name(f"{self.node.name}/{word}")

    def constant(self, array: Array, word: str) -> str:
        return self.draft.constant(array, f"{self.node.name}/{word}")

    def integers(self, numbers: Sequence[int], word: str) -> str:
        """A constant list of whole numbers."""
        return self.constant(np.asarray(numbers, dtype=np.int64), word)

    def scalar_like(self, number: float, value: str, word: str) -> str:
        """A number of the element type of `value`, which need not be known here."""
        type_ = self.draft.type_of(value)
        if type_ is not None:
            return self.constant(np.asarray(number).astype(type_.dtype.numpy), word)
        return self.emit("CastLike", self.constant(np.asarray(number, dtype=np.float64), word), value)

    def type_of(self, value: str) -> TensorType | None:
        return self.draft.type_of(value)

    def rank(self, value: str) -> int:
        """Raises OnnxError, naming the node, where the rank of a value is not known."""
        type_ = self.draft.type_of(value)
        if type_ is None:
            raise self.refusal(
                f"its form before opset {self.version + 1} needs the rank of {value!r}, which is not known"
            )
        return type_.rank

    def known(self, value: str) -> Array | None:
        """The value where it is known before any step."""
        return self.draft.value_of(value) if value else None

    def refusal(self, message: str) -> OnnxError:
        """An error that names the node; raise it."""
        name = self.node.name
        return OnnxError(f"node {name!r} ({self.node.op_type}, opset {self.version}): {message}", node=name)


Rewrite = Callable[[Older], Sequence[Node]]


@dataclass(frozen=True, slots=True)
class OldForm:
    """Nodes of `op_type` from opsets below `before` are rewritten to what they are in that opset.

    `rewrite` returns the node of the newer form and what comes after it.
    """

    op_type: str
    before: int
    rewrite: Rewrite
