"""Where places lie in an arena, who has pieces of its spare part, and that the page says so."""

from __future__ import annotations

import mmap
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_kvstore.same_host.handover import (
    MAX_PACKET_BYTES,
    MAX_WAITING,
    OFFER_TIMEOUT_S,
    OFFER_VERSION,
    Answer,
    Offer,
    address_of,
    decode_answer,
    decode_offer,
    encode,
    refusal,
)
from weft_kvstore.same_host.layout import ALIGNMENT, NO_PLACE, Layout, SpareSpace, lay_out
from weft_kvstore.same_host.memory import ArenaError

LENGTHS = st.lists(st.integers(0, 20_000), max_size=30)


def spans(layout: Layout, lengths: list[int]) -> list[tuple[int, int]]:
    """Begin and end of every place and of the spare part, ascending."""
    places = [*zip(layout.gradients, lengths, strict=True), *zip(layout.values, lengths, strict=True)]
    found = [(int(start), int(start) + n) for start, n in places if start >= 0]
    return sorted([*found, (layout.spare.start, layout.spare.stop)])


@given(LENGTHS, st.integers(0, 9000))
def test_places_are_aligned_apart_and_within(lengths: list[int], spare: int) -> None:
    layout = lay_out(lengths, spare_bytes=spare)
    found = spans(layout, lengths)
    assert all(begin % ALIGNMENT == 0 for begin, _ in found)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(found))
    assert found[-1][1] <= layout.nbytes
    assert layout.nbytes % mmap.PAGESIZE == 0
    assert len(layout.spare) >= spare
    placed = np.array(lengths, np.int64) > 0
    assert ((layout.gradients != NO_PLACE) == placed).all()
    assert ((layout.values != NO_PLACE) == placed).all()


def test_keys_of_whole_cache_lines_lie_side_by_side() -> None:
    assert np.diff(lay_out([4096, 64, 128]).gradients).tolist() == [4096, 64]


@settings(max_examples=200)
@given(st.lists(st.one_of(st.integers(1, 700), st.tuples(st.just("give"), st.integers(0, 100))), max_size=60))
def test_pieces_are_apart_and_a_piece_is_missing_only_where_no_gap_is_long_enough(
    events: list[int | tuple[str, int]],
) -> None:
    """The model is one flag for each cache line."""
    room = range(4096, 4096 + 32 * ALIGNMENT)
    space = SpareSpace(room)
    lines = np.zeros(len(room) // ALIGNMENT, np.bool_)
    held: list[tuple[int, int]] = []
    for event in events:
        if isinstance(event, int):
            needed = -(-event // ALIGNMENT)
            free = [at for at in range(len(lines) - needed + 1) if not lines[at : at + needed].any()]
            offset = space.take(event)
            assert offset == (room.start + free[0] * ALIGNMENT if free else None)
            if offset is not None:
                held.append((offset, needed))
                lines[free[0] : free[0] + needed] = True
        elif held:
            offset, needed = held.pop(event[1] % len(held))
            space.give(offset)
            at = (offset - room.start) // ALIGNMENT
            lines[at : at + needed] = False
    for offset, _ in held:
        space.give(offset)
    assert space.take(len(room)) == room.start


def test_a_piece_cannot_come_back_twice() -> None:
    space = SpareSpace(range(4096))
    offset = space.take(10)
    assert offset == 0
    space.give(offset)
    with pytest.raises(ValueError, match="no piece was taken at 0"):
        space.give(offset)
    with pytest.raises(ValueError, match="a piece of 0 bytes"):
        space.take(0)
    assert SpareSpace(range(0)).take(1) is None


PAGE = (Path(__file__).parents[3] / "docs" / "same-host.md").read_text()

OFFER = Offer(2, bytes(range(16)), 8192)
OFFER_BYTES = bytes.fromhex(
    "84 a4 74797065 a5 6f66666572 a7 76657273696f6e 02 a6 7469636b6574 c4 10 000102030405060708090a0b0c0d0e0f"
    "a6 6e6279746573 cd 2000"
)
ANSWER_BYTES = bytes.fromhex("84 a4 74797065 a6 616e73776572 a8 6163636570746564 c3 a6 726561736f6e a0 a4 6c656e74 00")


def test_the_bytes_are_as_they_were() -> None:
    assert encode(OFFER) == OFFER_BYTES
    assert decode_offer(OFFER_BYTES) == OFFER
    assert encode(Answer(accepted=True)) == ANSWER_BYTES
    assert decode_answer(ANSWER_BYTES) == Answer(accepted=True)


def test_the_page_names_every_field_and_bound() -> None:
    for packet in (Offer, Answer):
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{packet.__struct_config__.tag}` |")]
        for field in packet.__struct_fields__:
            assert f"`{field}`" in row
    assert f"`version` ({OFFER_VERSION})" in PAGE
    assert f"at most {MAX_PACKET_BYTES:,} bytes" in PAGE
    assert f"within {OFFER_TIMEOUT_S:.0f} s of connecting; {MAX_WAITING} may wait" in PAGE
    assert f"{ALIGNMENT}-byte boundary" in PAGE
    assert f"`{address_of(bytes(16))[1:-32].decode()}` and 32 hexadecimal digits" in PAGE


@given(st.text(max_size=5000))
def test_any_reason_fits_into_a_packet(reason: str) -> None:
    packet = encode(refusal(reason))
    assert len(packet) <= MAX_PACKET_BYTES
    assert decode_answer(packet).reason == reason[: len(decode_answer(packet).reason)]


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(packet: bytes) -> None:
    for decode in (decode_offer, decode_answer):
        try:
            decode(packet)
        except ArenaError:
            continue


@pytest.mark.parametrize("place", range(len(OFFER_BYTES)))
def test_an_offer_that_was_cut_is_none(place: int) -> None:
    with pytest.raises(ArenaError, match="no offer"):
        decode_offer(OFFER_BYTES[:place])
