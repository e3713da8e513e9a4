"""A graph while it is read: its nodes, the names around it, functions and what is shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx
from onnx import AttributeProto

from weft_graph.errors import GraphError
from weft_graph.infer import Inference
from weft_graph.ir import ONNX_DOMAIN, AttributeValue, Constant, Node
from weft_graph.json_form import OPSET
from weft_graph.names import FreshNames
from weft_graph.onnx_form.errors import MOST_CALLS, Array, Budget, OnnxError, ReadOptions, legal, text
from weft_graph.onnx_form.tensors import Tensors
from weft_graph.types import TensorType

# --- What all graphs of one model share while it is read --------------------------------------------------------------


_ROOM_FOR_NUMBERS: Final = 16
"""Characters of a name that are left for what makes it unique."""


@dataclass(slots=True)
class Shared:
    """Names of values and of nodes are unique in the whole model, bodies and inlined functions included."""

    options: ReadOptions
    tensors: Tensors
    budget: Budget
    values: FreshNames = field(default_factory=lambda: FreshNames(()))
    node_names: FreshNames = field(default_factory=lambda: FreshNames(()))
    leaves: set[str] = field(default_factory=set)
    """The names, in weft's graph, of initializers and constants."""
    warnings: list[str] = field(default_factory=list)

    def value_name(self, stem: str) -> str:
        return self.values.fresh(legal(stem, self.options.limits.name - _ROOM_FOR_NUMBERS))

    def node_name(self, stem: str) -> str:
        return self.node_names.fresh(legal(stem, self.options.limits.name - _ROOM_FOR_NUMBERS))


_NOT_INFERRED: Final = (GraphError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What inference raises on nodes that no check has seen yet: their types stay unknown, and the check finds them."""


@dataclass(slots=True, eq=False)
class Draft:
    """Types are inferred only once somebody asks: most models never need one to be read."""

    shared: Shared
    outer: Draft | None = None
    nodes: list[Node] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    declared: dict[str, TensorType] = field(default_factory=dict)
    """Types that the file says of values; what is inferred goes before."""
    inference: Inference = field(default_factory=lambda: Inference({}))
    _inferred: int = 0

    def append(self, node: Node) -> None:
        self.nodes.append(node)

    def emit(
        self,
        op_type: str,
        inputs: Sequence[str],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        name: str,
        outputs: int = 1,
        domain: str = ONNX_DOMAIN,
    ) -> tuple[str, ...]:
        """Adds a node that is none of the file's, called after `name`, and returns its outputs' names."""
        made = tuple(self.shared.value_name(f"{name}/{op_type}") for _ in range(outputs))
        own = self.shared.node_name(f"{name}/{op_type}")
        self.shared.budget.add(len(inputs) + outputs, name)
        self.append(Node(op_type, own, tuple(inputs), made, dict(attributes or {}), domain))
        return made

    def constant(self, array: Array, name: str) -> str:
        """The name of a new constant, called after `name`."""
        own = self.shared.value_name(name)
        self.keep(own, array)
        return own

    def keep(self, name: str, array: Array) -> None:
        """Adds a constant of that very name."""
        array = np.asarray(array, order="C")
        array.flags.writeable = False
        self.constants.append(Constant(name, array))
        self.inference.add_constant(self.constants[-1])

    def type_of(self, name: str) -> TensorType | None:
        """What is known of a value of this draft or of one around it."""
        self._infer()
        found = self.inference.types.get(name) or self.declared.get(name)
        return found if found is not None or self.outer is None else self.outer.type_of(name)

    def value_of(self, name: str) -> Array | None:
        """The value where it is known before any step: a constant, or small numbers made of such."""
        self._infer()
        found = self.inference.known.get(name)
        return found if found is not None or self.outer is None else self.outer.value_of(name)

    def _infer(self) -> None:
        while self._inferred < len(self.nodes):
            node = self.nodes[self._inferred]
            self._inferred += 1
            for name in node.inputs:
                self._bring(name)
            try:
                self.inference.add(node)
            except _NOT_INFERRED:
                self.inference.types.update((out, self.declared[out]) for out in node.outputs if out in self.declared)

    def _bring(self, name: str) -> None:
        """Makes what is known of a value around this body known in it."""
        if not name or self.outer is None or name in self.inference.types:
            return
        type_ = self.outer.type_of(name)
        if type_ is not None:
            self.inference.types[name] = type_
        value = self.outer.value_of(name)
        if value is not None:
            self.inference.known[name] = value


# --- What names mean in one graph of a model: in its main graph, in a body, in one call of a function -----------------


@dataclass(frozen=True, slots=True)
class Maybe:
    """An optional value: a tensor, a sequence, or none."""

    value: str | tuple[str, ...] | None


Value = str | tuple[str, ...] | Maybe
"""A tensor by its name in weft's graph, or a sequence by those of its items, or what is one of these or none."""


def items_of(value: Value) -> tuple[str, ...]:
    """The tensors that the value is made of."""
    inner = value.value if isinstance(value, Maybe) else value
    return () if inner is None else (inner,) if isinstance(inner, str) else inner


@dataclass(slots=True, eq=False)
class Frame:
    """A body looks names up in the frames around it; a function's call sees its own alone."""

    shared: Shared
    opsets: Mapping[str, int]
    outer: Frame | None = None
    given: Mapping[str, AttributeProto] = field(default_factory=dict)
    """Attributes of the call of the function that this frame is in."""
    calls: tuple[str, ...] = ()
    """The functions around, from the outermost."""
    reserved: dict[str, str] = field(default_factory=dict)
    """Names that values will have once they are defined: those of the main graph, and of a call's outputs."""
    kept: frozenset[str] = frozenset()
    """Values that must have their reserved name, since they are outputs."""
    names: dict[str, Value] = field(default_factory=dict)

    def define(self, name: str, where: str) -> str:
        """The name in weft's graph of a value that is defined here. Raises OnnxError where it is defined already."""
        if not name:
            raise OnnxError(f"{where} defines a value without a name", node=where)
        if name in self.names:
            raise OnnxError(f"value {name!r}, which {where} defines, is defined already", node=name)
        made = self.reserved.get(name) or self.shared.value_name(name)
        self.names[name] = made
        return made

    def find(self, name: str) -> Value | None:
        found = self.names.get(name)
        return found if found is not None or self.outer is None else self.outer.find(name)

    def tensor(self, name: str, where: str) -> str:
        """The tensor of that name; '' stands for one that is left out. Raises OnnxError."""
        if not name:
            return ""
        found = self.value(name, where)
        if isinstance(found, str):
            return found
        raise OnnxError(
            f"{where} reads {name!r}, a sequence or an optional value, and weft's graphs have tensors alone", node=where
        )

    def value(self, name: str, where: str) -> Value:
        found = self.find(name)
        if found is None:
            raise OnnxError(f"{where} reads {name!r}, which nothing defines", node=where)
        return found


# --- A model's own functions: each call is replaced by the function's nodes -------------------------------------------


Functions = Mapping[tuple[str, str, str], onnx.FunctionProto]
"""A model's functions by domain, name and overload."""

ONNX_DOMAINS = frozenset({"", "ai.onnx"})
"""ONNX's own domain has two names."""


def functions_of(protos: Iterable[onnx.FunctionProto]) -> Functions:
    """Raises OnnxError where two have one name."""
    found: dict[tuple[str, str, str], onnx.FunctionProto] = {}
    for proto in protos:
        key = (_domain(proto.domain), text(proto.name, "a function's name"), text(proto.overload, "an overload"))
        if key in found:
            raise OnnxError(f"function {_shown(key)} is defined twice", node=key[1])
        found[key] = proto
    return found


def called(functions: Functions, proto: onnx.NodeProto) -> onnx.FunctionProto | None:
    """The function that the node calls, if it is a call."""
    return functions.get(call_key(proto))


def call_key(proto: onnx.NodeProto) -> tuple[str, str, str]:
    """What the node's function is found by, if it is a call."""
    return _domain(proto.domain), text(proto.op_type, "an operator"), text(proto.overload, "an overload")


def opsets_of(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Versions by domain; both names of ONNX's own are ''. Raises OnnxError where a domain has two versions, or ONNX's
    own one that this reader does not know."""
    found: dict[str, int] = {}
    for imported in imports:
        domain = _domain(imported.domain)
        if not domain and not 1 <= imported.version <= OPSET:
            raise OnnxError(f"the model imports opset {imported.version}; this reader knows 1 to {OPSET}")
        if found.setdefault(domain, imported.version) != imported.version:
            raise OnnxError(f"domain {domain!r} is imported in versions {found[domain]} and {imported.version}")
    return found


def frame_of_call(function: onnx.FunctionProto, proto: onnx.NodeProto, caller: Frame, name: str) -> Frame:
    """The frame in which the function's nodes are read. Raises OnnxError, naming the node that calls."""
    word = text(function.name, "a function's name")
    where = f"node {name!r}, a call of function {word!r},"
    if word in caller.calls:
        raise OnnxError(f"{where} is in a circle: {' -> '.join((*caller.calls, word))}", node=name)
    if len(caller.calls) >= MOST_CALLS:
        raise OnnxError(f"{where} is nested more than {MOST_CALLS} functions deep", node=name)
    if len(proto.input) > len(function.input) or len(proto.output) > len(function.output):
        raise OnnxError(
            f"{where} has {len(proto.input)} inputs and {len(proto.output)} outputs, and the function "
            f"{len(function.input)} and {len(function.output)}",
            node=name,
        )
    frame = Frame(
        caller.shared,
        opsets_of(function.opset_import) or caller.opsets,
        given=_given(function, proto, caller),
        calls=(*caller.calls, word),
    )
    for formal, actual in zip(function.input, proto.input, strict=False):
        frame.names[formal] = caller.value(actual, where) if actual else ""
    for formal in function.input[len(proto.input) :]:
        frame.names[formal] = ""
    return frame


def resolved(attribute: AttributeProto, frame: Frame) -> AttributeProto | None:
    """The attribute, or that of the call that it stands for; None where the call leaves it out."""
    if not attribute.ref_attr_name:
        return attribute
    given = frame.given.get(attribute.ref_attr_name)
    if given is None:
        return None
    renamed = AttributeProto()
    renamed.CopyFrom(given)
    renamed.name = attribute.name
    return renamed


def _given(function: onnx.FunctionProto, proto: onnx.NodeProto, caller: Frame) -> dict[str, AttributeProto]:
    given = {attribute.name: attribute for attribute in function.attribute_proto}
    for attribute in proto.attribute:
        found = resolved(attribute, caller)
        if found is not None:
            given[attribute.name] = found
    return given


def _domain(name: object) -> str:
    found = text(name, "a domain")
    return "" if found in ONNX_DOMAINS else found


def _shown(key: tuple[str, str, str]) -> str:
    return repr(".".join(part for part in key if part))
