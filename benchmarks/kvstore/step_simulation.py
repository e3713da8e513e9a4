"""A step of training as the store exchanges it, simulated frame by frame. Pure and deterministic.

Each worker hands its keys over, first key first, and then asks for all of them; frames of gradients leave under credit,
are merged on their shard once all workers' have come, and the new values travel back as frames of the same cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from cost_model import Block, Constants, Frames, Layout, Machines, Processes, Role, layout_of
from event_simulation import Event, Host, Simulation, SimulationError, Thread, Wire
from step_costs import StepCosts

PULL_HOPS = 4
"""Threads that a pull's message passes before the shard knows of it: it is small, and overtakes no frame."""
ACKNOWLEDGED_HOPS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """A step's time, seconds, and how long the busiest of each kind of resource worked meanwhile."""

    time_s: float
    busy_s: dict[str, float]


class _Node:
    """A process: its interpreter, ZeroMQ's thread, and its host's network card."""

    def __init__(self, simulation: Simulation, host: Host, wake_s: float, machines: Machines) -> None:
        rate = None if machines.bits_per_s is None else machines.bits_per_s / 8
        self.host = host
        self.interpreter = Thread(simulation, host, wake_s)
        self.zeromq = Thread(simulation, host, wake_s)
        self.up = Wire(simulation, rate)
        self.down = Wire(simulation, rate)


@dataclass(frozen=True, slots=True)
class _Way:
    """A frame's way from one process to another, and what it costs the threads on it."""

    source: _Node
    target: _Node
    fill_s: float
    send_s: float
    receive_s: float


class _Link:
    """One direction between two processes: blocks that wait, and the credit that is left."""

    def __init__(self, credit_bytes: int) -> None:
        self.waiting: deque[tuple[int, Block]] = deque()
        self.credit, self.limit = credit_bytes, credit_bytes

    def take(self) -> tuple[int, Block] | None:
        """The next frame, if credit allows; a larger one goes alone."""
        if not self.waiting:
            return None
        nbytes = self.waiting[0][1].nbytes
        if nbytes > self.credit and self.credit < self.limit:
            return None
        self.credit -= nbytes
        return self.waiting.popleft()


class StepSimulation:
    """One step of `workers` on the layout's shards. `run` may be called once."""

    def __init__(self, layout: Layout, workers: int, constants: Constants, machines: Machines, frames: Frames) -> None:
        if workers < 1 or not any(layout.blocks):
            raise SimulationError(f"{workers} workers, {len(layout.blocks)} shards, {layout.nbytes} bytes: no step")
        self._layout, self._workers, self._frames = layout, workers, frames
        self._costs = StepCosts(constants, layout.nbytes)
        self._wake_s, self._latency_s = constants.wake_s, machines.latency_s
        self._simulation = Simulation()
        shared = Host(self._simulation, machines.capacity) if machines.shared else None

        def make() -> _Node:
            host = shared or Host(self._simulation, machines.capacity)
            return _Node(self._simulation, host, constants.wake_s, machines)

        self._clients = [make() for _ in range(workers)]
        self._shards = [make() for _ in layout.blocks]
        shards = len(layout.blocks)
        self._out = [[_Link(frames.credit_bytes) for _ in range(shards)] for _ in range(workers)]
        self._back = [[_Link(frames.credit_bytes) for _ in range(workers)] for _ in range(shards)]
        self._merged = [[0] * len(own) for own in layout.blocks]
        self._asked: list[list[set[int]]] = [[set() for _ in own] for own in layout.blocks]
        self._applied = [[False] * len(own) for own in layout.blocks]
        self._missing = [sum(map(len, layout.blocks))] * workers
        self._ended: list[float] = []
        self._by_key = self._blocks_by_key()

    def run(self) -> Step:
        """Raises SimulationError where the model does not end."""
        for node in self._shards:
            node.zeromq.do(self._costs.begin(Role.SHARD_WIRE), _nothing)
            node.interpreter.do(self._costs.begin(Role.SHARD), _nothing)
        for worker in range(self._workers):
            self._start(worker)
        self._simulation.run()
        if len(self._ended) != self._workers:
            raise SimulationError(f"{self._workers - len(self._ended)} of {self._workers} workers never end")
        return Step(max(self._ended), self._busy())

    def _blocks_by_key(self) -> list[list[tuple[int, int]]]:
        """For each key the (shard, place) of the blocks whose last one it is."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self._layout.keys)]
        for shard, own in enumerate(self._layout.blocks):
            for place, block in enumerate(own):
                found[block.key].append((shard, place))
        return found

    def _start(self, worker: int) -> None:
        """The caller's thread: a push for each key, then a pull for each, or one call for all."""
        each = self._frames.calls_per_key / 2
        once = self._frames.calls_per_step / 2
        begin_s = self._costs.called(0)
        calls = [(key, action) for action in (self._pushed, self._pulled) for key in range(self._layout.keys)]
        call_s = self._costs.called(1) - begin_s

        def next_call(place: int) -> None:
            if place == len(calls):
                return
            key, action = calls[place]
            first = key == 0

            def done() -> None:
                action(worker, key)
                next_call(place + 1)

            extra = (begin_s if place == 0 else 0.0) + (once * call_s if first else 0.0)
            self._clients[worker].interpreter.do(each * call_s + extra, done)

        self._clients[worker].zeromq.do(self._costs.begin(Role.CLIENT_WIRE), _nothing)
        next_call(0)

    def _pushed(self, worker: int, key: int) -> None:
        for shard, place in self._by_key[key]:
            self._out[worker][shard].waiting.append((place, self._layout.blocks[shard][place]))
            self._fill_push(worker, shard)

    def _fill_push(self, worker: int, shard: int) -> None:
        link = self._out[worker][shard]
        while (taken := link.take()) is not None:
            place, block = taken
            send_s, receive_s = (self._costs.push(role, block) for role in (Role.CLIENT_WIRE, Role.SHARD_WIRE))
            way = _Way(self._clients[worker], self._shards[shard], self._costs.filled(block), send_s, receive_s)
            self._travel(way, block.nbytes, lambda place=place, block=block: self._accept(worker, shard, place, block))

    def _travel(self, way: _Way, nbytes: int, then: Event) -> None:
        """Through the sender's threads, both network cards and the receiver's ZeroMQ thread."""

        def arrived() -> None:
            way.target.down.carry(nbytes, lambda: way.target.zeromq.do(way.receive_s, then))

        def left() -> None:
            way.source.up.carry(nbytes, lambda: self._simulation.after(self._latency_s, arrived))

        way.source.interpreter.do(way.fill_s, lambda: way.source.zeromq.do(way.send_s, left))

    def _accept(self, worker: int, shard: int, place: int, block: Block) -> None:
        """A frame of gradients is in the shard's inbox."""
        first = self._merged[shard][place] == 0
        self._merged[shard][place] += 1
        last = self._merged[shard][place] == self._workers
        cost_s = self._costs.accept(block) + (0.0 if first else self._costs.add(block))
        cost_s += self._costs.apply(block) if last else 0.0

        def done() -> None:
            self._later(ACKNOWLEDGED_HOPS, lambda: self._credit_push(worker, shard, block.nbytes))
            if last:
                self._applied[shard][place] = True
                for asker in sorted(self._asked[shard][place]):
                    self._answer(asker, shard, place)

        self._shards[shard].interpreter.do(cost_s, done)

    def _credit_push(self, worker: int, shard: int, nbytes: int) -> None:
        self._out[worker][shard].credit += nbytes
        self._fill_push(worker, shard)

    def _pulled(self, worker: int, key: int) -> None:
        for shard, place in self._by_key[key]:
            self._later(PULL_HOPS, lambda shard=shard, place=place: self._ask(worker, shard, place))
        calls = self._frames.calls_per_key + (self._frames.calls_per_step if key == 0 else 0)
        shard = self._by_key[key][0][0] if self._by_key[key] else key % len(self._shards)
        self._shards[shard].interpreter.do(calls * self._costs.call(Role.SHARD), _nothing)

    def _ask(self, worker: int, shard: int, place: int) -> None:
        self._asked[shard][place].add(worker)
        if self._applied[shard][place]:
            self._answer(worker, shard, place)

    def _answer(self, worker: int, shard: int, place: int) -> None:
        self._back[shard][worker].waiting.append((place, self._layout.blocks[shard][place]))
        self._fill_values(worker, shard)

    def _fill_values(self, worker: int, shard: int) -> None:
        link = self._back[shard][worker]
        while (taken := link.take()) is not None:
            block = taken[1]
            fill_s, send_s, receive_s = (
                self._costs.pull(role, block) for role in (Role.SHARD, Role.SHARD_WIRE, Role.CLIENT_WIRE)
            )
            way = _Way(self._shards[shard], self._clients[worker], fill_s, send_s, receive_s)
            self._travel(way, block.nbytes, lambda block=block: self._receive(worker, shard, block))

    def _receive(self, worker: int, shard: int, block: Block) -> None:
        """A frame of values is in the client's inbox."""
        self._clients[worker].interpreter.do(
            self._costs.taken(block), lambda: self._received(worker, shard, block.nbytes)
        )

    def _received(self, worker: int, shard: int, nbytes: int) -> None:
        self._later(ACKNOWLEDGED_HOPS, lambda: self._credit_values(worker, shard, nbytes))
        self._missing[worker] -= 1
        if not self._missing[worker]:
            self._simulation.after(self._wake_s, lambda: self._ended.append(self._simulation.now))

    def _credit_values(self, worker: int, shard: int, nbytes: int) -> None:
        self._back[shard][worker].credit += nbytes
        self._fill_values(worker, shard)

    def _later(self, hops: int, event: Event) -> None:
        self._simulation.after(hops * self._wake_s + self._latency_s, event)

    def _busy(self) -> dict[str, float]:
        return {
            "worker's interpreter": max(node.interpreter.busy_s for node in self._clients),
            "worker's ZeroMQ": max(node.zeromq.busy_s for node in self._clients),
            "worker's network card": max(max(node.up.busy_s, node.down.busy_s) for node in self._clients),
            "shard's interpreter": max(node.interpreter.busy_s for node in self._shards),
            "shard's ZeroMQ": max(node.zeromq.busy_s for node in self._shards),
            "shard's network card": max(max(node.up.busy_s, node.down.busy_s) for node in self._shards),
            "cores": max(node.host.busy_s for node in self._shards + self._clients),
        }


def simulate(
    key_bytes: Sequence[int], processes: Processes, constants: Constants, machines: Machines, frames: Frames
) -> Step:
    """One step of a list of keys. Raises SimulationError."""
    if processes.shards < 1:
        raise SimulationError(f"{processes.shards} shards: no step")
    layout = layout_of(key_bytes, processes.shards, frames)
    return StepSimulation(layout, processes.workers, constants, machines, frames).run()


def _nothing() -> None:
    """A task that only takes time."""
