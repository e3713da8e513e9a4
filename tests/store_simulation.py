"""Clients and shards without sockets: their cores, joined by queues whose every delivery the test chooses.

A queue keeps its order, as TCP does, unless there is `Noise`; a broken connection loses what is in its queues. The time
stands still unless it is moved.
"""

from __future__ import annotations

import random
from collections import deque
from concurrent.futures import Future
from typing import Any

from weft_kvstore.client.calls import Store
from weft_kvstore.client.core import ClientCore
from weft_kvstore.client.link import LinkState
from weft_kvstore.client.operation import Operation
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.futures import StoreFuture
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard

Parts = list[bytes]


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
        self, description: StoreDescription, settings: LinkSettings | None = None, *, keeps_previous: bool = False
    ) -> None:
        self.description = description
        self.settings = settings or LinkSettings()
        self.now = 0.0
        self.shards = [ShardCore(bytes([shard]) * 16, self.settings) for shard in range(len(description.shards))]
        for number, core in enumerate(self.shards):
            core.open(JobShard(description, number, keeps_previous=keeps_previous))
        self.clients: dict[int, ClientCore] = {}
        self.stores: dict[int, Store] = {}
        self.connections: dict[tuple[int, int], Connection] = {}
        self.delivered: list[tuple[str, Parts]] = []
        """Every message that arrived: ("up" or "down", its parts)."""
        self.noise = Noise(random.Random(0))
        self.silent: set[int] = set()
        """Slots whose connections stand and carry nothing."""
        self._identities = 0
        for slot in range(description.slots):
            self.join(slot, incarnation=1)

    def join(self, slot: int, incarnation: int) -> Store:
        """A client for the slot; the one before it is left standing where it is, without connections."""
        client = ClientCore(
            self.description,
            slot,
            incarnation,
            bytes([slot, incarnation]) * 8,
            settings=self.settings,
            endpoints=self.description.shards,
            now=self.now,
        )
        self.clients[slot] = client
        for shard in range(len(self.shards)):
            self.connections.pop((slot, shard), None)
        self.stores[slot] = Store(self.description, slot)

        def submit(operation: Operation) -> StoreFuture[Any]:
            client.begin(operation, self.now)
            return operation.future

        self.stores[slot].submit = submit
        return self.stores[slot]

    def cut(self, slot: int, shard: int) -> None:
        """Breaks a connection; only the client hears of it."""
        if self.connections.pop((slot, shard), None) is not None:
            self.clients[slot].disconnected(shard, self.now)

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
            self.shards[shard].work.work_once()
            return True
        connection = self.connections[slot, shard]
        parts = (connection.up if kind == "up" else connection.down).popleft()
        self.delivered.append((kind, parts))
        if kind == "up":
            self.shards[shard].receive(connection.identity, parts, self.now)
        else:
            self.clients[slot].receive(shard, parts, self.now)
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
        for slot, client in self.clients.items():
            client.tick(self.now)
            for link in client.links:
                link.flush(self.now)
                place = slot, link.shard
                known = self.connections.get(place)
                if link.state is LinkState.HANDSHAKE and (known is None or known.session != link.session):
                    self._identities += 1
                    self.connections[place] = Connection(self._identities.to_bytes(4, "big"), link.session)
                outgoing, link.outgoing = link.outgoing, []
                if place in self.connections:
                    for parts in outgoing:
                        self.noise.put(self.connections[place].up, [bytes(part) for part in parts])
            client.end_futures()
        for number, core in enumerate(self.shards):
            core.flush(self.now)
            outgoing, core.links.outgoing = core.links.outgoing, []
            by_identity = {one.identity: one for (_, shard), one in self.connections.items() if shard == number}
            for identity, parts in outgoing:
                if identity in by_identity:
                    self.noise.put(by_identity[identity].down, [bytes(part) for part in parts])
                else:
                    core.links.disconnect(identity)
