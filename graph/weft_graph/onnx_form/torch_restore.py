"""Takes back what the exporter's optimizer does to parameters.

Equal ones are merged into one initializer, biases of zero dropped, weights transposed beforehand. See `torch_notes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import onnx
from onnx import helper

from weft_graph.onnx_form.errors import Array, OnnxError
from weft_graph.onnx_form.torch_notes import PARAMETER, Call, Notes, is_folded_norm, is_taken_over, literals

_PLAIN: Final = frozenset((0.0, 1.0, -1.0, 2.0, 0.5, np.inf, -np.inf, float(np.finfo(np.float32).min)))
"""Numbers that stand in operators' definitions."""
_UNOPTIMIZED: Final = "export it with optimize=False, or use weft.from_torch"


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
        self.taken_over = is_taken_over(graph)
        self.given = arrays
        self.arrays = dict(arrays)
        self.nodes: list[onnx.NodeProto] = []
        self.parameters = {own for own, kind in notes.kinds.items() if kind == PARAMETER}
        self.numbers: dict[str, int] = {}
        self.turned: dict[str, str] = {}
        """Values that are a parameter's transpose -> the parameter."""
        self.claimed: dict[str, set[str]] = {}
        """Parameters that nodes of a call read already, by the call's name."""
        self.unsure: dict[str, str] = {}
        """Parameters that a node reads whose call does not, and the node: something equal was merged with them."""
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
        lost = self._lost(tied, computed, verify=verify)
        aliases: dict[str, list[str]] = {}
        for other, own in sorted(tied.items()):
            aliases.setdefault(own, []).append(other)
        warnings = []
        if lost:
            shown = ", ".join(map(repr, lost[:3])) + (f" and {len(lost) - 3} others" if len(lost) > 3 else "")
            warnings.append(
                f"parameters are not in the file: {shown}. The module does not use them, or the exporter has computed "
                "them away, as it does 0 and 1; they do not train"
            )
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
        if call is None or is_folded_norm(proto, call):
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
            elif name in self.parameters:
                self.unsure.setdefault(name, proto.name)
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
        is_turned = any(attribute.name == "transB" and attribute.i for attribute in proto.attribute)
        place = 0 if is_turned else _BIAS[proto.op_type]
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

    def _lost(self, tied: Mapping[str, str], computed: Sequence[str], *, verify: bool) -> list[str]:
        """Parameters that are nowhere. With `verify` raises OnnxError where a constant may come from one, or another
        was merged with it."""
        mentioned = {own for call in self.notes.calls.values() for own in self.notes.parameters_of(call)}
        folded = {
            own
            for proto in self.graph.node
            if (call := self._call(proto)) is not None and is_folded_norm(proto, call)
            for own in self.notes.parameters_of(call)
        }
        for name, node in self.unsure.items() if verify else ():
            if self.arrays[name].size == 1:
                raise OnnxError(
                    f"node {node!r} reads parameter {name!r}, which is no part of its call: the exporter has merged it "
                    f"with an equal number; {_UNOPTIMIZED}",
                    node=node,
                )
        lost = sorted(self.parameters - self.arrays.keys() - tied.keys() - folded)  # of `folded` a warning tells
        for own in lost if verify else ():
            if own in mentioned or computed or self.unsure:
                where = f", perhaps {computed[0]!r}" if computed else ""
                remedy = "write its module otherwise" if self.taken_over else _UNOPTIMIZED
                raise OnnxError(
                    f"parameter {own!r} is not in the file: the exporter has left it out or computed something from it "
                    f"beforehand{where}, so it would not train; {remedy}",
                    node=own,
                )
        return lost

    def _computed(self) -> list[str]:
        """Constants that the exporter's optimizer has computed, no literals of the calls that read them."""
        found: dict[str, None] = {}
        for node in self.nodes:
            call = self._call(node)
            given = set() if call is None else literals(call.text)
            for name in node.input:
                array = self.arrays.get(name)
                if array is None or name in self.notes.kinds or array.dtype.kind not in "fV" or not array.size:
                    continue
                if array.size > 1 or float(np.float32(array.reshape(-1)[0])) not in given | _PLAIN:
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


_BIAS: Final = {"Gemm": 1, "MatMul": -1, "Conv": 0, "ConvTranspose": 1, "LayerNormalization": 0}
"""Nodes that may have a bias, and which dimension of their weight is its size; 0 of a Gemm's with `transB`."""


def _in_nodes_order(call: Call, parameters: list[str]) -> list[str]:
    """`addmm` takes the bias first, ONNX last."""
    return parameters[::-1] if call.target.startswith("aten.addmm") else parameters


def _is_table(array: Array) -> bool:
    """Whether it may be a weight of a product."""
    return array.ndim == 2 and array.dtype.kind in "fV" and array.size > 1


def _may_be(own: Array | None, array: Array) -> bool:
    """Whether a parameter, if its value is known, has that value."""
    return own is None or (own.shape == array.shape and np.array_equal(own, array))
