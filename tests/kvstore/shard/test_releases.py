"""Who is told that nothing of a client's arena is read any more, and when nobody needs to be."""

from __future__ import annotations

import numpy as np
import pytest

from store_cluster import key_of, store_of
from weft_kvstore.same_host.memory import PeerMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.links import Links
from weft_kvstore.shard.peer import Job, Outgoing, Peer
from weft_kvstore.wire.codec import decode_reply
from weft_kvstore.wire.messages import MAX_RUNS, Acknowledge, Done, Hello, Message, Released

SLOTS = 50


class Memory:
    """A listener with one arena for each connection; the reading of frames is ended by hand."""

    name = b"here"
    shared_memory = None

    def __init__(self) -> None:
        self.arenas = {(bytes(16), session): PeerMemory(np.zeros(1, np.uint8)) for session in range(SLOTS)}


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def job() -> Job:
    return Job(JobShard(store_of([key_of("w", (4,), 1)], slots=SLOTS, shards=1), 0))


def links_of(memory: Memory, job: Job, woken: list[None]) -> Links:
    links = Links(LinkSettings(), bytes(16), lambda: woken.append(None))
    links.listener = memory  # type: ignore[assignment]  # all that is used of one
    links.job = job
    return links


def connected(links: Links, session: int, *, slot: int = 0, process: bytes = bytes(16)) -> Peer:
    """The slot's client, on a new connection."""
    assert links.job is not None
    hello = Hello("job", 1, slot, 1, process, session, links.job.digest)
    links.hello(bytes([slot, session]), hello, 1, 0.0)
    return links.peers[bytes([slot, session])]


def written(peer: Peer) -> list[Message]:
    """What leaves for it."""
    outgoing: list[Outgoing] = []
    peer.write(outgoing, 0.0)
    assert {identity for identity, _ in outgoing} <= {peer.identity}
    return [decode_reply(parts)[0] for _, parts in outgoing]


def told(peer: Peer) -> list[int]:
    """Of which frames it hears that they are read no more."""
    return [frame for message in written(peer) if isinstance(message, Released) for frame in message.frame]


def test_a_new_connection_is_told_nothing_while_what_an_earlier_one_brought_is_read(job: Job, memory: Memory) -> None:
    woken: list[None] = []
    links = links_of(memory, job, woken)
    peer = connected(links, 0)
    assert told(peer) == [0]
    held = [links.hold(peer, frame) for frame in (5, 6)]
    assert connected(links, 1) is peer
    held.append(links.hold(peer, 7))
    assert connected(links, 2) is peer
    for _ in range(2):
        links.waiting.clear()
        del held[0]
        links.settle()
        assert list(links.waiting) == [peer]
        assert told(peer) == []
    held.clear()
    links.settle()
    assert told(peer) == [0]
    assert len(woken) == 3
    assert not peer.held


def test_a_process_that_replaces_another_does_not_wait_for_what_that_one_brought(job: Job, memory: Memory) -> None:
    links = links_of(memory, job, [])
    first = connected(links, 0)
    links.peers.clear()
    held = links.hold(first, 1)
    first.identity = None
    memory.arenas[b"b" * 16, 1] = PeerMemory(np.zeros(1, np.uint8))
    second = connected(links, 1, process=b"b" * 16)
    assert second is not first
    assert told(second) == [0]
    del held
    links.settle()
    assert not first.held


def test_thousands_of_receipts_leave_in_messages_that_a_client_takes(job: Job) -> None:
    peer = connected(links_of(Memory(), job, []), 1)
    frames = list(range(1, 2 * MAX_RUNS + 2))
    peer.released, peer.acknowledge, peer.done = frames.copy(), [1, 9 * MAX_RUNS], frames.copy()
    messages = written(peer)
    for kind in (Done, Released):
        parts = [message for message in messages if isinstance(message, kind)]
        numbers = [message.request if isinstance(message, Done) else message.frame for message in parts]
        assert [number for some in numbers for number in some] == frames
        assert max(map(len, numbers)) == MAX_RUNS
    assert messages[-1] == Acknowledge([9 * MAX_RUNS])  # It is no news of one that is released.
    assert not written(peer)
