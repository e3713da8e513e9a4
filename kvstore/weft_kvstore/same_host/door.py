"""The shard's end: where clients of its host bring their arenas."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from weft_kvstore.same_host.errors import ArenaError
from weft_kvstore.same_host.mapping import Mapping
from weft_kvstore.same_host.offer import (
    NAME_BYTES,
    TICKET_BYTES,
    Answer,
    Offer,
    address_of,
    decode_offer,
    encode,
    refusal,
)
from weft_kvstore.same_host.sealed_memory import check_sealed
from weft_kvstore.same_host.unix_socket import check_user, close_all, packet_socket, receive_packet

MAX_WAITING: Final = 64
"""Connections that have offered nothing yet; one more is closed at once, and its client sends bytes."""

OFFER_TIMEOUT_S: Final = 5.0
"""Seconds from connecting to the offer; a client sends both in one go."""

_ACCEPTED_A_ROUND: Final = 16


@dataclass(slots=True, eq=False)
class _Guest:
    socket: socket.socket
    until: float
    ticket: bytes | None = None


@dataclass(slots=True)
class _Expected:
    """What a ticket is good for, and what has come for it."""

    most_bytes: int
    guest: _Guest | None = None
    mapping: Mapping | None = None


class Door:
    """A Unix socket with a name drawn at random. `name` and a ticket of `expect`, a secret, go into a client's Welcome.

    The kernel says whose process connects: one of another user than `user` (this process's own unless given) is turned
    away. An arena is kept while its client's connection lasts and its ticket is not forgotten; then it is unmapped with
    the last array in it. Never waits. Belongs to one thread. Raises ArenaError where the system has no such sockets.
    """

    def __init__(self, *, user: int | None = None) -> None:
        self.name = os.urandom(NAME_BYTES)
        self.refused = 0
        """Offers and connections that were turned away."""
        self._user = os.geteuid() if user is None else user
        self._expected: dict[bytes, _Expected] = {}
        self._guests: dict[int, _Guest] = {}
        self._listens = True
        self._socket = packet_socket()
        try:
            self._socket.bind(address_of(self.name))
            self._socket.listen(MAX_WAITING)
            self._epoll = select.epoll()
        except (OSError, AttributeError) as error:
            self._socket.close()
            raise ArenaError(f"no door for clients of this host: {error}") from error
        self._epoll.register(self._socket, select.EPOLLIN)

    def fileno(self) -> int:
        """Readable when `receive` has something to do."""
        return self._epoll.fileno()

    def expect(self, most_bytes: int) -> bytes:
        """A ticket for one arena of at most `most_bytes`."""
        ticket = os.urandom(TICKET_BYTES)
        self._expected[ticket] = _Expected(most_bytes)
        return ticket

    def forget(self, ticket: bytes) -> None:
        """The link that the ticket was for is lost: its arena is let go. No harm if there is none."""
        expected = self._expected.pop(ticket, None)
        if expected is None:
            return
        if expected.guest is not None:
            self._drop(expected.guest)
        if expected.mapping is not None:
            expected.mapping.release()

    def arena(self, ticket: bytes) -> Mapping | None:
        """What was brought for the ticket and is still there."""
        expected = self._expected.get(ticket)
        return None if expected is None else expected.mapping

    @property
    def arenas(self) -> int:
        return sum(1 for _ in self._mappings())

    def receive(self, now: float) -> None:
        """Takes in what came. No harm if nothing did."""
        for fd, _ in self._epoll.poll(0):
            if fd == self._socket.fileno():
                self._accept(now)
            elif (guest := self._guests.get(fd)) is not None:
                self._hear(guest)

    def tick(self, now: float) -> None:
        """Turns away who has come and offers nothing; to be called every second or so."""
        for guest in [one for one in self._guests.values() if one.ticket is None and now >= one.until]:
            self._refuse(guest, f"nothing was offered for {OFFER_TIMEOUT_S} s")
        if not self._listens:
            self._listens = True
            self._epoll.register(self._socket, select.EPOLLIN)

    def close(self) -> None:
        """Lets every arena go. Idempotent."""
        for ticket in list(self._expected):
            self.forget(ticket)
        for guest in list(self._guests.values()):
            self._drop(guest)
        self._epoll.close()
        self._socket.close()

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mappings(self) -> Iterator[Mapping]:
        return (one.mapping for one in self._expected.values() if one.mapping is not None)

    def _accept(self, now: float) -> None:
        for _ in range(_ACCEPTED_A_ROUND):
            try:
                one, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                    # Who waits stays in the queue; looking again at once would be a busy loop.
                    self._epoll.unregister(self._socket)
                    self._listens = False
                return
            one.setblocking(False)
            guest = _Guest(one, now + OFFER_TIMEOUT_S)
            self._guests[one.fileno()] = guest
            self._epoll.register(one, select.EPOLLIN)
            self._greet(guest)

    def _greet(self, guest: _Guest) -> None:
        try:
            check_user(guest.socket, self._user)
        except (OSError, ArenaError) as error:
            self._refuse(guest, str(error))
            return
        if sum(one.ticket is None for one in self._guests.values()) > MAX_WAITING:
            self._refuse(guest, f"{MAX_WAITING} others have come and have offered nothing yet")

    def _hear(self, guest: _Guest) -> None:
        """An offer, or the end of a connection. Whoever has given an arena and says more has ended it too."""
        if guest.ticket is not None:
            self.forget(guest.ticket)
            return
        fds: list[int] = []
        try:
            packet, fds = receive_packet(guest.socket)
            if not packet:
                self._drop(guest)
            else:
                self._take(guest, decode_offer(packet), fds)
        except BlockingIOError:
            pass
        except (OSError, ArenaError) as error:
            self._refuse(guest, str(error))
        finally:
            close_all(fds)

    def _take(self, guest: _Guest, offer: Offer, fds: list[int]) -> None:
        expected = self._expected.get(offer.ticket)
        if expected is None:
            raise ArenaError("Offer.ticket: it is not one that was given out, or its link is lost")
        if expected.guest is not None:
            raise ArenaError("Offer.ticket: an arena has come for it already")
        if len(fds) != 1:
            raise ArenaError(f"{len(fds)} descriptors came with the offer, there must be one")
        check_sealed(fds[0], offer.nbytes, expected.most_bytes)
        mapping = Mapping(fds[0], offer.nbytes)
        guest.socket.send(encode(Answer(accepted=True)))
        guest.ticket = offer.ticket
        expected.guest, expected.mapping = guest, mapping

    def _refuse(self, guest: _Guest, reason: str) -> None:
        self.refused += 1
        with contextlib.suppress(OSError):
            guest.socket.send(encode(refusal(reason)))
        self._drop(guest)

    def _drop(self, guest: _Guest) -> None:
        if self._guests.pop(guest.socket.fileno(), None) is not None:
            self._epoll.unregister(guest.socket)
            guest.socket.close()
