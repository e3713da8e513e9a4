"""What of a link's frames lies in shared memory: when it has arrived, when it may be written, what a break leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from weft_kvstore.client.link import UNREAD, ArenaFrames
from weft_kvstore.same_host.memory import SharedMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import PayloadKind, SentEntry
from weft_kvstore.wire.outbox import BufferSource, Outbox, OutFrame, OutRun

SHARD = 2
LARGE = SharedMemory.least_bytes


class Link:
    """An outbox, and memory with an array of `2 * LARGE` bytes, whose stage has room for `room` bytes."""

    def __init__(self, room: int = 4 * LARGE) -> None:
        self.memory = SharedMemory(2 * LARGE, room)
        self.memory.reserve(0, 2 * LARGE)
        self.array = self.memory.array(0, (2 * LARGE,), np.uint8)
        self.outbox: Outbox[SentEntry, Any] = Outbox(LinkSettings(credit_bytes=1 << 24, frame_bytes=1 << 24))
        self.arena = ArenaFrames(SHARD, self.memory)
        self.arena.memory = self.memory

    def frame(self, *runs: tuple[int, bool]) -> OutFrame[SentEntry, Any]:
        """Of one slice each: its bytes, and whether they are in the shared array."""
        for number, (nbytes, shared) in enumerate(runs):
            entry = SentEntry(PayloadKind.GRADIENT, number + 1, 0, 0, 0)
            source = BufferSource(
                memoryview(self.array)[:nbytes] if shared else memoryview(bytes([number + 1]) * nbytes)
            )  # type: ignore[arg-type]
            owner = SimpleNamespace(because={})
            self.outbox.put(OutRun(entry, 0, np.array([0, nbytes]), source, priority=number, owner=owner))
        frame = self.outbox.fill(0.0)
        assert frame is not None
        assert len(frame.fragments) == len(runs)
        return frame

    def put(self, *runs: tuple[int, bool]) -> tuple[OutFrame[SentEntry, Any], list[tuple[int, int]]]:
        frame = self.frame(*runs)
        return frame, self.arena.put(frame)


def test_a_large_payload_is_laid_and_a_small_one_travels() -> None:
    link = Link()
    assert link.put((LARGE - 1, False))[1] == []
    assert (link.arena.in_use, link.arena.bytes_sent) == (False, 0)
    frame, ((offset, nbytes),) = link.put((LARGE, False), (8, False))
    assert (nbytes, link.arena.in_use, link.arena.bytes_sent) == (LARGE + 8, True, LARGE + 8)
    assert offset > 2 * LARGE
    assert frame.nbytes == nbytes
    link.arena.memory = None
    assert link.put((LARGE, False))[1] == [], "the shard has it no more"


def test_what_was_copied_has_arrived_and_what_is_in_its_array_waits_until_it_was_read() -> None:
    link = Link()
    frame, at = link.put((LARGE, True), (LARGE, False))
    assert at[0] == (0, LARGE)
    in_place, copied = frame.fragments
    assert link.arena.arrived(frame.number, frame.fragments) == [copied]
    assert (in_place.run.owner.because, copied.run.owner.because) == ({SHARD: UNREAD}, {})
    assert link.arena.released(frame.number) == [in_place]


def test_what_is_released_before_it_was_acknowledged_has_all_to_arrive_with_it() -> None:
    link = Link()
    frame, _ = link.put((LARGE, False))
    assert link.arena.released(frame.number) is None


def test_room_is_given_back_once_it_was_read() -> None:
    link = Link(room=LARGE)
    frame, at = link.put((LARGE, False))
    link.arena.arrived(frame.number, frame.fragments)
    assert link.put((LARGE, False))[1] == []
    link.arena.released(frame.number)
    assert link.put((LARGE, False))[1] == at


@pytest.mark.parametrize("number", [1, 9])
def test_a_frame_that_has_nothing_there_cannot_be_released(number: int) -> None:
    link = Link()
    link.put((8, False))
    with pytest.raises(ProtocolError, match=rf"Released.frame: {number} is not in shared memory"):
        link.arena.released(number)


def test_after_a_break_what_was_not_read_goes_again_and_its_room_waits_for_the_shards_word() -> None:
    link = Link(room=LARGE)
    frame, _ = link.put((LARGE, True), (LARGE, False))
    link.arena.arrived(frame.number, frame.fragments)
    assert link.arena.reset() == [frame.fragments[0]]
    assert frame.fragments[0].run.owner.because == {}
    link.arena.memory = link.memory
    assert link.put((LARGE, False))[1] == []
    assert link.arena.released_before() == []
    assert link.put((LARGE, False))[1] != []


def test_arrays_that_an_earlier_connection_may_read_are_not_the_callers_before_it_has() -> None:
    """Even where the new connection carries them as bytes: the old one's may be read still."""
    link = Link()
    link.put((LARGE, True))
    link.arena.reset()
    again = link.frame((LARGE, True))
    assert link.arena.arrived(again.number, again.fragments) == ()
    assert link.arena.released_before() == [again.fragments[0]]
    later = link.frame((LARGE, True))
    assert link.arena.arrived(later.number, later.fragments) is later.fragments
