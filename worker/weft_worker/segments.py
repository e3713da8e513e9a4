"""The order in which a program's nodes run: segments of computing, with what comes before and what leaves on the way.

A segment is a run of nodes that have kernels. What it fetches stands before it, and what it sends stands right behind
the node after which it leaves. Parts of a segment that onnxruntime computes become one node, a Session.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from weft_graph.cost import operations
from weft_graph.ir import WEFT_DOMAIN, Node, Subgraph
from weft_graph.program import Program
from weft_graph.types import TensorType
from weft_graph.weft_domain import FETCH, FETCH_ROWS, SEND, SEND_ROWS, SESSION, UNIQUE_ROWS, is_communication
from weft_kernels.kernel import Kernel
from weft_kernels.onnx_runtime.lowering import MOVES, Lowered, RangeCheck, check_of, lowered
from weft_worker.plan import Arrivals, BoundNode, Piece, Segment

Types = Mapping[str, TensorType]

_log = logging.getLogger(__name__)

CUT_OPERATIONS: Final = 1 << 27
"""Operations after which a segment may wait for a value, or let one leave: some four milliseconds of one core, against
one for another message, its merge and its answer."""

LONG_OPERATIONS: Final = CUT_OPERATIONS >> 4
"""Operations of a node that what can leave does not wait for."""

SESSION_OPERATIONS: Final = 1 << 14
"""Operations of a session at least: to begin one takes as long as the bodies of a few nodes."""


def in_segments(nodes: Sequence[Node], types: Types, *, travels: bool = True) -> list[Node]:
    """The nodes with every Fetch before a segment and every Send at a cut; what computes keeps its order. Where nothing
    `travels` there is nothing to wait for, and no segment is cut for it."""
    order = _Order(types, CUT_OPERATIONS if travels else math.inf)
    for node in nodes:
        order.add(node)
    order.close()
    return order.nodes


@dataclass(slots=True)
class _Order:
    types: Types
    cut: float
    """Operations after which a segment is cut."""
    nodes: list[Node] = field(default_factory=list)
    _arrivals: list[Node] = field(default_factory=list)
    _segment: list[Node] = field(default_factory=list)
    _leaving: list[Node] = field(default_factory=list)
    _made: set[str] = field(default_factory=set)
    _work: int = 0
    """Operations of the segment."""
    _unsent: int = 0
    """Operations since something left."""

    def add(self, node: Node) -> None:
        if not is_communication(node):
            count = _operations(node, self.types)
            if self._unsent >= self.cut and count >= LONG_OPERATIONS:
                self._let_leave()
            self._work, self._unsent = self._work + count, self._unsent + count
            self._segment.append(node)
            self._made.update(node.outputs)
        elif node.op_type in {FETCH, FETCH_ROWS}:
            if self._work >= self.cut or not self._made.isdisjoint(node.inputs):
                self.close()
            self._arrivals.append(node)
        elif node.op_type in {SEND, SEND_ROWS}:
            self._leaving.append(node)
        else:
            self.close()
            self.nodes.append(node)

    def close(self) -> None:
        """Ends the segment."""
        self._let_leave()
        self.nodes += (*self._arrivals, *self._segment)
        self._arrivals, self._segment, self._made, self._work = [], [], set(), 0

    def _let_leave(self) -> None:
        if not self._leaving:
            return
        self._segment += self._leaving
        self._leaving, self._unsent = [], 0


def _operations(node: Node, types: Types) -> int:
    reads = [types[name] if name else None for name in node.inputs]
    writes = [types[name] for name in node.outputs if name]
    known = all(type_ is None or type_.is_static for type_ in (*reads, *writes))
    return operations(node, reads, writes) if known else 0


def with_sessions(
    program: Program, nodes: Sequence[Node], types: Types, threads: int
) -> tuple[list[Node], dict[str, Kernel]]:
    """(the nodes with a Session in the place of each run that onnxruntime computes, and before it what is checked; the
    kernels of both by their names)."""
    # Imported here alone: a job that asks for NumPy's kernels, or computes on a GPU, never loads onnxruntime.
    from weft_kernels.onnx_runtime.session import Session, SessionError

    constants = {constant.name for constant in program.constants}
    read_later = _read_after(nodes, program.outputs.values())
    found: list[Node] = []
    kernels: dict[str, Kernel] = {}
    seen = set[tuple[str, int, int] | None]()
    # Places among the distinct rows of ids, which were checked themselves.
    sure = {name for node in nodes if node.op_type == UNIQUE_ROWS for name in node.outputs}
    for members, last in _runs(nodes, types, threads):
        inputs, outputs = _borders(members, Lowered(types, threads=threads), constants, read_later[last])
        if inputs and outputs and _is_worth(members, types):
            used = {name for node in members for name in node.inputs} & constants
            body = Subgraph(
                inputs,
                (),
                tuple(members),
                outputs,
                constants=tuple(constant for constant in program.constants if constant.name in used),
            )
            name = f"weft.session/{members[0].name}"
            try:
                kernels[name] = Session(body, types, threads)
            except SessionError as error:
                _log.warning("%s; their own bodies do, which may be slower", error)
            else:
                for node in members:
                    check = check_of(node, types)
                    looked_at = None if check is None else (node.inputs[check.place], check.low, check.stop)
                    if check is not None and looked_at not in seen and node.inputs[check.place] not in sure:
                        seen.add(looked_at)
                        kernels[node.name] = check
                        found.append(_looking(node, check))
                found.append(Node(SESSION, name, inputs, outputs, {"body": body}, WEFT_DOMAIN))
                continue
        found += members
    return found, kernels


def _looking(node: Node, check: RangeCheck) -> Node:
    """The node as it stands before a session: it reads what is checked, and makes nothing."""
    inputs = (*("" for _ in range(check.place)), node.inputs[check.place])
    return replace(node, inputs=inputs, outputs=())


def _runs(nodes: Sequence[Node], types: Types, threads: int) -> Iterator[tuple[list[Node], int]]:
    """(nodes that follow each other, the index of the last): each run is of what onnxruntime computes, or one node.
    What is to be checked is there before a run."""
    run: list[Node] = []
    for index, node in enumerate(nodes):
        if not is_communication(node) and lowered(node, Lowered(types, threads=threads)):
            check = check_of(node, types)
            if check is not None and any(node.inputs[check.place] in before.outputs for before in run):
                yield run, index - 1
                run = []
            run.append(node)
            continue
        if run:
            yield run, index - 1
            run = []
        yield [node], index
    if run:
        yield run, len(nodes) - 1


def _read_after(nodes: Sequence[Node], outputs: Collection[str]) -> list[frozenset[str]]:
    """For each node the values that are read behind it."""
    found, read = [], frozenset(outputs)
    for node in reversed(nodes):
        found.append(read)
        read |= frozenset(node.inputs)
    return found[::-1]


def _borders(
    members: Sequence[Node], into: Lowered, constants: Collection[str], read_later: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a session of these nodes reads, and what it gives."""
    if any(is_communication(node) or not lowered(node, into) for node in members):
        return (), ()
    made = {name for node in into.nodes for name in node.outputs}
    there = made | {constant.name for constant in into.constants} | set(constants)
    inputs = dict.fromkeys(name for node in into.nodes for name in node.inputs if name and name not in there)
    outputs = dict.fromkeys(name for node in members for name in node.outputs if name in read_later)
    return tuple(inputs), tuple(name for name in outputs if name)


def _is_worth(members: Sequence[Node], types: Types) -> bool:
    computes = [node for node in members if node.op_type not in MOVES]
    return bool(computes) and sum(_operations(node, types) for node in computes) >= SESSION_OPERATIONS


def compiled(nodes: Sequence[BoundNode], outputs: Collection[int] = ()) -> tuple[Segment | Arrivals, ...]:
    """The work that the nodes make, in this order: segments, and what arrives between them. `outputs` are the places of
    the plan's outputs."""
    on_host = {*outputs, *(bound.inputs[0] for bound in nodes if not bound.kernel and bound.node.op_type == FETCH_ROWS)}
    made = {place for bound in nodes if bound.kernel for place in bound.outputs}
    found: list[Segment | Arrivals] = []
    for is_fetch, run in groupby(nodes, lambda bound: bound.kernel is None and bound.node.op_type == FETCH):
        if is_fetch:
            found.append(tuple(run))
            continue
        segment: list[BoundNode] = []
        for bound in run:
            if bound.kernel is None and bound.node.op_type not in {SEND, SEND_ROWS}:
                found += _segments(segment, made, on_host)
                found.append((bound,))
                segment = []
            else:
                segment.append(bound)
        found += _segments(segment, made, on_host)
    return tuple(found)


def _segments(
    nodes: Sequence[BoundNode], computed: Collection[int | None], on_host: Collection[int | None]
) -> list[Segment | Arrivals]:
    """The segment of these nodes, if there are any. `computed` are the places that kernels make, `on_host` those of
    them that the host reads though nothing sends them."""
    pieces: list[Piece] = []
    piece: tuple[BoundNode, ...] = ()
    for leaves, run in groupby([*nodes, None], lambda bound: bound is None or bound.kernel is None):
        if not leaves:
            piece = tuple(bound for bound in run if bound is not None)
            continue
        leaving = tuple(bound for bound in run if bound is not None)
        if piece or leaving:
            sends = [place for bound in leaving for place in bound.inputs if place in computed]
            brings = [place for bound in piece for place in bound.outputs if place in on_host]
            pieces.append(Piece(piece, leaving, _places(sends), _places(brings)))
        piece = ()
    made = {place for piece in pieces for bound in piece.nodes for place in bound.outputs}
    read = dict.fromkeys(place for piece in pieces for bound in piece.nodes for place in bound.inputs)
    reads = tuple(place for place in read if place is not None and place not in made)
    return [Segment(tuple(pieces), reads)] if pieces else []


def _places(places: Sequence[int | None]) -> tuple[int, ...]:
    """Each once."""
    return tuple(place for place in dict.fromkeys(places) if place is not None)
