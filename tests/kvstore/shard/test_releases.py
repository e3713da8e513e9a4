"""Who is told that nothing of a client's arena is read any more, and when nobody needs to be."""

from __future__ import annotations

import numpy as np
import pytest

from store_cluster import key_of, store_of
from weft_kvstore.same_host.memory import PeerMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.links import PeerArenas
from weft_kvstore.shard.peer import Job, Peer
from weft_kvstore.wire.codec import decode_reply
from weft_kvstore.wire.messages import MAX_RUNS, Hello, Released

SLOTS = 50


class Memory:
    """A listener with one arena for each connection; the reading of frames is ended by hand."""

    name = b"here"
    lent = None

    def __init__(self) -> None:
        self.arenas = {(bytes(16), session): PeerMemory(np.zeros(1, np.uint8)) for session in range(SLOTS)}


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def job() -> Job:
    return Job(JobShard(store_of([key_of("w", (4,), 1)], slots=SLOTS, shards=1), 0))


def settled(arenas: PeerArenas) -> list[Peer]:
    found: list[Peer] = []
    arenas.settle(found.append)
    return found


def arenas_of(memory: Memory, woken: list[None]) -> PeerArenas:
    arenas = PeerArenas(lambda: woken.append(None))
    arenas.listener = memory  # type: ignore[assignment]  # all that is used of one
    return arenas


def peer_of(job: Job, session: int, *, slot: int = 0) -> Peer:
    """The slot's newest connection."""
    hello = Hello("job", 1, slot, 1, bytes(16), session, bytes(16))
    peer = job.links[slot] = Peer(bytes([session]), hello, job, LinkSettings(), 0.0)
    return peer


def told(peer: Peer) -> list[int]:
    """Of which frames it hears that they are read no more."""
    messages = [decode_reply(parts)[0] for parts in peer.receipts()]
    return [frame for message in messages if isinstance(message, Released) for frame in message.frame]


def test_a_new_connection_is_told_nothing_while_what_an_earlier_one_brought_is_read(job: Job, memory: Memory) -> None:
    woken: list[None] = []
    arenas = arenas_of(memory, woken)
    first, second, third = (peer_of(job, session) for session in range(3))
    arenas.begin(first)
    assert told(first) == [0]
    held = [arenas.hold(first, frame) for frame in (5, 6)]
    arenas.lose(first)
    arenas.begin(second)
    held.append(arenas.hold(second, 7))
    arenas.lose(second)
    arenas.begin(third)
    for _ in range(2):
        del held[0]
        assert settled(arenas) == [third]
        assert told(third) == []
    held.clear()
    assert settled(arenas) == [third]
    assert told(third) == [0]
    assert len(woken) == 3
    assert settled(arenas) == []


def test_connections_that_are_gone_leave_nothing_behind(job: Job, memory: Memory) -> None:
    """Neither those of which nothing was read when they went, nor those of which it was."""
    arenas, held = arenas_of(memory, []), []
    for number in range(SLOTS):
        peer = peer_of(job, number, slot=number)
        arenas.begin(peer)
        if number % 2:
            held.append(arenas.hold(peer, 1))
        arenas.lose(peer)
    assert len(arenas._lost) == 25
    held.clear()
    assert len(settled(arenas)) == 25
    assert arenas._lost == {}


def test_thousands_of_receipts_leave_in_messages_that_a_client_takes(job: Job) -> None:
    peer = peer_of(job, 1)
    frames = list(range(1, 2 * MAX_RUNS + 2))
    peer.released, peer.acknowledge, peer.done = frames.copy(), [1, 9 * MAX_RUNS], frames.copy()
    assert told(peer) == frames
    assert (peer.released, peer.acknowledge, peer.done) == ([], [9 * MAX_RUNS], [])
