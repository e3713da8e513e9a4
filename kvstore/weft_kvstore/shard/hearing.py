"""Who is listened to on a shard, and when: at once, or where jobs share it at its job's turn. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.shard.door import STRANGERS, Namespace
from weft_kvstore.shard.inbox import Inbox, Letter, letter_of
from weft_kvstore.shard.links import Links
from weft_kvstore.shard.merger import Merger
from weft_kvstore.wire.codec import ProtocolError

_log = logging.getLogger("weft.shard")


class Hearing:
    """`receive` gets a message when it is its turn. Connections that said more than anybody may are silenced: they are
    not listened to until they have been quiet for long enough."""

    def __init__(
        self, links: Links, work: Merger[Namespace], receive: Callable[[bytes, Sequence[Buffer], float], None]
    ) -> None:
        self._links = links
        self._work = work
        self._receive = receive
        self._inbox: Inbox[Namespace] = Inbox(self._deliver)
        self._silenced: dict[bytes, float] = {}
        """By identity, when it was last heard."""

    @property
    def waiting(self) -> int:
        """Messages that wait for their job's turn."""
        return len(self._inbox)

    @property
    def silenced(self) -> int:
        """Connections that are not listened to."""
        return len(self._silenced)

    def hear(self, identity: bytes, parts: Sequence[Buffer], now: float) -> None:
        """One message."""
        links = self._links
        nbytes, peer = sum(map(len, parts)), links.peers.get(identity)
        links.counts.bytes_received += nbytes
        if peer is not None:
            links.jobs[peer.job].bytes_received += nbytes
        lane = self._inbox.lane_of(identity) or (peer.job if peer is not None else links.lost_job(identity))
        if lane is None:
            lane = STRANGERS
        if links.company.hear(lane):
            links.share()
        if not links.company.is_shared and not self._inbox.has(lane):
            self._read(identity, parts, now)
            return
        if identity in self._silenced:
            self._silenced[identity] = now
            return
        if peer is not None:
            peer.heard = links.jobs[peer.job].heard[peer.slot] = now
        self._work.put(lane, self._inbox.put(lane, letter_of(identity, parts, now)))
        loud = self._inbox.overflows(lane)
        if loud is not None:
            self._inbox.forget(loud)
            links.refuse(loud, ProtocolError("this connection says more than anybody can listen to"))
            self._silenced[loud] = now

    def tick(self, now: float, silence_s: float) -> None:
        """Some time has passed."""
        self._links.company.tick()
        self._links.share()
        for identity in [one for one, heard in self._silenced.items() if now - heard > silence_s]:
            del self._silenced[identity]

    def drop(self, job: Namespace) -> None:
        """Forgets a job's messages."""
        self._inbox.drop(job)

    def _deliver(self, letter: Letter) -> None:
        self._read(letter.identity, letter.parts, letter.now)

    def _read(self, identity: bytes, parts: Sequence[Buffer], now: float) -> None:
        try:
            self._receive(identity, parts, now)
        except Exception:  # noqa: BLE001  # a message's outermost frame
            _log.exception("a message of %s failed; its connection is dropped", identity.hex())
            self._links.lose(identity)
