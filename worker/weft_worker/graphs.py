"""CUDA graphs: runs of a plan's nodes that a GPU starts again as a whole.

Nodes are captured once what they read lies where it lay in the run before, which is so from the second or third run
on. A graph is launched as long as that stays so; otherwise, and where capturing fails, the kernels are started one by
one. The results are the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from weft_graph.ir import Node
from weft_graph.names import bodies_of
from weft_graph.schema import schema_of
from weft_graph.types import TensorType
from weft_kernels.kernel import Array, host_inputs, waits
from weft_worker.device import CapturingDevice
from weft_worker.engine.errors import PartError
from weft_worker.plan import BoundNode, Plan
from weft_worker.table import ValueTable

_log = logging.getLogger(__name__)


# --- What may be captured: pure ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stretch:
    """Nodes of a piece that follow each other. `reads` are the places that others write, `makes` those that they
    write, `releases` all that are read, as often as they are; all are empty where the nodes are started one by one."""

    nodes: tuple[BoundNode, ...]
    is_graph: bool
    reads: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    releases: tuple[int, ...] = ()


def stretches(nodes: Sequence[BoundNode], types: Sequence[TensorType], constants: Mapping[int, Array]) -> list[Stretch]:
    """The nodes, in their order, in those that may be a graph and others. `types` and `constants` are the plan's."""
    found = []
    for is_static, run in groupby(nodes, lambda bound: may_capture(bound, types, constants)):
        alike = tuple(run)
        if not is_static or len(alike) == 1:
            found.append(Stretch(alike, is_graph=False))
            continue
        makes = dict.fromkeys(place for bound in alike for place in bound.outputs if place is not None)
        releases = tuple(place for bound in alike for place in bound.inputs if place is not None)
        reads = tuple(place for place in dict.fromkeys(releases) if place not in makes and place not in constants)
        found.append(Stretch(alike, True, reads, tuple(makes), releases))
    return found


def may_capture(bound: BoundNode, types: Sequence[TensorType], constants: Mapping[int, Array]) -> bool:
    """Whether a node does the same work in each run: every size is known, it draws no numbers, and the host looks at
    nothing but constants that it has."""
    places = [place for place in (*bound.inputs, *bound.outputs) if place is not None]
    on_host = [bound.inputs[index] for index in host_inputs(bound.node) if index < len(bound.inputs)]
    return (
        all(types[place].is_static for place in places)
        and all(place is None or isinstance(constants.get(place), np.ndarray) for place in on_host)
        and not waits(bound.node)
        and not _draws(bound.node)
    )


def _draws(node: Node) -> bool:
    inner = (each for body in bodies_of(node).values() for each in body.nodes)
    return schema_of(node).random or any(map(_draws, inner))


# --- Graphs of a plan's runs in one memory ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Captured:
    """What is known of a stretch: where what it read lay in the last run, and its graph. `launch` starts it on what
    lies at `places`; `made` is what it makes for those behind it."""

    last: tuple[int, ...] | None = None
    places: tuple[int, ...] | None = None
    launch: Callable[[], None] | None = None
    made: dict[int, Array] = field(default_factory=dict)
    is_refused: bool = False


@dataclass(slots=True)
class Graphs:
    """The graphs of one plan, whose values lie at the same places in every run."""

    plan: Plan
    device: CapturingDevice
    landed: dict[int, Array | None] = field(default_factory=dict)
    """See `ValueTable`; not what is copied from there to the host, which may be after the next run has begun."""
    _stretches: dict[int, list[Stretch]] = field(default_factory=dict)
    """By the identity of a piece's nodes."""
    _captured: dict[int, _Captured] = field(default_factory=dict)
    """By the identity of a stretch's nodes."""

    def __post_init__(self) -> None:
        others = [bound for bound in self.plan.nodes if bound.kernel is None]
        given = [*self.plan.inputs.values(), *(place for bound in others for place in bound.outputs)]
        brought = {*self.plan.outputs.values(), *(place for bound in others for place in bound.inputs)}
        types = self.plan.types
        self.landed = {p: None for p in given if p is not None and p not in brought and types[p].is_static}

    def run(
        self, table: ValueTable, nodes: tuple[BoundNode, ...], start: Callable[[Sequence[BoundNode]], None]
    ) -> None:
        """Runs a piece's nodes, within the device's `use`; `start` starts some one by one."""
        parts = self._stretches.get(id(nodes))
        if parts is None:
            parts = self._stretches[id(nodes)] = stretches(nodes, self.plan.types, self.plan.constants)
        for part in parts:
            if part.is_graph:
                self._run(table, part, start)
            else:
                start(part.nodes)

    def _run(self, table: ValueTable, part: Stretch, start: Callable[[Sequence[BoundNode]], None]) -> None:
        known = self._captured.setdefault(id(part.nodes), _Captured())
        places = tuple(self.device.address(table.get(place)) for place in part.reads)
        if known.launch is None or known.places != places:
            if known.last != places or known.is_refused or not self._capture(table, part, known, places, start):
                known.last = places
                start(part.nodes)
                return
            known.last = places
        else:
            for place, array in known.made.items():
                table.arrays[place] = array
            table.release(part.releases)
        assert known.launch is not None
        known.launch()

    def _capture(
        self,
        table: ValueTable,
        part: Stretch,
        known: _Captured,
        places: tuple[int, ...],
        start: Callable[[Sequence[BoundNode]], None],
    ) -> bool:
        """Whether there is a graph now; the table is then as after the nodes, else as before."""
        arrays, readers = table.arrays[:], table.readers[:]
        try:
            launch = self.device.capture(lambda: start(part.nodes))
        except Exception as error:  # noqa: BLE001  # whatever it is, starting the kernels one by one shows it again
            known.is_refused = True
            first, last = part.nodes[0].node.name, part.nodes[-1].node.name
            reason = error.cause if isinstance(error, PartError) else error
            _log.warning("nodes %r to %r are no CUDA graph, and are started one by one: %s", first, last, reason)
            launch = None
        if launch is None:
            table.arrays[:], table.readers[:] = arrays, readers
            return False
        known.launch, known.places = launch, places
        known.made = {place: array for place in part.makes if (array := table.arrays[place]) is not None}
        return True
