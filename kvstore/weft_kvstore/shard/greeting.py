"""How a connection begins: a Hello, and what is answered to it. Pure."""

from __future__ import annotations

from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.door import STRANGERS, Admission, Job, admit
from weft_kvstore.shard.links import Links
from weft_kvstore.shard.peer import Peer
from weft_kvstore.wire.messages import Hello, Welcome


class Greeting:
    """`boot` is 16 bytes drawn when the process starts."""

    def __init__(self, links: Links, settings: LinkSettings, boot: bytes) -> None:
        self._links = links
        self._settings = settings
        self._boot = boot

    def hello(self, identity: bytes, hello: Hello, now: float) -> None:
        """Welcomes whoever says this, or refuses; the slot's connection so far, if there is one, is lost."""
        links = self._links
        verdict = admit(links.jobs, links.peers, identity, hello)
        if not isinstance(verdict, Admission):
            links.counts.refused += 1
            links.lose(identity)
            links.say(identity, verdict)
            return
        if verdict.supersedes is not None:
            links.lose(verdict.supersedes)
        _fill(verdict.job, hello)
        peer = Peer(identity, hello, self._settings, now)
        peer.account = verdict.job.shard.account
        peer.shared = verdict.job.shared, links.counts.shared
        links.company.forget(STRANGERS)
        links.company.hear(peer.job)
        links.peers[identity] = verdict.job.links[hello.slot] = peer
        links.share()
        verdict.job.come(hello.slot, now)
        door = links.arenas.begin(peer)
        if door:
            links.due(peer)
        silence_ms = int(self._settings.silence_s * 1000)
        links.say(identity, Welcome(hello.session, self._boot, silence_ms, door, peer.ticket))


def _fill(job: Job, hello: Hello) -> None:
    """The slot is filled by this incarnation, newer or not; what an older one has pushed and is not merged is gone."""
    if hello.incarnation > job.incarnations.get(hello.slot, -1):
        if hello.slot in job.incarnations:
            job.shard.replace(hello.slot)
        job.incarnations[hello.slot] = hello.incarnation
