"""The life of a client's connection to one shard. Pure: the time is a parameter."""

from __future__ import annotations

import math
from enum import Enum, Flag, auto
from typing import Final

from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import RefusalCode, Refused, Welcome

# --- The life of a client's connection to one shard -------------------------------------------------------------------
# State    | What comes                                 | Then
# ---------|--------------------------------------------|-----------------------------------------------------
# DOWN     | the time to try again                      | GREETING: a new socket, and a Hello on it
# GREETING | a fiftieth of the silence without a word   | the Hello is said again
# GREETING | Welcome                                    | OPEN
# GREETING | Refused, which may pass                    | DOWN, before the first Welcome; else refused
# both     | disconnected, or no Hello is known         | DOWN; the time to try again doubles
# GREETING | the keys do not fit                        | refused, for good
# GREETING | the handshake was broken off               | as disconnected, and the reason that it may have
# both     | some seconds without a word                | GREETING: a new socket, and a Hello on it
# any      | any other Refused, another boot, nonsense  | refused, for good: everything fails, no more tries
# any      | the silence without a word since OPEN      | lost besides: everything fails, until a Welcome
#
# Both are GREETING and OPEN. That the shard is lost is no state of the connection: it goes on trying.


FIRST_RETRY_S: Final = 0.02
LAST_RETRY_S: Final = 0.5

HELLOS: Final = 50
"""A Hello is said again so often within the silence, until it is answered: it, or its answer, may have been lost."""

AFTER_LOSS: Final = (
    "restart all shards, connect every slot with step= and restore the values that you have saved after that step"
)
"""What a person can do then: the other shards have later values, which would not fit."""

_PASSING: Final = frozenset({RefusalCode.UNKNOWN_JOB, RefusalCode.BUSY})
"""Refusals that may pass: the shard is about to open the job, or to forget a process that died."""


class LinkState(Enum):
    DOWN = "down"
    GREETING = "greeting"
    OPEN = "open"


class Due(Flag):
    """What to do now. CONNECT: open a new socket and send a Hello. KEEPALIVE: send the Hello again, or a Ping. LOST:
    fail what waits for the shard."""

    CONNECT = auto()
    KEEPALIVE = auto()
    LOST = auto()


class Connection:
    """The state of the connection to one shard.

    `lost`: why the shard cannot be asked now; None again once the same shard process welcomes this client. `refused`:
    why it never can be; `at_fault`: the reason is this client. `end_reason`: why the last connection ended, if the
    shard said so and it may pass; `is_taken`: another process has the slot. `session` counts connections from 1.
    """

    def __init__(self, name: str, settings: LinkSettings, now: float) -> None:
        self.state = LinkState.DOWN
        self.session = 0
        self.lost: str | None = None
        self.refused: str | None = None
        self.end_reason: str | None = None
        self.is_taken = False
        self.at_fault = False
        self.heard = now
        self._name = name
        self._silence_s = settings.silence_s
        self._renewed_after_s = settings.renewed_after_s
        self._ping_s = settings.ping_s
        self.boot = b""
        """That of the shard process which has welcomed this client."""
        self._opened = now
        self._kept_alive_at = now
        self._retry_at = now
        self._retry_s = FIRST_RETRY_S

    @property
    def trouble(self) -> str | None:
        """Why the shard does not talk with this client, as far as that is known."""
        return self.refused or self.end_reason or self.lost

    def on_welcome(self, message: Welcome, now: float) -> bool:
        """The shard accepts this client. False if the connection has broken meanwhile, or if the shard has restarted,
        and so has lost its values. Raises ProtocolError for the Welcome of another connection."""
        if message.session == self.session and self.state is LinkState.DOWN:
            return False  # It had come, and was not read, when the connection broke.
        if message.session != self.session or self.state is not LinkState.GREETING:
            raise ProtocolError(f"Welcome.session: {message.session} in {self.state.value}, this is {self.session}")
        if self.boot not in {b"", message.boot}:
            self.refuse(f"{self._name} has started anew and has lost its values; {AFTER_LOSS}")
            return False
        self.boot = message.boot
        self.state = LinkState.OPEN
        self.lost = self.end_reason = None
        self.at_fault = self.is_taken = False
        self.heard = now
        self._retry_s = FIRST_RETRY_S
        self._ping_s = min(self._ping_s, message.silence_ms / 4000)
        return True

    def on_refused(self, message: Refused, now: float) -> None:
        """The shard rejects this client, for now or for good."""
        code, reason = message.code, f"{self._name}: {message.reason}"
        if code in _PASSING and not self.boot:
            self.disconnected(now)
            self.end_reason, self.is_taken, self.at_fault = reason, code is RefusalCode.BUSY, True
        elif code is RefusalCode.UNKNOWN_LINK:
            self.disconnected(now)
        else:
            self.refuse(reason, at_fault=code not in {RefusalCode.CLOSED, RefusalCode.UNKNOWN_JOB})

    def refuse(self, reason: str, *, at_fault: bool = False) -> None:
        """The shard is given up for good."""
        self.refused = reason
        self.at_fault = at_fault

    def disconnected(self, now: float) -> None:
        """The connection has broken."""
        if self.state is not LinkState.DOWN:
            self.state = LinkState.DOWN
            self.end_reason, self.is_taken, self.at_fault = None, False, False
            self._retry_at = now + self._retry_s
            self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)

    def handshake_failed(self, reason: str, now: float, *, may_pass: bool) -> None:
        """The connection has ended in its handshake."""
        if may_pass:
            self.disconnected(now)
            self.end_reason = f"{self._name}: {reason}"
        else:
            self.refuse(f"{self._name}: {reason}", at_fault=True)

    def after_stall(self, stall_s: float, now: float) -> None:
        """This process stood still for so long: it could not hear the shard."""
        self.heard = min(self.heard + stall_s, now)
        self._opened = min(self._opened + stall_s, now)

    def tick(self, now: float) -> Due:
        """What is due. With CONNECT the state is GREETING from now on."""
        due = Due(0)
        if self.refused is not None:
            return due
        if now >= self._connect_at():
            due |= Due.CONNECT
            if self.state is not LinkState.DOWN:  # What was said of earlier ones is out of date.
                self.end_reason, self.is_taken, self.at_fault = None, False, False
            self.session += 1
            self.state = LinkState.GREETING
            self._opened = self._kept_alive_at = now
        if now >= self._keepalive_at():
            due |= Due.KEEPALIVE
            self._kept_alive_at = now
        if self.lost is None and now - self.heard >= self._silence_s:
            due |= Due.LOST
            self.lost = f"{self._name} has been silent for {now - self.heard:.1f} s (it did not answer)"
        return due

    def next_tick(self) -> float:
        """When `tick` has something to do again."""
        if self.refused is not None:
            return math.inf
        lost_at = self.heard + self._silence_s if self.lost is None else math.inf
        return min(self._connect_at(), self._keepalive_at(), lost_at)

    def _connect_at(self) -> float:
        """When the next connection is due: the time to try again, or some seconds without a word."""
        if self.state is LinkState.DOWN:
            return self._retry_at
        return max(self.heard, self._opened) + self._renewed_after_s

    def _keepalive_at(self) -> float:
        if self.state is LinkState.DOWN:
            return math.inf
        return self._kept_alive_at + (self._ping_s if self.state is LinkState.OPEN else self._silence_s / HELLOS)
