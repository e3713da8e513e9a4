"""The outbox: order, frames, credit. The law is checked against a link that delivers frames in order."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.outbox import (
    CREDIT_BASE_BYTES,
    CREDIT_TIME_S,
    FIRST_CREDIT_BYTES,
    FRAME_TIME_S,
    LOCAL_CREDIT_BYTES,
    LOOPBACK_FRAME_BYTES,
    MAX_AUTO_CREDIT_BYTES,
    MAX_AUTO_FRAME_BYTES,
    SHARED_FRAME_BYTES,
    BufferSource,
    Outbox,
    OutFrame,
    OutSegment,
)

Segment = OutSegment[Any, Any]


def segment_of(
    lengths: Sequence[int], priorities: Sequence[int] | int = 0, first: int = 0, entry: object = (0, 0)
) -> Segment:
    """Slices of these lengths; of these priorities, which ascend, or all of one."""
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    one = isinstance(priorities, int)
    return OutSegment(
        entry,
        first,
        bounds,
        BufferSource(memoryview(np.arange(bounds[-1]).astype(np.uint8).tobytes())),
        priority=priorities if one else 0,
        owner=None,
        priorities=None if one else np.array(priorities, np.int64),
    )


def slice_of(nbytes: int, priority: int = 0, index: int = 0, entry: object = (0, 0)) -> Segment:
    return segment_of([nbytes], priority, index, entry)


def slices(frame: OutFrame[Any, Any]) -> list[tuple[Any, int, int]]:
    """(entry, slice, bytes) in the order in which they lie in a frame."""
    return [
        (
            segment.entry,
            segment.first + number,
            int(segment.bounds[number + 1] - segment.bounds[number]),
        )
        for segment in frame.segments
        for number in range(segment.count)
    ]


def indices(frame: OutFrame[Any, Any]) -> list[int]:
    return [index for _, index, _ in slices(frame)]


def drained(outbox: Outbox[Any, Any]) -> list[tuple[Any, int, int]]:
    """All that waits, each frame acknowledged at once."""
    found: list[tuple[Any, int, int]] = []
    while (frame := outbox.fill(0.0)) is not None:
        found += slices(frame)
        outbox.acknowledge(frame.number, 1.0)
    return found


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 500)), max_size=60))
def test_the_most_urgent_leave_first_and_equal_priorities_keep_their_order(given_in: list[tuple[int, int]]) -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(credit_bytes=700, frame_bytes=300))
    for number, (priority, nbytes) in enumerate(given_in):
        outbox.put(slice_of(nbytes, priority, number), 1)
    order = sorted(range(len(given_in)), key=lambda number: (given_in[number][0], number))
    assert [index for _, index, _ in drained(outbox)] == order


runs_of_slices = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 90)), min_size=1, max_size=12), min_size=1, max_size=8
)


@settings(max_examples=200)
@given(runs_of_slices, st.integers(1, 200), st.integers(1, 400), st.booleans())
def test_runs_of_many_slices_leave_as_if_each_slice_had_been_put_by_itself(
    segments: list[list[tuple[int, int]]], frame_bytes: int, credit: int, priorities: bool
) -> None:
    """In the order of priority, then of segments, then within a segment; whatever frames cut them into."""
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(credit_bytes=credit, frame_bytes=frame_bytes, priorities=priorities))
    wanted = []
    for number, one in enumerate(segments):
        one.sort(key=lambda each: each[0])
        outbox.put(segment_of([nbytes for _, nbytes in one], [priority for priority, _ in one], 10, (number,)), 1)
        urgency = [priority if priorities else 0 for priority, _ in one]
        wanted += [(urgency[at], (number,), 10 + at, one[at][1]) for at in range(len(one))]
    assert outbox.queued_slices == len(wanted)
    assert outbox.queued_bytes == sum(nbytes for *_, nbytes in wanted)
    found: list[tuple[Any, int, int]] = []
    while (frame := outbox.fill(0.0)) is not None:
        assert frame.nbytes == sum(nbytes for *_, nbytes in slices(frame)) == len(frame.payload())
        assert frame.nbytes <= min(frame_bytes, credit) or len(slices(frame)) == 1
        assert frame.rows == joined(slices(frame))
        found += slices(frame)
        outbox.acknowledge(frame.number, 1.0)
    assert found == [(number, index, nbytes) for _, number, index, nbytes in sorted(wanted)]
    assert (outbox.queued_slices, outbox.queued_bytes, outbox.in_flight_bytes) == (0, 0, 0)


def joined(found: list[tuple[Any, int, int]]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for entry, index, nbytes in found:
        if rows and tuple(rows[-1][:-3]) == entry and sum(rows[-1][-3:-1]) == index:
            rows[-1][-2:] = [rows[-1][-2] + 1, rows[-1][-1] + nbytes]
        else:
            rows.append([*entry, index, 1, nbytes])
    return rows


def test_without_priorities_the_first_in_is_the_first_out() -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(priorities=False))
    for number, priority in enumerate([3, 0, 2, 1]):
        outbox.put(slice_of(10, priority, number), 1)
    assert [index for _, index, _ in drained(outbox)] == [0, 1, 2, 3]


@settings(max_examples=200)
@given(
    st.integers(1, 2000),
    st.integers(1, 3000),
    st.lists(st.one_of(st.lists(st.integers(1, 1000), min_size=1, max_size=5), st.just("deliver")), max_size=60),
    st.integers(1, 1000),
)
def test_at_most_the_credit_or_one_slice_arrives_before_an_urgent_slice(
    credit: int, frame_bytes: int, before: list[list[int] | str], urgent: int
) -> None:
    """Runs are handed over and frames delivered in any order; then one urgent slice is handed over."""
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(credit_bytes=credit, frame_bytes=frame_bytes))
    wire: deque[OutFrame[Any, Any]] = deque()
    largest = 0

    def send() -> None:
        while (frame := outbox.fill(0.0)) is not None:
            wire.append(frame)
            under_way = sum(one.nbytes for one in wire)
            assert under_way == outbox.in_flight_bytes
            assert under_way <= credit or len(slices(frame)) == len(wire) == 1

    for event in before:
        if isinstance(event, list):
            largest = max(largest, *event)
            outbox.put(segment_of(event, 1), 1)
        elif wire:
            outbox.acknowledge(wire.popleft().number, 1.0)
        send()
    outbox.put(slice_of(urgent, priority=0, index=99), 1)
    arrived_before = 0
    while True:
        send()
        there = slices(wire[0])
        places = [place for place, (_, index, _) in enumerate(there) if index == 99]
        arrived_before += sum(nbytes for *_, nbytes in there[: places[0] if places else len(there)])
        if places:
            break
        outbox.acknowledge(wire.popleft().number, 1.0)
    assert arrived_before <= max(credit, largest)


def test_without_priorities_the_law_does_not_hold() -> None:
    """What the law's test would see if the mechanism were off: everything waiting arrives first."""
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(credit_bytes=100, frame_bytes=100, priorities=False))
    outbox.put(segment_of([100] * 10, 1), 1)
    outbox.put(slice_of(10, priority=0, index=99), 1)
    order = drained(outbox)
    before = [index for _, index, _ in order].index(99)
    assert sum(nbytes for *_, nbytes in order[:before]) == 1000


def test_a_slice_larger_than_the_credit_goes_alone() -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(credit_bytes=100, frame_bytes=100))
    outbox.put(segment_of([60, 1000, 60]), 1)
    first = outbox.fill(0.0)
    assert first is not None
    assert indices(first) == [0]
    assert outbox.fill(0.0) is None
    outbox.acknowledge(first.number, 1.0)
    second = outbox.fill(1.0)
    assert second is not None
    assert indices(second) == [1]
    assert outbox.fill(1.0) is None
    outbox.acknowledge(second.number, 2.0)
    assert [index for _, index, _ in drained(outbox)] == [2]


def test_small_slices_share_a_frame_that_does_not_wait_to_fill() -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(credit_bytes=1000, frame_bytes=100))
    for number in range(2):
        outbox.put(segment_of([10] * 6, first=10 * number), 1)
    frames = [outbox.fill(0.0), outbox.fill(0.0), outbox.fill(0.0)]
    assert [indices(frame) if frame else [] for frame in frames] == [[0, 1, 2, 3, 4, 5, 10, 11, 12, 13], [14, 15], []]


def test_a_frame_within_one_buffer_is_a_view_of_it() -> None:
    segment = segment_of([4, 4, 4], first=4, entry=(5, 1))
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(credit_bytes=12, frame_bytes=8))
    outbox.put(segment, 1)
    payloads = []
    for first, count in ((4, 2), (6, 1)):
        frame = outbox.fill(0.0)
        assert frame is not None
        assert frame.rows == [[5, 1, first, count, 4 * count]]
        payloads.append(frame.payload())
    assert all(isinstance(one, memoryview) and one.obj is segment.source.base.obj for one in payloads)
    assert b"".join(payloads) == bytes(range(12))


class Turned:
    """A source that lays what it is asked for the other way round: what comes of a segment depends on all of it."""

    def __call__(self, start: int, stop: int) -> Sequence[bytes]:
        return (bytes(reversed(range(start, stop))),)


def test_what_the_header_has_as_one_run_is_cut_at_once() -> None:
    """Parts of a segment that have left and leave again are pieces of their own."""
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(frame_bytes=2, credit_bytes=1 << 20))
    outbox.put(OutSegment((0, 0), 0, np.arange(5), Turned(), priority=0, owner=None), 1)
    other = slice_of(2, 1, 7, entry=(1, 0))
    outbox.put(other, 2)
    assert [bytes(frame.payload()) for frame in (outbox.fill(0.0), outbox.fill(0.0)) if frame] == [b"\1\0", b"\3\2"]
    outbox.requeue()
    outbox.bounds.frame_bytes = 8
    frame = outbox.fill(0.0)
    assert frame is not None
    assert frame.rows == [[0, 0, 0, 4, 4], [1, 0, 7, 1, 2]]
    assert bytes(frame.payload())[:4] == b"\3\2\1\0"
    assert frame.nbytes == len(frame.payload()) == 6


def test_runs_that_are_not_adjacent_are_joined_in_order() -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings())
    for entry, text, index in [((0, 0), b"abcd", 0), ((1, 0), b"efgh", 0), ((0, 0), b"ijkl", 3), ((0, 0), b"mn", 4)]:
        bounds = np.array([0, len(text)])
        outbox.put(OutSegment(entry, index, bounds, BufferSource(memoryview(text)), priority=0, owner=None), 1)
    frame = outbox.fill(0.0)
    assert frame is not None
    assert frame.rows == [[0, 0, 0, 1, 4], [1, 0, 0, 1, 4], [0, 0, 3, 2, 6]]
    assert bytes(frame.payload()) == b"abcdefghijklmn"


@settings(max_examples=200)
@given(runs_of_slices, st.integers(0, 12), st.sets(st.integers(0, 7)))
def test_after_a_broken_connection_what_was_under_way_leaves_again_in_its_old_place(
    segments: list[list[tuple[int, int]]], sent: int, cancelled: set[int]
) -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(credit_bytes=200, frame_bytes=60))
    for number, one in enumerate(segments):
        one.sort(key=lambda each: each[0])
        outbox.put(
            segment_of([nbytes for _, nbytes in one], [priority for priority, _ in one], entry=(number,)), number
        )
    for _ in range(sent):
        outbox.fill(0.0)
    outbox.requeue()
    assert outbox.in_flight_bytes == 0
    for request in cancelled:
        slices_of = sum(segment.count for segment in outbox.cancel(request))
        assert slices_of == (len(segments[request]) if request < len(segments) else 0)
    outbox.fill(0.0)
    outbox.fill(0.0)
    outbox.requeue()
    order = sorted(
        (priority, number, at, nbytes)
        for number, one in enumerate(segments)
        for at, (priority, nbytes) in enumerate(one)
        if number not in cancelled
    )
    assert outbox.queued_slices == len(order)
    assert outbox.queued_bytes == sum(nbytes for *_, nbytes in order)
    assert drained(outbox) == [((number,), at, nbytes) for _, number, at, nbytes in order]
    assert (outbox.in_flight_bytes, outbox.queued_bytes, outbox.queued_slices) == (0, 0, 0)


def test_what_left_and_was_taken_out_of_its_frame_waits_again_as_it_was() -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings())
    segments = [slice_of(4, index=index, entry=entry) for entry, index in [("a", 0), ("a", 1), ("b", 7), ("a", 2)]]
    for segment in [*segments, segment_of([2, 2], first=3, entry="a")]:
        outbox.put(segment, 1)
    frame = outbox.fill(0.0)
    assert frame is not None
    assert [one.row for one in frame.segments] == [0, 0, 1, 2, 2]
    assert not outbox.waiting
    for segment in [one for one in frame.segments if one.row != 1]:
        frame.segments.remove(segment)
        outbox.put(segment, 2)
    assert outbox.acknowledge(frame.number, 0.0) == [segments[2]]
    assert drained(outbox) == [("a", 0, 4), ("a", 1, 4), ("a", 2, 4), ("a", 3, 2), ("a", 4, 2)]


def test_a_cancelled_request_is_not_sent_and_does_not_count() -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(credit_bytes=15, frame_bytes=15))
    for number in range(3):
        outbox.put(segment_of([10, 10], first=10 * number), number)
    assert outbox.fill(0.0) is not None
    found = [*outbox.cancel(0), *outbox.cancel(1), *outbox.cancel(1)]
    assert [(one.first, one.count, one.nbytes, one.row) for one in found] == [(1, 1, 10, -1), (10, 2, 20, -1)]
    assert (outbox.queued_slices, outbox.queued_bytes, outbox.in_flight_bytes) == (2, 20, 10)
    outbox.requeue()
    (again,) = outbox.cancel(0)
    assert (again.first, again.count, again.row) == (0, 1, 0)
    assert [index for _, index, _ in drained(outbox)] == [20, 21]


def test_an_acknowledgement_of_what_is_not_under_way_is_refused() -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings())
    outbox.put(slice_of(10), 1)
    frame = outbox.fill(0.0)
    assert frame is not None
    (segment,) = outbox.acknowledge(frame.number, 1.0)
    assert (segment.first, segment.count) == (0, 1)
    with pytest.raises(ProtocolError, match=r"Acknowledge\.frame: 1 is not under way"):
        outbox.acknowledge(frame.number, 1.0)


def carried(
    outbox: Outbox[Any, Any], bytes_per_s: float, round_trip_s: float, frames: int, pause_s: float = 0.0
) -> None:
    """A link of this rate and round trip, kept busy with slices of 64 KiB, until so many frames arrived. The receiver
    pauses before each twentieth acknowledgement."""
    wire: deque[tuple[OutFrame[Any, Any], float]] = deque()
    now = free = 0.0
    for number in range(frames):
        while outbox.queued_slices < 100:
            outbox.put(slice_of(64 << 10), 1)
        while (frame := outbox.fill(now)) is not None:
            free = max(free, now) + frame.nbytes / bytes_per_s
            wire.append((frame, free + round_trip_s))
        frame, arrives = wire.popleft()
        now = max(now, arrives) + (0.0 if number % 20 else pause_s)
        outbox.acknowledge(frame.number, now)


@pytest.mark.parametrize(
    ("bytes_per_s", "round_trip_s"), [(12.5e6, 50e-6), (12.5e6, 20e-3), (125e6, 1e-3), (125e6, 20e-3), (1.25e9, 50e-6)]
)
def test_credit_and_frames_follow_the_rate_of_the_link(bytes_per_s: float, round_trip_s: float) -> None:
    """100 Mbit/s, 1 and 10 Gbit/s. The credit keeps the link busy, and holds no more than some ms of it beyond that."""
    outbox: Outbox[Any, Any] = Outbox(LinkSettings())
    assert outbox.bounds.credit_bytes == FIRST_CREDIT_BYTES
    carried(outbox, bytes_per_s, round_trip_s, 1000 if round_trip_s > 1e-3 else 300)
    rate = outbox.bounds.bytes_per_s
    assert rate is not None
    full = min(bytes_per_s, MAX_AUTO_CREDIT_BYTES / round_trip_s)
    assert 0.8 * full <= rate <= 1.05 * bytes_per_s
    least = min(rate * round_trip_s, MAX_AUTO_CREDIT_BYTES)
    # The first frame, of 64 KiB, is part of the shortest round trip that was seen.
    most = CREDIT_BASE_BYTES + rate * (CREDIT_TIME_S + 2 * round_trip_s) + 2 * (64 << 10)
    assert least <= outbox.bounds.credit_bytes <= min(most, MAX_AUTO_CREDIT_BYTES)
    assert outbox.bounds.frame_bytes <= min(max(64 << 10, rate * FRAME_TIME_S), MAX_AUTO_FRAME_BYTES)


def test_both_directions_fill_the_link_though_acknowledgements_wait_behind_data() -> None:
    """1 Gbit/s each way. The second one has sent one small frame when the first begins, and all else when that has its
    credit."""
    bytes_per_s = 125e6
    ends: tuple[Outbox[Any, Any], ...] = Outbox(LinkSettings()), Outbox(LinkSettings())
    free, sent, now = [0.0, 0.0], [0, 0], 0.0
    events: list[tuple[float, int, str, int]] = []

    def send(end: int, slices: int = 100) -> None:
        while ends[end].queued_slices < slices:
            ends[end].put(slice_of(64 << 10), 1)
        while (frame := ends[end].fill(now)) is not None:
            free[end] = max(free[end], now) + frame.nbytes / bytes_per_s
            sent[end] += frame.nbytes
            heapq.heappush(events, (free[end] + 5e-5, end, "frame", frame.number))

    send(1, slices=1)
    send(0)
    begun = math.inf
    for count in range(3000):
        if count == 300:
            begun, sent[:] = now, (0, 0)
            send(1)
        now, end, what, number = heapq.heappop(events)
        if what == "frame":  # Its acknowledgement leaves behind what the other end has sent.
            heapq.heappush(events, (max(free[1 - end], now) + 5e-5, end, "acknowledgement", number))
        else:
            ends[end].acknowledge(number, now)
            if end == 0 or begun < now:
                send(end)
    assert min(sent) >= 0.9 * bytes_per_s * (now - begun)


@pytest.mark.parametrize(("bytes_per_s", "pause_s"), [(125e6, 3e-3), (125e6, 20e-3), (1.25e9, 3e-3)])
def test_a_receiver_that_pauses_is_no_slow_link(bytes_per_s: float, pause_s: float) -> None:
    """A shard that computes for some ms before it reads: each twentieth acknowledgement, and what is behind it, is
    late."""
    outbox: Outbox[Any, Any] = Outbox(LinkSettings())
    carried(outbox, bytes_per_s, 1e-4, 400, pause_s=pause_s)
    assert outbox.bounds.bytes_per_s == pytest.approx(bytes_per_s, rel=0.2)


@pytest.mark.parametrize("bytes_per_s", [12.5e6, 3e9])
def test_loopback_has_a_credit_and_frames_of_constant_size(bytes_per_s: float) -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(), loopback=True)
    carried(outbox, bytes_per_s, 1e-4, 100)
    assert (outbox.bounds.credit_bytes, outbox.bounds.frame_bytes) == (LOCAL_CREDIT_BYTES, LOOPBACK_FRAME_BYTES)
    outbox.share(shared=True)
    assert (outbox.bounds.credit_bytes, outbox.bounds.frame_bytes) == (LOCAL_CREDIT_BYTES, SHARED_FRAME_BYTES)


def test_what_was_set_holds_over_loopback_too() -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(credit_bytes=1 << 20, frame_bytes=1 << 18), loopback=True)
    carried(outbox, 3e9, 1e-4, 500)
    assert (outbox.bounds.credit_bytes, outbox.bounds.frame_bytes) == (1 << 20, 1 << 18)


def test_a_link_that_becomes_slower_is_noticed() -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings())
    carried(outbox, 1.25e9, 1e-4, 100)
    fast = outbox.bounds.credit_bytes
    while outbox.in_flight_bytes:
        outbox.requeue()
    carried(outbox, 12.5e6, 1e-4, 50)
    assert outbox.bounds.credit_bytes <= fast // 8


@pytest.mark.parametrize("empty", [False, True])
def test_a_link_that_becomes_faster_is_noticed_in_bursts(empty: bool) -> None:
    """A burst of 2 MiB a second, whatever frame without bytes came first: idle time is not the link's."""
    outbox: Outbox[Any, Any] = Outbox(LinkSettings())
    if empty:
        outbox.put(slice_of(0), 1)
        frame = outbox.fill(0.0)
        assert frame is not None
        outbox.acknowledge(frame.number, 1e-4)
    for second in range(1, 20):
        now = float(second)
        for _ in range(32):
            outbox.put(slice_of(64 << 10), 1)
        wire: deque[OutFrame[Any, Any]] = deque()
        while outbox.queued_slices or wire:
            while (frame := outbox.fill(now)) is not None:
                wire.append(frame)
            arrived = wire.popleft()
            now += arrived.nbytes / (1e8 if second < 10 else 1e9)
            outbox.acknowledge(arrived.number, now)
    assert outbox.bounds.bytes_per_s is not None
    assert outbox.bounds.bytes_per_s > 5e8


def test_settings_override_the_measured_rate() -> None:
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(credit_bytes=1000, frame_bytes=500))
    carried(outbox, 1e9, 1e-4, 20)
    assert (outbox.bounds.credit_bytes, outbox.bounds.frame_bytes) == (1000, 500)


def test_what_is_cancelled_is_not_kept() -> None:
    """Its bytes are let go at once, and of the heap no more than half is cancelled."""
    outbox: Outbox[Any, Any] = Outbox(LinkSettings(credit_bytes=64, frame_bytes=64))
    outbox.put(slice_of(64), 1)
    assert outbox.fill(0.0) is not None
    kept = [slice_of(8, index=index) for index in range(3)]
    for number, segment in enumerate(kept):
        outbox.put(segment, number)
    for index in range(100):
        segment = slice_of(1024, index=10 + index)
        outbox.put(segment, 3)
        outbox.cancel(3)
        assert not segment.source(0, 1024)[0]
        assert outbox.fill(0.0) is None
        assert len(outbox._heap) <= 2 * len(kept)
    outbox.cancel(1)
    outbox.cancel(1)
    assert outbox.queued_bytes == 16
    outbox.acknowledge(1, 1.0)
    assert [index for _, index, _ in drained(outbox)] == [0, 2]


def test_large_parts_of_a_buffer_are_wrapped_once_and_the_others_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_kvstore.wire.outbox.COPIED_BYTES", 4)
    monkeypatch.setattr("weft_kvstore.wire.outbox.MOST_WRAPPED", 2)
    wrapped: list[bytes] = []

    def wrap(view: memoryview) -> memoryview:
        wrapped.append(bytes(view))
        return view

    source = BufferSource(memoryview(b"0123456789"), wrap)
    for start, stop in [(0, 4), (4, 10), (0, 4), (4, 10), (0, 3)]:
        (part,) = source(start, stop)
        assert bytes(part) == b"0123456789"[start:stop]
    assert wrapped == [b"0123", b"456789"]
    source(1, 9)
    assert len(source._wrapped) == 1, "those of other steps are not kept for ever"
