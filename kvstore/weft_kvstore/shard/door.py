"""Who may speak with a shard: what a Hello must agree with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from weft_kvstore.description.check import digest
from weft_kvstore.description.records import Mode
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.peer import Peer
from weft_kvstore.statistics.job_statistics import JobStatistics
from weft_kvstore.statistics.shared_bytes import SharedBytes
from weft_kvstore.statistics.stragglers import Stragglers
from weft_kvstore.wire.messages import Hello, RefusalCode, Refused

MAX_QUEUED_COPIES: Final = 16
"""How often one connection may have all of a job's values waiting to be sent; a client that asks for more is broken."""

MAX_QUEUED_TABLES: Final = 2
"""The same for its tables, whose rows are copied when they are asked for."""

SHOWN_DIGITS: Final = 12
"""Of a description's digest, where people compare two."""

Namespace: TypeAlias = tuple[str, int]
"""A job's name and the term of its lease."""

STRANGERS: Final[Namespace] = ("", -1)
"""Among whose messages those are that come from no job's connection."""


@dataclass(slots=True)
class Job:
    """A job on this shard. By slot: the newest incarnation, when it was last heard, its connection while it has one.
    `left` has those that have said good-bye since, and when: they are not heard then."""

    shard: JobShard
    incarnations: dict[int, int] = field(default_factory=dict)
    heard: dict[int, float] = field(default_factory=dict)
    left: dict[int, float] = field(default_factory=dict)
    links: dict[int, Peer] = field(default_factory=dict)
    digest: bytes = field(init=False)
    stragglers: Stragglers = field(init=False)
    bytes_received: int = 0
    bytes_sent: int = 0
    shared: SharedBytes = field(default_factory=SharedBytes)
    most_queued: int = field(init=False)
    """Bytes of values that may wait for one connection."""

    def __post_init__(self) -> None:
        self.most_queued = MAX_QUEUED_COPIES * self.shard.nbytes + MAX_QUEUED_TABLES * self.shard.parts.table_bytes
        self.digest = digest(self.shard.description)
        description = self.shard.description
        together = {slot for key in description.keys for slot in key.slots} if description.mode is Mode.SYNC else ()
        self.stragglers = Stragglers(together)

    @property
    def namespace(self) -> Namespace:
        return self.shard.description.job, self.shard.description.term

    def leave(self, slot: int, now: float) -> None:
        """The slot has said good-bye."""
        self.heard.pop(slot, None)
        self.left[slot] = now

    def come(self, slot: int, now: float) -> None:
        """The slot is here, for the first time or again."""
        self.left.pop(slot, None)
        self.heard[slot] = now

    def absent(self, now: float, silence_s: float) -> dict[int, str]:
        """The slots that have not been here for so long, each with the words that say so."""
        told = {slot: f"left {now - at:.1f} s ago" for slot, at in self.left.items() if now - at > silence_s}
        for slot, at in self.heard.items():
            if now - at > silence_s:
                told[slot] = f"has been silent for {now - at:.1f} s"
        return told

    def statistics(self, worked_bytes: int, now: float) -> JobStatistics:
        """What is told of it; may be called on any thread."""
        slot, seconds = self.stragglers.waits(now) or (None, 0.0)
        return JobStatistics(
            *self.namespace,
            links=len(self.links),
            holds=self.shard.account.now,
            waiting=self.shard.account.waiting,
            bytes_received=self.bytes_received,
            bytes_sent=self.bytes_sent,
            shared_bytes_received=self.shared.received,
            shared_bytes_sent=self.shared.sent,
            worked_bytes=worked_bytes,
            waited_slot=slot,
            waited_s=seconds,
        )


@dataclass(frozen=True, slots=True)
class Admission:
    """The Hello is good. `supersedes` is the identity of the slot's connection so far."""

    job: Job
    supersedes: bytes | None


def admit(
    jobs: Mapping[Namespace, Job], peers: Mapping[bytes, Peer], identity: bytes, hello: Hello
) -> Admission | Refused:
    """Whether the shard talks with whoever says this Hello."""
    job = jobs.get((hello.job, hello.term))
    if job is None:
        terms = sorted(term for name, term in jobs if name == hello.job)
        if terms and terms[-1] > hello.term:
            text = f"job {hello.job!r} is in term {terms[-1]} here, term {hello.term} is over"
            return Refused(RefusalCode.STALE_TERM, text)
        return Refused(RefusalCode.UNKNOWN_JOB, f"job {hello.job!r}, term {hello.term} is not open on this shard")
    if hello.description != job.digest:
        text = (
            f"job {hello.job!r}: the client has another description of the store than shard {job.shard.shard} "
            f"(digests {hello.description.hex()[:SHOWN_DIGITS]} and {job.digest.hex()[:SHOWN_DIGITS]}, as --check says "
            "of a file): connect with the file that the shard was started with, or restart the shards with this one"
        )
        return Refused(RefusalCode.OTHER_DESCRIPTION, text)
    if hello.slot >= job.shard.description.slots:
        text = f"slot {hello.slot}: job {hello.job!r} has slots 0 to {job.shard.description.slots - 1}"
        return Refused(RefusalCode.NO_SUCH_SLOT, text)
    newest = job.incarnations.get(hello.slot, hello.incarnation)
    if hello.incarnation < newest:
        text = f"slot {hello.slot}: incarnation {hello.incarnation} was replaced by {newest}"
        return Refused(RefusalCode.STALE_INCARNATION, text)
    return _against_link(job, peers.get(identity), hello)


def _against_link(job: Job, same: Peer | None, hello: Hello) -> Admission | Refused:
    held = job.links.get(hello.slot)
    if held is not None and held.hello.incarnation == hello.incarnation:
        if held.hello.process != hello.process:
            told = f"slot {hello.slot} is taken by another process that is alive, as incarnation {hello.incarnation}"
            text = f"{told}; use another slot, or a higher incarnation= to replace it"
            return Refused(RefusalCode.BUSY, text)
        if held.hello.session > hello.session:
            text = f"slot {hello.slot}: connection {hello.session} was replaced by {held.hello.session}"
            return Refused(RefusalCode.STALE_INCARNATION, text)
    if same is not None and same is not held:
        return Refused(RefusalCode.MALFORMED, f"slot {hello.slot}: this connection belongs to slot {same.slot}")
    return Admission(job, held.identity if held is not None else None)
