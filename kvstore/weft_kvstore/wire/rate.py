"""How fast a link delivers, and how much may be under way on it. Pure: the time is a parameter."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final, NamedTuple

from weft_kvstore.settings import LinkSettings

# --- How fast a link is, from when its frames are acknowledged --------------------------------------------------------
# A sample is the bytes acknowledged within a window, over its time. A window has at least four times the credit: an
# acknowledgement may wait behind the other direction's data and come together with others, so that what one frame tells
# is far off, and a rate that is too high would make the credit, and with it that queue, larger still. The rate is the
# median of the last windows. A window in which the link had nothing more to send says little: it counts only where it
# is larger than the rate so far.


WINDOWS_KEPT: Final = 5
"""Windows that the rate is the median of: a link that became slower is known three of them later."""

GROWTH: Final = 1.25
"""Two windows in a row that are so much faster are the link's rate: the credit was what held it back."""

WINDOW_CREDITS: Final = 4
"""How often the credit passes in a window."""

LEAST_WINDOW_BYTES: Final = 256 << 10
"""What a window has at least that ends early, because everything was acknowledged."""

MIN_ELAPSED_S: Final = 1e-5
"""Shorter times are the clock's and the scheduler's, not the link's."""


class SentFrame(NamedTuple):
    """When a frame left."""

    at: float


class LinkRate:
    """The delivery rate of one direction of a link. `bytes_per_s` is None until a first window has ended, and
    `round_trip_s` is the shortest time ever seen: later ones hold the queue that the credit itself makes.

    A window begins when one ends, or when a frame leaves while none is under way.
    """

    def __init__(self) -> None:
        self.bytes_per_s: float | None = None
        self.round_trip_s = 0.0
        self._windows: deque[float] = deque(maxlen=WINDOWS_KEPT)
        self._under_way = 0
        self._begun = 0.0
        self._bytes = 0
        self._starved = False
        self._seen = False

    def sent_frame(self, now: float, *, full: bool) -> SentFrame:
        """A mark to keep with a frame that leaves now; `full`: the credit, not a lack of slices, ends the sending."""
        if not self._under_way:
            self._begun, self._bytes, self._starved = now, 0, False
        self._under_way += 1
        self._starved = self._starved or not full
        return SentFrame(now)

    def acknowledged(self, sent_frame: SentFrame, nbytes: int, now: float, credit: int) -> bool:
        """A frame of `nbytes` has arrived; `credit` is what may be under way at this moment. Whether that tells more of
        the link than was known."""
        self._under_way -= 1
        self._bytes += nbytes
        trip = max(now - sent_frame.at, MIN_ELAPSED_S)
        news = not self._seen or trip < self.round_trip_s
        if news:
            self.round_trip_s, self._seen = trip, True
        whole = self._bytes >= WINDOW_CREDITS * credit
        if whole or (not self._under_way and self._bytes >= LEAST_WINDOW_BYTES):
            self._end(now, says_all=whole and not self._starved)
            return True
        return news

    def passed_by(self) -> None:
        """A frame has arrived that says nothing of the link: it had no bytes, or they passed through no socket."""
        self._under_way -= 1

    def _end(self, now: float, *, says_all: bool) -> None:
        sample = self._bytes / max(now - self._begun, MIN_ELAPSED_S)
        if says_all or self.bytes_per_s is None or sample > self.bytes_per_s:
            last = self._windows[-1] if self._windows else sample
            if self.bytes_per_s is not None and min(last, sample) > GROWTH * self.bytes_per_s:
                self._windows.clear()
                self._windows.append(last)
            self._windows.append(sample)
            self.bytes_per_s = statistics.median_high(self._windows)
        self._begun, self._bytes, self._starved = now, 0, False


# --- How much may be under way on a link, and how long a frame may be, by the rate at which it delivers ---------------


FRAME_TIME_S: Final = 0.002
"""Time of the link's rate that a frame may take: what has begun cannot be overtaken."""
CREDIT_TIME_S: Final = 0.004
"""Time of the link's rate, beside its round trip, that is under way: two frames, which keep it busy."""
CREDIT_BASE_BYTES: Final = 192 << 10
"""What is under way besides. A window that is a time of the rate alone has no size of its own to come back to: the
larger one of two directions that share their acknowledgements' way would starve the other."""
MIN_FRAME_BYTES: Final = 32 << 10
MAX_AUTO_FRAME_BYTES: Final = 4 << 20
MIN_CREDIT_BYTES: Final = 128 << 10
FIRST_CREDIT_BYTES: Final = 256 << 10
"""Before anything is measured: a slow link's 20 ms at 100 Mbit/s."""
MAX_AUTO_CREDIT_BYTES: Final = 8 << 20
LOOPBACK_RATE: Final = 125e6
"""Bytes a second, those of 1 Gbit/s, above which loopback is no link that somebody slowed down on purpose: what bounds
it is the processors' time. A frame costs them as much whatever its size, so that small ones keep it slow, and its rate
them small."""
LOOPBACK_TIMES: Final = 8
"""How much longer than on other links a frame may take there, at most."""
LOOPBACK_FRAME_BYTES: Final = 8 << 20
LOOPBACK_CREDIT_BYTES: Final = 32 << 20
SHARED_FRAME_BYTES: Final = 8 << 20
SHARED_CREDIT_BYTES: Final = 32 << 20
"""Where bytes pass through shared memory: they have no rate that a frame would have to fit."""


class LinkBounds(NamedTuple):
    """Bytes that may be sent and not acknowledged, and bytes of a frame."""

    credit_bytes: int
    frame_bytes: int


def link_bounds(rate: LinkRate, settings: LinkSettings, *, loopback: bool, shared: bool) -> LinkBounds:
    """What the settings say; else by the rate. `loopback`: the link is no network's; `shared`: bytes pass no socket."""
    credit, frame = settings.credit_bytes, settings.frame_bytes
    if credit is None:
        credit = SHARED_CREDIT_BYTES if shared else _credit(rate, loopback=loopback)
    if frame is None:
        frame = SHARED_FRAME_BYTES if shared else _frame(rate, loopback=loopback)
    return LinkBounds(credit, frame)


def _credit(measured: LinkRate, *, loopback: bool) -> int:
    rate, round_trip_s = measured.bytes_per_s, measured.round_trip_s
    if rate is None:
        return FIRST_CREDIT_BYTES
    # Twice the round trip at least: a long link's rate is measured under the credit, and with less never found.
    times = _times(rate, loopback=loopback)
    wanted = CREDIT_BASE_BYTES + int(rate * (round_trip_s + max(CREDIT_TIME_S * times, round_trip_s)))
    return min(max(wanted, MIN_CREDIT_BYTES), LOOPBACK_CREDIT_BYTES if loopback else MAX_AUTO_CREDIT_BYTES)


def _frame(measured: LinkRate, *, loopback: bool) -> int:
    rate = measured.bytes_per_s
    wanted = 0 if rate is None else int(rate * FRAME_TIME_S * _times(rate, loopback=loopback))
    return min(max(wanted, MIN_FRAME_BYTES), LOOPBACK_FRAME_BYTES if loopback else MAX_AUTO_FRAME_BYTES)


def _times(rate: float, *, loopback: bool) -> float:
    """How much longer than elsewhere a frame may take: more the faster a loopback is, and little more than once where
    its rate is a slow link's that was measured a little too high."""
    return min(max((rate / LOOPBACK_RATE) ** 2, 1.0), LOOPBACK_TIMES) if loopback else 1.0
