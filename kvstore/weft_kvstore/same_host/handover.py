"""The client's end of an arena's way to one shard.

| State    | What comes                                  | Then     |
|----------|---------------------------------------------|----------|
| OFFERED  | an answer that accepts                      | TAKEN    |
| OFFERED  | any other answer, the end, anything unclear | REFUSED  |
| TAKEN    | the end, or any word more                   | GONE     |

REFUSED and GONE are for good; `reason` says why. None of it is an error of the store: payloads travel as bytes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from enum import Enum

from weft_kvstore.same_host.arena import Arena
from weft_kvstore.same_host.errors import ArenaError
from weft_kvstore.same_host.offer import OFFER_VERSION, Answer, Offer, address_of, decode_answer, encode
from weft_kvstore.same_host.unix_socket import check_user, close_all, packet_socket, receive_packet


class HandoverState(Enum):
    OFFERED = "offered"
    TAKEN = "taken"
    REFUSED = "refused"
    GONE = "gone"


class Handover:
    """Offers what `arena` gives, which is asked for once the door was found; never waits, and never raises for what the
    other end does.

    `name` and `ticket` are what the shard's Welcome says. The connection stays while the shard may use the arena: its
    end tells either side at once that the other one is gone. Belongs to one thread.
    """

    def __init__(self, name: bytes, ticket: bytes, arena: Callable[[], Arena], *, user: int | None = None) -> None:
        self.state = HandoverState.OFFERED
        self.reason = ""
        self._socket: socket.socket | None = None
        try:
            self._offer(name, ticket, arena, os.geteuid() if user is None else user)
        except (OSError, ArenaError) as error:
            self._end(HandoverState.REFUSED, f"no way to the shard's door on this host: {error}")

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
            self._end(self._ended, str(error))
            return
        if answer is None:
            self._end(self._ended, "the shard closed the connection")
        elif self.state is HandoverState.TAKEN:
            self._end(self._ended, "the shard answered twice")
        elif answer.accepted:
            self.state = HandoverState.TAKEN
        else:
            self._end(self._ended, answer.reason)

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
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _answer(one: socket.socket) -> Answer | None:
    """What the shard says; None at the end."""
    try:
        packet, fds = receive_packet(one)
    except ConnectionResetError:
        # The shard closed without reading the offer; what it said before comes after the error.
        packet, fds = receive_packet(one)
    close_all(fds)
    return decode_answer(packet) if packet else None
