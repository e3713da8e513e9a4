"""How a link between client and shard behaves: sizes, deadlines, silence."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

MAX_SLICE_BYTES: Final = 1 << 24
"""The largest slice that a description may ask for."""

MAX_ROW_BYTES: Final = 1 << 22
"""The largest row of a table: a row is not cut, and a million first values take some 50 ms."""

COPIED_BYTES: Final = 1 << 19
"""A smaller part of a message is copied when it is sent. Sending without a copy wakes a thread of pyzmq once the part
has left, which takes about as long as copying so much."""

MAX_FRAME_BYTES: Final = 1 << 25
"""The largest payload of a frame; a peer that sends more is cut off by ZeroMQ before it is read."""

MAX_SECONDS: Final = 1e9
"""The longest deadline, or silence: 31 years."""

MAX_STEP: Final = 1 << 62
"""Steps and versions are below it."""

STEPS_AHEAD: Final = 2
"""How far beyond the first step that is not applied a slot may push; bounds what waits past a gap."""

SETS_AHEAD: Final = 8
"""How far beyond a key's version a value may be set: who writes checkpoints sets at a step that no slot has begun."""

SETS_WAITING: Final = 2
"""Versions of one key for which values that were set may wait at once."""

SETS_KEPT: Final = 1 << 16
"""So many of the last calls that set something in a bucket or table are recognised by the shard, of all slots together.
A call that is repeated after a broken connection, and after so many others, is applied twice. A client has no more
open. Each takes some 0.5 KiB."""


MAX_PORT: Final = (1 << 16) - 1

STALL_S: Final = 1.0
"""A process whose timer is so much late was suspended. Peers were not silent meanwhile, and deadlines are extended."""

RENEWED_AFTER_S: Final = 2.5
"""A link without a message for so long gets a new connection: TCP would try a cut one again only after pauses that
double. The peer counts as lost after `silence_s`, not now."""


def host_of(endpoint: str) -> str | None:
    """The host in `tcp://HOST:PORT`, a name or an address; in front of it an address of this machine and a semicolon
    may stand. None for an endpoint that is not reached by TCP."""
    scheme, _, rest = endpoint.partition("://")
    return rest.rpartition(":")[0].rpartition(";")[2].strip("[]") if scheme == "tcp" else None


def name_of(endpoint: str) -> str | None:
    """The name of the host in an endpoint; None where it has an address, or there is no host."""
    host = host_of(endpoint)
    try:
        ipaddress.ip_address(host or "127.0.0.1")
    except ValueError:
        return host
    return None


def is_loopback(endpoint: str) -> bool:
    """Whether an endpoint of ZeroMQ is reached without a network. Names other than `localhost` are not resolved, and
    count as a network."""
    host = host_of(endpoint)
    if host is None:
        return endpoint.startswith(("inproc://", "ipc://"))
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_ENDPOINT: Final = re.compile(r"ipc://\S+|tcp://(?:\S+;)?(?:\[[^\s\]]+\]|[^\s:/\[\]]+):(\d{1,5})")


def check_endpoint(endpoint: str, *, least_port: int) -> None:
    """Raises ValueError for an endpoint at which no shard can be: a socket would try it for ever."""
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or not least_port <= int(found[1] or MAX_PORT) <= MAX_PORT:
        form = f"tcp://HOST:PORT, with a port from {least_port} to {MAX_PORT} and brackets around an IPv6 address"
        raise ValueError(f"expected {form}, or ipc://PATH, got {endpoint!r}")


def endpoints_of(bind: str) -> list[str]:
    """The endpoints of `tcp://HOST:FIRST-LAST`, a range of ports; any other endpoint itself. Raises ValueError for an
    empty range, and for a port above 65535, which a socket would silently replace by another."""
    host, _, ports = bind.rpartition(":")
    first, dash, last = ports.partition("-")
    if not (bind.startswith("tcp://") and first.isdecimal() and (last.isdecimal() if dash else True)):
        return [bind]
    if not dash and int(first) > MAX_PORT:
        raise ValueError(f"a port from 0 to {MAX_PORT}, not {first}")
    if dash and not 0 < int(first) <= int(last) <= MAX_PORT:
        raise ValueError(f"{bind}: a range of ports is FIRST-LAST, both from 1 to {MAX_PORT}")
    return [f"{host}:{port}" for port in range(int(first), int(last or first) + 1)]


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Settings of one end of a link. Raises ValueError for a number that cannot be meant.

    `credit_bytes`: payload bytes sent and not yet acknowledged, at most. None: follows the network's measured
    rate; 32 MiB over loopback and through shared memory.
    `frame_bytes`: payload bytes of a frame, at most. None: about 2 ms of the network's measured rate, up to 4 MiB;
    4 MiB over loopback, 8 MiB through shared memory.
    `priorities`: whether urgent slices overtake others; False is first in, first out, for comparison.
    `request_timeout_s`: deadline of every future, seconds; a minute covers a worker that compiles its first step.
    `ping_interval_s`: seconds between two signs of life on an idle link; never more than a quarter of `silence_s`.
    `silence_s`: seconds without a message after which the other side counts as lost.
    `same_host`: whether payloads pass through shared memory where both ends are on one host.
    """

    credit_bytes: int | None = None
    frame_bytes: int | None = None
    priorities: bool = True
    request_timeout_s: float = 60.0
    ping_interval_s: float = 1.0
    silence_s: float = 5.0
    same_host: bool = True

    def __post_init__(self) -> None:
        for name in ("credit_bytes", "frame_bytes", "request_timeout_s", "ping_interval_s", "silence_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")
            if value is not None and name.endswith("_s") and value > MAX_SECONDS:
                raise ValueError(f"{name} must be at most {MAX_SECONDS:g}, not {value}")
        if self.frame_bytes is not None and self.frame_bytes > MAX_FRAME_BYTES:
            raise ValueError(f"frame_bytes must be at most {MAX_FRAME_BYTES}, not {self.frame_bytes}")

    @property
    def ping_s(self) -> float:
        """Seconds between pings, short enough that four fit into the silence."""
        return min(self.ping_interval_s, self.silence_s / 4)

    @property
    def renewed_after_s(self) -> float:
        """Seconds without a message after which a link gets a new connection: at most half the silence."""
        return min(RENEWED_AFTER_S, self.silence_s / 2)
