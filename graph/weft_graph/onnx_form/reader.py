"""Reads an ONNX model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

import onnx
from onnx import AttributeProto

from weft_graph.check import check
from weft_graph.dimensions import Dim
from weft_graph.ir import GIVEN, Constant, Graph, Initializer, Input, Node, Parameter
from weft_graph.names import FreshNames
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.onnx_form import torch_checks, torch_notes
from weft_graph.onnx_form.draft import (
    Draft,
    Frame,
    Functions,
    Maybe,
    Shared,
    Value,
    call_key,
    functions_of,
    items_of,
    opsets_of,
)
from weft_graph.onnx_form.errors import Array, Budget, Imported, OnnxError, ReadOptions, legal, text
from weft_graph.onnx_form.initializers import Role, Said, matches, reads, role_of, said_of
from weft_graph.onnx_form.own_metadata import served
from weft_graph.onnx_form.scope import Scope
from weft_graph.onnx_form.tensors import (
    ExternalFiles,
    Tensors,
    declared_types,
    element_type,
    file_dims,
    is_tensor,
    word_of,
)
from weft_graph.onnx_form.torch_forms import rewritten
from weft_graph.onnx_form.torch_restore import restored
from weft_graph.onnx_form.training import drop_unread_statistics, switch, without_training
from weft_graph.types import BATCH, DType, TensorType, array_type

# --- Keeps parameters as they are whose names a user gave as frozen ---------------------------------------------------


def freeze(read: Imported, patterns: Sequence[str]) -> Imported:
    """The model whose matching parameters do not train. A pattern that is no parameter's and no node's is a warning."""
    parameters = tuple(
        replace(each, trainable=each.trainable and not matches(each.name, patterns)) for each in read.graph.parameters
    )
    names = [*(each.name for each in parameters), *(node.name for node in read.graph.nodes)]
    idle = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    warnings = [f"frozen {pattern!r} is no parameter's name and no node's" for pattern in idle]
    frozen = {each.name: "frozen" for each in read.graph.parameters if matches(each.name, patterns)}
    graph = replace(read.graph, parameters=parameters)
    reasons = {**read.reasons, **frozen}
    return replace(read, graph=graph, warnings=(*read.warnings, *warnings), reasons=reasons)


# --- The inputs of a model, and what their dimensions are called ------------------------------------------------------


_Dims = list[int | str]


def read_inputs(protos: Sequence[onnx.ValueInfoProto], frame: Frame, options: ReadOptions) -> tuple[Input, ...]:
    """Defines the inputs in the frame. Raises OnnxError, naming the input, for one whose shape nothing says."""
    declared: list[tuple[str, onnx.ValueInfoProto, _Dims]] = []
    for proto in protos:
        name = text(proto.name, "the name of an input")
        value = _defined(name, proto, frame, options)
        for item in items_of(value):
            declared.append((item, proto, _dims(item, name, proto, options)))
    _check_given(declared, [proto.name for proto in protos], options)
    names = _dimension_names([(name, dims) for name, _, dims in declared], options)
    return tuple(
        Input(name, TensorType(element_type(proto, f"input {proto.name!r}"), _named(name, dims, names)))
        for name, proto, dims in declared
    )


def _defined(name: str, proto: onnx.ValueInfoProto, frame: Frame, options: ReadOptions) -> Value:
    if is_tensor(proto):
        return frame.define(name, f"input {name!r}")
    if name not in options.sequences:
        element_type(proto, f"input {name!r}")
        kind = str(proto.type.WhichOneof("value")).removesuffix("_type")
        raise OnnxError(
            f"input {name!r} is a value of kind {kind}, and weft's graphs have tensors alone; the option `sequences` "
            "says how many items it has",
            node=name,
        )
    count = options.sequences[name]
    kind = proto.type.WhichOneof("value")
    value: Value
    if kind == "optional_type" and (count is None or proto.type.optional_type.elem_type.HasField("tensor_type")):
        value = Maybe(None if count is None else frame.reserved.get(name) or frame.shared.value_name(name))
    else:
        items = tuple(frame.shared.value_name(f"{name}.{place}") for place in range(count or 0))
        value = items if kind == "sequence_type" else Maybe(items)
    frame.names[name] = value
    return value


def _dims(item: str, name: str, proto: onnx.ValueInfoProto, options: ReadOptions) -> _Dims:
    given = options.shapes.get(item, options.shapes.get(name))
    if given is not None:
        return list(given)
    dims = file_dims(proto, f"input {name!r}") if is_tensor(proto) else None
    if dims is None:
        raise OnnxError(f"input {name!r}: the model does not say its shape; the option `shapes` does", node=name)
    if len(dims) > options.limits.rank:
        raise OnnxError(f"input {name!r} has {len(dims)} dimensions, at most {options.limits.rank}", node=name)
    return dims


def _check_given(
    declared: Sequence[tuple[str, onnx.ValueInfoProto, _Dims]], inputs: Sequence[str], options: ReadOptions
) -> None:
    known = {*(name for name, _, _ in declared), *inputs}
    for option, names in (("shapes", options.shapes), ("sequences", options.sequences)):
        for name in names:
            if name not in known:
                shown = ", ".join(map(repr, inputs)) or "none"
                raise OnnxError(f"option `{option}` names {name!r}, which is no input; there are {shown}", node=name)


def _dimension_names(shapes: Sequence[tuple[str, _Dims]], options: ReadOptions) -> Mapping[str, str]:
    """The word for each name that the file has. What most inputs begin with is `batch`; without names, all first
    dimensions that the file leaves open are."""
    firsts = Counter(dims[0] for _, dims in shapes if dims and isinstance(dims[0], str))
    named = {name: count for name, count in firsts.items() if name}
    every = dict.fromkeys(dim for _, dims in shapes for dim in dims if isinstance(dim, str) and dim)
    if options.batch and options.batch not in every:
        shown = ", ".join(map(repr, every)) or "none"
        raise OnnxError(f"option `batch`: no input has a dimension {options.batch!r}; there are {shown}")
    fallback = BATCH if BATCH in every else ""
    batch = options.batch or max(named, key=lambda name: (named[name], name == BATCH), default=fallback)
    words = FreshNames([BATCH])
    return {name: BATCH if name == batch else words.fresh(word_of(name)).replace(".", "_") for name in every}


def _named(item: str, dims: _Dims, names: Mapping[str, str]) -> tuple[Dim, ...]:
    """A first dimension that the file leaves open is the batch where no dimension is; others are the input's own."""
    has_batch = BATCH in names.values()
    made: list[Dim] = []
    for place, dim in enumerate(dims):
        if isinstance(dim, int) or dim:
            made.append(dim if isinstance(dim, int) else names[dim])
        else:
            made.append(BATCH if place == 0 and not has_batch else f"{word_of(item)}_{place}")
    return tuple(made)


# --- How many nodes a model has once each call stands for its function's nodes, told before any of them is read -------
# A function that is called twice by one that is called twice counts four times: a small file may stand for nodes
# without end, and reading them up to the limit takes seconds.


_Key = tuple[str, str, str]


def check_expansion(nodes: Iterable[onnx.NodeProto], functions: Functions, most: int) -> None:
    """Raises OnnxError, naming the call that stands for the most nodes, where there are more than `most` in all."""
    if not functions:
        return
    sizes = _sizes(functions, most)
    total, heaviest, word = 0, 0, ""
    for node in nodes:
        size = _size(node, sizes)
        total += size
        if size > heaviest:
            heaviest, word = size, node.name or node.op_type
    if total > most:
        many = f"more than {most}" if heaviest > most else str(heaviest)
        raise OnnxError(
            f"with the nodes of its functions, again for each call, the model has more than the {most} nodes that are "
            f"allowed; node {word!r} alone stands for {many}. Calls of functions in functions multiply",
            node=word,
        )


def _sizes(functions: Functions, most: int) -> dict[_Key, int]:
    """The nodes that one call of each function stands for, at most `most` + 1.

    It is 0 for a function whose calls come back to it, which is refused where one is read.
    """
    callees = {key: _called(function.node, functions) for key, function in functions.items()}
    callers: dict[_Key, list[_Key]] = {key: [] for key in functions}
    for key, called in callees.items():
        for callee in called:
            callers[callee].append(key)
    missing = {key: len(called) for key, called in callees.items()}
    ready = [key for key, count in missing.items() if not count]
    sizes: dict[_Key, int] = dict.fromkeys(functions, 0)
    while ready:
        key = ready.pop()
        sizes[key] = min(sum(_size(node, sizes) for node in functions[key].node), most + 1)
        for caller in callers[key]:
            missing[caller] -= 1
            if not missing[caller]:
                ready.append(caller)
    return sizes


def _called(nodes: Iterable[onnx.NodeProto], functions: Functions) -> set[_Key]:
    found: set[_Key] = set()
    for node in nodes:
        key = call_key(node)
        if key in functions:
            found.add(key)
        for body in _bodies(node):
            found |= _called(body.node, functions)
    return found


def _size(node: onnx.NodeProto, sizes: Mapping[_Key, int]) -> int:
    """The node and all that it stands for; of an If's branches the larger, since it may be that one alone is read."""
    inside = [sum(_size(inner, sizes) for inner in body.node) for body in _bodies(node)]
    within = max(inside, default=0) if node.op_type == "If" else sum(inside)
    return 1 + sizes.get(call_key(node), 0) + within


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    return (attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH)


_LOOKED_AT: Final = 1 << 12
"""Elements of an initializer whose value older forms of operators may ask for: a list of scales, a place."""


def read_model(
    model: onnx.ModelProto, options: ReadOptions | None = None, files: ExternalFiles | None = None
) -> Imported:
    """The model's graph, its parameters' values and what people should know. `files` has elements that stand outside.

    Raises OnnxError and its kin, which name the node, value or field.
    """
    options = options or ReadOptions()
    taken = without_training(model) if options.training else None
    reading = _Reading(model if taken is None else taken.model, options, files)
    reading.read()
    imported = freeze(reading.result(), options.frozen)
    return imported if taken is None else replace(imported, step=taken.step)


class _Reading:
    """The state of reading one model."""

    def __init__(self, model: onnx.ModelProto, options: ReadOptions, files: ExternalFiles | None) -> None:
        if model.ir_version > onnx.IR_VERSION:
            raise OnnxError(f"the model is of IR version {model.ir_version}; this reader knows up to {onnx.IR_VERSION}")
        if not model.HasField("graph"):
            raise OnnxError("the model has no graph")
        self.model = model
        self.proto = model.graph
        self.options = options
        self.shared = Shared(options, Tensors(options.limits, files), Budget(options.limits))
        self.frame = Frame(self.shared, opsets_of(model.opset_import))
        self.draft = Draft(self.shared)
        self.notes = torch_notes.notes_of(self.proto)
        self.nodes: list[onnx.NodeProto] = []
        """The file's nodes as they are read: what PyTorch's exporter wrote is brought to what the module computes."""
        self.tied: Mapping[str, Sequence[str]] = {}
        self.no_parameters: frozenset[str] = frozenset()
        self.reasons: dict[str, str] = {}
        self.arrays: dict[str, Array] = {}
        """Initializers by their names in weft's graph."""
        self.file_names: dict[str, str] = {}
        self.inputs: tuple[Input, ...] = ()

    def read(self) -> None:
        """Raises OnnxError."""
        self._check_counts()
        if self.options.verify:
            torch_checks.check(self.proto, self.notes)
        parts = restored(self.proto, self._initializers(), self.notes, verify=self.options.verify)
        self.nodes = list(rewritten(parts.nodes, self.notes))
        self.tied, self.no_parameters = parts.tied, parts.constants
        self.shared.warnings.extend(parts.warnings)
        self._reserve_names(parts.arrays)
        for name, array in parts.arrays.items():
            own = self.frame.define(name, "an initializer")
            self.arrays[own] = array
            self.file_names[own] = name
            self.draft.inference.types[own] = array_type(array)
            if array.size <= _LOOKED_AT:
                self.draft.inference.known[own] = array
        self.shared.leaves.update(self.arrays)
        for name, array in self.options.values.items():
            own = self.frame.define(name, "option `values`")
            self.draft.keep(own, array)
            self.shared.leaves.add(own)
        fed = [value for value in self.proto.input if value.name not in self.frame.names]
        self.inputs = read_inputs(fed, self.frame, self.options)
        self.draft.inference.types.update((input_.name, input_.type) for input_ in self.inputs)
        functions = functions_of(self.model.functions)
        check_expansion(self.nodes, functions, self.options.limits.nodes)
        scope = Scope(self.shared, functions, self.draft, self.frame)
        scope.read(self.nodes)
        self.shared.warnings.extend((*torch_checks.folded(self.proto.node), *served(self.proto.node)))
        held = torch_checks.held_norms(self.proto, self.notes)
        self.shared.warnings.extend(switch(self.draft, self.arrays, self.options, held))

    def result(self) -> Imported:
        """Raises OnnxError, and GraphRefusedError where what was read is no legal graph."""
        outputs = {value.name: self.frame.value(value.name, "the graph, as an output,") for value in self.proto.output}
        names = tuple(dict.fromkeys(item for value in outputs.values() for item in items_of(value)))
        drop_unread_statistics(self.draft, names)
        parameters = self._parameters(names)
        stored = {
            parameter.name: self.arrays[parameter.name].astype(parameter.type.dtype.numpy, copy=False)
            for parameter in parameters
        }
        nodes = self._with_casts(parameters)
        graph = Graph(
            name=legal(text(self.proto.name, "the graph's name"), self.options.limits.name) or "model",
            inputs=self.inputs,
            parameters=parameters,
            nodes=nodes,
            outputs=names,
            constants=self._constants(nodes, names, set(stored)),
        )
        check(graph)
        sequences = {name: items_of(value) for name, value in outputs.items() if not isinstance(value, str)}
        return Imported(graph, stored, tuple(self.shared.warnings), sequences, reasons=self.reasons)

    def _check_counts(self) -> None:
        most = self.options.limits.records
        for what, count in (
            ("inputs", len(self.proto.input)),
            ("outputs", len(self.proto.output)),
            ("initializers", len(self.proto.initializer) + len(self.proto.sparse_initializer)),
        ):
            if count > most:
                raise OnnxError(f"the graph has {count} {what}, and at most {most} are allowed")
        if not self.proto.output:
            raise OnnxError("the graph has no output")

    def _reserve_names(self, initializers: Iterable[str]) -> None:
        """Values of the main graph have their own names before anything else asks for one."""
        kept = [text(value.name, "the name of an output") for value in self.proto.output]
        values = [*initializers, *(value.name for value in self.proto.input)]
        values += [name for node in self.nodes for name in node.output]
        for value in values:
            name = text(value, "the name of a value")
            if name and name not in self.frame.reserved:
                self.frame.reserved[name] = self.shared.value_name(name)
        self.frame.kept = frozenset(kept)
        self.draft.declared.update(declared_types(self.proto.value_info, self.frame.reserved))
        self.draft.declared.update(declared_types(self.proto.output, self.frame.reserved))

    def _initializers(self) -> dict[str, Array]:
        """By their names in the file."""
        found: dict[str, Array] = {}
        sparse = {each.values.name: each for each in self.proto.sparse_initializer}
        names = [tensor.name for tensor in self.proto.initializer] + list(sparse)
        for tensor in self.proto.initializer:
            name = text(tensor.name, "the name of an initializer")
            found[name] = self.shared.tensors.array(tensor, f"initializer {name!r}")
        for each in self.proto.sparse_initializer:
            name = text(each.values.name, "the name of an initializer")
            found[name] = self.shared.tensors.dense(each, f"initializer {name!r}")
        if len(found) < len(names):
            name = Counter(names).most_common(1)[0][0]
            raise OnnxError(f"value {name!r}, which an initializer defines, is defined already", node=name)
        return found

    def _parameters(self, outputs: tuple[str, ...]) -> tuple[Parameter, ...]:
        """Those of the initializers that train or are kept, in the file's order; one that nothing reads is left out."""
        found = reads(self.draft.nodes, outputs)
        kinds = {**self.notes.kinds, **dict.fromkeys(self.no_parameters, torch_notes.COMPUTED)}
        lazy = torch_notes.sparse_tables(self.notes)
        said = {tensor.name: said_of(tensor, kinds.get(tensor.name)) for tensor in self.proto.initializer}
        read = {name for node in self.draft.nodes for name in node.inputs}.union(outputs)
        parameters: list[Parameter] = []
        for name, array in self.arrays.items():
            if name not in read:
                continue
            file_name = self.file_names[name]
            about = said.get(file_name, Said(kinds.get(file_name)))
            role, reason = role_of(name, array, about, found, self.options)
            if file_name in self.tied:
                reason = f"one with {', '.join(self.tied[file_name])}"
            if reason:
                self.reasons[name] = reason
            if role is not Role.CONSTANT:
                type_ = array_type(array)
                dtype = DType.FLOAT32 if type_.dtype is DType.BFLOAT16 else type_.dtype
                stored = TensorType(dtype, type_.shape)
                is_lazy = about.lazy or file_name in lazy or matches(name, self.options.lazy)
                parameters.append(
                    Parameter(name, stored, Initializer(GIVEN), role is Role.PARAMETER, about.row_sparse, is_lazy)
                )
        return tuple(parameters)

    def _with_casts(self, parameters: tuple[Parameter, ...]) -> tuple[Node, ...]:
        """What computes in bfloat16 reads a cast of its parameter, which is kept in float32."""
        casts: dict[str, Node] = {}
        for parameter in parameters:
            if self.arrays[parameter.name].dtype != parameter.type.dtype.numpy:
                made = self.shared.value_name(f"{parameter.name}/bfloat16")
                to = {"to": NUMBER_OF_DTYPE[DType.BFLOAT16]}
                casts[parameter.name] = Node("Cast", self.shared.node_name(made), (parameter.name,), (made,), to)
        nodes = self.draft.nodes
        if not casts:
            return tuple(nodes)
        replaced = {name: cast.outputs[0] for name, cast in casts.items()}
        moved = (replace(node, inputs=tuple(replaced.get(name, name) for name in node.inputs)) for node in nodes)
        return (*casts.values(), *moved)

    def _constants(self, nodes: tuple[Node, ...], outputs: tuple[str, ...], stored: set[str]) -> tuple[Constant, ...]:
        """The file's constants and what else of the initializers is read. Raises OnnxError where they are too large."""
        read = {name for node in nodes for name in node.inputs}.union(outputs)
        found = [Constant(name, array) for name, array in self.arrays.items() if name in read and name not in stored]
        found += [constant for constant in self.draft.constants if constant.name in read]
        limits = self.options.limits
        total = 0
        for constant in found:
            total += constant.array.nbytes
            if total > limits.constant_bytes:
                raise OnnxError(
                    f"constants up to {constant.name!r} take more than {limits.constant_bytes} bytes; the options "
                    "`untrained` and `parameters` make parameters of them",
                    node=constant.name,
                )
        return tuple(found)
