"""What a node's bodies give and what they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx

from weft_graph.ir import Constant, Node, Subgraph
from weft_graph.onnx_form.errors import UnsettledError
from weft_graph.onnx_form.frame import Frame, Value, items_of
from weft_graph.onnx_form.text import trimmed

Bodies = dict[str, tuple[Subgraph, tuple[Value, ...]]]
"""A node's bodies, and what each gives: a sequence's items are outputs of their own."""


def outputs_of(proto: onnx.NodeProto, name: str, bodies: Bodies, frame: Frame) -> tuple[str, ...]:
    """The names of the outputs of a node with these bodies, or with none.

    What is a sequence in both branches of an If is as many outputs as it has items. Raises UnsettledError where a body
    gives one elsewhere.
    """
    where = f"node {name!r} ({proto.op_type})"
    if all(isinstance(value, str) for _, values in bodies.values() for value in values):
        return tuple(frame.define(value, where) if value else "" for value in trimmed(proto.output))
    shapes = {tuple(_shape(value) for value in values) for _, values in bodies.values()}
    if proto.op_type != "If" or len(shapes) != 1 or len(proto.output) != len(next(iter(shapes))):
        raise UnsettledError(
            f"{where}: a body gives a sequence or an optional value, and weft's graphs have tensors alone",
            node=name,
        )
    outputs: list[str] = []
    for place, output in enumerate(proto.output):
        given = next(iter(bodies.values()))[1][place]
        if isinstance(given, str):
            outputs.append(frame.define(output, where) if output else "")
            continue
        frame.shared.budget.add(len(items_of(given)), name)
        items = tuple(frame.shared.value_name(f"{output}.{item}") for item in range(len(items_of(given))))
        outputs.extend(items)
        frame.names[output] = items if isinstance(given, tuple) else replace(given, value=_like(given, items))
    return tuple(outputs)


def _shape(value: Value) -> tuple[type, int]:
    return type(value), len(items_of(value))


def _like(given: Value, items: tuple[str, ...]) -> str | tuple[str, ...] | None:
    """The items as the optional value has its own: one tensor, a sequence, or none."""
    inner = getattr(given, "value", None)
    return items[0] if isinstance(inner, str) else None if inner is None else items


def captured_by(
    inputs: Sequence[str], nodes: Sequence[Node], outputs: Sequence[str], constants: Sequence[Constant]
) -> tuple[str, ...]:
    """What the body reads of the values around it, in the order of its first use."""
    own = {*inputs, *(constant.name for constant in constants), *(name for node in nodes for name in node.outputs)}
    read = (name for names in (*(node.inputs for node in nodes), outputs) for name in names)
    return tuple(dict.fromkeys(name for name in read if name and name not in own))
