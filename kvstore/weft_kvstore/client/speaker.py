"""Who speaks for a slot to its shards. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from weft_kvstore.description.check import digest
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.wire.messages import Hello


@dataclass(frozen=True, slots=True)
class Speaker:
    """One client. `incarnation` counts those that its slot has had, one after the other; `process` are 16 bytes that
    are drawn once per client."""

    slot: int
    incarnation: int
    process: bytes

    def hello(self, description: StoreDescription) -> Hello:
        """What each of its connections begins with, but for the connection's own number."""
        return Hello(
            job=description.job,
            term=description.term,
            slot=self.slot,
            incarnation=self.incarnation,
            process=self.process,
            session=0,
            description=digest(description),
        )
