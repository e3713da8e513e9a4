"""How much may be under way on a link, and how long a frame may be, by the rate at which it delivers. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.rate import LinkRate

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
