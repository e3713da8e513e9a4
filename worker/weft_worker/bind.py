"""Binds a program to dimensions: static types, kernels, whole attributes, places in the value table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from weft_graph.dimensions import is_unknown
from weft_graph.infer import infer_program
from weft_graph.ir import Node
from weft_graph.layout.plan import ALIGNMENT, CUDA_ALIGNMENT, layout
from weft_graph.program import Program
from weft_graph.schema import schema_of
from weft_graph.types import TensorType
from weft_graph.weft_domain import FETCH, SEND, SEND_BARRIER, TRANSFER, is_communication
from weft_kernels.fitting import fitted
from weft_kernels.kernel import Array, Kernel, host_inputs, kernel_of
from weft_worker.arena import Placement
from weft_worker.device import CPU, CpuDevice, Device
from weft_worker.errors import BindError
from weft_worker.plan import BoundNode, Plan
from weft_worker.segments import compiled, in_segments, with_sessions


def bind(
    program: Program,
    dims: Mapping[str, int],
    device: Device | None = None,
    *,
    session_threads: int | None = None,
    travels: bool = True,
) -> Plan:
    """The program with its symbolic dimensions filled from `dims` (`batch` among them), its constants on `device`.

    A constant that every reader wants on the host (axes, a shape, a ratio) stays there. On the CPU, onnxruntime
    computes what it can with `session_threads` threads; with None every node runs by its own body. `travels` is of
    `in_segments`.

    Raises BindError for a dimension that `dims` lacks, an operator that has no kernel and a value that nothing makes;
    GraphRefusedError, naming the node, where the dimensions do not fit an operator.
    """
    inferred = infer_program(program, dims)
    device = device or CpuDevice()
    ordered, sessions = in_segments(program.nodes, inferred, travels=travels), dict[str, Kernel]()
    if session_threads is not None and device.name == CPU:
        ordered, sessions = with_sessions(program, ordered, inferred, session_threads)
    places: dict[str, int] = {}
    types: list[TensorType] = []

    def define(name: str) -> int:
        if name in places:
            raise BindError(f"value {name!r} is made twice", node=name)
        places[name] = len(places)
        types.append(_static(name, inferred))
        return places[name]

    inputs = {declared.name: define(declared.name) for declared in program.inputs}
    constants: dict[int, Array] = {define(constant.name): constant.array for constant in program.constants}
    nodes = []
    for node in ordered:
        read = tuple(_place(places, name, node) for name in node.inputs)
        made = tuple(define(name) if name else None for name in node.outputs)
        prepared = sessions.get(node.name)
        nodes.append(BoundNode(node, prepared, {}, read, made) if prepared else _bound(node, read, made, inferred))
    outputs = {name: _place_of_output(places, name, value) for name, value in program.outputs.items()}
    readers = Counter(place for bound in nodes for place in bound.inputs if place is not None)
    readers.update(outputs.values())
    alignment = ALIGNMENT if device.name == CPU else CUDA_ALIGNMENT
    laid_out = layout(replace(program, nodes=tuple(ordered)), inferred, alignment=alignment)
    placement = Placement.of(laid_out, places, inferred)
    fetched = [bound.outputs[0] for bound in nodes if bound.node.op_type == FETCH]
    sent = {bound.key: bound.inputs[0] for bound in nodes if bound.node.op_type == SEND}
    return Plan(
        role=program.role,
        dims=dict(dims),
        nodes=tuple(nodes),
        work=compiled(nodes, outputs.values()),
        names=tuple(places),
        types=tuple(types),
        readers=tuple(readers[place] for place in range(len(places))),
        inputs=inputs,
        outputs=outputs,
        constants=_placed(constants, nodes, device),
        placement=placement,
        aliased=placement.views | frozenset(place for place in fetched if place is not None),
        sent={key: place for key, place in sent.items() if place is not None},
    )


def _placed(constants: Mapping[int, Array], nodes: Iterable[BoundNode], device: Device) -> dict[int, Array]:
    """The constants where their readers want them."""
    wanted: set[int | None] = set()
    for bound in nodes:
        on_host = host_inputs(bound.node)
        wanted.update(place for index, place in enumerate(bound.inputs) if index not in on_host)
    return {place: device.to_device(array) if place in wanted else array for place, array in constants.items()}


class Binder:
    """Binds one program, once for each set of dimensions."""

    def __init__(
        self,
        program: Program,
        device: Device | None = None,
        *,
        session_threads: int | None = None,
        travels: bool = True,
    ) -> None:
        self.program = program
        self._device = device
        self._session_threads = session_threads
        self._travels = travels
        self._plans: dict[frozenset[tuple[str, int]], Plan] = {}

    def plan(self, dims: Mapping[str, int]) -> Plan:
        """As `bind`, kept."""
        key = frozenset(dims.items())
        if key not in self._plans:
            threads, travels = self._session_threads, self._travels
            self._plans[key] = bind(self.program, dims, self._device, session_threads=threads, travels=travels)
        return self._plans[key]


def _static(name: str, types: Mapping[str, TensorType]) -> TensorType:
    if name not in types:
        raise BindError(f"the program has no type for value {name!r}", node=name)
    bound = types[name]
    unknown = sorted({dim for dim in bound.shape if isinstance(dim, str) and not is_unknown(dim)})
    if unknown:
        raise BindError(f"value {name!r} is {bound}; nothing fills {_listed(unknown)}", node=name)
    return bound


def _bound(
    node: Node, inputs: tuple[int | None, ...], outputs: tuple[int | None, ...], types: Mapping[str, TensorType]
) -> BoundNode:
    if is_communication(node):
        return _communication(node, inputs, outputs)
    try:
        kernel = kernel_of(node)
    except KeyError as error:
        raise BindError(f"node {node.name!r}: there is no kernel for {node.op_type!r}", node=node.name) from error
    return BoundNode(node, fitted(node, kernel, types), schema_of(node).attributes_of(node), inputs, outputs)


def _communication(node: Node, inputs: tuple[int | None, ...], outputs: tuple[int | None, ...]) -> BoundNode:
    if node.op_type == SEND_BARRIER:
        return BoundNode(node, None, node.attributes, inputs, outputs)
    if node.op_type == TRANSFER:
        ways = f"from {node.attributes.get('source')} to {node.attributes.get('target')}"
        raise BindError(
            f"node {node.name!r} (Transfer) goes {ways}: a worker runs all stages of a step", node=node.name
        )
    key, priority = node.attributes.get("key"), node.attributes.get("priority", 0)
    if not isinstance(key, str) or not isinstance(priority, int):
        raise BindError(f"node {node.name!r}: key {key!r} or priority {priority!r} is not one", node=node.name)
    return BoundNode(node, None, node.attributes, inputs, outputs, key, priority)


def _place(places: Mapping[str, int], name: str, node: Node) -> int | None:
    if not name:
        return None
    if name not in places:
        raise BindError(f"node {node.name!r} reads {name!r}, which nothing before it makes", node=node.name)
    return places[name]


def _place_of_output(places: Mapping[str, int], name: str, value: str) -> int:
    if value not in places:
        raise BindError(f"output {name!r} is {value!r}, which nothing makes", node=value)
    return places[value]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
