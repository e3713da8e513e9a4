"""Frames of gradients, values and ids, as they come on a shard's connections. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft_kvstore.arrays.array import Array
from weft_kvstore.merging.steps import PushRefusedError
from weft_kvstore.same_host.peer_memory import placed
from weft_kvstore.shard.account import Ledger
from weft_kvstore.shard.door import Namespace
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.links import Links
from weft_kvstore.shard.merger import Merger
from weft_kvstore.shard.peer import Peer
from weft_kvstore.shard.push_runs import own_run, take_run
from weft_kvstore.shard.refusals import answer_refusal, push_refusal
from weft_kvstore.shard.taken import Taken
from weft_kvstore.wire.cargo import Cargo
from weft_kvstore.wire.codec import payload_bytes
from weft_kvstore.wire.messages import Push, PushRefused
from weft_kvstore.wire.push_run import Run, runs_of


class Pushes:
    """Takes frames in, within the `ledger`'s quotas; what may be merged then is left to `work`."""

    def __init__(self, links: Links, work: Merger[Namespace], ledger: Ledger) -> None:
        self._links = links
        self._work = work
        self._ledger = ledger

    def take(self, peer: Peer, push: Push, payload: memoryview) -> None:
        """Takes in a frame, run by run: each is refused for itself. Raises ProtocolError for what nobody may say."""
        links, job = self._links, self._links.jobs[peer.job]
        links.counts.frames_received += 1
        shard, arena = job.shard, None
        own: list[Run] | None = None
        if push.at is not None or push.place:
            arena = links.arenas.hold(peer, push.frame)
            if arena is None:
                self._not_brought(peer, push)
                return
            through_memory = sum(push.nbytes) - payload.nbytes
            for count in peer.shared:
                count.received += through_memory
        if push.at is not None and arena is not None:
            payload = memoryview(placed(arena, (push.at, push.at + payload_bytes(push))))  # type: ignore[arg-type]
            # What is checked, and then taken in, are the same bytes.
            own = [own_run(shard, run) for run in runs_of(push, payload, arena)]
        if not self._ledger.is_open:
            refused = push_refusal(self._ledger, shard, own or list(runs_of(push, payload)), payload.nbytes)
            if refused is not None:
                self._refuse_all(peer, shard, push, payload, refused)
                return
        for number, run in enumerate(self._counted(shard, push, payload, own, arena)):
            try:
                self._go_on(peer, shard, take_run(shard, peer, run))
            except PushRefusedError as error:
                self._refuse(peer, push, number, str(error))
            if not links.is_here(peer):  # An answer has lost it.
                return
        peer.acknowledge.append(push.frame)
        links.due(peer)
        if push.cargo[-1] == Cargo.GRADIENT:
            job.stragglers.came(peer.slot, push.step[-1], peer.heard)

    @staticmethod
    def _counted(
        shard: JobShard, push: Push, payload: memoryview, own: Sequence[Run] | None, arena: Array | None
    ) -> Iterable[Run]:
        """The runs of a frame, whose memory counts as the job's where it is the shard's: `own` are those that were
        copied where they have to be, None where the payload came with the message."""
        if own is None:
            return runs_of(push, shard.account.taken_over(payload), arena)
        for run in own:
            if run.arena is None:
                shard.account.taken_over(run.payload)
        return own

    def _go_on(self, peer: Peer, shard: JobShard, taken: Taken) -> None:
        wait = taken.pull
        refused = None if wait is None or not taken.units else answer_refusal(self._ledger, shard, wait)
        if wait is None or refused is None:
            self._work.take(peer.job, taken)
            return
        peer.cancel(wait.request)
        reason = f"slot {peer.slot}, key {taken.units[0].spec.key!r}, version {wait.version}: {refused}"
        self._links.refuse_request(peer, wait.request, PushRefusedError(reason))

    def _refuse_all(self, peer: Peer, shard: JobShard, push: Push, payload: memoryview, reason: str) -> None:
        """A quota leaves no room for a frame."""
        for number, run in enumerate(runs_of(push, payload)):
            self._refuse(peer, push, number, f"{shard.parts.named(peer.slot, run)}: {reason}")
        peer.acknowledge.append(push.frame)
        self._links.due(peer)

    def _not_brought(self, peer: Peer, push: Push) -> None:
        """Nothing of a frame is taken in whose bytes are in an arena that the client has not brought."""
        for number in range(len(push.nbytes)):
            self._refuse(peer, push, number, "its bytes are in an arena that was not brought")
        peer.acknowledge.append(push.frame)
        peer.released.append(push.frame)
        self._links.due(peer)

    def _refuse(self, peer: Peer, push: Push, number: int, reason: str) -> None:
        self._links.counts.refused += 1
        self._links.say(peer.identity, PushRefused(push.frame, number, reason[:2048]))
