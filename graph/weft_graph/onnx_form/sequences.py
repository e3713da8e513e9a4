"""Sequences and optional values whose items are known while the model is read: they are taken apart there.

PyTorch's exporter writes a split as a sequence of which single items are read. What has a length or a place that only a
step's values decide stays refused by the node's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import onnx

from weft_graph.ir import AttributeValue
from weft_graph.onnx_form.draft import Maybe, Value
from weft_graph.onnx_form.errors import Array, OnnxError, UnsettledError
from weft_graph.types import TensorType

_MOST_PIECES: Final = 1 << 12


class Reader(Protocol):
    """What taking a sequence apart asks of the scope that reads its node."""

    def given(self, proto: onnx.NodeProto, index: int, node: str) -> Value | None:
        """Input `index`, or None where it is left out."""

    def emit(
        self, op_type: str, inputs: Sequence[str], attributes: Mapping[str, AttributeValue], node: str, outputs: int = 1
    ) -> tuple[str, ...]: ...

    def constant(self, array: Array, node: str) -> str: ...

    def known(self, value: str) -> Array | None: ...

    def type_of(self, value: str) -> TensorType | None: ...

    def attributes(self, proto: onnx.NodeProto, node: str) -> dict[str, AttributeValue]: ...

    def inlined(self, body: onnx.GraphProto, inputs: Sequence[Value], node: str) -> list[Value]:
        """The values of a body's outputs, whose nodes are added where the scope is."""


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """One node that makes or reads a sequence."""

    proto: onnx.NodeProto
    name: str
    reader: Reader

    def value(self, index: int) -> Value | None:
        return self.reader.given(self.proto, index, self.name)

    def tensor(self, index: int) -> str:
        value = self.value(index)
        if isinstance(value, str):
            return value
        raise self.refusal(f"input {index} must be a tensor")

    def items(self, index: int) -> tuple[str, ...]:
        value = self.value(index)
        if isinstance(value, tuple):
            return value
        raise self.refusal(f"input {index} must be a sequence")

    def integers(self, index: int) -> Array:
        """An input whose numbers must be known. Raises UnsettledError where they are not."""
        known = self.reader.known(self.tensor(index))
        if known is None:
            raise self.unsettled(f"input {index} is not known before a step, and weft's graphs have no sequences")
        return known

    def place(self, index: int, length: int) -> int:
        """A place in a sequence, negative ones counted from its end."""
        place = int(self.integers(index).reshape(-1)[0])
        if not -length <= place < length:
            raise self.refusal(f"place {place} is outside a sequence of {length}")
        return place % length

    def attribute(self, name: str, default: int) -> int:
        value = self.reader.attributes(self.proto, self.name).get(name, default)
        if isinstance(value, int):
            return value
        raise self.refusal(f"attribute {name!r} is no whole number")

    def emit(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: AttributeValue) -> tuple[str, ...]:
        return self.reader.emit(op_type, inputs, attributes, self.name, outputs)

    def integers_constant(self, numbers: Sequence[int]) -> str:
        return self.reader.constant(np.asarray(numbers, dtype=np.int64), self.name)

    def refusal(self, message: str) -> OnnxError:
        return OnnxError(f"node {self.name!r} ({self.proto.op_type}): {message}", node=self.name)

    def unsettled(self, message: str) -> UnsettledError:
        return UnsettledError(f"node {self.name!r} ({self.proto.op_type}): {message}", node=self.name)


def _empty(_node: SequenceNode) -> list[Value]:
    return [()]


def _construct(node: SequenceNode) -> list[Value]:
    return [tuple(node.tensor(index) for index in range(len(node.proto.input)))]


def _at(node: SequenceNode) -> list[Value]:
    items = node.items(0)
    return [items[node.place(1, len(items))]]


def _length(node: SequenceNode) -> list[Value]:
    return [node.reader.constant(np.asarray(len(node.items(0)), dtype=np.int64), node.name)]


def _insert(node: SequenceNode) -> list[Value]:
    items = node.items(0)
    place = len(items)
    if node.value(2) is not None:
        place = int(node.integers(2).reshape(-1)[0])
        if not -len(items) <= place <= len(items):
            raise node.refusal(f"place {place} is outside a sequence of {len(items)}")
        place += len(items) if place < 0 else 0
    return [(*items[:place], node.tensor(1), *items[place:])]


def _erase(node: SequenceNode) -> list[Value]:
    items = node.items(0)
    if not items:
        raise node.refusal("the sequence is empty")
    place = node.place(1, len(items)) if node.value(1) is not None else len(items) - 1
    return [(*items[:place], *items[place + 1 :])]


def _split(node: SequenceNode) -> list[Value]:
    data, axis = node.tensor(0), node.attribute("axis", 0)
    if node.value(1) is None:
        return [_pieces_of_one(node, data, axis)]
    given = node.reader.type_of(node.tensor(1))
    if given is not None and given.rank == 1 and given.shape[0] != 0 and given.is_static:
        return [node.emit("Split", data, node.tensor(1), outputs=given.size, axis=axis)]
    lengths = node.integers(1)
    if lengths.ndim == 0:
        size = _size(node, data, axis)
        step = int(lengths)
        if step < 1:
            raise node.refusal(f"pieces of length {step}")
        lengths = np.asarray([min(step, size - start) for start in range(0, size, step)], dtype=np.int64)
    if not lengths.size:
        raise node.refusal("it splits into no pieces")
    numbers = [int(length) for length in lengths]
    return [node.emit("Split", data, node.integers_constant(numbers), outputs=len(numbers), axis=axis)]


def _pieces_of_one(node: SequenceNode, data: str, axis: int) -> tuple[str, ...]:
    size = _size(node, data, axis)
    if size < 1:
        return ()
    pieces = node.emit("Split", data, node.integers_constant([1] * size), outputs=size, axis=axis)
    if node.attribute("keepdims", 1):
        return pieces
    axes = node.integers_constant([axis])
    return tuple(node.emit("Squeeze", piece, axes)[0] for piece in pieces)


def _size(node: SequenceNode, data: str, axis: int) -> int:
    type_ = node.reader.type_of(data)
    if type_ is None or not -type_.rank <= axis < type_.rank or not isinstance(type_.shape[axis], int):
        raise node.unsettled("how many pieces it splits into is not known before a step")
    size = int(type_.shape[axis])
    if size > _MOST_PIECES:
        raise node.refusal(f"it splits into {size} pieces, and at most {_MOST_PIECES} are allowed")
    return size


def _concat(node: SequenceNode) -> list[Value]:
    items, axis = node.items(0), node.attribute("axis", 0)
    if not items:
        raise node.refusal("the sequence is empty")
    if node.attribute("new_axis", 0):
        axes = node.integers_constant([axis])
        items = tuple(node.emit("Unsqueeze", item, axes)[0] for item in items)
    return [*node.emit("Concat", *items, axis=axis)]


def _map(node: SequenceNode) -> list[Value]:
    """Its body is written out for each item; further inputs are sequences of the same length, or tensors for all."""
    body = next((a.g for a in node.proto.attribute if a.name == "body"), None)
    if body is None:
        raise node.refusal("attribute 'body' is missing")
    length = len(node.items(0))
    inputs = [node.value(index) for index in range(len(node.proto.input))]
    if any(isinstance(value, tuple) and len(value) != length for value in inputs):
        raise node.refusal("its sequences are of different lengths")
    turns = [
        node.reader.inlined(body, [_turn_of(value, turn) for value in inputs], node.name) for turn in range(length)
    ]
    results: list[Value] = []
    for place in range(len(node.proto.output)):
        column = [turn[place] if place < len(turn) else () for turn in turns]
        if not all(isinstance(item, str) for item in column):
            raise node.refusal("its body gives what is no tensor")
        results.append(tuple(str(item) for item in column))
    return results


def _turn_of(value: Value | None, turn: int) -> Value:
    return value[turn] if isinstance(value, tuple) else value if value is not None else ""


def _optional(node: SequenceNode) -> list[Value]:
    value = node.value(0)
    return [value if isinstance(value, Maybe) else Maybe(value)]


def _has_element(node: SequenceNode) -> list[Value]:
    value = node.value(0)
    is_there = value.value is not None if isinstance(value, Maybe) else value is not None
    return [node.reader.constant(np.asarray(is_there), node.name)]


def _get_element(node: SequenceNode) -> list[Value]:
    value = node.value(0)
    found = value.value if isinstance(value, Maybe) else value
    if found is None:
        raise node.refusal("the optional value is empty")
    return [found]


def _identity(node: SequenceNode) -> list[Value]:
    value = node.value(0)
    return [] if value is None else [value]


SEQUENCES: Final[Mapping[str, Callable[[SequenceNode], list[Value]]]] = {
    "SequenceEmpty": _empty,
    "SequenceConstruct": _construct,
    "SequenceAt": _at,
    "SequenceLength": _length,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceMap": _map,
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
    "Optional": _optional,
    "OptionalHasElement": _has_element,
    "OptionalGetElement": _get_element,
    "Identity": _identity,
}
"""What each operator gives for its outputs. Identity is among them where it passes on what is no tensor."""
