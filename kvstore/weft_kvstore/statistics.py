"""What clients count, by link. A shard's statistics are its metrics: `serving.metrics`. Values."""

from __future__ import annotations

from dataclasses import dataclass

# --- Payloads that passed through shared memory, and no socket --------------------------------------------------------


@dataclass(slots=True)
class SharedBytes:
    """Bytes `received` from clients of this host, and `sent` to them."""

    received: int = 0
    sent: int = 0


# --- What a client counts, as records taken at one moment -------------------------------------------------------------
# Bytes are counted where they pass the socket, and those that pass through shared memory for themselves.


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """One link from this client's side. `bytes_*` passed the socket, headers and payloads; `payload_*` are payloads
    alone, whichever way they took.

    `queued_*` wait to be sent; `in_flight_bytes` were sent and are not acknowledged. `connections` counts Hellos;
    `welcomed`: the shard talks with this client now. `trouble` is why it does not, once its silence is over or it has
    said so; `taken`: another process has the slot. It has `refused` for good.
    `shared_bytes_*` are what of the payloads passed through shared memory, and no socket; `same_host`: whether it can
    now.
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
