"""How an arena is handed to a shard: what is said on its Unix socket, the client's end and the shard's."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

import msgspec

from weft_kvstore.same_host.layout import Lent
from weft_kvstore.same_host.memory import Arena, ArenaError, Mapping, check_sealed
from weft_kvstore.structs import Reader

# --- What client and shard say to each other at the listener: one packet of MessagePack each way ----------------------
# See `docs/same-host.md`.


OFFER_VERSION: Final = 2
NAME_BYTES: Final = 16
TICKET_BYTES: Final = 16
MAX_PACKET_BYTES: Final = 4096
MAX_REASON: Final = 1024
"""Characters of an answer; a shard says at most a quarter, so that any text fits into a packet."""


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="offer"):
    """The client gives its arena, whose descriptor comes with the packet. `ticket` is the one of its Welcome and says
    whose arena this is; `nbytes` is the arena's length."""

    version: Annotated[int, msgspec.Meta(ge=1, le=255)]
    ticket: Annotated[bytes, msgspec.Meta(min_length=TICKET_BYTES, max_length=TICKET_BYTES)]
    nbytes: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="answer"):
    """The shard has mapped the arena, or says why it has not. `lent`: it lends so many bytes of its own, whose
    descriptor comes with the packet."""

    accepted: bool
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)] = ""
    lent: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


_encoder = msgspec.msgpack.Encoder()
_offers: Final[Reader[Offer]] = Reader(Offer)
_answers: Final[Reader[Answer]] = Reader(Answer)


def encode(packet: Offer | Answer) -> bytes:
    return _encoder.encode(packet)


def decode_offer(packet: bytes) -> Offer:
    """Raises ArenaError for bytes that are no offer of this version."""
    try:
        offer = _offers.from_msgpack(packet)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArenaError(f"no offer of an arena: {error}") from error
    if offer.version != OFFER_VERSION:
        raise ArenaError(f"Offer.version: {offer.version}, this shard knows {OFFER_VERSION}")
    return offer


def decode_answer(packet: bytes) -> Answer:
    """Raises ArenaError for bytes that are no answer."""
    try:
        return _answers.from_msgpack(packet)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArenaError(f"no answer to an offer: {error}") from error


def refusal(reason: str) -> Answer:
    return Answer(accepted=False, reason=reason[: MAX_REASON // 4])


def address_of(name: bytes) -> bytes:
    """Where the listener of this name stands: Linux's abstract names, which no file system holds and which are seen
    within one network namespace. Raises ArenaError for what is no name."""
    if len(name) != NAME_BYTES:
        raise ArenaError(f"a listener's name has {NAME_BYTES} bytes, not {len(name)}")
    return b"\0weft-same-host-" + name.hex().encode()


# --- Unix sockets that keep packets apart, and say who is at the other end --------------------------------------------


_MAX_DESCRIPTORS: Final = 4
"""Received at most with one packet; one is expected, the kernel closes what is beyond."""

_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred: process, user, group."""


def packet_socket() -> socket.socket:
    """A socket of packets that never waits. Raises ArenaError where the system has none."""
    try:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except (OSError, AttributeError) as error:
        raise ArenaError(f"no Unix sockets: {error}") from error
    one.setblocking(False)
    return one


def check_user(one: socket.socket, user: int) -> None:
    """Raises ArenaError unless the other end is a process of `user`; the kernel says, not the process."""
    raw = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, other, _ = _CREDENTIALS.unpack(raw)
    if other != user:
        raise ArenaError(f"process {process} is of user {other}, only memory of user {user} is shared")


def receive_packet(one: socket.socket) -> tuple[bytes, list[int]]:
    """The next packet and the descriptors that came with it, which are then the caller's; empty at the end.

    Raises BlockingIOError if there is none yet, other OSErrors, and ArenaError for one that is too long.
    """
    packet, fds, flags, _ = socket.recv_fds(one, MAX_PACKET_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(fds)
        raise ArenaError(f"a packet of over {MAX_PACKET_BYTES} bytes, or with over {_MAX_DESCRIPTORS} descriptors")
    return packet, fds


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


# --- The client's end of an arena's way to one shard ------------------------------------------------------------------
# State    | What comes                                  | Then
# ---------|---------------------------------------------|----------
# OFFERED  | an answer that accepts                      | TAKEN
# OFFERED  | any other answer, the end, anything unclear | REFUSED
# TAKEN    | the end, or any word more                   | GONE
#
# REFUSED and GONE are for good; `reason` says why. None of it is an error of the store: payloads travel as bytes.


class HandoverState(Enum):
    OFFERED = "offered"
    TAKEN = "taken"
    REFUSED = "refused"
    GONE = "gone"


class Handover:
    """Offers what `arena` gives, which is asked for once the listener was found; never waits, and never raises for
    what the other end does.

    `name` and `ticket` are what the shard's Welcome says. The connection stays while the shard may use the arena: its
    end tells either side at once that the other one is gone. Belongs to one thread.
    """

    def __init__(self, name: bytes, ticket: bytes, arena: Callable[[], Arena], *, user: int | None = None) -> None:
        self.state = HandoverState.OFFERED
        self.reason = ""
        self.lent: Mapping | None = None
        """What the shard lends, to be read."""
        self.is_unclear = False
        """Whether the shard may have mapped the arena all the same: its answer could not be used."""
        self._socket: socket.socket | None = None
        try:
            self._offer(name, ticket, arena, os.geteuid() if user is None else user)
        except (OSError, ArenaError) as error:
            self._end(HandoverState.REFUSED, f"no way to the shard's listener on this host: {error}")

    def fileno(self) -> int:
        """Readable when `receive` has something to do; -1 once there is no connection."""
        return -1 if self._socket is None else self._socket.fileno()

    def receive(self) -> None:
        """Takes in what came. No harm if nothing did."""
        if self._socket is None:
            return
        try:
            answer = _answer(self._socket)
        except BlockingIOError:
            return
        except (OSError, ArenaError) as error:
            self.is_unclear = True
            self._end(self._ended, str(error))
            return
        if answer is None:
            self._end(self._ended, "the shard closed the connection")
        elif self.state is HandoverState.TAKEN:
            self._end(self._ended, "the shard answered twice")
        elif answer[0].accepted:
            self.state, self.lent = HandoverState.TAKEN, answer[1]
        else:
            self._end(self._ended, answer[0].reason)

    def close(self) -> None:
        """The shard is to let the arena go. Idempotent."""
        self._end(self._ended, self.reason or "closed")

    @property
    def _ended(self) -> HandoverState:
        return {HandoverState.OFFERED: HandoverState.REFUSED, HandoverState.TAKEN: HandoverState.GONE}.get(
            self.state, self.state
        )

    def _offer(self, name: bytes, ticket: bytes, arena: Callable[[], Arena], user: int) -> None:
        self._socket = packet_socket()
        self._socket.connect(address_of(name))
        check_user(self._socket, user)
        made = arena()
        offer = Offer(OFFER_VERSION, ticket, made.nbytes)
        socket.send_fds(self._socket, [encode(offer)], [made.fd])

    def _end(self, state: HandoverState, reason: str) -> None:
        self.state, self.reason = state, reason
        self.lent = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _answer(one: socket.socket) -> tuple[Answer, Mapping | None] | None:
    """What the shard says, and what it lends; None at the end."""
    try:
        packet, fds = receive_packet(one)
    except ConnectionResetError:
        # The shard closed without reading the offer; what it said before comes after the error.
        packet, fds = receive_packet(one)
    try:
        if not packet:
            return None
        answer = decode_answer(packet)
        if len(fds) != int(answer.lent > 0):
            raise ArenaError(f"{len(fds)} descriptors came with an answer that lends {answer.lent} bytes")
        if not answer.lent:
            return answer, None
        check_sealed(fds[0], answer.lent, answer.lent)
        return answer, Mapping(fds[0], answer.lent, read_only=True)
    finally:
        close_all(fds)


# --- The shard's end: where clients of its host bring their arenas ----------------------------------------------------


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
    lent: Lent | None = None
    guest: _Guest | None = None
    mapping: Mapping | None = None


class ArenaListener:
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
            raise ArenaError(f"no listener for clients of this host: {error}") from error
        self._epoll.register(self._socket, select.EPOLLIN)

    def fileno(self) -> int:
        """Readable when `receive` has something to do."""
        return self._epoll.fileno()

    def expect(self, most_bytes: int, lent: Lent | None = None) -> bytes:
        """A ticket for one arena of at most `most_bytes`; whoever brings it gets what is `lent`."""
        ticket = os.urandom(TICKET_BYTES)
        self._expected[ticket] = _Expected(most_bytes, lent)
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

    def __enter__(self) -> ArenaListener:
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
        if (lent := expected.lent) is not None:
            socket.send_fds(guest.socket, [encode(Answer(accepted=True, lent=lent.nbytes))], [lent.fd])
        else:
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
