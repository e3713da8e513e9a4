"""Who is told that nothing of a client's arena is read any more, and when nobody needs to be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.links import Releases
from weft_kvstore.shard.peer import Peer
from weft_kvstore.wire.codec import decode_reply
from weft_kvstore.wire.messages import Hello, Released


class Memory:
    """An arena whose reading is begun and ended by hand."""

    def __init__(self) -> None:
        self.ends: list[Callable[[], None]] = []

    def hold(self, let_go: Callable[[], None]) -> np.ndarray:
        self.ends.append(let_go)
        return np.zeros(1, np.uint8)


def peer_of(session: int, *, job: str = "j", slot: int = 0) -> Peer:
    hello = Hello(job, 1, slot, 1, bytes(16), session, bytes(16))
    return Peer(bytes([session]), hello, LinkSettings(), 0.0)


def told(peer: Peer) -> list[int]:
    """Of which frames it hears that they are read no more."""
    messages = [decode_reply(parts)[0] for parts in peer.receipts()]
    return [frame for message in messages if isinstance(message, Released) for frame in message.frame]


def test_a_new_connection_is_told_nothing_while_what_an_earlier_one_brought_is_read() -> None:
    woken: list[None] = []
    releases, memory = Releases(lambda: woken.append(None)), Memory()
    first, second, third = (peer_of(session) for session in range(3))
    releases.begin(first)
    assert told(first) == [0]
    for frame in (5, 6):
        releases.hold(first, memory, frame)  # type: ignore[arg-type]  # all that is used of it
    releases.lose(first)
    releases.begin(second)
    releases.hold(second, memory, 7)  # type: ignore[arg-type]
    releases.lose(second)
    releases.begin(third)
    for end in memory.ends[:2]:
        end()
        assert list(releases.settled()) == [(("j", 1), 0)]
        assert told(third) == []
    memory.ends[2]()
    assert bool(releases)
    assert list(releases.settled()) == [(("j", 1), 0)]
    assert told(third) == [0]
    assert len(woken) == 3
    assert not releases


def test_connections_that_are_gone_leave_nothing_behind() -> None:
    """Neither those of which nothing was read when they went, nor those of which it was."""
    releases, memory = Releases(lambda: None), Memory()
    for number in range(50):
        peer = peer_of(number, job=f"job-{number}")
        releases.begin(peer)
        if number % 2:
            releases.hold(peer, memory, 1)  # type: ignore[arg-type]
        releases.lose(peer)
    assert len(releases._lost) == 25
    for end in memory.ends:
        end()
    assert len(list(releases.settled())) == 25
    assert releases._lost == {}
