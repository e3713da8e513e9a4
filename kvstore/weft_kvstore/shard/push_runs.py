"""What a client's frame carries, run by run, taken into a job on a shard. Pure."""

from __future__ import annotations

import numpy as np

from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.peer import MAX_IDS_BYTES, Peer
from weft_kvstore.shard.taken import Taken
from weft_kvstore.wire.cargo import Cargo
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.push_run import Run


def own_run(shard: JobShard, run: Run) -> Run:
    """The same run, copied out of the client's arena where more is done with its bytes than arithmetic: there they may
    be others at each look. Raises ProtocolError for what may not lie there."""
    if run.arena is None or shard.reads_in_place(run):
        return run
    if run.place:
        raise ProtocolError(f"Push.place: 1 for a run of lot {run.lot}, which has to be copied")
    own = memoryview(np.frombuffer(run.payload, np.uint8).copy())  # type: ignore[arg-type]  # an array is a buffer
    return run._replace(payload=own, arena=None)


def take_run(shard: JobShard, peer: Peer, run: Run) -> Taken:
    """Takes in a run of a frame.

    Raises ProtocolError where it contradicts the description, PushRefusedError where it contradicts what is there.
    """
    own = own_run(shard, run)
    if own is not run:
        shard.account.taken_over(own.payload)
    run = own
    match run.cargo:
        case Cargo.GRADIENT:
            return shard.accept_chunks(peer.slot, run) if run.chunks else shard.accept(peer.slot, run)
        case Cargo.VALUE:
            origin = (peer.hello.process, run.request)
            take = shard.sets.chunks if run.chunks else shard.sets.slices
            return take(peer.slot, run, origin)
        case Cargo.IDS:
            return _ids(shard, peer, run)
        case other:
            raise ProtocolError(f"Push.cargo: {other} is none that there is")


def _ids(shard: JobShard, peer: Peer, run: Run) -> Taken:
    wait = peer.pulls.get(run.request)
    if wait is None:
        return Taken()  # It was given up meanwhile.
    before = wait.ids_bytes
    taken = shard.pulls.ids(wait, run)
    peer.ids_bytes += wait.ids_bytes - before
    if peer.ids_bytes > MAX_IDS_BYTES:
        raise ProtocolError(f"Push.request: {peer.ids_bytes} bytes of ids wait already")
    return taken
