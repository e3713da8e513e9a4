"""The outbox: order, frames, credit. The law is checked against a link that delivers frames in order."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_kvstore.codec import ProtocolError
from weft_kvstore.outbox import (
    FIRST_CREDIT_BYTES,
    MAX_AUTO_CREDIT_BYTES,
    MAX_AUTO_FRAME_BYTES,
    MIN_CREDIT_BYTES,
    Outbox,
    OutFrame,
    OutSlice,
)
from weft_kvstore.settings import LinkSettings


def slice_of(nbytes: int, priority: int = 0, index: int = 0, entry: tuple[int, ...] = (0, 0)) -> OutSlice:
    base = memoryview(bytes(nbytes))
    return OutSlice(entry, index, base, 0, nbytes, priority=priority, owner=None)


def drained(outbox: Outbox) -> list[OutSlice]:
    """All that waits, each frame acknowledged at once."""
    found: list[OutSlice] = []
    while (frame := outbox.fill(0.0)) is not None:
        found += frame.slices
        outbox.acknowledge(frame.number, 1.0)
    return found


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 500)), max_size=60))
def test_the_most_urgent_leave_first_and_equal_priorities_keep_their_order(given_in: list[tuple[int, int]]) -> None:
    outbox = Outbox(LinkSettings(credit_bytes=700, frame_bytes=300))
    for number, (priority, nbytes) in enumerate(given_in):
        outbox.put(slice_of(nbytes, priority, number))
    order = sorted(range(len(given_in)), key=lambda number: (given_in[number][0], number))
    assert [one.index for one in drained(outbox)] == order


def test_without_priorities_the_first_in_is_the_first_out() -> None:
    outbox = Outbox(LinkSettings(priorities=False))
    for number, priority in enumerate([3, 0, 2, 1]):
        outbox.put(slice_of(10, priority, number))
    assert [one.index for one in drained(outbox)] == [0, 1, 2, 3]


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 2000),
    st.integers(1, 3000),
    st.lists(st.one_of(st.integers(1, 1000), st.just("deliver")), max_size=80),
    st.integers(1, 1000),
)
def test_at_most_the_credit_or_one_slice_arrives_before_an_urgent_slice(
    credit: int, frame_bytes: int, before: list[int | str], urgent: int
) -> None:
    """Slices are handed over and frames delivered in any order; then one urgent slice is handed over."""
    outbox = Outbox(LinkSettings(credit_bytes=credit, frame_bytes=frame_bytes))
    wire: deque[OutFrame] = deque()
    largest = 0

    def send() -> None:
        while (frame := outbox.fill(0.0)) is not None:
            wire.append(frame)
            under_way = sum(one.nbytes for one in wire)
            assert under_way == outbox.in_flight_bytes
            assert under_way <= credit or len(frame.slices) == len(wire) == 1

    for event in before:
        if isinstance(event, int):
            largest = max(largest, event)
            outbox.put(slice_of(event, priority=1))
        elif wire:
            outbox.acknowledge(wire.popleft().number, 1.0)
        send()
    outbox.put(slice_of(urgent, priority=0, index=99))
    arrived_before = 0
    while True:
        send()
        slices = wire[0].slices
        places = [place for place, one in enumerate(slices) if one.index == 99]
        arrived_before += sum(one.nbytes for one in slices[: places[0] if places else len(slices)])
        if places:
            break
        outbox.acknowledge(wire.popleft().number, 1.0)
    assert arrived_before <= max(credit, largest)


def test_without_priorities_the_law_does_not_hold() -> None:
    """What the law's test would see if the mechanism were off: everything waiting arrives first."""
    outbox = Outbox(LinkSettings(credit_bytes=100, frame_bytes=100, priorities=False))
    for _ in range(10):
        outbox.put(slice_of(100, priority=1))
    outbox.put(slice_of(10, priority=0, index=99))
    order = drained(outbox)
    assert sum(one.nbytes for one in order[: [one.index for one in order].index(99)]) == 1000


def test_a_slice_larger_than_the_credit_goes_alone() -> None:
    outbox = Outbox(LinkSettings(credit_bytes=100, frame_bytes=100))
    for number, nbytes in enumerate([60, 1000, 60]):
        outbox.put(slice_of(nbytes, index=number))
    first = outbox.fill(0.0)
    assert first is not None
    assert [one.index for one in first.slices] == [0]
    assert outbox.fill(0.0) is None
    outbox.acknowledge(first.number, 1.0)
    second = outbox.fill(1.0)
    assert second is not None
    assert [one.index for one in second.slices] == [1]
    assert outbox.fill(1.0) is None
    outbox.acknowledge(second.number, 2.0)
    assert [one.index for one in drained(outbox)] == [2]


def test_small_slices_share_a_frame_that_does_not_wait_to_fill() -> None:
    outbox = Outbox(LinkSettings(credit_bytes=1000, frame_bytes=100))
    for number in range(12):
        outbox.put(slice_of(10, index=number))
    frames = [outbox.fill(0.0), outbox.fill(0.0), outbox.fill(0.0)]
    assert [len(frame.slices) if frame else 0 for frame in frames] == [10, 2, 0]


def test_adjacent_slices_of_one_entry_are_one_run_and_no_copy() -> None:
    base = memoryview(bytes(range(12)))
    outbox = Outbox(LinkSettings())
    for index in range(3):
        outbox.put(OutSlice((5, 1), index + 4, base, 4 * index, 4 * index + 4, priority=0, owner=None))
    frame = outbox.fill(0.0)
    assert frame is not None
    (run,) = frame.runs()
    assert (run.entry, run.first, run.count, run.nbytes) == ((5, 1), 4, 3, 12)
    payload = frame.payload()
    assert isinstance(payload, memoryview)
    assert payload.obj is base.obj


def test_slices_that_are_not_adjacent_are_joined_in_order() -> None:
    one, other = memoryview(b"abcd"), memoryview(b"efgh")
    outbox = Outbox(LinkSettings())
    for entry, base, index in [((0, 0), one, 0), ((1, 0), other, 0), ((0, 0), one, 3)]:
        outbox.put(OutSlice(entry, index, base, 0, 4, priority=0, owner=None))
    frame = outbox.fill(0.0)
    assert frame is not None
    assert [(run.entry, run.first, run.count) for run in frame.runs()] == [
        ((0, 0), 0, 1),
        ((1, 0), 0, 1),
        ((0, 0), 3, 1),
    ]
    assert bytes(frame.payload()) == b"abcdefghabcd"


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 10))
def test_after_a_broken_connection_what_was_under_way_leaves_again_in_its_old_place(
    priorities: list[int], sent: int
) -> None:
    outbox = Outbox(LinkSettings(credit_bytes=100, frame_bytes=20))
    for number, priority in enumerate(priorities):
        outbox.put(slice_of(10, priority, number))
    for _ in range(sent):
        outbox.fill(0.0)
    outbox.requeue()
    assert (outbox.in_flight_bytes, outbox.queued_bytes) == (0, 10 * len(priorities))
    order = sorted(range(len(priorities)), key=lambda number: (priorities[number], number))
    assert [one.index for one in drained(outbox)] == order
    assert (outbox.in_flight_bytes, outbox.queued_bytes, outbox.queued_slices) == (0, 0, 0)


def test_a_cancelled_slice_is_not_sent_and_does_not_count() -> None:
    outbox = Outbox(LinkSettings(credit_bytes=15, frame_bytes=15))
    slices = [slice_of(10, index=number) for number in range(4)]
    for one in slices:
        outbox.put(one)
    frame = outbox.fill(0.0)
    assert frame is not None
    outbox.cancel(slices[0])
    outbox.cancel(slices[2])
    outbox.cancel(slices[2])
    assert (outbox.queued_slices, outbox.queued_bytes, outbox.in_flight_bytes) == (2, 20, 10)
    outbox.requeue()
    assert [one.index for one in drained(outbox)] == [1, 3]


def test_an_acknowledgement_of_what_is_not_under_way_is_refused() -> None:
    outbox = Outbox(LinkSettings())
    outbox.put(slice_of(10))
    frame = outbox.fill(0.0)
    assert frame is not None
    outbox.acknowledge(frame.number, 1.0)
    with pytest.raises(ProtocolError, match=r"Acknowledge\.frame: 1 is not under way"):
        outbox.acknowledge(frame.number, 1.0)


def carried(outbox: Outbox, bytes_per_s: float, round_trip_s: float, frames: int) -> None:
    """A link of this rate and round trip, kept busy with slices of 64 KiB, until so many frames arrived."""
    wire: deque[tuple[OutFrame, float]] = deque()
    now = free = 0.0
    for _ in range(frames):
        while outbox.queued_slices < 100:
            outbox.put(slice_of(64 << 10))
        while (frame := outbox.fill(now)) is not None:
            free = max(free, now) + frame.nbytes / bytes_per_s
            wire.append((frame, free + round_trip_s))
        frame, now = wire.popleft()
        outbox.acknowledge(frame.number, now)


@pytest.mark.parametrize("round_trip_s", [50e-6, 1e-3, 20e-3])
@pytest.mark.parametrize("bytes_per_s", [12.5e6, 125e6, 1.25e9])
def test_credit_and_frames_follow_the_rate_of_the_link(bytes_per_s: float, round_trip_s: float) -> None:
    """100 Mbit/s, 1 and 10 Gbit/s. The credit keeps the link busy, and holds no more than some ms of it beyond that."""
    outbox = Outbox(LinkSettings())
    assert outbox.credit_bytes == FIRST_CREDIT_BYTES
    carried(outbox, bytes_per_s, round_trip_s, 400)
    rate = outbox.rate.bytes_per_s
    assert rate is not None
    full = min(bytes_per_s, MAX_AUTO_CREDIT_BYTES / round_trip_s)
    assert 0.8 * full <= rate <= 1.05 * bytes_per_s
    least = min(rate * round_trip_s, MAX_AUTO_CREDIT_BYTES)
    most = max(MIN_CREDIT_BYTES, rate * (0.004 + 2 * round_trip_s) + (64 << 10) + rate * 0.01)
    assert least <= outbox.credit_bytes <= min(most, MAX_AUTO_CREDIT_BYTES)
    assert outbox.frame_bytes <= min(max(64 << 10, rate * 0.002), MAX_AUTO_FRAME_BYTES)


def test_a_link_that_becomes_slower_is_noticed() -> None:
    outbox = Outbox(LinkSettings())
    carried(outbox, 1.25e9, 1e-4, 100)
    fast = outbox.credit_bytes
    while outbox.in_flight_bytes:
        outbox.requeue()
    carried(outbox, 12.5e6, 1e-4, 50)
    assert outbox.credit_bytes <= fast // 8


def test_settings_override_the_measured_rate() -> None:
    outbox = Outbox(LinkSettings(credit_bytes=1000, frame_bytes=500))
    carried(outbox, 1e9, 1e-4, 20)
    assert (outbox.credit_bytes, outbox.frame_bytes) == (1000, 500)
