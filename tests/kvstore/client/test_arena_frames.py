"""What of a link's frames lies in the arena: when it has arrived, when it may be written, and what a break leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from store_cluster import key_of, store_of
from store_raw import column, values_of
from weft_kvstore.client.link import UNREAD, ArenaFrames
from weft_kvstore.same_host.layout import LEAST_SHARED_BYTES, LinkMemory, OwnPlaces, SpareSpace
from weft_kvstore.same_host.memory import LentMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.sharding import routing_of
from weft_kvstore.wire.codec import ProtocolError, decode_request
from weft_kvstore.wire.messages import PayloadKind, Push, SentEntry, Values
from weft_kvstore.wire.outbox import OneBuffer, Outbox, OutFrame, OutRun

SHARD = 2
LARGE = LEAST_SHARED_BYTES


class Link:
    """An outbox, and an arena whose stage for the shard has room for `room` bytes."""

    def __init__(self, room: int = 4 * LARGE) -> None:
        self.bytes = np.zeros(room, np.uint8)
        self.stages = [SpareSpace(range(0)), SpareSpace(range(0)), SpareSpace(range(room))]
        self.outbox: Outbox[SentEntry, Any] = Outbox(LinkSettings(credit_bytes=1 << 24, frame_bytes=1 << 24))
        self.arena = ArenaFrames(SHARD)

    def bytes_at(self, offset: int, nbytes: int) -> Any:
        return self.bytes[offset : offset + nbytes]

    def frame(self, *runs: tuple[int, bool]) -> OutFrame[SentEntry, Any]:
        """Of one slice each: its bytes, and whether they are in the places of their keys."""
        for number, (nbytes, place) in enumerate(runs):
            entry = SentEntry(PayloadKind.GRADIENT, number + 1, 0, 0, 0, place)
            source = OneBuffer(memoryview(bytes([number + 1]) * nbytes))
            owner = SimpleNamespace(because={})
            self.outbox.put(OutRun(entry, 0, np.array([0, nbytes]), source, priority=number, owner=owner))
        frame = self.outbox.fill(0.0)
        assert frame is not None
        assert len(frame.pieces) == len(runs)
        return frame

    def push(self, *runs: tuple[int, bool]) -> tuple[OutFrame[SentEntry, Any], Push, bytes]:
        """A frame, and what travels of it: its header, and the payload in the message."""
        frame = self.frame(*runs)
        message, payload, _ = decode_request(self.arena.push(LinkMemory(self, SHARD), frame, [7]))
        assert isinstance(message, Push)
        assert message.acknowledge == [7]
        return frame, message, bytes(payload)


def test_a_large_payload_is_laid_and_a_small_one_travels() -> None:
    link = Link()
    assert not link.arena.in_use
    small = link.push((LARGE - 1, False))
    assert (small[1].at, len(small[2]), link.arena.in_use, link.arena.bytes_sent) == (None, LARGE - 1, False, 0)
    large = link.push((LARGE, False), (8, False))
    assert (large[1].at, large[2], link.arena.in_use, link.arena.bytes_sent) == (0, b"", True, LARGE + 8)
    assert bytes(link.bytes[LARGE - 1 : LARGE + 9]) == b"\1" + b"\2" * 8 + b"\0"


def test_what_is_in_its_place_is_neither_laid_nor_sent() -> None:
    link = Link()
    _, message, payload = link.push((LARGE, True), (8, False))
    assert (column(message, "place"), message.at, payload) == ([True, False], None, b"\2" * 8)
    assert link.arena.bytes_sent == LARGE


def test_what_was_copied_has_arrived_and_what_is_in_its_place_waits_until_it_was_read() -> None:
    link = Link()
    frame, _, _ = link.push((LARGE, True), (LARGE, False))
    placed, copied = frame.pieces
    assert link.arena.arrived(frame.number, frame.pieces) == [copied]
    assert (placed.run.owner.because, copied.run.owner.because) == ({SHARD: UNREAD}, {})
    assert link.arena.released(frame.number) == [placed]


def test_what_is_released_before_it_was_acknowledged_has_all_to_arrive_with_it() -> None:
    link = Link()
    frame, _, _ = link.push((LARGE, False))
    assert link.arena.released(frame.number) is None


def test_room_is_given_back_once_it_was_read() -> None:
    link = Link(room=LARGE)
    frame, message, _ = link.push((LARGE, False))
    assert message.at == 0
    link.arena.arrived(frame.number, frame.pieces)
    assert link.push((LARGE, False))[1].at is None
    link.arena.released(frame.number)
    assert link.push((LARGE, False))[1].at == 0


@pytest.mark.parametrize("number", [1, 9])
def test_a_frame_that_has_nothing_there_cannot_be_released(number: int) -> None:
    link = Link()
    link.push((8, False))
    with pytest.raises(ProtocolError, match=rf"Released.frame: {number} is not in the arena"):
        link.arena.released(number)


def test_after_a_break_what_was_not_read_goes_again_and_its_room_waits_for_the_shards_word() -> None:
    link = Link(room=LARGE)
    frame, _, _ = link.push((LARGE, True), (LARGE, False))
    link.arena.arrived(frame.number, frame.pieces)
    assert link.arena.begin_anew() == [frame.pieces[0]]
    assert frame.pieces[0].run.owner.because == {}
    assert link.push((LARGE, False))[1].at is None
    assert link.arena.released_before() == []
    assert link.push((LARGE, False))[1].at == 0


def test_arrays_that_an_earlier_connection_may_read_are_not_the_callers_before_it_has() -> None:
    """Even where the new connection carries them as bytes: the old one's may be read still."""
    link = Link()
    link.push((LARGE, True))
    link.arena.begin_anew()
    again = link.frame((LARGE, True), (8, False))
    assert link.arena.arrived(again.number, again.pieces) == [again.pieces[1]]
    assert link.arena.released_before() == [again.pieces[0]]
    later = link.frame((LARGE, True))
    assert link.arena.arrived(later.number, later.pieces) is later.pieces


def values(at: int | None, place: list[int]) -> Values:
    return values_of(1, {"request": 1, "nbytes": 8, "place": bool(place)}, at=at)


@pytest.mark.parametrize(("at", "place", "told"), [(0, [], "Values.at: 0"), (None, [1], "Values.place: 1")])
def test_values_in_an_arena_that_the_shard_never_had_are_nonsense(at: int | None, place: list[int], told: str) -> None:
    arena = ArenaFrames(SHARD)
    assert not arena.is_lost
    with pytest.raises(ProtocolError, match=f"{told}, the shard has no arena"):
        arena.runs_of(values(at, place), memoryview(b""))


def test_values_in_an_arena_that_it_had_are_lost_until_a_new_connection_begins() -> None:
    arena = ArenaFrames(SHARD)
    arena.share(LinkMemory(Link(), SHARD))
    assert not arena.is_lost
    arena.share(None)
    assert arena.is_lost
    arena.begin_anew()
    assert not arena.is_lost


def test_values_that_are_laid_are_found_and_others_are_in_the_message() -> None:
    link = Link()
    link.bytes[16:24] = 5
    link.arena.share(LinkMemory(link, SHARD))
    for found, payload, expected in ((values(16, []), b"", b"\5" * 8), (values(None, []), b"in there", b"in there")):
        ((_, came),) = link.arena.runs_of(found, memoryview(payload))
        assert came.payload is not None
        assert bytes(came.payload) == expected


def test_what_a_shard_lends_is_where_the_description_says_and_nowhere_else() -> None:
    link = Link()
    routing = routing_of(store_of([key_of("a", [3], 1), key_of("b", [2], 1)], slots=1, shards=1, slice_bytes=8))
    places = OwnPlaces(routing, 0)
    (start,) = places.starts.values()
    memory = LinkMemory(link, SHARD, link, places)
    link.bytes[start + 8 : start + 20] = 9
    assert bytes(memory.lent(0, 1, 2, 12)) == b"\t" * 12
    for bucket, first, count, nbytes, told in (
        (0, 1, 2, 11, "Values.nbytes: 11, slices from 1 of bucket 0 have 12"),
        (0, 2, 2, 12, "slices 2 to 3 of bucket 0 cannot be lent"),
        (1, 0, 1, 8, "slices 0 to 0 of bucket 1 cannot be lent"),
    ):
        with pytest.raises(ProtocolError, match=told):
            memory.lent(bucket, first, count, nbytes)
    empty = SimpleNamespace(bytes_at=lambda offset, nbytes: LentMemory(0))
    with pytest.raises(ProtocolError, match=r"Values\.lent: 0 bytes to lend"):
        LinkMemory(link, SHARD, empty, places).lent(0, 0, 1, 8)  # type: ignore[arg-type]  # it raises
    with pytest.raises(ProtocolError, match=r"Values\.lent: the shard has lent nothing"):
        LinkMemory(link, SHARD).lent(0, 0, 1, 8)
    lent = Values(1, [(1, 0, 0, 1, False, False, 0, 1, 8)], lent=True)
    with pytest.raises(ProtocolError, match=r"Values\.lent: true, the shard has no arena"):
        link.arena.runs_of(lent, memoryview(b""))
