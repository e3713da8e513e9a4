"""What a client's frame carries, run by run, taken into a job on a shard. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft_kvstore.cargo import Cargo
from weft_kvstore.codec import ProtocolError
from weft_kvstore.job_shard import JobShard
from weft_kvstore.messages import Push
from weft_kvstore.peer import MAX_IDS_BYTES, Peer
from weft_kvstore.pull_wait import PullWait
from weft_kvstore.unit_state import AnyUnit


@dataclass(frozen=True, slots=True)
class Taken:
    """What follows from a run: `units` may now merge; where they have `changed`, pulls may have waited for it; where
    ids of a `pull` came, they can answer it instead."""

    units: Sequence[AnyUnit] = ()
    changed: bool = False
    pull: PullWait | None = None


def take_run(shard: JobShard, peer: Peer, push: Push, run: int, part: memoryview) -> Taken:
    """Takes in run number `run` of a frame, whose bytes are `part`.

    Raises ProtocolError where it contradicts the description, PushRefusedError where it contradicts what is there.
    """
    match push.cargo[run]:
        case Cargo.GRADIENT:
            return Taken(_gradient(shard, peer.slot, push, run, part))
        case Cargo.VALUE:
            return Taken(_value(shard, peer, push, run, part), changed=True)
        case Cargo.IDS:
            return _ids(shard, peer, push, run, part)
        case other:
            raise ProtocolError(f"Push.cargo: {other} is none that there is")


def _gradient(shard: JobShard, slot: int, push: Push, run: int, part: memoryview) -> Sequence[AnyUnit]:
    key, step, first, count, chunks = _columns(push, run)
    if chunks:
        return shard.accept_chunks(slot, key, step, part, first=first, count=count, chunks=chunks)
    return shard.accept(slot, key, step, part, first=first, count=count)


def _value(shard: JobShard, peer: Peer, push: Push, run: int, part: memoryview) -> Sequence[AnyUnit]:
    key, version, first, count, chunks = _columns(push, run)
    origin = (peer.hello.process, push.request[run])
    if chunks:
        return shard.set_chunks(peer.slot, key, version, part, origin, first=first, count=count, chunks=chunks)
    return shard.set_slices(peer.slot, key, version, part, origin, first=first, count=count)


def _ids(shard: JobShard, peer: Peer, push: Push, run: int, part: memoryview) -> Taken:
    wait = peer.pulls.get(push.request[run])
    if wait is None:
        return Taken()  # It was given up meanwhile.
    key, _, first, count, chunks = _columns(push, run)
    before = wait.ids_bytes
    ready = shard.accept_ids(wait, key, part, first=first, count=count, chunks=chunks)
    peer.ids_bytes += wait.ids_bytes - before
    if peer.ids_bytes > MAX_IDS_BYTES:
        raise ProtocolError(f"Push.request: {peer.ids_bytes} bytes of ids wait already")
    return Taken(ready, pull=wait)


def _columns(push: Push, run: int) -> tuple[int, int, int, int, int]:
    return push.key[run], push.step[run], push.first[run], push.count[run], push.chunks[run]
