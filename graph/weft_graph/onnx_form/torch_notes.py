"""What PyTorch's exporter writes beside a graph.

The exporter (`torch.onnx.export(dynamo=True)`) names for each node the ATen call that it was written for, with its
arguments, and the module that made the call; for the graph, which of its values were parameters and which buffers.
Three modules read that. Files of other exporters have no such notes, and pass through all of them unchanged.

1. `torch_checks` refuses what ONNX has no word for and the exporter writes without it: its gradients would differ.
2. `torch_restore` takes back what the exporter's optimizer does to parameters.
3. `torch_forms` writes calls in other words, where the exporter's have other gradients than PyTorch's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx

from weft_graph.onnx_form.errors import text
from weft_graph.onnx_form.own_metadata import TAKEN_OVER, own_metadata

_SIGNATURE: Final = "pkg.torch.export.ExportedProgram.graph_signature"
CLASSES: Final = "pkg.torch.onnx.class_hierarchy"
_SCOPES: Final = "pkg.torch.onnx.name_scopes"
_CALL: Final = "pkg.torch.onnx.fx_node"
_STACK: Final = "pkg.torch.onnx.stack_trace"

_INPUT: Final = re.compile(r"^(\S+): (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^'\n]+)'", re.MULTILINE)
_MUTATION: Final = re.compile(r"^\S+: (PARAMETER|BUFFER)_MUTATION target='([^'\n]+)'", re.MULTILINE)
_VALUE: Final = re.compile(r"%([A-Za-z_]\w*)")
_TRACED_APART: Final = "<eval_with_key>"
_FILE: Final = re.compile(r'File "([^"]+)"')
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?")

PARAMETER: Final = "PARAMETER"
BUFFER: Final = "BUFFER"
COMPUTED: Final = "COMPUTED"
"""Of an initializer that the module does not have: the exporter's optimizer has computed it."""

BATCH_NORM: Final = "aten._native_batch_norm_legit"
HELD_NORM: Final = "aten._native_batch_norm_legit_no_training"
NORM_WITHOUT_STATISTICS: Final = "aten._native_batch_norm_legit.no_stats"


@dataclass(frozen=True, slots=True)
class Call:
    """The ATen call that a node was written for. Arguments are text, `%name` for values."""

    name: str
    """Of the call's value, unique in the graph."""
    target: str
    """Such as `aten.embedding.default`."""
    args: tuple[str, ...]
    kwargs: Mapping[str, str]
    module: str
    """The module that made the call, by its name in the whole; empty for the whole itself."""
    module_class: str
    """That module's class, such as `torch.nn.modules.dropout.Dropout2d`."""
    is_within_block: bool
    """Whether the call stands in a block that the exporter traced apart, such as `torch.no_grad()`."""

    def argument(self, place: int, name: str, default: str) -> str:
        return self.args[place] if place < len(self.args) else self.kwargs.get(name, default)

    @property
    def text(self) -> str:
        """All arguments."""
        return ", ".join((*self.args, *self.kwargs.values()))

    @property
    def values(self) -> list[str]:
        """Names of the values that it reads, in order."""
        return _VALUE.findall(self.text)

    @property
    def where(self) -> str:
        return f"module {self.module!r}" if self.module else "the module"


@dataclass(frozen=True, slots=True)
class Notes:
    """What the exporter says of one graph. All is empty for a file of another exporter."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    """`PARAMETER`, `BUFFER` or `CONSTANT_TENSOR` by the module's own name."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """The module's own name by the name that calls read it by."""
    mutated: tuple[tuple[str, str], ...] = ()
    """(kind, own name) of parameters and buffers that the module's `forward` changes."""
    calls: Mapping[str, Call] = field(default_factory=dict)
    """By the first output of the node that was written for it."""

    def parameters_of(self, call: Call) -> list[str]:
        """Own names of the parameters that the call reads."""
        own = (self.targets.get(name) for name in call.values)
        return [name for name in own if name is not None and self.kinds[name] == PARAMETER]


def notes_of(graph: onnx.GraphProto) -> Notes:
    """What the exporter wrote beside the graph and its nodes."""
    signature = properties_of(graph.metadata_props).get(_SIGNATURE, "")
    found = _INPUT.findall(signature)
    calls = {}
    for proto in graph.node:
        call = call_of(proto)
        if call is not None and proto.output:
            calls[proto.output[0]] = call
    return Notes(
        {own: kind for _, kind, own in found},
        {name: own for name, _, own in found},
        tuple(_MUTATION.findall(signature)),
        calls,
    )


def sparse_tables(notes: Notes) -> frozenset[str]:
    """Own names of embeddings with `sparse=True`."""
    found = set()
    for call in notes.calls.values():
        is_lazy = (call.target.startswith("aten.embedding.") and call.argument(4, "sparse", "False") == "True") or (
            call.target.startswith("aten.embedding_bag") and call.argument(5, "sparse", "False") == "True"
        )
        if is_lazy:
            found.update(notes.parameters_of(call)[:1])
    return frozenset(found)


def is_taken_over(graph: onnx.GraphProto) -> bool:
    """Whether `weft.from_torch` had it exported."""
    return own_metadata(graph.metadata_props).get(TAKEN_OVER) == "true"


def is_training(notes: Notes) -> bool:
    """Whether the module was exported as it trains, as far as its calls tell."""
    targets = {call.target for call in notes.calls.values()}
    norms = {target for target in targets if target.startswith(BATCH_NORM)}
    return any(not target.startswith(HELD_NORM) for target in norms) or "aten.native_dropout.default" in targets


def is_folded_norm(proto: onnx.NodeProto, call: Call) -> bool:
    return call.target.startswith(BATCH_NORM) and proto.op_type in {"Conv", "ConvTranspose", "Gemm", "MatMul"}


def call_of(proto: onnx.NodeProto) -> Call | None:
    """Of "%add : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%x, 1), kwargs = {})"."""
    properties = properties_of(proto.metadata_props)
    head, has_target, rest = properties.get(_CALL, "").strip().partition("call_function[target=torch.ops.")
    target, has_args, rest = rest.partition("](args = (")
    args, has_kwargs, kwargs = rest.rpartition("), kwargs = {")
    if not (has_target and has_args and has_kwargs and kwargs.endswith("})") and head.startswith("%")):
        return None
    pairs = (part.partition(":") for part in _parts(kwargs[: -len("})")]))
    return Call(
        head[1:].partition(" ")[0],
        target,
        tuple(_parts(args)),
        {key.strip(): value.strip() for key, _, value in pairs},
        module_of(proto),
        _inner(properties.get(CLASSES, "")),
        (_FILE.findall(properties.get(_STACK, "")) or [""])[-1].startswith(_TRACED_APART),
    )


def _parts(listed: str) -> list[str]:
    """What stands between the commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(listed):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and not depth:
            parts.append(listed[start:place].strip())
            start = place + 1
    rest = listed[start:].strip()
    return [*parts, rest] if rest else parts


def literals(listed: str) -> set[float]:
    """The numbers in a call's arguments, as float32 has them."""
    with np.errstate(over="ignore"):
        return {float(np.float32(word)) for word in _NUMBER.findall(listed)}


def number(word: str) -> str:
    """A number as it stands, 0 for anything else."""
    return word if _NUMBER.fullmatch(word) else "0"


def module_of(proto: onnx.NodeProto) -> str:
    """The innermost module that the node comes from: of "['', 'layer1', 'layer1.bn', 'add_5']" the last but one."""
    return _inner(properties_of(proto.metadata_props).get(_SCOPES, ""))


def _inner(listed: str) -> str:
    names = re.findall(r"'([^']*)'", listed)
    return names[-2] if len(names) > 1 else ""


def properties_of(entries: Iterable[onnx.StringStringEntryProto]) -> dict[str, str]:
    return {text(entry.key, "a key of metadata"): text(entry.value, "metadata") for entry in entries}
