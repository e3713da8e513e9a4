"""Reads the nodes of one of a model's graphs, and of the bodies and functions in it, as weft's nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx
from onnx import AttributeProto

from weft_graph.ir import ONNX_DOMAIN, WEFT_DOMAIN, AttributeValue, Node, Subgraph
from weft_graph.onnx_form.attributes import attribute_values, constant_array, kind_of
from weft_graph.onnx_form.bodies import Bodies, captured_by, outputs_of
from weft_graph.onnx_form.draft import Draft
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.frame import Frame, Value, items_of
from weft_graph.onnx_form.functions import ONNX_DOMAINS, Functions, called, frame_of_call, resolved
from weft_graph.onnx_form.order import name_of, runnable
from weft_graph.onnx_form.own_metadata import GROUP, OPERATOR, own_metadata
from weft_graph.onnx_form.preview_gradient import add_gradient
from weft_graph.onnx_form.preview_optimizers import PREVIEW_DOMAIN, STATES, add_optimizer
from weft_graph.onnx_form.sequence_reader import SequenceReader
from weft_graph.onnx_form.sequences import SEQUENCES, SequenceNode
from weft_graph.onnx_form.settled import settled
from weft_graph.onnx_form.shared import Shared
from weft_graph.onnx_form.text import text, trimmed
from weft_graph.onnx_form.value_types import declared_types
from weft_graph.onnx_form.versions.newest import add_newest
from weft_graph.weft_domain import STOP_GRADIENT


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
        elif op_type == "Identity" and self._is_alias(proto):
            self._bind(proto.output[0], self.frame.value(proto.input[0], f"node {name!r}"), name)
        elif op_type in SEQUENCES and op_type != "Identity":
            self._sequence(proto, name, op_type)
        elif not self._is_settled(proto, name, op_type):
            add_newest(self.draft, self._plain(proto, name, op_type), self._version(ONNX_DOMAIN, name))

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
