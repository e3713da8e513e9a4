"""How client and shard give each other their shared memory: what is said on a Unix socket, and both ends."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from weft_kvstore.arrays import Array
from weft_kvstore.same_host.memory import ArenaError, SharedMemory, map_shared

# --- What they say: one packet each way. See `docs/same-host.md` ------------------------------------------------------


OFFER_VERSION: Final = 5
NAME_BYTES: Final = 16
MAX_PACKET_BYTES: Final = 4096

OFFER: Final = struct.Struct("<B16sQ")
"""Of the client: the version, and `process` and `session` of its Hello. The arena's descriptor comes with it."""

MAPPED: Final = b"\1"
"""Of the shard: it has mapped the arena. The descriptor of its own memory comes with the packet, if it shares any."""

REFUSED: Final = b"\0"
"""Of the shard: it has not, and the reason follows."""

MOST_WAITING: Final = 4096
"""So many clients may wait for the listener, if the system allows it: all slots of a host may connect at once. The
payloads of a client that finds no room travel as bytes."""

LinkId: TypeAlias = tuple[bytes, int]
"""A connection of the store: `process` and `session` of its Hello."""

_log = logging.getLogger("weft.store")


def address_of(name: bytes) -> bytes:
    """Where the listener of this name stands: Linux's abstract names, which no file system holds and which are seen
    within one network namespace. Raises ArenaError for what is no name."""
    if len(name) != NAME_BYTES:
        raise ArenaError(f"a listener's name has {NAME_BYTES} bytes, not {len(name)}")
    return b"\0weft-same-host-" + name.hex().encode()


# --- Unix sockets that keep packets apart, and say who is at the other end --------------------------------------------


_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred: process, user, group."""


def _packet_socket() -> socket.socket:
    """A socket of packets that never waits. Raises ArenaError where the system has none."""
    try:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except (OSError, AttributeError) as error:
        raise ArenaError(f"no Unix sockets: {error}") from error
    one.setblocking(False)
    return one


def _check_user(one: socket.socket) -> None:
    """Raises ArenaError unless the other end is a process of this one's user; the kernel says, not the process."""
    user, raw = os.geteuid(), one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, other, _ = _CREDENTIALS.unpack(raw)
    if other != user:
        raise ArenaError(f"process {process} is of user {other}, only memory of user {user} is shared")


@contextlib.contextmanager
def _packet(one: socket.socket) -> Iterator[tuple[bytes, list[int]]]:
    """The next packet, empty at the end, and the descriptors that came with it, which are closed behind it. Raises
    BlockingIOError if there is none yet, other OSErrors, and ArenaError for one that is too long."""
    packet, fds, flags, _ = socket.recv_fds(one, MAX_PACKET_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ArenaError(f"a packet of over {MAX_PACKET_BYTES} bytes, or with over 2 descriptors")
        yield packet, fds
    finally:
        for fd in fds:
            os.close(fd)


# --- The client's end -------------------------------------------------------------------------------------------------


class Handover:
    """Offers an arena to the listener of a shard; never waits. Raises ArenaError where there is no way to it.

    `accepted` once the shard has mapped the arena, until the connection ends; `peer_memory` is then the shard's memory,
    if it shares any. The connection stays while both use each other's memory: its end tells either side at once that
    the other one is gone. Belongs to one thread. Once it has ended it is over, and `reason` says why. That is no error
    of the store: payloads travel as bytes then."""

    def __init__(self, name: bytes, link: LinkId, arena: SharedMemory) -> None:
        self.accepted = False
        self.reason = ""
        self.peer_memory: Array | None = None
        self.is_unusable = False
        """Whether the shard's answer could not be used: it may have mapped the arena all the same."""
        self._socket = _packet_socket()
        try:
            self._socket.connect(address_of(name))
            _check_user(self._socket)
            socket.send_fds(self._socket, [OFFER.pack(OFFER_VERSION, *link)], [arena.fd])
        except (OSError, ValueError, ArenaError) as error:
            self._socket.close()
            raise ArenaError(f"no way to the shard's listener on this host: {error}") from error

    def fileno(self) -> int:
        """Readable when `receive` has something to do; -1 once the connection has ended."""
        return self._socket.fileno()

    def receive(self) -> None:
        """Reads the answer, or the end of the connection, if it is there."""
        if self._socket.fileno() < 0:
            return
        try:
            with _packet(self._socket) as (packet, fds):
                if not packet or self.accepted:
                    self.close(self.reason or "the shard closed the connection")
                    return
                if packet.startswith(REFUSED):
                    self.close(packet.removeprefix(REFUSED).decode(errors="replace"))
                    return
                if packet != MAPPED or len(fds) > 1:
                    raise ArenaError(f"an answer of {len(packet)} bytes and {len(fds)} descriptors that means nothing")
                self.peer_memory = map_shared(fds[0]) if fds else None
                self.accepted = True
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.receive()  # The shard closed without reading the offer; what it said before comes after the error.
        except (OSError, ArenaError) as error:
            self.is_unusable = True
            self.close(str(error))

    def close(self, reason: str = "closed") -> None:
        """Ends the use of the shard's memory. Idempotent."""
        if self._socket.fileno() >= 0:
            self.accepted, self.peer_memory, self.reason = False, None, reason
            with contextlib.suppress(OSError):  # Also for a child that was forked meanwhile, and has it too.
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()


# --- The shard's end --------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Client:
    socket: socket.socket
    link: LinkId | None = None
    """Set once its arena is mapped."""


class ArenaListener:
    """A Unix socket with a name drawn at random, which goes into a client's Welcome. `arenas` are the memories (bytes)
    uint8 that were brought, by connection, while the client's end is there. Whoever brings one gets `shared_memory`,
    where there is some.

    The kernel says whose process connects: one of another user is turned away, and counted in `refused`. Never waits.
    Belongs to one thread. Raises ArenaError where the system has no such sockets.
    """

    def __init__(self) -> None:
        self.name = os.urandom(NAME_BYTES)
        self.refused = 0
        self.shared_memory: SharedMemory | None = None
        self.arenas: dict[LinkId, Array] = {}
        self._clients: dict[int, _Client] = {}
        self._fails = False
        """Whether the last client could not be accepted, which is logged once."""
        self._socket = _packet_socket()
        try:
            self._socket.bind(address_of(self.name))
            self._socket.listen(MOST_WAITING)
            self._epoll = select.epoll()
        except (OSError, AttributeError) as error:
            self._socket.close()
            raise ArenaError(f"no listener for clients of this host: {error}") from error
        self._epoll.register(self._socket, select.EPOLLIN | select.EPOLLET)

    def fileno(self) -> int:
        """Readable when `receive` has something to do."""
        return self._epoll.fileno()

    def receive(self) -> None:
        """Accepts clients, reads their offers, and drops those that are gone."""
        for fd, _ in self._epoll.poll(0):
            client = self._clients.get(fd)
            if client is None:
                pass  # The listening socket, which is asked in any case.
            elif client.link is not None:  # It is gone, or says more than it may.
                self._drop(client)
            else:
                self._hear(client)
        while self._accept():
            pass

    def close(self) -> None:
        """Drops every arena. Idempotent."""
        for client in list(self._clients.values()):
            self._drop(client)
        self._epoll.close()
        self._socket.close()

    def _accept(self) -> bool:
        """Whether a client was accepted. The listening socket is edge-triggered: if no descriptor is left for a client,
        the socket does not stay readable, and the next `receive` tries again."""
        try:
            one, _ = self._socket.accept()
        except BlockingIOError:
            self._fails = False
            return False
        except OSError as error:
            if not self._fails:
                _log.warning("this shard cannot share memory with more clients of its host for now: %s", error)
            self._fails = True
            return False
        one.setblocking(False)
        client = self._clients[one.fileno()] = _Client(one)
        self._epoll.register(one, select.EPOLLIN)
        try:
            _check_user(one)
        except (OSError, ArenaError) as error:
            self._refuse(client, str(error))
        return True

    def _hear(self, client: _Client) -> None:
        try:
            with _packet(client.socket) as (packet, fds):
                if packet:
                    self._take(client, packet, fds)
                else:
                    self._drop(client)
        except BlockingIOError:
            pass
        except (OSError, ArenaError) as error:
            self._refuse(client, str(error))

    def _take(self, client: _Client, packet: bytes, fds: list[int]) -> None:
        if packet[0] != OFFER_VERSION:
            raise ArenaError(f"Offer.version: {packet[0]}, this shard knows {OFFER_VERSION}")
        if len(packet) != OFFER.size:
            raise ArenaError(f"an offer of {len(packet)} bytes, which has {OFFER.size}")
        _, process, session = OFFER.unpack(packet)
        if (process, session) in self.arenas:
            raise ArenaError("Offer.session: its arena has come already")
        if len(fds) != 1:
            raise ArenaError(f"{len(fds)} descriptors came with the offer, there must be one")
        memory, own = map_shared(fds[0]), self.shared_memory
        socket.send_fds(client.socket, [MAPPED], [own.fd] if own else [])
        client.link = process, session
        self.arenas[client.link] = memory

    def _refuse(self, client: _Client, reason: str) -> None:
        self.refused += 1
        with contextlib.suppress(OSError):
            client.socket.send((REFUSED + reason.encode())[:MAX_PACKET_BYTES])
        self._drop(client)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.socket.fileno()]
        self._epoll.unregister(client.socket)
        client.socket.close()
        if client.link is not None:
            del self.arenas[client.link]
