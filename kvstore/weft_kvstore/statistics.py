"""The statistics of a client, by link. A shard's statistics are its metrics: `serving.metrics`. Values."""

from __future__ import annotations

from dataclasses import dataclass

# --- Payloads in shared memory ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class SharedBytes:
    """Bytes `received` from clients of this host, and `sent` to them."""

    received: int = 0
    sent: int = 0


# --- The statistics of a client at one moment -------------------------------------------------------------------------
# Bytes through the socket and through shared memory are counted apart.


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """One link of a client. `bytes_*` passed the socket, headers and payloads; `payload_*` are payloads alone, through
    the socket or shared memory; `shared_bytes_*` those through shared memory, which `same_host` says is in use now.

    `queued_*` wait to be sent; `in_flight_bytes` were sent and are not acknowledged. `rate_bytes_per_s` is measured on
    networks alone. `connections` counts Hellos; `welcomed`: the shard has accepted the connection. `trouble`: why it
    has not, once its silence is over or it has answered so; `taken`: another process has the slot; `refused`: the shard
    has refused this client for good.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    payload_bytes_sent: int = 0
    payload_bytes_received: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    queued_slices: int = 0
    queued_bytes: int = 0
    in_flight_bytes: int = 0
    credit_bytes: int = 0
    rate_bytes_per_s: float | None = None
    connections: int = 0
    welcomed: bool = False
    trouble: str | None = None
    refused: bool = False
    taken: bool = False
    shared_bytes_sent: int = 0
    shared_bytes_received: int = 0
    same_host: bool = False


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Sums over the client's links, and each link by shard number. `operations` are futures that have not ended.
    `bytes_*` passed the sockets, `shared_bytes_*` shared memory instead.

    `rows_pushed` and `rows_pulled` count rows of tables in the calls begun: padding and repetitions left out.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_sent: int = 0
    frames_received: int = 0
    queued_slices: int = 0
    queued_bytes: int = 0
    in_flight_bytes: int = 0
    operations: int = 0
    links: tuple[LinkStatistics, ...] = ()
    rows_pushed: int = 0
    rows_pulled: int = 0
    shared_bytes_sent: int = 0
    shared_bytes_received: int = 0
