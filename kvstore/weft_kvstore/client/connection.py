"""The life of a client's connection to one shard, and failed handshakes. Pure: the time is a parameter."""

from __future__ import annotations

from enum import Enum, Flag, auto
from typing import Final

from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import RefusalCode, Refused, Welcome

# --- How a connection ends before its first message, where the two sides do not have the keys for each other ----------


class HandshakeFailure(Enum):
    """`UNAUTHORIZED`: the shard knows no such key. `MECHANISM_MISMATCH`: one side encrypts, the other does not.
    `BROKEN_OFF`: nobody says why; a shard that has another key than was thought can say nothing that would be
    understood."""

    UNAUTHORIZED = "unauthorized"
    MECHANISM_MISMATCH = "mechanism mismatch"
    BROKEN_OFF = "broken off"

    def told(self, key: str | None) -> str:
        """What a person should look at. `key`: this client's public one; None where it does not encrypt."""
        if self is HandshakeFailure.UNAUTHORIZED:
            told = (
                f"it does not let in a client with the CURVE key {key}: no NAME.key in its directory of clients has it"
            )
            return f"{told} (who connects without curve_keys has one that no shard knows)"
        if self is HandshakeFailure.BROKEN_OFF:
            told = (
                "it broke off the handshake each time: it may have another CURVE key than the description's curve_keys"
            )
            return f"{told} say, or not have started behind a proxy"
        if key is not None:
            return "its links are not encrypted, and the description has curve_keys for them"
        return "its links are encrypted, and the description has no curve_keys for them"


# --- The life of a client's connection to one shard -------------------------------------------------------------------
# State    | What comes                                 | Then
# ---------|--------------------------------------------|-----------------------------------------------------
# DOWN     | the time to try again                      | GREETING: a new socket, and a Hello on it
# GREETING | a fiftieth of the silence without a word   | the Hello is said again
# GREETING | Welcome                                    | OPEN
# GREETING | Refused, which may pass                    | DOWN, before the first Welcome; else refused
# both     | disconnected, or no Hello is known         | DOWN; the time to try again doubles
# GREETING | the keys do not fit                        | refused, for good
# GREETING | the handshake was broken off               | as disconnected; after some in a row it is told
# both     | some seconds without a word                | GREETING: a new socket, and a Hello on it
# any      | any other Refused, another boot, nonsense  | refused, for good: everything fails, no more tries
# any      | the silence without a word since OPEN      | lost besides: everything fails, until a Welcome
#
# Both are GREETING and OPEN. That the shard is lost is no state of the connection: it goes on trying.


FIRST_RETRY_S: Final = 0.02
LAST_RETRY_S: Final = 0.5

HELLOS: Final = 50
"""A Hello is said again so often within the silence, until it is answered: it, or its answer, may have been lost."""

HANDSHAKES: Final = 8
"""So many handshakes in a row that were broken off, some two seconds of them, are told as what they may be. They are
tried on: before a shard that has not started there may be a proxy that takes connections, and drops them."""

AFTER_LOSS: Final = (
    "connect every slot anew and set the values again, as of a snapshot, or restart all shards to begin anew"
)
"""What a person can do then; the other shards still have their values."""

_PASSING: Final = frozenset({RefusalCode.UNKNOWN_JOB, RefusalCode.BUSY})
"""Refusals that may pass: the shard is about to open the job, or to forget a process that died."""


class LinkState(Enum):
    DOWN = "down"
    GREETING = "greeting"
    OPEN = "open"


class Due(Flag):
    """What is to be done now. CONNECT: a new socket, and a Hello on it. HELLO: the Hello again. LOST: the shard
    has just become so."""

    CONNECT = auto()
    PING = auto()
    HELLO = auto()
    LOST = auto()


class Connection:
    """`lost` is why nothing can be asked now; it passes when the same shard process welcomes us again. `refused` is why
    nothing ever can; `at_fault` says that it is this client's doing. `turned_away` is the refusal that may pass with
    which the last connection ended. `session` counts the connections from 1."""

    def __init__(self, name: str, settings: LinkSettings, now: float) -> None:
        self.state = LinkState.DOWN
        self.session = 0
        self.lost: str | None = None
        self.refused: str | None = None
        self.at_fault = False
        self.turned_away: Refused | None = None
        self._name = name
        self._silence_s = settings.silence_s
        self._renewed_after_s = settings.renewed_after_s
        self._wanted_ping_s = self._ping_s = settings.ping_s
        self._boot: bytes | None = None
        self.heard = now
        self._opened = now
        self._pinged = now
        self._retry_at = now
        self._retry_s = FIRST_RETRY_S
        self._broken_off = 0
        self._misfit: str | None = None
        self._is_unexplained = False
        """Whether the last connection has broken, and nobody said that it was in its handshake: that word may come
        second."""

    @property
    def trouble(self) -> str | None:
        """Why the shard does not talk with this client, as far as that is known."""
        said = self.turned_away
        return self.refused or self._misfit or (self.lost if said is None else f"{self._name}: {said.reason}")

    @property
    def is_taken(self) -> bool:
        """Whether another process has the slot, as far as the shard knows."""
        return self.turned_away is not None and self.turned_away.code is RefusalCode.BUSY

    def welcome(self, message: Welcome, now: float) -> bool:
        """The shard talks with us. Whether it is the one that did, on a connection that has not broken meanwhile:
        another has lost what we know of it. Raises ProtocolError for the Welcome of another connection."""
        if message.session == self.session and self.state is LinkState.DOWN:
            return False  # It had come, and was not read, when the connection broke.
        if message.session != self.session or self.state is not LinkState.GREETING:
            raise ProtocolError(f"Welcome.session: {message.session} in {self.state.value}, this is {self.session}")
        if self._boot not in (None, message.boot):
            self.refuse(f"{self._name} has started anew and has lost its values; {AFTER_LOSS}")
            return False
        self._boot = message.boot
        self.state = LinkState.OPEN
        self.lost = None
        self.turned_away = None
        self.at_fault = False
        self.heard = now
        self._retry_s = FIRST_RETRY_S
        self._broken_off, self._misfit = 0, None
        self._ping_s = min(self._wanted_ping_s, message.silence_ms / 4000)
        return True

    def turn_away(self, message: Refused, now: float) -> None:
        """The shard will not talk: now, or never."""
        if message.code in _PASSING and self._boot is None:
            self.turned_away = message
            self.at_fault = True
            self._down(now)
        elif message.code is RefusalCode.UNKNOWN_LINK:
            self.disconnected(now)
        else:
            at_fault = message.code not in {RefusalCode.CLOSED, RefusalCode.UNKNOWN_JOB}
            self.refuse(f"{self._name}: {message.reason}", at_fault=at_fault)

    def refuse(self, reason: str, *, at_fault: bool = False) -> None:
        """Nothing will ever be asked of the shard again."""
        self.refused = reason
        self.at_fault = at_fault

    def disconnected(self, now: float) -> None:
        """The connection has broken."""
        if self.state is not LinkState.DOWN:
            self._was_not_answered()
            self._down(now)
            self._is_unexplained = True

    def shut_out(self, how: HandshakeFailure, now: float, *, key: str | None) -> None:
        """The connection has ended in its handshake. `key`: this client's public one, where the link is encrypted."""
        told = f"{self._name}: {how.told(key)}"
        if how is not HandshakeFailure.BROKEN_OFF:
            self.refuse(told, at_fault=True)
            return
        self.disconnected(now)
        self._is_unexplained = False
        self._broken_off = 0 if key is None else self._broken_off + 1
        self._misfit = told if self._broken_off >= HANDSHAKES else None

    def after_stall(self, stall_s: float) -> None:
        """This process stood still for so long: it could not hear the shard."""
        self.heard += stall_s
        self._opened += stall_s

    def tick(self, now: float) -> Due:
        """What the time asks for. A connection that is due has begun: it is GREETING."""
        due = Due(0)
        if self.refused is not None:
            return due
        if now >= self._connect_at():
            due |= Due.CONNECT
            if self.state is not LinkState.DOWN:
                self._was_not_answered()
            if self._is_unexplained:
                self._broken_off, self._misfit, self._is_unexplained = 0, None, False
            self.session += 1
            self.state = LinkState.GREETING
            self._opened = self._pinged = now
        if self.state is LinkState.OPEN and now - self._pinged >= self._ping_s:
            due |= Due.PING
            self._pinged = now
        if self.state is LinkState.GREETING and now - self._pinged >= self._silence_s / HELLOS:
            due |= Due.HELLO
            self._pinged = now
        if self.lost is None and now - self.heard >= self._silence_s:
            due |= Due.LOST
            self.lost = f"{self._name} has been silent for {now - self.heard:.1f} s (it did not answer)"
        return due

    def next_tick(self) -> float:
        """When `tick` has something to do again."""
        if self.refused is not None:
            return float("inf")
        times = [self._connect_at()]
        if self.state is LinkState.OPEN:
            times.append(self._pinged + self._ping_s)
        if self.state is LinkState.GREETING:
            times.append(self._pinged + self._silence_s / HELLOS)
        if self.lost is None:
            times.append(self.heard + self._silence_s)
        return min(times)

    def _connect_at(self) -> float:
        """When the next connection is due: the time to try again, or some seconds without a word."""
        if self.state is LinkState.DOWN:
            return self._retry_at
        return max(self.heard, self._opened) + self._renewed_after_s

    def _was_not_answered(self) -> None:
        """A connection has ended with no word about it: what was said of earlier ones is out of date."""
        if self.turned_away is not None:
            self.turned_away = None
            self.at_fault = False

    def _down(self, now: float) -> None:
        self.state = LinkState.DOWN
        self._retry_at = now + self._retry_s
        self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)
