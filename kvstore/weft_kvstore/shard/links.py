"""The connections of a shard's jobs, and what is to leave on them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from weft_kvstore.merging.steps import PushRefusedError
from weft_kvstore.shard.company import Company
from weft_kvstore.shard.departures import Departures, Outgoing, room_of
from weft_kvstore.shard.door import Job, Namespace
from weft_kvstore.shard.peer import Peer
from weft_kvstore.shard.peer_arenas import PeerArenas
from weft_kvstore.statistics.shared_bytes import SharedBytes
from weft_kvstore.wire.codec import ProtocolError, encode
from weft_kvstore.wire.messages import Failed, FailureCode, Message, RefusalCode, Refused

LOST_KEPT: Final = 4096
"""Connections that were forgotten of which it is known whose they were: what they still say counts for their job."""


@dataclass(slots=True)
class Counts:
    """What `ShardStatistics` tells."""

    frames_sent: int = 0
    frames_received: int = 0
    malformed: int = 0
    refused: int = 0
    unknown_links: int = 0
    bytes_received: int = 0
    shared: SharedBytes = field(default_factory=SharedBytes)


class Links:
    """`peers`, by the identity that the socket gives them, have said Hello to one of the `jobs`. `outgoing` collects
    what is to be sent at once; `departures` are the connections that may have values or receipts besides. `company`
    knows which jobs were heard lately."""

    def __init__(self, let_go: Callable[[], None]) -> None:
        self.jobs: dict[Namespace, Job] = {}
        self.peers: dict[bytes, Peer] = {}
        self.outgoing: list[Outgoing] = []
        self.counts = Counts()
        self.departures = Departures()
        self.company: Company[Namespace] = Company()
        self.arenas = PeerArenas(self.jobs, let_go)
        self._lost: dict[bytes, Namespace] = {}

    def say(self, identity: bytes, message: Message) -> None:
        """Sends a message before all values that have not left."""
        self.outgoing.append((identity, encode(message)))

    def due(self, peer: Peer) -> None:
        """It may have something to be sent, if it is a peer still: its own message may have lost it, or its job."""
        if self.is_here(peer):
            self.departures[peer.identity] = peer

    def is_here(self, peer: Peer) -> bool:
        """Whether it was not lost."""
        return self.peers.get(peer.identity) is peer

    def lost_job(self, identity: bytes) -> Namespace | None:
        """Whose a connection was that is none any more, as far as that is known."""
        return self._lost.get(identity)

    def lose(self, identity: bytes) -> None:
        """The connection is gone, or is to be forgotten. No harm if it is none."""
        peer = self.peers.pop(identity, None)
        self.departures.pop(identity, peer)
        if peer is None:
            return
        self._lost[identity] = peer.job
        if len(self._lost) > LOST_KEPT:
            del self._lost[next(iter(self._lost))]
        peer.close()
        self.arenas.lose(peer)
        job = self.jobs.get(peer.job)
        if job is not None and job.links.get(peer.slot) is peer:
            del job.links[peer.slot]
            self.share()

    def drop(self, job: Namespace, reason: str) -> Job:
        """The job is gone, and its connections are told and lost."""
        found = self.jobs.pop(job)
        for peer in list(found.links.values()):
            self.say(peer.identity, Refused(RefusalCode.CLOSED, reason[:2048]))
            self.lose(peer.identity)
        self._lost = {identity: whose for identity, whose in self._lost.items() if whose != job}
        self.departures.drop(job)
        return found

    def refuse(self, identity: bytes, error: ProtocolError) -> None:
        """What a peer said is none of this format, or asks for too much: it is told, and forgotten."""
        self.counts.malformed += 1
        self.say(identity, Refused(RefusalCode.MALFORMED, str(error)[:2048]))
        self.lose(identity)

    def refuse_request(self, peer: Peer, request: int, error: PushRefusedError) -> None:
        """What a request asks for contradicts what is there."""
        self.counts.refused += 1
        self.say(peer.identity, Failed(request, FailureCode.REFUSED, str(error)[:2048]))

    def share(self) -> None:
        """Says what each job may have under way, where several are heard."""
        heard = self.company.all()
        self.departures.share(room_of(self.jobs[one] for one in heard if one in self.jobs))
