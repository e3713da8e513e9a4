"""What PyTorch's exporter writes beside a graph, and what a model has to be so that it trains as the module does.

The exporter (`torch.onnx.export(dynamo=True)`) names for each node the ATen call that it was written for, with its
arguments, and the module that made the call; for the graph, which of its values were parameters and which buffers. So:

1. `check` refuses calls that ONNX has no word for and the exporter writes without it: their gradients would differ.
2. `restored` takes back what the exporter's optimizer does to parameters: equal ones are merged into one initializer,
   zero biases dropped, weights transposed beforehand.
3. `rewritten` gives calls their gradients: what is detached has none, rows of padding have none.

Files of other exporters have no such notes, and pass through all of it unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import onnx
from onnx import helper

from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.imported import Array
from weft_graph.onnx_form.own_metadata import OPERATOR, TAKEN_OVER, own_metadata
from weft_graph.onnx_form.text import text
from weft_graph.weft_domain import STOP_GRADIENT

_SIGNATURE: Final = "pkg.torch.export.ExportedProgram.graph_signature"
_CLASSES: Final = "pkg.torch.onnx.class_hierarchy"
_SCOPES: Final = "pkg.torch.onnx.name_scopes"
_CALL: Final = "pkg.torch.onnx.fx_node"
_STACK: Final = "pkg.torch.onnx.stack_trace"
_REWRITTEN: Final = "pkg.onnxscript.rewriter.rule_name"

_INPUT: Final = re.compile(r"^(\S+): (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^'\n]+)'", re.MULTILINE)
_MUTATION: Final = re.compile(r"^\S+: (PARAMETER|BUFFER)_MUTATION target='([^'\n]+)'", re.MULTILINE)
_VALUE: Final = re.compile(r"%([A-Za-z_]\w*)")
_TRACED_APART: Final = "<eval_with_key>"
_FILE: Final = re.compile(r'File "([^"]+)"')
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?")
_PLAIN: Final = frozenset((0.0, 1.0, -1.0, 2.0, 0.5, np.inf, -np.inf, float(np.finfo(np.float32).min)))
"""Numbers that stand in operators' definitions."""
_ROW: Final = re.compile(r"\d{1,18}")
_DETACHED: Final = re.compile(r"^detach(_\d+)?$")

PARAMETER: Final = "PARAMETER"
BUFFER: Final = "BUFFER"
COMPUTED: Final = "COMPUTED"
"""Of an initializer that the module does not have: the exporter's optimizer has computed it."""

_AS_IT_TRAINS: Final = "export it with train() and optimize=False, or read the module with weft.from_torch"
_UNOPTIMIZED: Final = "export it with optimize=False, or use weft.from_torch"
_BATCH_NORM: Final = "aten._native_batch_norm_legit"
_HELD_NORM: Final = "aten._native_batch_norm_legit_no_training"


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
    signature = _properties(graph.metadata_props).get(_SIGNATURE, "")
    found = _INPUT.findall(signature)
    calls = {}
    for proto in graph.node:
        call = _call_of(proto)
        if call is not None and proto.output:
            calls[proto.output[0]] = call
    return Notes(
        {own: kind for _, kind, own in found},
        {name: own for name, _, own in found},
        tuple(_MUTATION.findall(signature)),
        calls,
    )


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
        again = f"so it will not train as the module does; {_AS_IT_TRAINS}"
        call = _call_of(proto)
        if "FuseBatchNorm" in properties.get(_REWRITTEN, "") or (call is not None and _is_folded_norm(proto, call)):
            sentences.append(f"{where}: BatchNormalization of module {module!r} was folded into it, {again}")
        elif "modules.dropout." in classes and proto.op_type == "Identity" and module not in kept:
            sentences.append(f"{where}: Dropout of module {module!r} was left out, {again}")
    return sentences


def held_norms(graph: onnx.GraphProto, notes: Notes) -> frozenset[str]:
    """Names of nodes of BatchNorm modules that were in `eval()` while others trained: they stay in inference.

    Where none trains, the whole was exported for inference, and says nothing about training.
    """
    norms = {
        proto.name: notes.calls[proto.output[0]].target
        for proto in graph.node
        if proto.op_type == "BatchNormalization" and proto.output and proto.output[0] in notes.calls
    }
    if not _is_training(notes):
        return frozenset()
    return frozenset(name for name, target in norms.items() if target.startswith(_HELD_NORM))


def _is_training(notes: Notes) -> bool:
    """Whether the module was exported as it trains, as far as its calls tell."""
    targets = {call.target for call in notes.calls.values()}
    norms = {target for target in targets if target.startswith(_BATCH_NORM)}
    return any(not target.startswith(_HELD_NORM) for target in norms) or "aten.native_dropout.default" in targets


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


# --- What cannot be said -------------------------------------------------------------------------------------------


def check(graph: onnx.GraphProto, notes: Notes) -> None:
    """Raises OnnxError, naming the module and the remedy, for what would train otherwise than the module does."""
    read = {name for proto in graph.node if not _keeps_statistics(proto, notes) for name in proto.input}
    for call in notes.calls.values():
        wrong = _wrong(call)
        if wrong is not None:
            raise OnnxError(f"{call.where}: {wrong}", node=call.name)
    unseen = None if _is_taken_over(graph) else _without_gradients(graph, notes)
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
                f"module in eval() before the export ({_owner(own) or 'the module'!r}), or compute it without a buffer",
                node=own,
            )
    for proto in graph.node if _is_training(notes) else ():
        maker = notes.calls.get(proto.output[0]) if proto.output else None
        if maker is not None and _is_folded_norm(proto, maker):
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


def _is_taken_over(graph: onnx.GraphProto) -> bool:
    """Whether `weft.from_torch` had it exported."""
    return own_metadata(graph.metadata_props).get(TAKEN_OVER) == "true"


def _keeps_statistics(proto: onnx.NodeProto, notes: Notes) -> bool:
    """Whether the node is a BatchNormalization, or gives its statistics on to the next run of the same module."""
    call = notes.calls.get(proto.output[0]) if proto.output else None
    return proto.op_type == "BatchNormalization" or (call is not None and call.target.startswith(_BATCH_NORM))


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


def _is_folded_norm(proto: onnx.NodeProto, call: Call) -> bool:
    return call.target.startswith(_BATCH_NORM) and proto.op_type in {"Conv", "ConvTranspose", "Gemm", "MatMul"}


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
    if target.startswith("aten.cross_entropy_loss") and float(_number(call.argument(5, "label_smoothing", "0"))):
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


# --- What the exporter's optimizer did -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restored:
    """A graph's nodes and initializers as the module had them."""

    nodes: list[onnx.NodeProto]
    arrays: dict[str, Array]
    tied: Mapping[str, Sequence[str]]
    """Other own names of a parameter that several modules share."""
    constants: frozenset[str]
    """Initializers that are no parameter of the module's, though they look like one."""
    warnings: Sequence[str] = ()


def restored(graph: onnx.GraphProto, arrays: Mapping[str, Array], notes: Notes, *, verify: bool = True) -> Restored:
    """Gives each parameter its own initializer again. `arrays` are the graph's initializers by name.

    With `verify` raises OnnxError for a parameter that was folded into something else, so that it could not train.
    """
    if not notes.kinds:
        return Restored(list(graph.node), dict(arrays), {}, frozenset())
    return _Restoring(graph, arrays, notes).result(verify)


class _Restoring:
    """The state of giving parameters back."""

    def __init__(self, graph: onnx.GraphProto, arrays: Mapping[str, Array], notes: Notes) -> None:
        self.graph = graph
        self.notes = notes
        self.taken_over = _is_taken_over(graph)
        self.given = arrays
        self.arrays = dict(arrays)
        self.nodes: list[onnx.NodeProto] = []
        self.parameters = {own for own, kind in notes.kinds.items() if kind == PARAMETER}
        self.numbers: dict[str, int] = {}
        self.turned: dict[str, str] = {}
        """Values that are a parameter's transpose -> the parameter."""
        self.claimed: dict[str, set[str]] = {}
        """Parameters that nodes of a call read already, by the call's name."""
        self.names = {name for proto in graph.node for name in (*proto.input, *proto.output)} | set(arrays)
        self.last: dict[str, int] = {}
        """The place of the last node of each call, by the call's name."""
        for place, proto in enumerate(graph.node):
            call = self._call(proto)
            if call is not None:
                self.last[call.name] = place
                mentioned = set(notes.parameters_of(call))
                self.claimed.setdefault(call.name, set()).update(mentioned.intersection(proto.input))
        for place, proto in enumerate(graph.node):
            self._node(place, proto)

    def result(self, verify: bool) -> Restored:
        tied, computed = self._tied(), self._computed()
        strange = frozenset(name for name in self.arrays if name not in self.notes.kinds)
        if verify:
            self._check_lost(tied, computed)
        aliases: dict[str, list[str]] = {}
        for other, own in sorted(tied.items()):
            aliases.setdefault(own, []).append(other)
        warnings = []
        if computed:
            shown = ", ".join(map(repr, computed[:3])) + (
                f" and {len(computed) - 3} others" if len(computed) > 3 else ""
            )
            warnings.append(
                f"the exporter has computed constants: {shown}. They do not train; if parameters are in them, "
                "export with optimize=False, or use weft.from_torch"
            )
        return Restored(self.nodes, self.arrays, aliases, strange, warnings)

    def _call(self, proto: onnx.NodeProto) -> Call | None:
        return self.notes.calls.get(proto.output[0]) if proto.output else None

    def _node(self, place: int, proto: onnx.NodeProto) -> None:
        call = self._call(proto)
        mentioned = [] if call is None else _in_nodes_order(call, self.notes.parameters_of(call))
        if call is None or _is_folded_norm(proto, call):
            self.nodes.append(proto)
            return
        claimed = self.claimed[call.name]
        inputs = self._one_by_one(call, proto)
        for index, name in enumerate(inputs):
            if name not in self.arrays or name in mentioned:
                continue
            array = self.arrays[name]
            missing = [own for own in mentioned if own not in claimed and _may_be(self.arrays.get(own), array)]
            if name in self.parameters and missing:
                self.arrays.setdefault(missing[0], array)
                claimed.add(missing[0])
                inputs[index] = missing[0]
                continue
            weight = self._transposed(call, name, mentioned) or self._equal_transpose(name)
            if weight is not None:
                claimed.add(weight)
                inputs[index] = self._transpose(weight, name)
        made = onnx.NodeProto()
        made.CopyFrom(proto)
        del made.input[:]
        made.input.extend(inputs)
        self.nodes.append(made)
        if place == self.last[call.name]:
            self._zero_bias(made, [own for own in mentioned if own not in claimed and own not in self.arrays])

    def _one_by_one(self, call: Call, proto: onnx.NodeProto) -> list[str]:
        """The node's inputs; where it reads as many parameters and buffers as its call does, each by its own name."""
        inputs, kinds = list(proto.input), self.notes.kinds
        read = [index for index, name in enumerate(inputs) if name in self.arrays and name in kinds]
        owns = _in_nodes_order(call, [own for own in map(self.notes.targets.get, call.values) if own is not None])
        pairs = list(zip(read, owns, strict=False))
        if len(read) != len(owns) or not all(_may_be(self.given.get(o), self.arrays[inputs[i]]) for i, o in pairs):
            return inputs
        for index, own in pairs:
            self.arrays.setdefault(own, self.arrays[inputs[index]])
            self.claimed[call.name].add(own)
            inputs[index] = own
        return inputs

    def _transposed(self, call: Call, name: str, mentioned: Sequence[str]) -> str | None:
        """The parameter whose transpose the initializer is."""
        array = self.arrays[name]
        if name in self.notes.kinds or array.ndim != 2 or not call.target.startswith("aten.linear"):
            return None
        own = mentioned[0] if mentioned else ""
        if own not in self.arrays:
            return own or None
        return own if np.array_equal(self.arrays[own].T, array) else None

    def _equal_transpose(self, name: str) -> str | None:
        """The parameter whose transpose the initializer is by its bytes: another call reads it as it is."""
        array = self.arrays[name]
        if name in self.notes.kinds or not _is_table(array):
            return None
        return self.by_bytes.get((array.shape[::-1], np.ascontiguousarray(array.T).tobytes()))

    @cached_property
    def by_bytes(self) -> dict[tuple[tuple[int, ...], bytes], str]:
        """Parameters of two dimensions by their shape and bytes, where a constant has that shape turned."""
        turned = {
            array.shape[::-1] for name, array in self.given.items() if name not in self.notes.kinds and _is_table(array)
        }
        known = ((own, self.given[own]) for own in sorted(self.parameters, reverse=True) if own in self.given)
        return {
            (array.shape, array.tobytes()): own for own, array in known if _is_table(array) and array.shape in turned
        }

    def _transpose(self, own: str, name: str) -> str:
        """The value that stands for the initializer: the parameter, turned."""
        self.arrays.setdefault(own, np.ascontiguousarray(self.arrays[name].T))
        output = self._fresh(f"{own}/transposed")
        self.nodes.append(helper.make_node("Transpose", [own], [output], name=output, perm=[1, 0]))
        self.turned[output] = own
        return output

    def _zero_bias(self, proto: onnx.NodeProto, missing: Sequence[str]) -> None:
        """Gives the last node of a call a bias that was dropped, since it is zero."""
        if len(missing) != 1 or proto.op_type not in _BIAS or len(proto.input) < 2:
            return
        name = proto.input[1]
        weight = self.arrays[self.turned[name]].T if name in self.turned else self.arrays.get(name)
        attributes = {attribute.name: attribute for attribute in proto.attribute}
        place = _BIAS[proto.op_type](attributes)
        if weight is None or weight.ndim <= max(place, 0):
            return
        (own,) = missing
        self.arrays[own] = np.zeros(weight.shape[place], weight.dtype)
        if proto.op_type != "MatMul":
            del proto.input[2:]
            proto.input.append(own)
            return
        whole = proto.output[0]
        proto.output[0] = self._fresh(f"{whole}/product")
        self.nodes.append(helper.make_node("Add", [proto.output[0], own], [whole], name=self._fresh(f"{whole}/bias")))

    def _tied(self) -> dict[str, str]:
        """Own names of parameters that are another's: a node of their module reads the other one."""
        readers: dict[str, str] = {}
        for call in self.notes.calls.values():
            for own in self.notes.parameters_of(call):
                if own.rpartition(".")[0] != call.module:
                    readers.setdefault(call.module, own)
        return {
            own: readers[owner]
            for own in self.parameters - self.arrays.keys()
            if (owner := own.rpartition(".")[0]) in readers
        }

    def _check_lost(self, tied: Mapping[str, str], computed: Sequence[str]) -> None:
        """Raises OnnxError for a parameter that is nowhere, while there is a constant that may come from it."""
        mentioned = {own for call in self.notes.calls.values() for own in self.notes.parameters_of(call)}
        folded = {
            own
            for proto in self.graph.node
            if (call := self._call(proto)) is not None and _is_folded_norm(proto, call)
            for own in self.notes.parameters_of(call)
        }
        for own in sorted(self.parameters - self.arrays.keys() - tied.keys() - folded):  # of `folded` a warning tells
            if own in mentioned or computed:
                where = f", perhaps {computed[0]!r}" if computed else ""
                remedy = "write its module otherwise" if self.taken_over else _UNOPTIMIZED
                raise OnnxError(
                    f"parameter {own!r} is not in the file: the exporter has left it out or computed something from it "
                    f"beforehand{where}, so it would not train; {remedy}",
                    node=own,
                )

    def _computed(self) -> list[str]:
        """Constants that the exporter's optimizer has computed, no literals of the calls that read them."""
        found: dict[str, None] = {}
        for node in self.nodes:
            call = self._call(node)
            literals = set() if call is None else _literals(call.text)
            for name in node.input:
                array = self.arrays.get(name)
                if array is None or name in self.notes.kinds or array.dtype.kind not in "fV" or not array.size:
                    continue
                if array.size > 1 or float(np.float32(array.reshape(-1)[0])) not in literals | _PLAIN:
                    found[name] = None
        return list(found)

    def _fresh(self, stem: str) -> str:
        name, number = stem, self.numbers.get(stem, 1)
        while name in self.names:
            number += 1
            name = f"{stem}_{number}"
        self.numbers[stem] = number
        self.names.add(name)
        return name


def _gemm_bias(attributes: Mapping[str, onnx.AttributeProto]) -> int:
    return 0 if "transB" in attributes and attributes["transB"].i else 1


def _deconvolution_bias(attributes: Mapping[str, onnx.AttributeProto]) -> int:
    return 1


def _first(attributes: Mapping[str, onnx.AttributeProto]) -> int:
    return 0


def _last(attributes: Mapping[str, onnx.AttributeProto]) -> int:
    return -1


_BIAS: Final = {
    "Gemm": _gemm_bias,
    "MatMul": _last,
    "Conv": _first,
    "ConvTranspose": _deconvolution_bias,
    "LayerNormalization": _first,
}
"""Nodes that may have a bias, and which dimension of their weight is its size."""


def _in_nodes_order(call: Call, parameters: list[str]) -> list[str]:
    """`addmm` takes the bias first, ONNX last."""
    return parameters[::-1] if call.target.startswith("aten.addmm") else parameters


def _is_table(array: Array) -> bool:
    """Whether it may be a weight of a product."""
    return array.ndim == 2 and array.dtype.kind in "fV" and array.size > 1


def _may_be(own: Array | None, array: Array) -> bool:
    """Whether a parameter, if its value is known, has that value."""
    return own is None or (own.shape == array.shape and np.array_equal(own, array))


# --- What has no gradient ------------------------------------------------------------------------------------------


def rewritten(protos: Iterable[onnx.NodeProto], notes: Notes) -> Iterator[onnx.NodeProto]:
    """The nodes, with what autograd does at a detach and at rows of padding."""
    for proto in protos:
        call = notes.calls.get(proto.output[0]) if proto.output else None
        if call is None:
            yield proto
        elif proto.op_type == "Identity" and call.target.startswith("aten.detach") and proto.input:
            yield _stop(proto.input[0], proto.output[0], proto.name)
        elif proto.op_type == "Gather" and call.target.startswith("aten.embedding.") and len(proto.input) == 2:
            padding = call.argument(2, "padding_idx", "-1")
            yield from _padded(proto, int(padding)) if _ROW.fullmatch(padding) else (proto,)
        else:
            yield proto


def _padded(proto: onnx.NodeProto, padding: int) -> Iterator[onnx.NodeProto]:
    """Rows of the padding are read as they are, and have no gradient."""
    whole, name = proto.output[0], proto.name or proto.output[0]
    made = onnx.NodeProto()
    made.CopyFrom(proto)
    rows, mask, kept, number, last = (
        f"{whole}/{part}" for part in ("rows", "is_padding", "padding", "padding_idx", "last")
    )
    made.output[0] = rows
    yield made
    yield _constant(number, np.asarray(padding, np.int64))
    yield _constant(last, np.asarray([-1], np.int64))
    yield helper.make_node("Cast", [proto.input[1]], [f"{mask}/ids"], name=f"{name}/ids", to=onnx.TensorProto.INT64)
    yield helper.make_node("Equal", [f"{mask}/ids", number], [f"{mask}/flat"], name=f"{name}/is_padding")
    yield helper.make_node("Unsqueeze", [f"{mask}/flat", last], [mask], name=f"{name}/mask")
    yield _stop(rows, kept, f"{name}/padding")
    yield helper.make_node("Where", [mask, kept, rows], [whole], name=f"{name}/padded")


def _stop(value: str, output: str, name: str) -> onnx.NodeProto:
    made = helper.make_node("Identity", [value], [output], name=name)
    made.metadata_props.add(key=OPERATOR, value=STOP_GRADIENT)
    return made


def _constant(name: str, array: Array) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], name=name, value=onnx.numpy_helper.from_array(array))


# --- Reading the notes ---------------------------------------------------------------------------------------------


def _call_of(proto: onnx.NodeProto) -> Call | None:
    """Of "%add : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%x, 1), kwargs = {})"."""
    properties = _properties(proto.metadata_props)
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
        _module_of(proto),
        _inner(properties.get(_CLASSES, "")),
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


def _literals(listed: str) -> set[float]:
    """The numbers in a call's arguments, as float32 has them."""
    with np.errstate(over="ignore"):
        return {float(np.float32(word)) for word in _NUMBER.findall(listed)}


def _number(word: str) -> str:
    """A number as it stands, 0 for anything else."""
    return word if _NUMBER.fullmatch(word) else "0"


def _owner(own: str) -> str:
    """The module that a parameter or buffer belongs to."""
    return own.rpartition(".")[0]


def _module_of(proto: onnx.NodeProto) -> str:
    """The innermost module that the node comes from: of "['', 'layer1', 'layer1.bn', 'add_5']" the last but one."""
    return _inner(_properties(proto.metadata_props).get(_SCOPES, ""))


def _inner(listed: str) -> str:
    names = re.findall(r"'([^']*)'", listed)
    return names[-2] if len(names) > 1 else ""


def _properties(entries: Iterable[onnx.StringStringEntryProto]) -> dict[str, str]:
    return {text(entry.key, "a key of metadata"): text(entry.value, "metadata") for entry in entries}
