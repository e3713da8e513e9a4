"""How a shard's answers get to the connections that have asked. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from weft_kvstore.lot.part import PlainLot
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.shard.door import Namespace
from weft_kvstore.shard.links import Links
from weft_kvstore.shard.merger import BATCH_BYTES
from weft_kvstore.shard.peer import Peer
from weft_kvstore.units.unit_state import AnyUnit
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import Failed, FailureCode

MAX_QUEUED_RUNS: Final = 1 << 16
"""Runs of values that may wait for one connection, however few bytes they have: each costs the shard some time."""


class Answers:
    """The `Answering` of a shard with connections; `fail` is what becomes of a job that cannot go on."""

    def __init__(self, links: Links, fail: Callable[[Namespace, str], None]) -> None:
        self.fail = fail
        self._links = links

    def answer(self, wait: PullWait, unit: AnyUnit) -> Iterator[None]:
        """See `Answering`."""
        peer: Peer = wait.link
        if not self._may_queue(peer):
            return
        for _ in peer.answer(wait, unit):
            self._links.due(peer)
            yield
        if not wait.dropped:
            self._links.due(peer)

    def answer_range(self, wait: PullWait, lot: PlainLot, first: int, stop: int) -> None:
        """See `Answering`."""
        peer: Peer = wait.link
        if self._may_queue(peer):
            peer.answer_range(wait, lot, first, stop)
            self._links.due(peer)

    def refuse(self, wait: PullWait, reason: str) -> None:
        """See `Answering`."""
        peer: Peer = wait.link
        peer.cancel(wait.request)
        self._links.say(peer.identity, Failed(wait.request, FailureCode.PASSED, reason[:2048]))

    def _may_queue(self, peer: Peer) -> bool:
        """Whether the peer may have more values wait for it; one that may not is no peer any more."""
        nbytes, runs = peer.outbox.queued_bytes, peer.outbox.queued_runs
        if nbytes <= self._links.jobs[peer.job].most_queued + BATCH_BYTES and runs < MAX_QUEUED_RUNS:
            return True
        told = f"Pull.request: {nbytes} bytes of values in {runs} runs wait to be fetched already"
        self._links.refuse(peer.identity, ProtocolError(told))
        return False
