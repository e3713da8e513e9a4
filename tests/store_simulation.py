"""Clients and shards without sockets: their cores, joined by queues whose every delivery the test chooses.

A queue keeps its order, as TCP does, unless there is `Noise`; a broken connection loses what is in its queues. The time
stands still unless it is moved.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from store_cluster import ByName
from weft_kvstore.arrays import Array
from weft_kvstore.client.core import ClientCore
from weft_kvstore.client.link import ClientLink, LinkState
from weft_kvstore.client.operation import Operation
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreClosedError
from weft_kvstore.futures import StoreFuture
from weft_kvstore.same_host.memory import SharedMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.sharding import routing_of

Parts = list[bytes]


def _read_only(memory: SharedMemory) -> Array:
    """As another process has it."""
    found = memory.array(0, (memory.nbytes,), np.uint8)
    found.flags.writeable = False
    return found


def run_shard(core: ShardCore, work: Callable[[], object]) -> None:
    """Calls it as a shard's thread does: what it raises ends the job."""
    try:
        work()
    except Exception as error:
        if core.job is None:
            raise
        core.fail(error)


class Connection:
    """One TCP connection: what is on its way up to the shard and down to the client."""

    def __init__(self, identity: bytes, session: int) -> None:
        self.identity = identity
        self.session = session
        self.up: deque[Parts] = deque()
        self.down: deque[Parts] = deque()


class Noise:
    """What becomes of messages on connections that do not break: shares of them that are lost, come twice, or come
    before the one that was sent before them."""

    def __init__(self, choose: random.Random, *, lost: float = 0.0, twice: float = 0.0, swapped: float = 0.0) -> None:
        self._choose = choose
        self._lost = lost
        self._twice = twice
        self._swapped = swapped

    def put(self, queue: deque[Parts], parts: Parts) -> None:
        """What reaches the queue of a message."""
        draw = self._choose.random
        for _ in range((draw() >= self._lost) * (1 + (draw() < self._twice))):
            at = len(queue) - 1 if queue and draw() < self._swapped else len(queue)
            queue.insert(at, parts)


class Simulation:
    """All slots and shards of one store. `stores[slot]` is the slot's face."""

    def __init__(
        self,
        description: StoreDescription,
        settings: LinkSettings | None = None,
        *,
        keeps_previous: bool = False,
        shared: bool = False,
    ) -> None:
        """`shared`: payloads lie in memory that both ends have."""
        self.description = description
        self.settings = settings or LinkSettings()
        self.now = 0.0
        self.shards = [ShardCore(bytes([shard]) * 16, self.settings) for shard in range(len(description.shards))]
        self._shared = shared
        for number, core in enumerate(self.shards):
            core.open(JobShard(description, number, keeps_previous=keeps_previous, make_shared=self._memory))
            core.links.listener, core.links.arenas = b"here" * shared, {}
        self.clients: dict[int, ClientCore] = {}
        self.stores: dict[int, ByName] = {}
        self.connections: dict[tuple[int, int], Connection] = {}
        self.delivered: list[tuple[str, Parts]] = []
        """Every message that arrived: ("up" or "down", its parts)."""
        self.noise = Noise(random.Random(0))
        self.silent: set[int] = set()
        """Slots whose connections stand and carry nothing."""
        self._identities = 0
        for slot in range(description.slots):
            self.join(slot, incarnation=1)

    def join(self, slot: int, incarnation: int) -> ByName:
        """A client for the slot; the one before it is left standing where it is, without connections."""
        client = ClientCore(
            self.description,
            routing_of(self.description),
            slot,
            incarnation,
            bytes([slot, incarnation]) * 8,
            settings=self.settings,
            endpoints=self.description.shards,
            now=self.now,
            memory=self._memory(0),
        )
        self.clients[slot] = client
        for shard in range(len(self.shards)):
            self.connections.pop((slot, shard), None)
        store = self.stores[slot] = ByName(self.description, slot)
        store.failed = client.failed

        def submit(operation: Operation) -> StoreFuture[Any]:
            if self.clients.get(slot) is client:
                self._run(client, partial(client.begin, operation, self.now))
            else:
                operation.future.set_exception(StoreClosedError("the client has ended"))
            return operation.future

        store.submit = submit
        return store

    def _memory(self, nbytes: int) -> SharedMemory | None:
        return SharedMemory(nbytes, 1 << 20) if self._shared else None

    def cut(self, slot: int, shard: int) -> None:
        """Breaks a connection; only the client hears of it."""
        if self.connections.pop((slot, shard), None) is not None and slot in self.clients:
            self._run(self.clients[slot], partial(self.clients[slot].disconnected, shard, self.now))

    def step(self, choose: random.Random) -> bool:
        """Lets one thing happen: a message arrives, or a slice is merged. False if nothing can."""
        self._pump()
        events: list[tuple[str, int, int]] = []
        for (slot, shard), connection in self.connections.items():
            if slot in self.silent:
                continue
            events += [("up", slot, shard)] if connection.up else []
            events += [("down", slot, shard)] if connection.down else []
        events += [("work", 0, number) for number, core in enumerate(self.shards) if core.work.queue]
        if not events:
            return False
        kind, slot, shard = choose.choice(events)
        if kind == "work":
            self._run(self.shards[shard], self.shards[shard].work.work_once)
            return True
        connection = self.connections[slot, shard]
        parts = (connection.up if kind == "up" else connection.down).popleft()
        self.delivered.append((kind, parts))
        if kind == "up":
            core = self.shards[shard]
            self._run(core, partial(core.receive, connection.identity, parts, self.now))
        elif (client := self.clients.get(slot)) is not None:
            self._run(client, partial(client.receive, shard, parts, self.now))
        return True

    def settle(self, choose: random.Random) -> None:
        """Lets everything happen that can, retries of connections included."""
        for _ in range(100):
            while self.step(choose):
                pass
            ended = {LinkState.OPEN, LinkState.REFUSED}
            if all(link.state in ended for client in self.clients.values() for link in client.links):
                return
            self.now += 0.1

    def finish(self, choose: random.Random, *futures: Future[Any]) -> None:
        """Until these futures have ended."""
        for _ in range(10):
            self.settle(choose)
            if all(future.done() for future in futures):
                return
        raise AssertionError("the store stands still")

    def _pump(self) -> None:
        for slot, client in [*self.clients.items()]:
            self._run(client, partial(self._advance, slot, client))
        for number, core in enumerate(self.shards):
            self._run(core, partial(self._flush, core))
            outgoing, core.links.outgoing = core.links.outgoing, []
            by_identity = {one.identity: one for (_, shard), one in self.connections.items() if shard == number}
            for identity, parts in outgoing:
                if identity in by_identity:
                    self.noise.put(by_identity[identity].down, [bytes(part) for part in parts])
                else:
                    self._run(core, partial(core.links.disconnect, identity))

    def _advance(self, slot: int, client: ClientCore) -> None:
        client.tick(self.now)
        for link in client.links:
            if link.listener:
                self._share(link)
            link.flush(self.now)
            self._carry(slot, link)
        client.end_futures()

    def _flush(self, core: ShardCore) -> None:
        if core.wants_flush():
            core.flush(self.now)

    def _share(self, link: ClientLink) -> None:
        """Both ends have each other's memory on this connection."""
        core, own = self.shards[link.shard], link.shared_frames.memory
        if core.job is not None and core.job.shared_memory is not None and own is not None:
            link.listener, others = b"", _read_only(core.job.shared_memory)
            core.links.arenas = {**core.links.arenas, (link.hello.process, link.session): _read_only(own)}
            self._run(core, core.links.memory_changed)
            link.share(others, taken=True)

    def _carry(self, slot: int, link: ClientLink) -> None:
        """Takes over what a link has to send."""
        place = slot, link.shard
        known = self.connections.get(place)
        if link.state is LinkState.HANDSHAKE and (known is None or known.session != link.session):
            self._identities += 1
            self.connections[place] = Connection(self._identities.to_bytes(4, "big"), link.session)
        outgoing, link.outgoing = link.outgoing, []
        if place in self.connections:
            for parts in outgoing:
                self.noise.put(self.connections[place].up, [bytes(part) for part in parts])

    def _run(self, core: ShardCore | ClientCore, work: Callable[[], object]) -> None:
        """What it raises ends the shard's job, or the client, as in their threads."""
        if isinstance(core, ShardCore):
            run_shard(core, work)
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001  # as in the client's threads
            (slot,) = [slot for slot, client in self.clients.items() if client is core]
            core.close(f"the store's thread failed: {type(error).__name__}: {error}")
            for link in core.links:
                self._carry(slot, link)
            core.end_futures()
            del self.clients[slot]
