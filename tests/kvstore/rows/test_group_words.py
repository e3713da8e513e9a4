"""Words of eight bytes against the same bytes one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft_kvstore.arrays import Array
from weft_kvstore.rows.index import FREED, GROUP, eight_times, fingerprints, first_byte, free_bytes, zero_bytes

GROUPS = st.lists(st.lists(st.integers(0, 3), min_size=GROUP, max_size=GROUP), min_size=1, max_size=20)
"""Bytes of some groups, few enough kinds of them that all meet."""


def words_of(groups: list[list[int]]) -> Array:
    return np.array(groups, np.uint8).view(np.uint64).reshape(-1)


def first_of(groups: list[list[int]], *wanted: int) -> list[int | None]:
    """By hand: the first slot of each group that has one of these bytes."""
    return [next((at for at, byte in enumerate(group) if byte in wanted), None) for group in groups]


def found(bits: Array) -> list[int | None]:
    return [at if some else None for at, some in zip(first_byte(bits).tolist(), (bits != 0).tolist(), strict=True)]


def test_a_group_is_a_word() -> None:
    assert np.dtype(np.uint64).itemsize == GROUP


@given(GROUPS)
def test_the_first_slot_that_is_free_is_found(groups: list[list[int]]) -> None:
    words = words_of(groups)
    assert found(zero_bytes(words)) == first_of(groups, 0)
    assert found(free_bytes(words)) == first_of(groups, 0, FREED)
    assert np.array_equal(words, words_of(groups)), "they are not written"


@given(GROUPS, st.integers(2, 3))
def test_the_first_slot_with_a_fingerprint_is_found(groups: list[list[int]], mark: int) -> None:
    patterns = eight_times(np.full(len(groups), mark, np.uint8))
    assert found(zero_bytes(words_of(groups) ^ patterns)) == first_of(groups, mark)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_a_fingerprint_is_the_hash_s_last_byte_and_never_that_of_a_slot_without_an_id(hashes: list[int]) -> None:
    marks = fingerprints(np.array(hashes, np.uint64))
    assert marks.dtype == np.uint8
    assert marks.tolist() == [max(one >> 56, FREED + 1) for one in hashes]
