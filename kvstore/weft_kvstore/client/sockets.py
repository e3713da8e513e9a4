"""A client's sockets: one for each shard, their events, and what passes between them and the protocol."""

from __future__ import annotations

import math
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import zmq
from zmq.utils.monitor import recv_monitor_message

from weft_kvstore.arrays import Buffer
from weft_kvstore.client.connection import HandshakeFailure
from weft_kvstore.client.core import ClientCore
from weft_kvstore.client.link import ClientLink
from weft_kvstore.client.operation import Operation
from weft_kvstore.encryption.curve_keys import LinkKeys
from weft_kvstore.errors import StoreError
from weft_kvstore.process import Wakeup
from weft_kvstore.same_host.handover import Handover, HandoverState
from weft_kvstore.same_host.memory import Arena, ArenaError, ClientMemory
from weft_kvstore.settings import MAX_FRAME_BYTES
from weft_kvstore.wire.codec import MAX_HEADER_BYTES

# --- The client's socket to one shard: a DEALER, and the monitor that tells when its connection breaks ----------------


BROKEN = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
"""The monitor's words for a connection that has ended, and for one that could not be made."""

SHUT_OUT: Final = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): HandshakeFailure.UNAUTHORIZED,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): HandshakeFailure.MECHANISM_MISMATCH,
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): HandshakeFailure.BROKEN_OFF,
}
"""Its words for an end before the first message."""

_WATCHED = int(BROKEN) | sum(SHUT_OUT)

NO_RECONNECT = -1

COPIED_BYTES = 1 << 19
"""A smaller part is copied when it is sent. To keep its memory for the socket wakes a thread of pyzmq once it has left,
which takes about as long as to copy so much."""

# Plain numbers: arithmetic on pyzmq's flags takes longer than what it says.
_NOW = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)
_MECHANISM = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)


class LinkSocket:
    """One connection; a new one is a new object. Used by one thread at a time. Counts the bytes that pass.

    `fd` becomes readable when something comes, and does not stay so: whatever is done with the socket may take the sign
    away. So `is_unread` says that it was used since it was last seen empty. `monitor_fd` is the monitor's, which was
    seen empty before anything is connected; its messages are read by `broke` alone, all of them, and so it needs no
    such care afterwards. With `keys` the link is encrypted. `shut_out` is how the handshake has failed, where it has.
    Raises zmq.ZMQError for an endpoint that is none.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        keys: LinkKeys | None = None,
    ) -> None:
        self.shut_out: HandshakeFailure | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self.is_unread = True
        self.socket = context.socket(zmq.DEALER)
        self._send: Callable[..., object] = super(zmq.Socket, self.socket).send
        """Without what pyzmq's own adds for other kinds of sockets: a third of its time."""
        self.socket.linger = 0
        self.socket.sndhwm = 0  # The outbox's credit is the bound.
        self.socket.rcvhwm = 0
        # A connection that libzmq made anew by itself would lack its Hello; the link says when to try again.
        self.socket.reconnect_ivl = NO_RECONNECT
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + MAX_HEADER_BYTES)
        if keys is not None:
            self.socket.curve_serverkey = keys.shard.encode()
            self.socket.curve_publickey = keys.own.public.encode()
            self.socket.curve_secretkey = keys.own.secret.encode()
        self.monitor = self.socket.get_monitor_socket(_WATCHED)
        self.fd = int(self.socket.getsockopt(zmq.FD))
        self.monitor_fd = int(self.monitor.getsockopt(zmq.FD))
        self.broke()  # The descriptor tells of what comes after a look that found nothing.
        try:
            self.socket.connect(endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    def send(self, parts: list[Buffer]) -> bool:
        """Sends a message; False if the connection has ended, so that nothing can be. Never waits.

        Large parts are not copied: they stay as they are until they are acknowledged.
        """
        self.is_unread = True
        last = len(parts) - 1
        try:
            for number, part in enumerate(parts):
                flags = _NOW if number == last else _MORE
                size = len(part)
                self._send(part, flags, size < COPIED_BYTES)
                self.bytes_sent += size
        except zmq.Again:
            return False
        return True

    def receive(self, *, is_told: bool = False) -> list[memoryview] | None:
        """The next message; None if there is none: then `fd` tells of the next. Where `fd` `is_told` of, there is one
        nearly always, and it is not asked for: pyzmq takes longer for that than for the message."""
        self.is_unread = is_told or bool(int(self.socket.get(zmq.EVENTS)) & _READABLE)
        if not self.is_unread:
            return None
        try:
            frame = self.socket.recv(_NOW, copy=False)
        except zmq.Again:
            self.is_unread = False
            return None
        parts = [frame.buffer]
        while frame.more:  # The parts of a message come together or not at all.
            frame = self.socket.recv(_NOW, copy=False)
            parts.append(frame.buffer)
        for part in parts:
            self.bytes_received += part.nbytes
        return parts

    def broke(self) -> bool:
        """Whether the connection has ended, or could not be made."""
        broken = False
        while _readable(self.monitor):
            told = recv_monitor_message(self.monitor)
            event, value = int(told["event"]), int(told["value"])
            # No other word follows one about a message that cannot be deciphered.
            broken = bool(event & (BROKEN | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)) or broken
            if event in SHUT_OUT and (
                SHUT_OUT[event] is not HandshakeFailure.MECHANISM_MISMATCH or value == _MECHANISM
            ):
                self.shut_out = SHUT_OUT[event]
        return broken

    def close(self, linger_ms: int = 0) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.get(zmq.EVENTS)) & _READABLE)


# --- A client's sockets, and what passes between them and its core ----------------------------------------------------
# I/O without a thread of its own: who leads calls it.


MESSAGES_A_ROUND: Final = 256
"""Messages read from one socket before the others have their turn."""

GOODBYE_MS: Final = 200
"""How long a Bye may take to leave when the client closes."""

Readable: TypeAlias = dict[int, int]
"""File descriptors of which there is news."""


class ClientSockets:
    """One thread at a time uses it; `Poller` says which.

    `submitted` is what was handed over and has not begun. A socket's descriptor says that something came since it was
    last looked at, so whoever is about to wait for descriptors asks `unread` first. `changes` counts sockets that came
    or went: what waits for their descriptors has to begin anew. `has_more`: the last `send` has left frames, which the
    next one may send.
    """

    def __init__(
        self,
        core: ClientCore,
        memory: ClientMemory,
        endpoints: Sequence[str],
        keys: Sequence[LinkKeys] = (),
    ) -> None:
        """`keys`: of each shard's link, where links are encrypted."""
        self.submitted: deque[Operation] = deque()
        self.changes = 0
        self.has_more = False
        self.core = core
        self._memory = memory
        self._endpoints = tuple(endpoints)
        self._keys = dict(enumerate(keys))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: dict[int, LinkSocket] = {}
        self._handovers: dict[int, Handover] = {}
        self._taking: Wakeup | None = None
        """While memory is taken that is to be offered; woken once it is there, or will not be."""
        self._took = False
        self._shares = True
        """Whether the arena is offered."""
        self._bytes: list[list[int]] = [[0, 0] for _ in self._endpoints]

    @property
    def is_due(self) -> bool:
        """Whether somebody has to go on at once: something waits to begin, for credit, or to end its future."""
        return bool(self.submitted) or self.is_held

    @property
    def is_held(self) -> bool:
        """Whether something waits for credit, or to end its future."""
        if self.core.outcomes:
            return True
        for link in self.core.links:  # A loop: it is asked in every call.
            if link.outbox.queued_slices:
                return not self.has_more
        return False

    @property
    def owes_receipts(self) -> bool:
        """Whether a shard waits to hear what has arrived."""
        return any(link.acknowledge for link in self.core.links)

    def told(self, operation: Operation) -> str:
        """Whose call it is, as every error begins."""
        return self.core.told(operation)

    def receive(self, readable: Readable) -> None:
        """Reads what came."""
        for shard, link_socket in self._sockets.items():
            is_told = link_socket.fd in readable
            if is_told or link_socket.is_unread:
                for _ in range(MESSAGES_A_ROUND):
                    parts = link_socket.receive(is_told=is_told)
                    if parts is None:
                        break
                    is_told = False
                    # The shard has said that it has the arena before it says where in it something is.
                    handover = self._handovers.get(shard)
                    if handover is not None and handover.state is HandoverState.OFFERED:
                        self._hear(shard, handover)
                    self.core.receive(shard, parts, time.monotonic())
                    if not self.core.open:  # Nobody waits for more; it is looked for before anybody sleeps.
                        break
            if link_socket.monitor_fd in readable and link_socket.broke():
                self._has_ended(shard, link_socket)
        if self._handovers:
            for shard, handover in list(self._handovers.items()):
                if handover.fileno() in readable:
                    self._hear(shard, handover)

    def go_on(self, now: float) -> None:
        """Looks at deadlines and connections, and sends: after what came, so what is urgent overtakes."""
        core = self.core
        if now >= core.tick_at:
            core.tick(now)
        self.send(now)
        for link in core.links:
            if link.listener is not None or self._taking is not None:
                self._bring()
                break

    def send(self, now: float, most: float = math.inf) -> None:
        """Begins what was handed over, and sends, to each shard `most` bytes of frames where no slice is larger. Ends
        no future."""
        core = self.core
        self.has_more = core.hurries = False
        while self.submitted:
            core.begin(self.submitted.popleft(), now)
        for link in core.links:
            if link.flush(now, most):
                self.has_more = True
            if link.reopen:
                self._reopen(link)
            if link.outgoing and (link_socket := self._sockets.get(link.shard)) is not None:
                outgoing, link.outgoing = link.outgoing, []
                for parts in outgoing:
                    if not link_socket.send(parts):
                        core.disconnected(link.shard, time.monotonic())
                        break

    def unread(self) -> bool:
        """Whether something came that no descriptor will tell of. All are asked."""
        found = False
        for link_socket in self._sockets.values():
            if link_socket.is_unread:
                link_socket.is_unread = bool(int(link_socket.socket.get(zmq.EVENTS)) & _READABLE)
                found = found or link_socket.is_unread
        return found

    def watch(self, also: int) -> select.poll:
        """Waits for all descriptors, and for another one."""
        poll = select.poll()
        poll.register(also, select.POLLIN)
        for link_socket in self._sockets.values():
            poll.register(link_socket.fd, select.POLLIN)
            poll.register(link_socket.monitor_fd, select.POLLIN)
        for handover in self._handovers.values():
            poll.register(handover.fileno(), select.POLLIN)
        if self._taking is not None:
            poll.register(self._taking.fileno(), select.POLLIN)
        return poll

    def close(self, reason: str) -> None:
        """Fails what is open, for that reason, and says good-bye; `end_futures` comes next."""
        waiting, self.submitted = self.submitted, deque()
        for operation in waiting:
            self.core.outcomes.append((operation, None, StoreError(f"{self.told(operation)}: {reason}")))
        self.core.close(reason)

    def release(self) -> None:
        """Sends the good-byes, and closes everything."""
        self.send(time.monotonic())
        for shard in list(self._sockets):
            self._drop(shard, GOODBYE_MS)
        self._context.term()
        self._memory.close()
        self._end_taking()

    def bytes_of(self, shard: int) -> tuple[int, int]:
        """Bytes that passed the sockets to a shard, sent and received."""
        sent, received = self._bytes[shard]
        link_socket = self._sockets.get(shard)
        if link_socket is None:
            return sent, received
        return sent + link_socket.bytes_sent, received + link_socket.bytes_received

    def _has_ended(self, shard: int, link_socket: LinkSocket) -> None:
        """Tells the core that a connection has ended, and how."""
        how, now = link_socket.shut_out, time.monotonic()
        if how is None:
            self.core.disconnected(shard, now)
        else:
            keys = self._keys.get(shard)
            self.core.shut_out(shard, how, now, key=None if keys is None else keys.own.public)

    def _reopen(self, link: ClientLink) -> None:
        link.reopen = False
        self._drop(link.shard, 0)
        try:
            endpoint, keys = self._endpoints[link.shard], self._keys.get(link.shard)
            self._sockets[link.shard] = LinkSocket(self._context, endpoint, keys)
        except zmq.ZMQError as error:
            self.core.cannot_connect(link.shard, str(error))
        else:
            self.changes += 1

    def _bring(self) -> None:
        """Offers the arena to shards of this host that have just welcomed this client. Their listeners are left for
        later while its memory is taken."""
        if self._taking is not None and not self._is_over():
            return
        for link in self.core.links:
            if not self._shares:
                link.listener = None
            if link.listener is not None:
                name, ticket = link.listener
                self._let_go(link.shard)
                handover = Handover(name, ticket, self._offered)
                if self._taking is not None:
                    return
                link.listener = None
                if handover.fileno() >= 0:
                    self._handovers[link.shard] = handover
                    self.changes += 1

    def _offered(self) -> Arena:
        """The arena, once a listener was found. Raises ArenaError while its memory is taken."""
        if not self._memory.is_taken:
            self._taking, self._took = Wakeup(), False
            self.changes += 1
            self._memory.take(self._has_taken)
            raise ArenaError("its memory is being taken")
        return self._memory.offered()

    def _has_taken(self) -> None:
        """Called on the thread that takes memory."""
        self._took = True
        if (taking := self._taking) is not None:
            taking.wake()

    def _is_over(self) -> bool:
        """Whether no memory is being taken any more. Where there was none, listeners are left alone: payloads travel as
        bytes."""
        if not self._took:
            return False
        self._end_taking()
        if not self._memory.is_taken:
            for link in self.core.links:
                link.listener = None
        return True

    def _end_taking(self) -> None:
        if self._taking is not None:
            self._taking.close()
            self._taking = None
            self.changes += 1

    def _hear(self, shard: int, handover: Handover) -> None:
        """The shard has mapped the arena, or will not, or is gone."""
        handover.receive()
        self.core.shares(shard, taken=handover.state is HandoverState.TAKEN, lent=handover.lent)
        if handover.is_unclear:
            self._shares = False
            self.core.cannot_share(shard, time.monotonic())
        if handover.fileno() < 0:
            del self._handovers[shard]
            self.changes += 1

    def _let_go(self, shard: int) -> None:
        handover = self._handovers.pop(shard, None)
        if handover is not None:
            handover.close()
            self.changes += 1

    def _drop(self, shard: int, linger_ms: int) -> None:
        self._let_go(shard)
        link_socket = self._sockets.pop(shard, None)
        if link_socket is not None:
            self.changes += 1
            self._bytes[shard][0] += link_socket.bytes_sent
            self._bytes[shard][1] += link_socket.bytes_received
            link_socket.close(linger_ms)
