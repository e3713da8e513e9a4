"""What of PyTorch's calls cannot be trained as the module trains it, read from a file: refused, or told.

See `torch_notes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import onnx

from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.torch_notes import (
    BATCH_NORM,
    CLASSES,
    HELD_NORM,
    NORM_WITHOUT_STATISTICS,
    PARAMETER,
    Call,
    Notes,
    call_of,
    is_folded_norm,
    is_taken_over,
    is_training,
    module_of,
    number,
    properties_of,
)  # fmt: skip

_REWRITTEN: Final = "pkg.onnxscript.rewriter.rule_name"
_DETACHED: Final = re.compile(r"^detach(_\d+)?$")
_AS_IT_TRAINS: Final = "export it with train() and optimize=False, or read the module with weft.from_torch"


def check(graph: onnx.GraphProto, notes: Notes) -> None:
    """Raises OnnxError, naming the module and the remedy, for what would train otherwise than the module does."""
    read = {name for proto in graph.node if not _keeps_statistics(proto, notes) for name in proto.input}
    for call in notes.calls.values():
        wrong = _wrong(call)
        if wrong is not None:
            raise OnnxError(f"{call.where}: {wrong}", node=call.name)
    unseen = None if is_taken_over(graph) else _without_gradients(graph, notes)
    if unseen is not None:
        told = ", ".join(map(repr, notes.parameters_of(unseen))) or "what follows from parameters"
        raise OnnxError(
            f"{unseen.where}: {unseen.target} of {told} is computed within torch.no_grad() or the like, and the file "
            "would let gradients flow; use weft.from_torch, or .detach() in the module",
            node=unseen.name,
        )
    for kind, own in notes.mutated:
        if kind == PARAMETER:
            raise OnnxError(
                f"parameter {own!r} is changed by the module's own forward, which weft cannot repeat: only the "
                "optimizer changes parameters",
                node=own,
            )
        if own in read:
            raise OnnxError(
                f"buffer {own!r} is changed by each forward in training, and weft keeps buffers as they are: hold its "
                f"module in eval() before the export ({own.rpartition('.')[0] or 'the module'!r}), or compute it "
                "without a buffer",
                node=own,
            )
    for proto in graph.node if is_training(notes) else ():
        maker = notes.calls.get(proto.output[0]) if proto.output else None
        if maker is not None and is_folded_norm(proto, maker):
            raise OnnxError(
                f"node {proto.name!r} ({proto.op_type}): BatchNormalization of {maker.where} was folded into it, so it "
                f"would not train as the module does; {_AS_IT_TRAINS}",
                node=proto.name,
            )
    names = {call.name for call in notes.calls.values()}
    for call in notes.calls.values():
        lost = next((name for name in call.values if _DETACHED.match(name) and name not in names), None)
        if lost is not None:
            raise OnnxError(
                f"{call.where}: it reads a value that was detached ({lost!r}), and the exporter's optimizer has taken "
                "the detach out, so a gradient would flow; export it with optimize=False, or use weft.from_torch",
                node=call.name,
            )


def _keeps_statistics(proto: onnx.NodeProto, notes: Notes) -> bool:
    """Whether the node is a BatchNormalization, or gives its statistics on to the next run of the same module."""
    call = notes.calls.get(proto.output[0]) if proto.output else None
    return proto.op_type == "BatchNormalization" or (call is not None and call.target.startswith(BATCH_NORM))


def _without_gradients(graph: onnx.GraphProto, notes: Notes) -> Call | None:
    """The first call in a `torch.no_grad()` that reads what follows from a parameter."""
    follows = {own for own, kind in notes.kinds.items() if kind == PARAMETER}
    for proto in graph.node:
        if follows.isdisjoint(proto.input):
            continue
        call = notes.calls.get(proto.output[0]) if proto.output else None
        if call is not None and call.is_within_block:
            return call
        if call is None or not call.target.startswith("aten.detach"):
            follows.update(proto.output)
    return None


def _wrong(call: Call) -> str | None:
    """What of the call is missing in its nodes, with the remedy."""
    target = call.target
    if target.startswith("aten.embedding_renorm"):
        return (
            "max_norm changes the embedding's rows in forward, which weft cannot repeat; clip the rows' gradients or "
            "norms otherwise, and leave max_norm out"
        )
    if target.startswith("aten.embedding.") and call.argument(3, "scale_grad_by_freq", "False") == "True":
        return "scale_grad_by_freq divides gradients by how often ids occur, which weft does not; leave it out"
    if target.startswith("aten.embedding_bag"):
        return "the exporter writes EmbeddingBag as a loop, which has no gradient here; weft.from_torch takes it over"
    if target.startswith("aten.cross_entropy_loss") and float(number(call.argument(5, "label_smoothing", "0"))):
        return "the exporter leaves label_smoothing out of cross_entropy; weft.from_torch takes it over"
    if target.startswith("aten.scatter_reduce") and call.argument(4, "reduce", "").strip("'\"") == "mean":
        return (
            "the exporter writes scatter_reduce of a mean as something else; weft.from_torch takes it over, or "
            "divide a scatter_add by its counts"
        )
    if target.startswith(("aten.bernoulli", "aten.rand")) and "drop" in call.module_class.lower():
        return (
            f"it draws random numbers ({target}) that ONNX cannot switch off, so evaluation would draw them too; "
            "weft.from_torch takes Dropout1d to 3d, AlphaDropout and DropPath over; elsewhere use nn.Dropout"
        )
    return None


def folded(protos: Iterable[onnx.NodeProto]) -> list[str]:
    """A sentence for each node that was a BatchNormalization or a Dropout in the module, and is none in the file."""
    protos = tuple(protos)
    kept = {module_of(proto) for proto in protos if proto.op_type == "Dropout"}
    sentences = []
    for proto in protos:
        properties = properties_of(proto.metadata_props)
        classes = properties.get(CLASSES, "")
        where = f"node {proto.name!r} ({proto.op_type})"
        module = module_of(proto)
        again = f"so it will not train as the module does; {_AS_IT_TRAINS}"
        call = call_of(proto)
        if "FuseBatchNorm" in properties.get(_REWRITTEN, "") or (call is not None and is_folded_norm(proto, call)):
            sentences.append(f"{where}: BatchNormalization of module {module!r} was folded into it, {again}")
        elif "modules.dropout." in classes and proto.op_type == "Identity" and module not in kept:
            sentences.append(f"{where}: Dropout of module {module!r} was left out, {again}")
    return sentences


def held_norms(graph: onnx.GraphProto, notes: Notes) -> frozenset[str]:
    """Names of nodes of BatchNorm modules that were in `eval()` while others trained: they stay in inference.

    One without running statistics is such a node, too: its mean and variance are computed before it. Where none
    trains, the whole was exported for inference, and says nothing about training.
    """
    norms = {
        proto.name: notes.calls[proto.output[0]].target
        for proto in graph.node
        if proto.op_type == "BatchNormalization" and proto.output and proto.output[0] in notes.calls
    }
    if not is_training(notes):
        return frozenset()
    return frozenset(name for name, target in norms.items() if target.startswith((HELD_NORM, NORM_WITHOUT_STATISTICS)))
