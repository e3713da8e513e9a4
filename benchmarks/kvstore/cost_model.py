"""What the cost model of a step of the store knows: constants of work, machines, and how a step is cut. Pure values."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Self


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
    """All that is measured: costs by role, how long a sleeping thread takes to wake, and the memory's speed."""

    costs: Mapping[Role, Cost]
    wake_s: float
    near: MemorySpeed
    far: MemorySpeed
    frame_bytes: int

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "costs": {str(role): asdict(cost) for role, cost in self.costs.items()}}

    @classmethod
    def from_json(cls, fields_: Mapping[str, Any]) -> Self:
        costs = {Role(role): Cost(**cost) for role, cost in fields_["costs"].items()}
        near, far = MemorySpeed(**fields_["near"]), MemorySpeed(**fields_["far"])
        return cls(costs, fields_["wake_s"], near, far, fields_["frame_bytes"])


@dataclass(frozen=True, slots=True)
class Machines:
    """Where the processes are. `shared`: all on one host, without a network between.

    `capacity` as in `event_simulation.Host`; `bits_per_s` of a network card, each way; `latency_s` one way.
    """

    shared: bool
    capacity: tuple[float, ...]
    bits_per_s: float | None = None
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Processes:
    """How many there are of each kind."""

    workers: int
    shards: int


@dataclass(frozen=True, slots=True)
class Frames:
    """How values are cut and how frames follow each other.

    One call takes all keys, and a step is `calls_per_step` of them; `calls_per_key` more are for each key.
    """

    slice_bytes: int = 128 << 10
    frame_bytes: int = 1 << 20
    credit_bytes: int = 4 << 20
    calls_per_key: int = 0
    calls_per_step: int = 2


@dataclass(frozen=True, slots=True)
class Block:
    """A frame's load: adjacent slices of one shard. `key` is the last key that it holds something of. `joined` of its
    bytes, all or none, lie in several arrays of a worker and are copied to one place before they leave."""

    nbytes: int
    slices: int
    key: int
    joined: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """A list of keys, cut: `blocks[shard]` in the order of priority."""

    keys: int
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
    blocks = tuple(tuple(_joined(own, frames.frame_bytes)) for own in parts)
    return Layout(len(key_bytes), sum(key_bytes), blocks)


def _joined(parts: Sequence[tuple[int, int]], frame_bytes: int) -> list[Block]:
    blocks: list[Block] = []
    nbytes = begin = 0
    for place, (key, length) in enumerate(parts):
        nbytes += length
        last = place + 1 == len(parts)
        if last or nbytes + parts[place + 1][1] > frame_bytes:
            blocks.append(Block(nbytes, place + 1 - begin, key, nbytes if parts[begin][0] != key else 0))
            nbytes, begin = 0, place + 1
    return blocks
