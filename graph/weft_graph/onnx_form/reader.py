"""Reads an ONNX model as one of weft's graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import onnx

from weft_graph.check import check
from weft_graph.ir import GIVEN, Constant, Graph, Initializer, Input, Node, Parameter
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.onnx_form import torch_checks, torch_notes
from weft_graph.onnx_form.budget import Budget
from weft_graph.onnx_form.draft import Draft
from weft_graph.onnx_form.errors import OnnxError
from weft_graph.onnx_form.expansion import check_expansion
from weft_graph.onnx_form.external import ExternalFiles
from weft_graph.onnx_form.frame import Frame, items_of
from weft_graph.onnx_form.freezing import freeze
from weft_graph.onnx_form.functions import functions_of, opsets_of
from weft_graph.onnx_form.imported import Array, Imported, ReadOptions
from weft_graph.onnx_form.initializers import Role, Said, matches, reads, role_of, said_of
from weft_graph.onnx_form.inputs import read_inputs
from weft_graph.onnx_form.own_metadata import served
from weft_graph.onnx_form.preview_rules import without_training
from weft_graph.onnx_form.scope import Scope
from weft_graph.onnx_form.shared import Shared
from weft_graph.onnx_form.tensors import Tensors
from weft_graph.onnx_form.text import legal, text
from weft_graph.onnx_form.torch_forms import rewritten
from weft_graph.onnx_form.torch_restore import restored
from weft_graph.onnx_form.training import drop_unread_statistics, switch
from weft_graph.onnx_form.value_types import declared_types
from weft_graph.types import DType, TensorType, array_type

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
