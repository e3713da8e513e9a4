"""A message of pulls as what it asks for: one wait for each request. Pure."""

from __future__ import annotations

from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.peer import Peer
from weft_kvstore.units.unit_state import AnyUnit
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import Pull, Reading


def asked_pulls(shard: JobShard, peer: Peer, pull: Pull) -> list[tuple[PullWait, list[AnyUnit]]]:
    """The pulls of a message, open on the peer from now on, each with the units that have to answer it. Raises
    ProtocolError."""
    alike = zip(pull.version, pull.state, pull.reading, pull.compressed, strict=True)
    columns = (pull.request, alike, pull.lot, pull.first, pull.count, pull.chunks)
    in_place = {request for request, place in zip(pull.request, pull.place, strict=False) if place}
    ask = shard.pulls.ask
    asked: dict[int, tuple[PullWait, list[AnyUnit]]] = {}
    for request, (version, state, reading, compressed), lot, first, count, chunks in zip(*columns, strict=True):
        if request not in asked:
            if request in peer.pulls:
                raise ProtocolError(f"Pull.request: {request} is open already")
            wait = PullWait(
                peer,
                request,
                version,
                slot=peer.slot,
                state=bool(state),
                reading=_reading(reading),
                compressed=bool(compressed),
            )
            wait.place = request in in_place
            asked[request] = wait, []
            peer.asks(wait)
        wait, units = asked[request]
        same = wait.version == version and wait.state == bool(state) and wait.compressed == bool(compressed)
        if not same or wait.reading != reading:
            raise ProtocolError(f"Pull.request: {request} asks in two ways")
        peer.asks_for(wait)
        units += ask(wait, lot, first, count, chunks)
    return list(asked.values())


def _reading(number: int) -> Reading:
    try:
        return Reading(number)
    except ValueError:
        raise ProtocolError(f"Pull.reading: {number} is none that there is") from None
