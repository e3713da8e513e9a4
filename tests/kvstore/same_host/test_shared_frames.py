"""What of a link's frames lies in shared memory: when it has arrived, and when it may be written again."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft_kvstore.same_host.memory import Extent, SharedFrames, SharedMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.messages import PayloadKind, SentEntry
from weft_kvstore.wire.outbox import BufferSource, Outbox, OutFrame, OutSegment

LARGE = SharedMemory.least_bytes


class Link:
    """An outbox, and memory with an array of `2 * LARGE` bytes, whose staging area has room for `room` bytes."""

    def __init__(self, room: int = 4 * LARGE) -> None:
        memory = SharedMemory(2 * LARGE, room)
        memory.reserve(0, 2 * LARGE)
        self.array = memory.array(0, (2 * LARGE,), np.uint8)
        self.outbox: Outbox[SentEntry, Any] = Outbox(LinkSettings(credit_bytes=1 << 24, frame_bytes=1 << 24))
        self.shared = SharedFrames(memory)

    def put(self, *segments: tuple[int, bool]) -> tuple[OutFrame[SentEntry, Any], list[Extent]]:
        """A frame of segments of one slice each: its bytes, and whether they are in the shared array. A segment's owner
        is its place."""
        for number, (nbytes, shared) in enumerate(segments):
            entry = SentEntry(PayloadKind.GRADIENT, number + 1, 0, 0, 0)
            source = BufferSource(
                memoryview(self.array)[:nbytes] if shared else memoryview(bytes([number + 1]) * nbytes)
            )  # type: ignore[arg-type]
            self.outbox.put(OutSegment(entry, 0, np.array([0, nbytes]), source, priority=number, owner=number), number)
        frame = self.outbox.fill(0.0)
        assert frame is not None
        assert len(frame.segments) == len(segments)
        return frame, self.shared.put(frame)


def test_a_large_payload_is_put_there_and_a_small_one_travels() -> None:
    link = Link()
    assert link.put((LARGE - 1, False))[1] == []
    assert not link.shared.frames
    frame, ((offset, nbytes),) = link.put((LARGE, False), (8, False))
    assert offset > 2 * LARGE
    assert (list(link.shared.frames), nbytes) == ([frame.number], frame.nbytes)


def test_without_memory_all_payloads_travel() -> None:
    link = Link()
    link.shared = SharedFrames(None)
    assert link.put((LARGE, False))[1] == []


def test_what_was_copied_has_arrived_and_what_is_in_its_array_waits_until_it_was_read() -> None:
    link = Link()
    frame, at = link.put((LARGE, True), (LARGE, False))
    assert at[0] == (0, LARGE)
    in_place, copied = frame.segments
    assert link.shared.arrived(frame.number, frame.segments) == [copied]
    assert (link.shared.is_unread(0), link.shared.is_unread(1)) == (True, False)
    assert link.shared.release(frame.number) == [in_place]
    assert not link.shared.is_unread(0)


def test_what_is_released_before_it_has_arrived_waits_for_nothing_then() -> None:
    link = Link()
    frame, _ = link.put((LARGE, True))
    assert link.shared.release(frame.number) == []
    assert link.shared.arrived(frame.number, frame.segments) is frame.segments


def test_room_is_given_back_once_it_was_read() -> None:
    link = Link(room=LARGE)
    frame, at = link.put((LARGE, False))
    link.shared.arrived(frame.number, frame.segments)
    assert link.put((LARGE, False))[1] == []
    link.shared.release(frame.number)
    assert link.put((LARGE, False))[1] == at


def test_all_is_read_no_more_once_a_new_connection_has_begun() -> None:
    link = Link(room=LARGE)
    arrived, _ = link.put((LARGE, True), (LARGE, False))
    link.shared.arrived(arrived.number, arrived.segments)
    link.put((LARGE, True))
    assert link.put((LARGE, False))[1] == [], "no room"
    assert link.shared.release_all() == [arrived.segments[0]], "what has not arrived is sent again"
    assert not link.shared.frames
    assert link.put((LARGE, False))[1] != []
