"""What PyTorch's exporter writes beside a graph: which values were parameters, and from which module a node comes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import onnx

from weft_graph.onnx_form.text import text

_SIGNATURE: Final = "pkg.torch.export.ExportedProgram.graph_signature"
_CLASSES: Final = "pkg.torch.onnx.class_hierarchy"
_SCOPES: Final = "pkg.torch.onnx.name_scopes"
_REWRITTEN: Final = "pkg.onnxscript.rewriter.rule_name"
_LINE: Final = re.compile(r"^\S+: (PARAMETER|BUFFER) target='([^'\n]+)'", re.MULTILINE)

PARAMETER: Final = "PARAMETER"
BUFFER: Final = "BUFFER"


def kinds(graph: onnx.GraphProto) -> Mapping[str, str]:
    """`PARAMETER` or `BUFFER` for each initializer of which the exporter says it, by its name."""
    return {name: kind for kind, name in _LINE.findall(_properties(graph.metadata_props).get(_SIGNATURE, ""))}


def folded(protos: Iterable[onnx.NodeProto]) -> list[str]:
    """A sentence for each node that was a BatchNormalization or a Dropout in the module, and is none in the file."""
    protos = tuple(protos)
    kept = {_module_of(proto) for proto in protos if proto.op_type == "Dropout"}
    sentences = []
    for proto in protos:
        properties = _properties(proto.metadata_props)
        classes = properties.get(_CLASSES, "")
        where = f"node {proto.name!r} ({proto.op_type})"
        module = _module_of(proto)
        if "FuseBatchNorm" in properties.get(_REWRITTEN, ""):
            sentences.append(f"{where}: BatchNormalization of module {module!r} was folded into it, {_AGAIN}")
        elif "modules.dropout." in classes and proto.op_type == "Identity" and module not in kept:
            sentences.append(f"{where}: Dropout of module {module!r} was left out, {_AGAIN}")
    return sentences


_AGAIN: Final = "so it will not train as the module does; export it with train() and optimize=False"


def _module_of(proto: onnx.NodeProto) -> str:
    """The innermost module that the node comes from: of "['', 'layer1', 'layer1.bn', 'add_5']" the last but one."""
    names = re.findall(r"'([^']*)'", _properties(proto.metadata_props).get(_SCOPES, ""))
    return names[-2] if len(names) > 1 else ""


def _properties(entries: Iterable[onnx.StringStringEntryProto]) -> dict[str, str]:
    return {text(entry.key, "a key of metadata"): text(entry.value, "metadata") for entry in entries}
