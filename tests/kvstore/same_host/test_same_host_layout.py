"""Where places lie in an arena, and who has pieces of its spare part."""

from __future__ import annotations

import mmap
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_kvstore.same_host.layout import ALIGNMENT, NO_PLACE, Layout, SpareSpace, lay_out

LENGTHS = st.lists(st.integers(0, 20_000), max_size=30)


def spans(layout: Layout, lengths: list[int]) -> list[tuple[int, int]]:
    """Begin and end of every place and of the spare part, ascending."""
    places = np.concatenate([layout.gradients, layout.values])
    found = [
        (int(start), int(start) + n) for row in places for start, n in zip(row, lengths, strict=True) if start >= 0
    ]
    return sorted([*found, (layout.spare.start, layout.spare.stop)])


@settings(deadline=None)
@given(
    LENGTHS,
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 9000),
    st.one_of(st.none(), st.integers(12_288, 10**6)),
)
def test_places_are_aligned_apart_and_within(
    lengths: list[int], gradients: int, values: int, spare: int, most: int | None
) -> None:
    layout = lay_out(lengths, gradient_places=gradients, value_places=values, spare_bytes=spare, most_bytes=most)
    found = spans(layout, lengths)
    assert all(begin % ALIGNMENT == 0 for begin, _ in found)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(found))
    assert found[-1][1] <= layout.nbytes
    assert layout.nbytes % mmap.PAGESIZE == 0
    assert len(layout.spare) >= spare
    if most is not None:
        assert layout.nbytes <= most
    else:
        placed = np.array(lengths, np.int64) > 0
        assert ((layout.gradients != NO_PLACE) == placed).all()
        assert ((layout.values != NO_PLACE) == placed).all()


def test_keys_of_whole_cache_lines_lie_side_by_side() -> None:
    layout = lay_out([4096, 64, 128], gradient_places=1)
    assert np.diff(layout.gradients[0]).tolist() == [4096, 64]


def test_what_does_not_fit_has_no_place_and_the_keys_before_it_have() -> None:
    layout = lay_out([4096, 8192, 4096], gradient_places=2, value_places=1, most_bytes=8 * 4096)
    assert (layout.gradients[0] >= 0).tolist() == [True, False, False]
    assert layout.nbytes == 3 * 4096


@pytest.mark.parametrize("numbers", [{"gradient_places": -1}, {"value_places": -1}, {"spare_bytes": -1}])
def test_numbers_below_0_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        lay_out([1], **numbers)
    with pytest.raises(ValueError, match="not -7"):
        lay_out([1, -7])


def test_a_spare_part_beyond_the_whole_is_refused() -> None:
    with pytest.raises(ValueError, match="8192 spare bytes"):
        lay_out([1], spare_bytes=4097, most_bytes=4096)


@settings(deadline=None, max_examples=200)
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
