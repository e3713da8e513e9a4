"""Reads the nodes of one graph or body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import onnx
from onnx import AttributeProto

from weft_graph.formals import FLOATS
from weft_graph.ir import ONNX_DOMAIN, WEFT_DOMAIN, AttributeValue, Constant, Node, Subgraph
from weft_graph.limits import MOST_NESTED
from weft_graph.onnx_form.attributes import attribute_values, constant_array, kind_of
from weft_graph.onnx_form.draft import (
    ONNX_DOMAINS,
    Draft,
    Frame,
    Functions,
    Shared,
    Value,
    called,
    frame_of_call,
    items_of,
    resolved,
)
from weft_graph.onnx_form.errors import Array, OnnxError, UnsettledError, text, trimmed
from weft_graph.onnx_form.newest import add_newest
from weft_graph.onnx_form.own_metadata import GROUP, OPERATOR, own_metadata
from weft_graph.onnx_form.sequences import SEQUENCES, SequenceNode
from weft_graph.onnx_form.tensors import declared_types
from weft_graph.onnx_form.training import PREVIEW_DOMAIN, STATES, add_gradient, add_optimizer
from weft_graph.topological import topological_order
from weft_graph.types import TensorType
from weft_graph.weft_domain import EMBEDDING, STOP_GRADIENT

# --- The order in which a file's nodes can run, and what its bodies read of the values around them --------------------


def name_of(proto: onnx.NodeProto, place: int) -> str:
    """What errors call a node; one without a name is called by its operator and place."""
    return text(proto.name, "the name of a node") or f"{text(proto.op_type, 'an operator')}_{place}"


def runnable(protos: Sequence[onnx.NodeProto]) -> list[tuple[int, onnx.NodeProto]]:
    """The nodes with their places in the file, each after those that it reads. Raises GraphRefusedError for a cycle."""
    nodes = [
        Node(str(place), name_of(proto, place), tuple(_reads(proto, 0)), tuple(_names(proto.output)))
        for place, proto in enumerate(protos)
    ]
    return [(int(node.op_type), protos[int(node.op_type)]) for node in topological_order(nodes)]


def _names(names: Sequence[str]) -> list[str]:
    return [text(name, "the name of a value") for name in names]


def _reads(proto: onnx.NodeProto, depth: int) -> list[str]:
    """What the node reads, and what its bodies read of the values around them."""
    reads = _names(proto.input)
    for attribute in proto.attribute:
        if kind_of(attribute) == onnx.AttributeProto.GRAPH:
            reads.extend(_free(attribute.g, depth + 1))
    return reads


def _free(graph: onnx.GraphProto, depth: int) -> list[str]:
    if depth > MOST_NESTED:
        raise OnnxError(f"bodies are nested more than {MOST_NESTED} deep")
    own = {text(value.name, "an input of a body") for value in graph.input}
    own.update(text(tensor.name, "an initializer of a body") for tensor in graph.initializer)
    own.update(text(tensor.values.name, "an initializer of a body") for tensor in graph.sparse_initializer)
    own.update(name for node in graph.node for name in _names(node.output))
    read = [name for node in graph.node for name in _reads(node, depth)]
    read.extend(text(value.name, "an output of a body") for value in graph.output)
    return [name for name in dict.fromkeys(read) if name not in own]


# --- What a node's bodies give and what they read ---------------------------------------------------------------------


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


# --- Branches that are always taken, and loops of a known count that carry sequences: they are written out ------------
# weft's loops carry tensors alone, so one that gathers a sequence is read turn by turn.


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


# --- What sequences and settled nodes ask of the scope that reads them ------------------------------------------------


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


@dataclass(slots=True, eq=False)
class Scope:
    """Nodes go to `draft`; `frame` says what names mean."""

    shared: Shared
    functions: Functions
    draft: Draft
    frame: Frame
    prefix: str = ""
    """Begins the names of nodes: the call of a function that they come from."""

    def read(self, protos: Sequence[onnx.NodeProto]) -> None:
        """Raises OnnxError, and GraphRefusedError for a cycle."""
        for place, proto in runnable(protos):
            name = self.shared.node_name(f"{self.prefix}{name_of(proto, place)}")
            self.shared.budget.take(proto, name)
            self._node(proto, name)

    def _node(self, proto: onnx.NodeProto, name: str) -> None:
        op_type = text(proto.op_type, f"node {name!r}: its operator")
        domain = text(proto.domain, f"node {name!r}: its domain")
        function = called(self.functions, proto)
        if function is not None:
            self._call(function, proto, name)
        elif domain not in ONNX_DOMAINS:
            self._version(domain, name)
            self._of_domain(replace(self._plain(proto, name, op_type), domain=domain))
        elif op_type == "Constant":
            self._constant(proto, name)
        elif op_type == "Identity" and own_metadata(proto.metadata_props).get(OPERATOR) == STOP_GRADIENT:
            self.draft.append(replace(self._plain(proto, name, op_type), op_type=STOP_GRADIENT, domain=WEFT_DOMAIN))
        elif op_type == "Gather" and own_metadata(proto.metadata_props).get(OPERATOR) == EMBEDDING:
            self._rows(self._plain(proto, name, op_type))
        elif op_type == "Identity" and self._is_alias(proto):
            self._bind(proto.output[0], self.frame.value(proto.input[0], f"node {name!r}"), name)
        elif op_type in SEQUENCES and op_type != "Identity":
            self._sequence(proto, name, op_type)
        elif not self._is_settled(proto, name, op_type):
            add_newest(self.draft, self._plain(proto, name, op_type), self._version(ONNX_DOMAIN, name))

    def _rows(self, node: Node) -> None:
        """A Gather whose ids do not count from the end."""
        table = self.draft.type_of(node.inputs[0])
        if table is not None and table.dtype in FLOATS and not node.attributes.get("axis"):
            node = replace(node, op_type=EMBEDDING, domain=WEFT_DOMAIN, attributes={})
        self.draft.append(node)

    def _of_domain(self, node: Node) -> None:
        if node.domain == PREVIEW_DOMAIN and node.op_type in STATES:
            add_optimizer(self.draft, node)
        elif node.domain == PREVIEW_DOMAIN and node.op_type == "Gradient":
            add_gradient(self.draft, self.frame, node)
        else:
            self.draft.append(node)

    def _version(self, domain: str, name: str) -> int:
        version = self.frame.opsets.get(domain)
        if version is None:
            raise OnnxError(f"node {name!r} is of domain {domain!r}, of which the model imports no opset", node=name)
        return version

    def _plain(self, proto: onnx.NodeProto, name: str, op_type: str) -> Node:
        attributes, bodies = self._attributes(proto, name)
        where = f"node {name!r} ({op_type})"
        inputs = tuple(self.frame.tensor(value, where) for value in trimmed(proto.input))
        captured = tuple(dict.fromkeys(value for body, _ in bodies.values() for value in body.captured))
        attributes.update((word, replace(body, captured=captured)) for word, (body, _) in bodies.items())
        outputs = outputs_of(proto, name, bodies, self.frame)
        group = own_metadata(proto.metadata_props).get(GROUP, "")
        return Node(op_type, name, (*inputs, *captured), outputs, attributes, group=group)

    def _attributes(self, proto: onnx.NodeProto, name: str) -> tuple[dict[str, AttributeValue], Bodies]:
        attributes: dict[str, AttributeValue] = {}
        bodies: Bodies = {}
        for given in proto.attribute:
            attribute = resolved(given, self.frame)
            if attribute is None:
                continue
            word = text(attribute.name, f"node {name!r}: the name of an attribute")
            if word in attributes or word in bodies:
                raise OnnxError(f"node {name!r} has attribute {word!r} twice", node=name)
            if kind_of(attribute) == AttributeProto.GRAPH:
                bodies[word] = self._body(attribute.g, f"node {name!r}, its {word}")
            else:
                attributes.update(attribute_values(attribute, self.shared.tensors, name))
        return attributes, bodies

    def _body(self, proto: onnx.GraphProto, where: str) -> tuple[Subgraph, tuple[Value, ...]]:
        draft = Draft(self.shared, self.draft)
        inner = Scope(self.shared, self.functions, draft, self._inner_frame(), self.prefix)
        inputs = tuple(inner.frame.define(text(value.name, where), where) for value in proto.input)
        draft.declared.update(
            declared_types(proto.input, dict(zip((v.name for v in proto.input), inputs, strict=True)))
        )
        values = inner.read_body(proto, where)
        outputs = tuple(item for value in values for item in items_of(value))
        nodes, constants = tuple(draft.nodes), tuple(draft.constants)
        return Subgraph(inputs, captured_by(inputs, nodes, outputs, constants), nodes, outputs, constants), values

    def _inner_frame(self) -> Frame:
        frame = self.frame
        return Frame(self.shared, frame.opsets, outer=frame, given=frame.given, calls=frame.calls)

    def read_body(self, proto: onnx.GraphProto, where: str) -> tuple[Value, ...]:
        """Reads a body's initializers and nodes; what its outputs are."""
        for tensor in proto.initializer:
            name = self.frame.define(text(tensor.name, where), where)
            self.draft.keep(name, self.shared.tensors.array(tensor, name))
            self.shared.leaves.add(name)
        for sparse in proto.sparse_initializer:
            name = self.frame.define(text(sparse.values.name, where), where)
            self.draft.keep(name, self.shared.tensors.dense(sparse, name))
            self.shared.leaves.add(name)
        self.read(proto.node)
        return tuple(self.frame.value(text(value.name, where), f"{where}, an output,") for value in proto.output)

    def _call(self, function: onnx.FunctionProto, proto: onnx.NodeProto, name: str) -> None:
        """The function's nodes in the call's place; its outputs have the names that the call gives them."""
        frame = frame_of_call(function, proto, self.frame, name)
        pairs = [(formal, actual) for formal, actual in zip(function.output, proto.output, strict=False) if actual]
        for formal, actual in pairs:
            frame.reserved[formal] = self.frame.reserved.get(actual) or self.shared.value_name(actual)
        Scope(self.shared, self.functions, self.draft, frame, f"{name}/").read(function.node)
        for formal, actual in pairs:
            self._bind(actual, frame.value(formal, f"function {function.name!r}, called by node {name!r},"), name)

    def _bind(self, name: str, value: Value, node: str) -> None:
        """Lets a name of this frame stand for a value that is there; a graph's output gets a value of its own name."""
        if name in self.frame.names:
            raise OnnxError(f"value {name!r}, which node {node!r} defines, is defined already", node=node)
        wanted = self.frame.reserved.get(name)
        if isinstance(value, str) and name in self.frame.kept and wanted is not None and value != wanted:
            self.draft.append(Node("Identity", self.shared.node_name(f"{node}/Identity"), (value,), (wanted,)))
            value = wanted
        self.frame.names[name] = value

    def _constant(self, proto: onnx.NodeProto, name: str) -> None:
        if len(proto.output) != 1:
            raise OnnxError(f"node {name!r} (Constant) has {len(proto.output)} outputs, and gives one", node=name)
        given = [resolved(attribute, self.frame) for attribute in proto.attribute]
        whole = onnx.NodeProto(attribute=[attribute for attribute in given if attribute is not None])
        made = self.frame.define(proto.output[0], f"node {name!r}")
        self.draft.keep(made, constant_array(whole, self.shared.tensors, name))
        self.shared.leaves.add(made)

    def _is_alias(self, proto: onnx.NodeProto) -> bool:
        """Whether an Identity gives another name to an initializer (one key), a constant, or what is no tensor."""
        if len(proto.input) != 1 or len(proto.output) != 1 or not proto.output[0]:
            return False
        value = self.frame.find(proto.input[0])
        if isinstance(value, str):
            return value in self.shared.leaves and proto.output[0] not in self.frame.kept
        return value is not None

    def _is_settled(self, proto: onnx.NodeProto, name: str, op_type: str) -> bool:
        """Whether the node was written out, since what it does is known before any step."""
        if op_type not in {"If", "Loop"}:
            return False
        values = settled(self._sequence_node(proto, name))
        if values is None:
            return False
        for output, value in zip(proto.output, values, strict=False):
            if output:
                self._bind(output, value, name)
        return True

    def _sequence(self, proto: onnx.NodeProto, name: str, op_type: str) -> None:
        for output, value in zip(proto.output, SEQUENCES[op_type](self._sequence_node(proto, name)), strict=False):
            self.shared.budget.hold(len(items_of(value)), name)
            if output:
                self._bind(output, value, name)

    def _sequence_node(self, proto: onnx.NodeProto, name: str) -> SequenceNode:
        return SequenceNode(proto, name, SequenceReader(self.draft, self.frame, self._inlined))

    def _inlined(self, body: onnx.GraphProto, inputs: Sequence[Value], node: str) -> list[Value]:
        self.shared.budget.add(len(body.input) + len(body.output), node)
        frame = self._inner_frame()
        if len(body.input) != len(inputs):
            raise OnnxError(f"node {node!r}: its body has {len(body.input)} inputs, given {len(inputs)}", node=node)
        frame.names.update((value.name, given) for value, given in zip(body.input, inputs, strict=True))
        return list(Scope(self.shared, self.functions, self.draft, frame, f"{node}/").read_body(body, f"node {node!r}"))
