"""Branches that are always taken, and loops of a known count that carry sequences: they are written out.

weft's loops carry tensors alone, so one that gathers a sequence is read turn by turn.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx

from weft_graph.onnx_form.frame import Value
from weft_graph.onnx_form.sequences import SequenceNode

_MOST_TURNS: Final = 1 << 10


def settled(node: SequenceNode) -> list[Value] | None:
    """What the node gives, once its nodes are written out; None where it stays a node of the graph."""
    if node.proto.op_type == "If":
        return _branch(node)
    if node.proto.op_type == "Loop":
        return _turns(node)
    return None


def _body(node: SequenceNode, name: str) -> onnx.GraphProto:
    found: onnx.GraphProto | None = next(
        (a.g for a in node.proto.attribute if a.name == name and not a.ref_attr_name), None
    )
    if found is None:
        raise node.refusal(f"attribute {name!r} is missing")
    return found


def _branch(node: SequenceNode) -> list[Value] | None:
    condition = node.value(0)
    known = node.reader.known(condition) if isinstance(condition, str) else None
    if known is None or known.size != 1:
        return None
    return node.reader.inlined(_body(node, "then_branch" if known.all() else "else_branch"), [], node.name)


def _turns(node: SequenceNode) -> list[Value] | None:
    states = [node.value(index) for index in range(2, len(node.proto.input))]
    if all(isinstance(state, str) for state in states):
        return None
    turns = int(node.integers(0).reshape(-1)[0]) if node.value(0) is not None else None
    goes_on = node.value(1) is None or bool(node.integers(1).all())
    if turns is None or turns > _MOST_TURNS:
        raise node.refusal(
            f"it carries a sequence, and would be written out {turns or 'without a known count of'} turns"
        )
    body = _body(node, "body")
    carried: list[Value] = [state if state is not None else "" for state in states]
    gathered: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    for turn in range(turns):
        if not goes_on:
            break
        number = node.reader.constant(np.asarray(turn, dtype=np.int64), node.name)
        is_on = node.reader.constant(np.asarray(True), node.name)
        condition, *values = node.reader.inlined(body, [number, is_on, *carried], node.name)
        goes_on = _goes_on(node, condition)
        carried = values[: len(carried)]
        for column, value in zip(gathered, values[len(carried) :], strict=True):
            column.append(value)
    return [*carried, *(_stacked(node, column) for column in gathered)]


def _goes_on(node: SequenceNode, condition: Value) -> bool:
    known = node.reader.known(condition) if isinstance(condition, str) else None
    if known is None:
        raise node.unsettled("it carries a sequence, and whether it goes on is not known before a step")
    return bool(known.all())


def _stacked(node: SequenceNode, column: list[Value]) -> Value:
    items = [item for item in column if isinstance(item, str)]
    if not items or len(items) < len(column):
        raise node.refusal("it carries a sequence, and gathers what is no tensor or nothing")
    axes = node.integers_constant([0])
    return node.emit("Concat", *(node.emit("Unsqueeze", item, axes)[0] for item in items), axis=0)[0]
