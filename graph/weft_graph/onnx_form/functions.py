"""A model's own functions: each call is replaced by the function's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
from onnx import AttributeProto

from weft_graph.json_form import OPSET
from weft_graph.onnx_form.budget import MOST_CALLS
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.frame import Frame
from weft_graph.onnx_form.text import text

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
