"""A client's sockets: one for each shard, their events, and what passes between them and the protocol."""

from __future__ import annotations

import errno
import logging
import math
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, TypeAlias

import zmq
from zmq.utils.monitor import recv_monitor_message

from weft_kvstore.arrays import Buffer
from weft_kvstore.client.core import ClientCore
from weft_kvstore.client.link import ClientLink, LinkState
from weft_kvstore.client.operation import Operation
from weft_kvstore.encryption import CurveKeys
from weft_kvstore.errors import StoreClosedError
from weft_kvstore.process import EVENTS, MORE, MOVES_BYTES, NOW, READABLE, Wakeup, received_bytes, zeromq_context
from weft_kvstore.same_host.client_arrays import ClientMemory
from weft_kvstore.same_host.handover import Handover
from weft_kvstore.same_host.memory import ArenaError
from weft_kvstore.settings import COPIED_BYTES, MAX_FRAME_BYTES, name_of
from weft_kvstore.wire.codec import MAX_HEADER_BYTES

# --- The client's socket to one shard: a DEALER, and the monitor that tells when its connection breaks ----------------


BROKEN = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
"""The monitor's events of a connection that has ended, or could not be made."""

_HANDSHAKE_FAILED = (
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    | int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    | int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
)
"""Its events of a connection that ended in the handshake."""

_WATCHED = int(BROKEN) | _HANDSHAKE_FAILED | int(zmq.EVENT_CONNECTED)

NO_RECONNECT = -1

_numbers = count()
"""Of the process's monitors."""

_MECHANISM = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)


class LinkSocket:
    """Connection number `session` of a link; a new one is a new object. Used by one thread at a time. Its bytes
    are added to the link's `counts`.

    `fd` becomes readable when a message arrives, and any use of the socket may clear that. `is_unread` says that the
    socket was used since it was last empty, so a message may be there. `monitor_fd` is the monitor's descriptor, which
    only `broke` reads, to the end, and so stays reliable. With `keys` the link is encrypted. Raises zmq.ZMQError for an
    invalid endpoint.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        counts: dict[str, int],
        session: int,
        keys: tuple[CurveKeys, str] | None = None,
    ) -> None:
        self.session = session
        self.handover: Handover | None = None
        """By which the shard and the client have each other's memory."""
        self._key = None if keys is None else keys[0].public
        self._counts = counts
        self.is_unread = True
        self._connection = -1
        """The connection's own descriptor, once there is one."""
        self._received = 0
        self.socket = context.socket(zmq.DEALER)
        self._send: Callable[..., object] = super(zmq.Socket, self.socket).send
        """Without what pyzmq's own adds for other kinds of sockets: a third of its time."""
        self.socket.linger = 0
        self.socket.ipv6 = "[" in endpoint
        self.socket.sndhwm = 0  # The outbox's credit is the bound.
        self.socket.rcvhwm = 0
        # A connection that libzmq made anew by itself would lack its Hello; the link says when to try again.
        self.socket.reconnect_ivl = NO_RECONNECT
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + MAX_HEADER_BYTES)
        if keys is not None:
            own, shard = keys
            self.socket.curve_serverkey = shard.encode()
            self.socket.curve_publickey = own.public.encode()
            self.socket.curve_secretkey = own.secret.encode()
        try:
            # pyzmq's own name for it has the socket's descriptor, which another socket may have before libzmq has
            # forgotten the name.
            self.monitor = self.socket.get_monitor_socket(_WATCHED, f"inproc://weft-monitor-{next(_numbers)}")
        except zmq.ZMQError:
            self.socket.close(0)
            raise
        self.fd = int(self.socket.getsockopt(zmq.FD))
        self.monitor_fd = int(self.monitor.getsockopt(zmq.FD))
        self.broke()  # The descriptor is reliable once the monitor was read to its end.
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
                flags = NOW if number == last else MORE
                size = len(part)
                self._send(part, flags, size < COPIED_BYTES)
                self._counts["bytes_sent"] += size
        except zmq.Again:
            return False
        return True

    def receive(self, *, is_readable: bool = False) -> list[memoryview] | None:
        """The next message; None if there is none. `is_readable`: its descriptor said so; then a message is nearly
        always there and is read without asking, for which pyzmq would take longer than for the message."""
        self.is_unread = is_readable or bool(int(self.socket.get(EVENTS)) & READABLE)
        if not self.is_unread:
            return None
        try:
            frame = self.socket.recv(NOW, copy=False)
        except zmq.Again:
            self.is_unread = False
            return None
        parts = [frame.buffer]
        while frame.more:  # The parts of a message come together or not at all.
            frame = self.socket.recv(NOW, copy=False)
            parts.append(frame.buffer)
        for part in parts:
            self._counts["bytes_received"] += part.nbytes
        return parts

    def moves(self) -> bool:
        """Whether a long message comes. To be called again and again."""
        before, self._received = self._received, received_bytes(self._connection)
        return self._received - before >= MOVES_BYTES

    def broke(self, *, was_welcomed: bool = False) -> tuple[str, bool] | None:
        """Why the connection has ended, or could not be made, and whether a new one may do better; None: it has not.
        The reason is empty but for what goes wrong in the handshake. `was_welcomed`: whether the shard was there by an
        earlier one, so that another server's greeting is not the shard's."""
        ended, key = None, self._key
        while int(self.monitor.get(EVENTS)) & READABLE:
            word = recv_monitor_message(self.monitor)
            event = int(word["event"])
            self._connection = int(word["value"]) if event == zmq.EVENT_CONNECTED else -1
            if event & (BROKEN | _HANDSHAKE_FAILED):
                ended = ended or ("", True)
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                reason = f"it rejects a client with the CURVE key {key}: no NAME.key in its directory of clients"
                ended = f"{reason} has it (who connects without curve_keys has one that no shard knows)", False
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and int(word["value"]) == _MECHANISM:
                its, mine = ("encrypted", "no ") if key is None else ("not encrypted", "")
                ended = f"its links are {its}, and the description has {mine}curve_keys for them", was_welcomed
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                # A shard that has another key than was thought can say nothing that would be understood, and one that
                # has another mechanism may close the connection before its greeting has left.
                reason = "its links may be encrypted, and the description has no curve_keys for them"
                if key is not None:
                    reason = "it may have another CURVE key than the description's curve_keys say, or not have started"
                    reason += " behind a proxy"
                ended = f"it broke off the handshake: {reason}", True
        return ended

    def close(self, linger_ms: int = 0) -> None:
        if self.handover is not None:
            self.handover.close()
        self.socket.disable_monitor()
        self.socket.close(linger_ms)
        self.monitor.close(0)


# --- The address of a shard's host ------------------------------------------------------------------------------------
# libzmq would look a name up on the one thread that carries all of a client's sockets: with a resolver that is down all
# shards were silent.


LOOK_UP_S: Final = 0.5
"""After so long the address of the last time is taken."""


class Host:
    """The host of an endpoint, which is looked up anew for each connection, on a thread of its own."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._name = name_of(endpoint)
        self.thread: threading.Thread | None = None
        """Where it is looked up."""
        self._begun = 0.0
        self._found: str | None = None
        """The endpoint with the address as it was looked up last."""
        self.error = ""
        """Why there is none."""

    def endpoint(self, now: float) -> str | None:
        """The endpoint, with an address; None where there is none yet."""
        if self._name is None:
            return self._endpoint
        if self.thread is None:
            self._begun = now
            self.error = self.error or f"the address of its host {self._name!r} is looked up"
            self.thread = threading.Thread(target=self._look_up, args=(self._name,), name="weft-host", daemon=True)
            try:
                self.thread.start()
            except RuntimeError as error:
                self.thread, self.error = None, str(error)
        elif not self.thread.is_alive():
            self.thread = None
            return self._found
        return self._found if now - self._begun >= LOOK_UP_S else None

    def _look_up(self, name: str) -> None:
        try:
            found = socket.getaddrinfo(name, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
            family, *_, (address, *_) = min(found, key=lambda one: one[0] != socket.AF_INET)
        except (OSError, UnicodeError) as error:
            self.error = f"cannot resolve host {name!r}: {error}"
        else:
            head, colon, port = self._endpoint.rpartition(":")
            address = f"[{address}]" if family == socket.AF_INET6 else address
            self._found, self.error = f"{head.removesuffix(name)}{address}{colon}{port}", ""


# --- A client's sockets, and what passes between them and its core ----------------------------------------------------
# It has no thread: the poller's leader calls it.


ROUND_S: Final = 0.05
"""Seconds after which a round begins no further operation, and reads no further message of a socket: pings are sent,
and deadlines kept, however much there is to do."""

_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What a new socket may lack for a while."""

_log = logging.getLogger("weft.store")

GOODBYE_MS: Final = 200
"""How long a Bye may take to leave when the client closes."""

Readable: TypeAlias = dict[int, int]
"""The events of descriptors, as `select.poll` returns them."""


class ClientSockets:
    """The sockets to all shards. One thread at a time uses it; `Poller` decides which.

    `submitted` are operations that have not begun. Before a thread waits for descriptors it asks `unread`, as their
    signs may have been cleared. `changes` counts sockets that were opened or closed: what polls them has to register
    them again. `has_more`: the last `send` left frames, which the next one may send.
    """

    def __init__(
        self,
        core: ClientCore,
        memory: ClientMemory,
        endpoints: Sequence[str],
        keys: Sequence[tuple[CurveKeys, str]] = (),
    ) -> None:
        """`keys`: the client's, and each shard's public one, where links are encrypted."""
        self.submitted: deque[Operation] = deque()
        self.changes = 0
        self.has_more = False
        self.core = core
        self._memory = memory
        self._hosts = [*map(Host, endpoints)]
        self._keys = dict(enumerate(keys))
        self._context = zeromq_context()
        self._sockets: dict[int, LinkSocket] = {}
        self._unshared: set[int] = set()
        """Shards that are not offered the client's memory: what one has answered could not be used."""

    def begin(self, now: float) -> None:
        """Begins what was submitted, of much some of it. An operation is taken out once it has begun: whatever is
        raised meanwhile, `close` knows of it."""
        until, submitted = now + ROUND_S, self.submitted
        while submitted and now <= until:
            operation = submitted[0]
            self.core.begin(operation, now)
            if submitted and submitted[0] is operation:  # Else a signal's handler has refused it meanwhile.
                submitted.popleft()
            now = time.monotonic()

    def receive(self, readable: Readable, now: float) -> None:
        """Reads messages, and events of connections: of each socket at least one that has come, before `advance` may
        find its shard silent."""
        until, is_due = now + ROUND_S, now >= self.core.tick_at
        for shard, link_socket in self._sockets.items():
            is_readable = link_socket.fd in readable
            if is_readable or link_socket.is_unread or is_due:
                while (parts := link_socket.receive(is_readable=is_readable)) is not None:
                    is_readable = False
                    # The shard has answered the offer before it sends offsets into shared memory.
                    if link_socket.handover is not None and not link_socket.handover.accepted:
                        self._share(shard, link_socket)
                    now = time.monotonic()
                    self.core.receive(shard, parts, now)
                    if not self.core.open or now > until:  # `unread` finds the rest before a thread sleeps.
                        break
            if is_due or link_socket.monitor_fd in readable:
                ended = link_socket.broke(was_welcomed=self.core.links[shard].welcome is not None)
                if ended is not None:
                    reason, may_pass = ended
                    self.core.disconnected(shard, time.monotonic(), reason, may_pass=may_pass)
            if link_socket.handover is not None and link_socket.handover.fileno() in readable:
                self._share(shard, link_socket)

    def advance(self, now: float) -> None:
        """Checks deadlines and connections, then sends. It follows `receive`, so that urgent slices go first."""
        core = self.core
        if now >= core.tick_at:
            for shard, link_socket in self._sockets.items():
                link = core.links[shard]
                if link_socket.moves() and link.state is LinkState.OPEN:
                    link.heard = now
            core.tick(now)
        self.send(now)
        for link in core.links:
            if link.listener:
                self._offer(link)

    def send(self, now: float, most: float = math.inf) -> None:
        """Sends each shard at most `most` bytes of frames, or one slice that is larger. Ends no future."""
        core = self.core
        self.has_more = core.acknowledges_at_once = False
        for link in core.links:
            if link.flush(now, most):
                self.has_more = True
            if link.outgoing:
                outgoing, link.outgoing = link.outgoing, []
                link_socket = self._sockets.get(link.shard)
                if link.state is LinkState.HANDSHAKE and (link_socket is None or link_socket.session != link.session):
                    link_socket = self._connect(link)
                for parts in outgoing:
                    if link_socket is None or not link_socket.send(parts):
                        core.disconnected(link.shard, time.monotonic())
                        break

    def unread(self) -> bool:
        """Whether a message is there that no descriptor announces any more. Asks every socket that was used."""
        found = False
        for link_socket in self._sockets.values():
            if link_socket.is_unread:
                link_socket.is_unread = bool(int(link_socket.socket.get(EVENTS)) & READABLE)
                found = found or link_socket.is_unread
        return found

    def watch(self, also: Wakeup) -> select.poll:
        """Polls the descriptors of all sockets, and `also`."""
        poll = select.poll()
        poll.register(also, select.POLLIN)
        for link_socket in self._sockets.values():
            poll.register(link_socket.fd, select.POLLIN)
            poll.register(link_socket.monitor_fd, select.POLLIN)
            if link_socket.handover is not None:
                poll.register(link_socket.handover.fileno(), select.POLLIN)
        return poll

    def refuse_submitted(self, reason: str) -> None:
        """Fails what has not begun, for that reason."""
        core, submitted = self.core, self.submitted
        while submitted:
            operation = submitted[0]
            core.outcomes.append((operation, None, StoreClosedError(f"{core.name_of(operation)}: {reason}")))
            if submitted and submitted[0] is operation:  # The same.
                submitted.popleft()

    def close(self, reason: str) -> None:
        """Fails all operations for that reason, says good-bye, and closes everything. `core.end_futures` follows."""
        self.refuse_submitted(reason)
        self.core.close(reason)
        self.send(time.monotonic())
        for shard in list(self._sockets):
            self._drop(shard, GOODBYE_MS)
        self._context.destroy(0)  # With what a signal's handler has kept from being closed.
        self._memory.close()

    def _connect(self, link: ClientLink) -> LinkSocket | None:
        """The socket of a connection that begins; None where there can be none now."""
        self._drop(link.shard, 0)
        now, host, keys = time.monotonic(), self._hosts[link.shard], self._keys.get(link.shard)
        endpoint = host.endpoint(now)
        if endpoint is None:
            self.core.disconnected(link.shard, now, host.error)
            return None
        try:
            made = self._sockets[link.shard] = LinkSocket(self._context, endpoint, link.counts, link.session, keys)
        except zmq.ZMQError as error:
            self.core.disconnected(link.shard, now, str(error), may_pass=error.errno in _SHORTAGES)
            return None
        self.changes += 1
        return made

    def _offer(self, link: ClientLink) -> None:
        """Offers the client's memory to a shard that has just welcomed it, and may be on this host."""
        name, link.listener = link.listener, b""
        arena, link_socket = self._memory.arena, self._sockets.get(link.shard)
        if arena is not None and link.shard not in self._unshared and link_socket is not None:
            try:
                link_socket.handover = Handover(name, (link.hello.process, link.session), arena)
                self.changes += 1
            except ArenaError as error:
                _log.debug("%s: payloads travel as bytes: %s", link.name, error)

    def _share(self, shard: int, link_socket: LinkSocket) -> None:
        """Reads the shard's answer to the offer, or that the shard is gone."""
        handover, link = link_socket.handover, self.core.links[shard]
        assert handover is not None
        handover.receive()
        link.share(handover.peer_memory, taken=handover.accepted)
        if handover.is_unusable:  # The shard may send offsets that cannot be read here: the next one sends bytes.
            _log.warning("%s: payloads travel as bytes from now on: %s", link.name, handover.reason)
            self._unshared.add(shard)
            self.core.disconnected(shard, time.monotonic())
        if handover.fileno() < 0:
            link_socket.handover = None
            self.changes += 1

    def _drop(self, shard: int, linger_ms: int) -> None:
        link_socket = self._sockets.pop(shard, None)
        if link_socket is not None:
            self.changes += 1
            link_socket.close(linger_ms)
            self.core.links[shard].share(None, taken=False)
