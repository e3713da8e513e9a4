from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft_data.cut import part

counts = st.integers(0, 10_000)
slot_counts = st.integers(1, 200)


@given(counts, slot_counts)
def test_parts_are_contiguous_and_cover_every_sample_once(samples: int, slots: int) -> None:
    stops = [0]
    for slot in range(slots):
        start, stop = part(samples, slot, slots)
        assert start == stops[-1] <= stop
        stops.append(stop)
    assert stops[-1] == samples


@given(counts, slot_counts)
def test_parts_have_the_sizes_of_numpys_array_split(samples: int, slots: int) -> None:
    """Sizes differ by at most one, the longer first: what `numpy.array_split` documents."""
    expected = [len(each) for each in np.array_split(np.arange(samples), slots)]
    assert [stop - start for start, stop in (part(samples, slot, slots) for slot in range(slots))] == expected


def test_a_slot_past_the_samples_takes_none() -> None:
    assert part(2, 2, 4) == (2, 2)
    assert part(0, 0, 1) == (0, 0)


@pytest.mark.parametrize(("samples", "slot", "slots"), [(-1, 0, 1), (4, 2, 2), (4, -1, 2), (4, 0, 0)])
def test_a_part_that_cannot_be_is_refused(samples: int, slot: int, slots: int) -> None:
    with pytest.raises(ValueError, match=r"samples|slot"):
        part(samples, slot, slots)
