"""The networked store: one slot's way to its shards. One IO thread owns every socket."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Final

import zmq

from weft_kvstore.arguments import Arguments
from weft_kvstore.client_link import LinkState
from weft_kvstore.client_memory import ClientMemory
from weft_kvstore.client_mind import ClientMind
from weft_kvstore.description import StoreDescription
from weft_kvstore.face import StoreFace, end_futures
from weft_kvstore.link_socket import LinkSocket
from weft_kvstore.operation import Operation
from weft_kvstore.residual_operation import ResidualOperation
from weft_kvstore.routing import routing_of
from weft_kvstore.same_host.handover import Handover, HandoverState
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shared_layout import shared_layout
from weft_kvstore.statistics import ClientStatistics, LinkStatistics
from weft_kvstore.store import Array, StoreError
from weft_kvstore.wake import Wakeup

MESSAGES_A_ROUND: Final = 256
"""Messages read from one socket before the others have their turn."""

GOODBYE_MS: Final = 200
"""How long a Bye may take to leave when the client closes."""

LONGEST_SLEEP_S: Final = 60.0


class StoreClient(StoreFace):
    """Implements `Store` over ZeroMQ. `endpoints` stands in for the description's, in the same order.

    Raises DescriptionError for a description that cannot be a store, ValueError for a slot that it lacks.
    """

    def __init__(
        self,
        description: StoreDescription,
        slot: int,
        *,
        incarnation: int = 1,
        settings: LinkSettings = LinkSettings(),  # noqa: B008  # frozen, so it can be shared
        endpoints: Sequence[str] | None = None,
    ) -> None:
        super().__init__(Arguments(description, slot), self._hand_over)
        self._endpoints = tuple(description.shards if endpoints is None else endpoints)
        if len(self._endpoints) != len(description.shards):
            raise ValueError(f"{len(self._endpoints)} endpoints for {len(description.shards)} shards")
        routing = routing_of(description)
        layout = shared_layout(routing) if settings.same_host else None
        self._memory = ClientMemory(description.keys, layout)
        self._mind = ClientMind(
            description,
            slot,
            incarnation=incarnation,
            process=os.urandom(16),
            settings=settings,
            endpoints=self._endpoints,
            now=time.monotonic(),
            memory=self._memory if layout is not None else None,
        )
        self._submitted: deque[Operation] = deque()
        self._wakeup = Wakeup()
        self._wakeup_fd = self._wakeup.fileno()
        self._asleep = False
        """Whether the IO thread waits, or is about to look for the last time whether anything was handed over."""
        self._closing = False
        self._lock = threading.Lock()
        self._sockets: dict[int, LinkSocket] = {}
        self._handovers: dict[int, Handover] = {}
        self._bytes: list[list[int]] = [[0, 0] for _ in self._endpoints]
        self._thread = threading.Thread(target=self._run, name=f"weft-store-slot-{slot}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if not self._process.is_here:
            return  # The sockets are the parent's, and so is the other end of the wakeup.
        with self._lock:
            self._closing = True
        self._wakeup.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def gradient_buffer(self, key: str) -> Array:
        return self._memory.gradient(self._arguments.place_of(key))

    def value_buffer(self, key: str) -> Array:
        return self._memory.value(self._arguments.place_of(key))

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def residuals(self) -> Future[dict[str, Array]]:
        """What this slot owes, by the names that a snapshot has for it: copies of what compression has left out of its
        gradients so far. Fails while pushes are under way: it belongs between two steps."""
        return self._begin(lambda future: ResidualOperation(future, None))

    def restore_residuals(self, named: Mapping[str, Array]) -> Future[dict[str, Array]]:
        """Takes on what `residuals` gave; keys that are not named owe nothing. Fails, and changes nothing, for an array
        that does not fit, and while pushes are under way."""
        return self._begin(lambda future: ResidualOperation(future, named))

    def statistics(self) -> ClientStatistics:
        """Counts of this moment; they may move while they are read."""
        links = tuple(self._link_statistics(shard) for shard in range(len(self._endpoints)))
        return ClientStatistics(
            bytes_sent=sum(link.bytes_sent for link in links),
            bytes_received=sum(link.bytes_received for link in links),
            frames_sent=sum(link.frames_sent for link in links),
            frames_received=sum(link.frames_received for link in links),
            queued_slices=sum(link.queued_slices for link in links),
            queued_bytes=sum(link.queued_bytes for link in links),
            in_flight_bytes=sum(link.in_flight_bytes for link in links),
            operations=len(self._mind) + len(self._submitted),
            links=links,
            rows_pushed=self._mind.rows_pushed,
            rows_pulled=self._mind.rows_pulled,
        )

    def _hand_over(self, operation: Operation) -> None:
        with self._lock:
            if self._closing:
                raise StoreError(f"{operation}: the store was closed")
            self._submitted.append(operation)
        # The thread says that it sleeps, then looks; here it is the other way round: one of both sees the other.
        if self._asleep:
            self._asleep = False
            self._wakeup.wake()

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        poller = zmq.Poller()
        poller.register(self._wakeup_fd, zmq.POLLIN)
        reason = "the store was closed"
        try:
            while not self._closing:
                self._round(context, poller)
        except Exception as error:  # the thread's outermost frame: whoever waits on a future must hear of it
            reason = f"the store's thread failed: {type(error).__name__}: {error}"
            raise
        finally:
            with self._lock:
                self._closing = True
            # Futures first: whatever fails after this, nobody waits for ever.
            waiting, self._submitted = self._submitted, deque()
            for operation in waiting:
                self._mind.outcomes.append((operation, None, StoreError(f"{operation}: {reason}")))
            self._mind.close(reason)
            self._finish()
            self._send()
            for shard in list(self._sockets):
                self._drop(shard, poller, GOODBYE_MS)
            context.term()
            self._memory.close()
            self._wakeup.close()

    def _round(self, context: zmq.Context[zmq.Socket[bytes]], poller: zmq.Poller) -> None:
        """Waits until there is something, reads what came, takes in what was handed over, then sends: so what is urgent
        overtakes. Futures end before anything is sent, so that who waits for one goes on meanwhile."""
        self._receive(self._wait(poller), poller)
        self._finish()
        now = time.monotonic()
        while self._submitted:
            self._mind.begin(self._submitted.popleft(), now)
        self._mind.tick(now)
        self._mind.flush(now)
        self._reopen(context, poller)
        self._send()
        self._bring(poller)
        if self._mind.outcomes:
            self._finish()

    def _wait(self, poller: zmq.Poller) -> dict[object, int]:
        """The sockets of which there is news."""
        self._asleep = True
        timeout_s = max(self._mind.tick_at - time.monotonic(), 0.0)
        if self._submitted or self._closing:
            timeout_s = 0.0
        events = dict(poller.poll(math.ceil(min(timeout_s, LONGEST_SLEEP_S) * 1000)))
        self._asleep = False
        return events

    def _receive(self, events: dict[object, int], poller: zmq.Poller) -> None:
        """Reads what came."""
        if self._wakeup_fd in events:
            self._wakeup.clear()
        for shard, link_socket in self._sockets.items():
            if link_socket.socket in events:
                for _ in range(MESSAGES_A_ROUND):
                    parts = link_socket.receive()
                    if parts is None:
                        break
                    # The shard has said that it has the arena before it says where in it something is.
                    handover = self._handovers.get(shard)
                    if handover is not None and handover.state is HandoverState.OFFERED:
                        self._hear(shard, handover, poller)
                    self._mind.receive(shard, parts, time.monotonic())
            if link_socket.monitor in events and link_socket.broke():
                self._mind.disconnected(shard, time.monotonic())
        for shard, handover in list(self._handovers.items()):
            if handover.fileno() in events:
                self._hear(shard, handover, poller)

    def _reopen(self, context: zmq.Context[zmq.Socket[bytes]], poller: zmq.Poller) -> None:
        for link in self._mind.links:
            if link.reopen:
                link.reopen = False
                self._drop(link.shard, poller, 0)
                try:
                    link_socket = LinkSocket(context, self._endpoints[link.shard])
                except zmq.ZMQError as error:
                    self._mind.cannot_connect(link.shard, str(error))
                    continue
                self._sockets[link.shard] = link_socket
                poller.register(link_socket.socket, zmq.POLLIN)
                poller.register(link_socket.monitor, zmq.POLLIN)

    def _bring(self, poller: zmq.Poller) -> None:
        """Offers the arena to shards of this host that have just welcomed this client."""
        for link in self._mind.links:
            if link.door is not None:
                (name, ticket), link.door = link.door, None
                self._let_go(link.shard, poller)
                handover = Handover(name, ticket, self._memory.offered)
                if handover.fileno() >= 0:
                    self._handovers[link.shard] = handover
                    poller.register(handover.fileno(), zmq.POLLIN)

    def _hear(self, shard: int, handover: Handover, poller: zmq.Poller) -> None:
        """The shard has mapped the arena, or will not, or is gone."""
        fd = handover.fileno()
        handover.receive()
        self._mind.shares(shard, taken=handover.state is HandoverState.TAKEN)
        if handover.fileno() < 0:
            poller.unregister(fd)
            del self._handovers[shard]

    def _let_go(self, shard: int, poller: zmq.Poller) -> None:
        handover = self._handovers.pop(shard, None)
        if handover is not None:
            poller.unregister(handover.fileno())
            handover.close()

    def _drop(self, shard: int, poller: zmq.Poller, linger_ms: int) -> None:
        self._let_go(shard, poller)
        link_socket = self._sockets.pop(shard, None)
        if link_socket is not None:
            poller.unregister(link_socket.socket)
            poller.unregister(link_socket.monitor)
            self._bytes[shard][0] += link_socket.bytes_sent
            self._bytes[shard][1] += link_socket.bytes_received
            link_socket.close(linger_ms)

    def _send(self) -> None:
        for link in self._mind.links:
            if link.outgoing and (link_socket := self._sockets.get(link.shard)) is not None:
                outgoing, link.outgoing = link.outgoing, []
                if not all(link_socket.send(parts) for parts in outgoing):
                    self._mind.disconnected(link.shard, time.monotonic())

    def _finish(self) -> None:
        outcomes, self._mind.outcomes = self._mind.outcomes, []
        end_futures(outcomes)

    def _link_statistics(self, shard: int) -> LinkStatistics:
        link = self._mind.links[shard]
        link_socket = self._sockets.get(shard)
        sent, received = self._bytes[shard]
        return LinkStatistics(
            bytes_sent=sent + (link_socket.bytes_sent if link_socket is not None else 0),
            bytes_received=received + (link_socket.bytes_received if link_socket is not None else 0),
            payload_bytes_sent=link.payload_bytes_sent,
            payload_bytes_received=link.payload_bytes_received,
            frames_sent=link.frames_sent,
            frames_received=link.frames_received,
            queued_slices=link.outbox.queued_slices,
            queued_bytes=link.outbox.queued_bytes,
            in_flight_bytes=link.outbox.in_flight_bytes,
            credit_bytes=link.outbox.credit_bytes,
            rate_bytes_per_s=link.outbox.rate.bytes_per_s,
            connections=link.session,
            welcomed=link.state is LinkState.OPEN and link.refused is None,
            trouble=link.refused or link.lost,
            refused=link.refused is not None,
            shared_bytes_sent=link.shared_bytes_sent,
            shared_bytes_received=link.shared_bytes_received,
            same_host=link.memory is not None,
        )
