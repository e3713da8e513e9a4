"""What one job is to a shard, at one moment. Values."""

from __future__ import annotations

from dataclasses import dataclass

from weft_kvstore.quotas import Holds


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """A job in one term, with its `links`. `holds` is all that counts against its quotas, `waiting` the part of it that
    waits to be merged, sent or for its version. `bytes_*` passed the socket, `shared_bytes_*`
    shared memory instead; `worked_bytes` is what its turns at the socket's thread have come to.

    `waited_slot`: the slot that its steps have waited for most, `waited_s` seconds from when the first of the others
    was in; None where nobody was, or steps apply slot by slot.
    """

    job: str
    term: int
    links: int
    holds: Holds
    waiting: Holds
    bytes_received: int
    bytes_sent: int
    worked_bytes: int
    waited_slot: int | None
    waited_s: float
    shared_bytes_received: int = 0
    shared_bytes_sent: int = 0
