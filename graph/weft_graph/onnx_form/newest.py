"""Brings nodes of any opset to the newest one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from onnx import defs

from weft_graph.ir import ONNX_DOMAIN, Node
from weft_graph.json_form import OPSET
from weft_graph.onnx_form.draft import Draft
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.old_forms import FORMS, Older, OldForm


def add_newest(draft: Draft, node: Node, version: int) -> None:
    """Adds the node, of ONNX's domain in opset `version`, to the draft in the form of the newest opset.

    Raises OnnxError, naming the node, where that opset has no such operator, or where the newest cannot say the same.
    """
    _check_exists(node, version)
    if version < 6 and "consumed_inputs" in node.attributes:  # what may be overwritten: a hint, dropped in opset 6
        node = Older(node, draft, version).becomes(drop=("consumed_inputs",))
    _add(draft, node, version)


def _add(draft: Draft, node: Node, version: int) -> None:
    form = next((form for form in _forms().get(node.op_type, ()) if version < form.before), None)
    if form is None or node.domain != ONNX_DOMAIN:
        draft.append(node)
        return
    for made in form.rewrite(Older(node, draft, version)):
        _add(draft, made, form.before)


@cache
def _forms() -> Mapping[str, tuple[OldForm, ...]]:
    """The forms of each operator, the oldest first."""
    found: defaultdict[str, list[OldForm]] = defaultdict(list)
    for form in FORMS:
        found[form.op_type].append(form)
    return MappingProxyType(
        {op_type: tuple(sorted(forms, key=lambda form: form.before)) for op_type, forms in found.items()}
    )


def _check_exists(node: Node, version: int) -> None:
    """An operator that ONNX has in another opset alone would be read with a meaning that the file does not say."""
    if defs.has(node.op_type, max_inclusive_version=version, domain=ONNX_DOMAIN):
        schema = defs.get_schema(node.op_type, max_inclusive_version=version, domain=ONNX_DOMAIN)
        if not schema.deprecated or any(version < form.before <= OPSET for form in _forms().get(node.op_type, ())):
            _check_values(node, schema)
            return
        raise OnnxError(f"node {node.name!r}: opset {version} has no {node.op_type} any more", node=node.name)
    try:
        since = defs.get_schema(node.op_type, max_inclusive_version=OPSET, domain=ONNX_DOMAIN).since_version
    except defs.SchemaError:
        return  # no operator of any opset: the check of the graph says so
    raise OnnxError(
        f"node {node.name!r}: the model imports opset {version}, and {node.op_type} is there from "
        f"{_first(node, since)} on",
        node=node.name,
    )


def _check_values(node: Node, schema: defs.OpSchema) -> None:
    """What an operator of that opset must have is there: rewriting takes it for granted."""
    for kind, names, formals in (("input", node.inputs, schema.inputs), ("output", node.outputs, schema.outputs)):
        for place, formal in enumerate(formals):
            is_given = place < len(names) and names[place] != ""
            if formal.option == defs.OpSchema.FormalParameterOption.Single and not is_given:
                raise OnnxError(
                    f"node {node.name!r} ({node.op_type}): {kind} {formal.name!r} is missing", node=node.name
                )


def _first(node: Node, newest: int) -> int:
    versions = (s.since_version for s in defs.get_all_schemas_with_history() if s.name == node.op_type and not s.domain)
    return min(versions, default=newest)


def newest_form_since(op_type: str) -> int:
    """The first opset in which nodes of the operator have the form that weft's graphs have."""
    befores = (form.before for form in _forms().get(op_type, ()))
    return max((before for before in befores if before <= OPSET), default=1)
