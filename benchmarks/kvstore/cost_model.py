"""The cost model of a step of the store: constants of work, how a step is cut, and how long it takes. Pure.

A step is a pipeline of frames: it takes as long as its busiest resource, plus one frame's way through the others. W
workers, S shards, M bytes of values, F frames between a worker and a shard:

- a network card carries M each way at a worker, W M / S at a shard;
- a worker's interpreter makes 2 calls, fills S F frames and takes in as many; ZeroMQ's thread moves them;
- a shard's interpreter takes in W F frames, adds (W - 1) M / S bytes, applies M / S, and answers with W F frames;
- on one host all of it shares the cores.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from store_cases import FLOAT_BYTES, resnet50_shapes


class Role(StrEnum):
    """Threads that a step keeps busy. A process's interpreter runs one of its Python threads at a time, so the caller
    and the IO thread of a worker take turns; who waits for a result does the IO thread's work meanwhile."""

    CALLER = "caller"
    CLIENT = "client"
    CLIENT_WIRE = "client's ZeroMQ"
    SHARD = "shard"
    SHARD_WIRE = "shard's ZeroMQ"


WORKER_INTERPRETER = (Role.CALLER, Role.CLIENT)
"""Of a worker's frames and calls each does a part: which does how much is the store's, their sum is a step's."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much of each kind of work there is: what costs are counted by. `near` bytes lie in a cache, `far` do not.

    `rounds` are exchanges that begin on an idle link, `calls` a caller's pushes and pulls, `frames` messages with a
    payload together with their acknowledgements, `slices` units of merging. `mapped` are bytes pulled into arrays so
    large that the system maps and clears their pages anew each time.
    """

    rounds: float = 0
    calls: float = 0
    push_frames: float = 0
    pull_frames: float = 0
    push_slices: float = 0
    pull_slices: float = 0
    push_near: float = 0
    pull_near: float = 0
    push_far: float = 0
    pull_far: float = 0
    mapped: float = 0

    def row(self) -> list[float]:
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a role for one of each in `Work`."""

    rounds: float = 0.0
    calls: float = 0.0
    push_frames: float = 0.0
    pull_frames: float = 0.0
    push_slices: float = 0.0
    pull_slices: float = 0.0
    push_near: float = 0.0
    pull_near: float = 0.0
    push_far: float = 0.0
    pull_far: float = 0.0
    mapped: float = 0.0

    def of(self, work: Work) -> float:
        """Seconds of this work."""
        return sum(a * b for a, b in zip(_row(self), work.row(), strict=True))


def _row(cost: Cost) -> list[float]:
    return [getattr(cost, field.name) for field in fields(cost)]


@dataclass(frozen=True, slots=True)
class MemorySpeed:
    """Bytes of one array in a second, one thread: a copy, `a += b`, and a step of descent `w -= lr * g`.

    `together`: how many lone threads' copies a thread on each core makes at once. Cores that share a cache or a memory
    bus make fewer than there are cores.
    """

    copy: float
    add: float
    descent: float
    together: float


@dataclass(frozen=True, slots=True)
class Constants:
    """All that is measured: costs by role, and the memory's speed."""

    costs: Mapping[Role, Cost]
    near: MemorySpeed
    far: MemorySpeed
    frame_bytes: int

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "costs": {str(role): asdict(cost) for role, cost in self.costs.items()}}

    @classmethod
    def from_json(cls, fields_: Mapping[str, Any]) -> Self:
        costs = {Role(role): Cost(**cost) for role, cost in fields_["costs"].items()}
        near, far = MemorySpeed(**fields_["near"]), MemorySpeed(**fields_["far"])
        return cls(costs, near, far, fields_["frame_bytes"])


@dataclass(frozen=True, slots=True)
class Machines:
    """Where the processes are. `shared`: all on one host, without a network between.

    `cores`: how many lone threads' work a host's busy cores do together, fewer than there are where they share a cache
    or a memory bus; `bits_per_s` of a network card, each way; `latency_s` one way.
    """

    shared: bool
    cores: float
    bits_per_s: float | None = None
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Processes:
    """How many there are of each kind."""

    workers: int
    shards: int


@dataclass(frozen=True, slots=True)
class Frames:
    """How values are cut."""

    slice_bytes: int = 128 << 10
    frame_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """A frame's load: adjacent slices of one shard. `joined` of its bytes, all or none, lie in several arrays of a
    worker and are copied to one place before they leave."""

    nbytes: int
    slices: int
    joined: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """A list of keys, cut: `blocks[shard]` in the order of priority."""

    nbytes: int
    blocks: tuple[tuple[Block, ...], ...]


def layout_of(key_bytes: Sequence[int], shards: int, frames: Frames) -> Layout:
    """Slices go to the shard with the fewest bytes; a shard's are joined to frames as they come."""
    loads = [(0, shard) for shard in range(shards)]
    parts: list[list[tuple[int, int]]] = [[] for _ in range(shards)]
    for key, nbytes in enumerate(key_bytes):
        for start in range(0, nbytes, frames.slice_bytes):
            length = min(frames.slice_bytes, nbytes - start)
            load, shard = loads[0]
            heapq.heapreplace(loads, (load + length, shard))
            parts[shard].append((key, length))
    blocks = tuple(tuple(_blocks(own, frames.frame_bytes)) for own in parts)
    return Layout(sum(key_bytes), blocks)


def _blocks(parts: Sequence[tuple[int, int]], frame_bytes: int) -> list[Block]:
    blocks: list[Block] = []
    nbytes = begin = 0
    for place, (key, length) in enumerate(parts):
        nbytes += length
        last = place + 1 == len(parts)
        if last or nbytes + parts[place + 1][1] > frame_bytes:
            blocks.append(Block(nbytes, place + 1 - begin, nbytes if parts[begin][0] != key else 0))
            nbytes, begin = 0, place + 1
    return blocks


# --- What each part of a step costs the threads -----------------------------------------------------------------------
# A shard's work for a push is measured with one worker, where each push is applied. With more of them a step is applied
# once: that part comes from the memory benchmarks, as does the addition of the other workers' gradients.

NEAR_BYTES = 8 << 20
"""Values of more than this do not stay in a cache from one step to the next."""

APPLIED_SHARE = 0.5
"""Of a shard's bookkeeping for a pushed slice: what is done once a step, not once a push."""


def memory_of(constants: Constants, nbytes: int) -> MemorySpeed:
    """The memory in which a step's values are."""
    return constants.near if nbytes <= NEAR_BYTES else constants.far


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of the parts of a step whose values have `nbytes` in all."""

    constants: Constants
    nbytes: int

    def begin(self, role: Role) -> float:
        return self.constants.costs[role].of(Work(rounds=1))

    def call(self, role: Role) -> float:
        return self.constants.costs[role].of(Work(calls=1))

    def push(self, role: Role, block: Block, frames: int = 1) -> float:
        """Frames of gradients, on their way through a thread; at the shard with the merging, were there no others.

        `block` may be several frames' loads together, as everywhere here: costs are linear.
        """
        near, far = self._bytes(block.nbytes)
        work = Work(push_frames=frames, push_slices=block.slices, push_near=near, push_far=far)
        return self.constants.costs[role].of(work)

    def filled(self, block: Block, frames: int = 1) -> float:
        """Frames of gradients at a worker's interpreter. A probe's lie in one array: what joins them is not in its
        times, and comes from the memory benchmarks."""
        return sum(self.push(role, block, frames) for role in WORKER_INTERPRETER) + block.joined / self._memory.copy

    def taken(self, block: Block, frames: int = 1) -> float:
        """Frames of values at a worker's interpreter."""
        return sum(self.pull(role, block, frames) for role in WORKER_INTERPRETER)

    def called(self, calls: float) -> float:
        """A worker's interpreter at the begin of a step, and for so many calls of it."""
        return sum(self.begin(role) + calls * self.call(role) for role in WORKER_INTERPRETER)

    def pull(self, role: Role, block: Block, frames: int = 1) -> float:
        """Frames of values, on their way through a thread."""
        near, far = self._bytes(block.nbytes)
        work = Work(pull_frames=frames, pull_slices=block.slices, pull_near=near, pull_far=far)
        return self.constants.costs[role].of(work)

    def apply(self, block: Block) -> float:
        """The part of a lone push that a step has once, whatever the number of workers."""
        cost = self.constants.costs[Role.SHARD]
        per_byte = cost.push_near if self.nbytes <= NEAR_BYTES else cost.push_far
        bytes_s = block.nbytes * min(1 / self._memory.descent, per_byte)
        return bytes_s + APPLIED_SHARE * cost.push_slices * block.slices

    def accept(self, block: Block, frames: int = 1) -> float:
        """One worker's frames at the shard, without the update."""
        return self.push(Role.SHARD, block, frames) - self.apply(block)

    def add(self, block: Block) -> float:
        """The addition of another worker's gradients."""
        return block.nbytes / self._memory.add

    @property
    def _memory(self) -> MemorySpeed:
        return memory_of(self.constants, self.nbytes)

    def _bytes(self, nbytes: int) -> tuple[int, int]:
        return (nbytes, 0) if self.nbytes <= NEAR_BYTES else (0, nbytes)


# --- A step: what each resource has to do in all, and the longest of them ---------------------------------------------

CALLS = 2
"""A worker's, in a step: a push of all keys, and a pull."""

PROCESS_THREADS = 2
"""Of a process: its interpreter and ZeroMQ's thread; with fewer cores than these they share one."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """`busy_s` by resource; the step takes the largest of them and `fill_s`, one frame's way and back."""

    busy_s: dict[str, float]
    fill_s: float
    frames: int
    """Between one worker and all shards, one way."""

    @property
    def time_s(self) -> float:
        return max(self.busy_s.values()) + self.fill_s

    @property
    def bound(self) -> str:
        """The busiest resource."""
        return max(self.busy_s, key=lambda name: self.busy_s[name])


def estimate(
    key_bytes: Sequence[int], processes: Processes, constants: Constants, machines: Machines, frames: Frames
) -> Estimate:
    """One step of a list of keys. Raises ValueError where there is nothing to exchange."""
    workers, shards = processes.workers, processes.shards
    if workers < 1 or shards < 1 or not sum(key_bytes):
        raise ValueError(f"{workers} workers, {shards} shards, {sum(key_bytes)} bytes: no step")
    layout = _layout(tuple(key_bytes), shards, frames)
    costs = StepCosts(constants, layout.nbytes)
    busy = _worker(layout, costs) | _shard(layout, workers, costs)
    if machines.shared:
        interpreters = workers * busy["worker's interpreter"] + shards * busy["shard's interpreter"]
        zeromq = workers * busy["worker's ZeroMQ"] + shards * busy["shard's ZeroMQ"]
        busy["cores"] = (interpreters + zeromq) / machines.cores
    elif machines.cores < PROCESS_THREADS:
        busy["cores"] = max(busy[f"{who} interpreter"] + busy[f"{who} ZeroMQ"] for who in ("worker's", "shard's"))
    if machines.bits_per_s is not None:
        per_byte = 8 / machines.bits_per_s
        fullest = max(sum(block.nbytes for block in own) for own in layout.blocks)
        busy["worker's network card"] = layout.nbytes * per_byte
        busy["shard's network card"] = workers * fullest * per_byte
    first = next(own[0] for own in layout.blocks if own)
    return Estimate(busy, _fill(first, costs, machines), sum(map(len, layout.blocks)))


@lru_cache(maxsize=64)
def _layout(key_bytes: tuple[int, ...], shards: int, frames: Frames) -> Layout:
    return layout_of(key_bytes, shards, frames)


def _worker(layout: Layout, costs: StepCosts) -> dict[str, float]:
    load, count = _joined([block for own in layout.blocks for block in own])
    wire = Role.CLIENT_WIRE
    interpreter = costs.called(CALLS) + costs.filled(load, count) + costs.taken(load, count)
    zeromq = costs.begin(wire) + costs.push(wire, load, count) + costs.pull(wire, load, count)
    return {"worker's interpreter": interpreter, "worker's ZeroMQ": zeromq}


def _joined(blocks: Sequence[Block]) -> tuple[Block, int]:
    """The frames' loads together, and how many they are."""
    joined = sum(one.joined for one in blocks)
    return Block(sum(one.nbytes for one in blocks), sum(one.slices for one in blocks), joined), len(blocks)


def _shard(layout: Layout, workers: int, costs: StepCosts) -> dict[str, float]:
    """The busiest shard's."""
    interpreter = zeromq = 0.0
    calls = workers * CALLS * costs.call(Role.SHARD) / len(layout.blocks)
    for load, count in {_joined(own) for own in layout.blocks}:
        taken = workers * (costs.accept(load, count) + costs.pull(Role.SHARD, load, count))
        merged = (workers - 1) * costs.add(load) + costs.apply(load)
        moved = costs.push(Role.SHARD_WIRE, load, count) + costs.pull(Role.SHARD_WIRE, load, count)
        interpreter = max(interpreter, costs.begin(Role.SHARD) + calls + taken + merged)
        zeromq = max(zeromq, costs.begin(Role.SHARD_WIRE) + workers * moved)
    return {"shard's interpreter": interpreter, "shard's ZeroMQ": zeromq}


def _fill(block: Block, costs: StepCosts, machines: Machines) -> float:
    """One frame's way there and back, with nothing else under way."""
    threads = (Role.CLIENT_WIRE, Role.SHARD_WIRE, Role.SHARD)
    there_and_back = sum(costs.push(role, block) + costs.pull(role, block) for role in threads)
    there_and_back += costs.filled(block) + costs.taken(block)
    wires = 0.0 if machines.bits_per_s is None else 4 * block.nbytes * 8 / machines.bits_per_s
    return there_and_back + wires + 2 * machines.latency_s


# --- Steps on many machines: every process has a host of its own. What is not measured but assumed stands here. -------

WORKERS = tuple(8 << n for n in range(8))
SHARDS = tuple(1 << n for n in range(9))
GIGABITS = (10, 100)
LATENCY_S = 20e-6
"""One way between two hosts of a data centre."""
CORES = 4
"""Of a host; a process of the store uses two at most."""

LARGE_KEYS = 200
LARGE_BYTES = 1_000_000_000
COMPUTE_S = 0.25
"""A step's computing, which the exchange may hide behind."""
PLOTTED_SHARDS = (1, 4, 16, 64, 256)


@dataclass(frozen=True, slots=True)
class Model:
    """A list of keys by size in bytes."""

    name: str
    key_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """A step with so many workers and shards, on paper."""

    workers: int
    shards: int
    paper: Estimate


def models() -> tuple[Model, ...]:
    resnet = tuple(FLOAT_BYTES * math.prod(shape) for shape in resnet50_shapes())
    return Model("ResNet-50", resnet), Model("1 GB", (LARGE_BYTES // LARGE_KEYS,) * LARGE_KEYS)


def network(gigabits: float) -> Machines:
    return Machines(False, CORES, gigabits * 1e9, LATENCY_S)


def cells(
    model: Model,
    gigabits: float,
    constants: Constants,
    frames: Frames,
    *,
    workers: Sequence[int] = WORKERS,
    shards: Sequence[int] = SHARDS,
) -> list[Cell]:
    """Every pair, shards the slower to change."""
    machines = network(gigabits)
    return [
        Cell(each, of, estimate(model.key_bytes, Processes(each, of), constants, machines, frames))
        for of in shards
        for each in workers
    ]


def knee(row: Sequence[Cell]) -> Cell | None:
    """Of one number of shards: the last at which a worker, not a shard, is what the step waits for."""
    before = [cell for cell in row if cell.paper.bound.startswith("worker")]
    return before[-1] if before else None


def hidden(row: Sequence[Cell], compute_s: float = COMPUTE_S) -> Cell | None:
    """Of one number of shards: the last whose exchange is no longer than the computing."""
    before = [cell for cell in row if cell.paper.time_s <= compute_s]
    return before[-1] if before else None
