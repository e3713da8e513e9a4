"""A run of nodes as one session of onnxruntime, whose inputs and outputs are arrays of the caller's."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]

from weft_graph.ir import AttributeValue, Node, Subgraph
from weft_graph.names import FreshNames
from weft_graph.onnx_form.write_nodes import NodeWriter, tensor_proto, value_info
from weft_graph.types import TensorType
from weft_kernels.kernel import Array, KernelContext
from weft_kernels.onnx_runtime.lowering import MOVES, Lowered, Types, lowered

OPSET: Final = 21
IR_VERSION: Final = 10

Shape = tuple[int, ...]

QUIET: Final = 4
"""Messages of onnxruntime below a fatal one are not printed: errors are raised."""


class SessionError(Exception):
    """onnxruntime cannot compute nodes, which the message names."""


class Session:
    """A kernel that computes a body, each of whose nodes can be lowered; see `lowering`.

    Values have the static `types`. It is tried once when it is made: SessionError where onnxruntime cannot compute it.
    `threads` compute; results are the same bits from run to run for one number of threads and one version of
    onnxruntime. What it makes on the way lies in memory that all sessions of the process share. Safe between threads,
    which take turns.
    """

    def __init__(self, body: Subgraph, types: Types, threads: int) -> None:
        self._body = body
        self._lock = threading.Lock()
        try:
            model, seen = _model(body, types, threads)
            self._session = onnxruntime.InferenceSession(
                model.SerializeToString(), _options(threads), providers=["CPUExecutionProvider"]
            )
            self._binding = self._session.io_binding()
            read, made = self._binding.bind_input, self._binding.bind_output
            self._read = [_Bound(types[name], seen[name], read) for name in body.inputs]
            self._made = [
                _Bound(types[name], [(f"o{number}", types[name].static_shape)], made)
                for number, name in enumerate(body.outputs)
            ]
            self._compute([bound.zeros() for bound in self._read], [None for _ in self._made])
        except Exception as error:  # onnxruntime raises classes of its own
            raise SessionError(f"onnxruntime cannot compute {_listed(body.nodes)}: {error}") from error

    def __call__(
        self, context: KernelContext, inputs: Sequence[Array | None], attributes: Mapping[str, AttributeValue]
    ) -> tuple[Array, ...]:
        """Raises SessionError."""
        try:
            return self._compute(inputs, context.placed or (None,) * len(self._made))
        except Exception as error:
            raise SessionError(f"onnxruntime could not compute {_listed(self._body.nodes)}: {error}") from error

    def _compute(self, inputs: Sequence[Array | None], placed: Sequence[Array | None]) -> tuple[Array, ...]:
        """The outputs, each in the array that is given for it if that is in one piece, else in a new one."""
        with self._lock:
            # The arrays are held by these names until the run is over.
            held = [
                array if bound.last() is array else bound.take(np.ascontiguousarray(array))
                for bound, array in zip(self._read, inputs, strict=True)
            ]
            outputs = [
                array if array is not None and bound.last() is array else bound.take(bound.target(array))
                for bound, array in zip(self._made, placed, strict=True)
            ]
            self._session.run_with_iobinding(self._binding)
        del held
        return tuple(outputs)


class _Bound:
    """An input or output of a session, and the array that it is bound to: `last` gives that while it lives. `seen` are
    the names that it has in the session, each with the shape that it has there."""

    __slots__ = ("_address", "_bind", "_dtype", "_seen", "_shape", "last")

    def __init__(self, type_: TensorType, seen: Sequence[tuple[str, Shape]], bind: Callable[..., None]) -> None:
        self._shape, self._dtype = type_.static_shape, type_.dtype.numpy
        self._seen, self._bind = tuple(seen), bind
        self._address = 0
        self.last: Callable[[], Array | None] = lambda: None

    def zeros(self) -> Array:
        return np.zeros(self._shape, self._dtype)

    def target(self, placed: Array | None) -> Array:
        """Where the plan wants an output, else a new array."""
        return placed if placed is not None and placed.flags.c_contiguous else np.empty(self._shape, self._dtype)

    def take(self, array: Array) -> Array:
        """Binds an array in C's order, and returns it."""
        address: int = array.__array_interface__["data"][0]
        if address != self._address:
            for name, shape in self._seen:
                self._bind(name, "cpu", 0, self._dtype, shape, address)
            self._address = address
        self.last = weakref.ref(array)
        return array


def _listed(nodes: Sequence[Node], shown: int = 3) -> str:
    first = ", ".join(f"{node.op_type} {node.name!r}" for node in nodes[:shown])
    return first if len(nodes) <= shown else f"{first} and {len(nodes) - shown} more"


def _model(body: Subgraph, types: Types, threads: int) -> tuple[onnx.ModelProto, Mapping[str, list[tuple[str, Shape]]]]:
    """(the body as a model; under which names the model has each input of the body, and in which shapes)."""
    into = Lowered(types, constants=list(body.constants), threads=threads)
    for node in body.nodes:
        if not lowered(node, into):
            raise ValueError(f"node {node.name!r}: onnxruntime does not compute {node.op_type}")
    found = [name for node in into.nodes for name in (*node.inputs, *node.outputs) if name]
    found += [constant.name for constant in into.constants]
    names = {name: f"v{number}" for number, name in enumerate(dict.fromkeys(found))}
    names |= {name: f"i{number}" for number, name in enumerate(body.inputs)}
    names |= {name: f"o{number}" for number, name in enumerate(body.outputs)}
    renamed = {new: types[name] for name, new in names.items() if name in types}
    writer = NodeWriter(OPSET, FreshNames(names.values()), renamed, {})
    proto = onnx.GraphProto(name="segment")
    source, read = {name: name for name in body.inputs}, set[str]()
    for node in into.nodes:
        made = node.outputs[0]
        if node.op_type in MOVES and node.inputs[0] in source and made in types and made not in body.outputs:
            # An input of its own, bound to the same memory: onnxruntime would copy what it is given.
            source[made] = source[node.inputs[0]]
        else:
            proto.node.extend(writer.protos(node, names))
            read.update(node.inputs)
    seen: dict[str, list[tuple[str, Shape]]] = {name: [] for name in body.inputs}
    for name in filter(read.__contains__, source):
        seen[source[name]].append((names[name], types[name].static_shape))
        proto.input.append(value_info(names[name], types[name]))
    proto.output.extend(value_info(names[name], types[name]) for name in body.outputs)
    proto.initializer.extend(tensor_proto(names[constant.name], constant.array) for constant in into.constants)
    proto.initializer.extend(tensor_proto(constant.name, constant.array) for constant in writer.constants)
    model = onnx.ModelProto(ir_version=IR_VERSION, graph=proto, opset_import=[onnx.helper.make_opsetid("", OPSET)])
    return model, seen


def _options(threads: int) -> Any:
    _share_memory()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = QUIET
    options.use_deterministic_compute = True
    # Nodes made into one round otherwise, and which nodes stand in a session together must not show in a result. What
    # is computed again so that it need not be held would be found to be the same, and held.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Threads that spin between two sessions would take the cores of the store's.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.use_env_allocators", "1")
    return options


@cache
def _share_memory() -> None:
    """One pool for what all sessions make on the way: they run one after the other, and each would keep its own."""
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    same_as_requested = onnxruntime.OrtArenaCfg({"arena_extend_strategy": 1})
    onnxruntime.create_and_register_allocator(memory, same_as_requested)
