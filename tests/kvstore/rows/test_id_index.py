"""The row of an id: words of eight slots, and the index against a dict."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_kernels.id_draws import mixed
from weft_kvstore.arrays import Array
from weft_kvstore.rows import index as rows_index
from weft_kvstore.rows.index import (
    FREED,
    GROUP,
    PARTITION_SLOTS,
    IdIndex,
    fingerprints,
    first_byte,
    free_bytes,
    shard_of,
    zero_bytes,
)

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
    patterns = np.full((len(groups), GROUP), mark, np.uint8).view(np.uint64).reshape(-1)
    assert found(zero_bytes(words_of(groups) ^ patterns)) == first_of(groups, mark)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_a_fingerprint_is_the_hash_s_last_byte_and_never_that_of_a_slot_without_an_id(hashes: list[int]) -> None:
    marks = fingerprints(np.array(hashes, np.uint64))
    assert marks.dtype == np.uint8
    assert marks.tolist() == [max(one >> 56, FREED + 1) for one in hashes]


IDS = st.one_of(
    st.integers(0, 40), st.integers(2**63 - 3, 2**63 + 3), st.integers(2**64 - 20, 2**64 - 1), st.integers(0, 2**64 - 1)
)


def ids_of(*ids: int) -> Array:
    return np.array(ids, np.uint64)


def unmixed(words: Array) -> Array:
    """The inverse of SplitMix64's finalizer: what somebody would use to make ids collide."""
    words = words.copy()
    for shift, factor in ((31, None), (27, 0x94D049BB133111EB), (30, 0xBF58476D1CE4E5B9)):
        if factor is not None:
            words *= np.uint64(pow(factor, -1, 1 << 64))
        found = words.copy()
        for _ in range(64 // shift):
            found = words ^ (found >> np.uint64(shift))
        words = found
    return words


class Model:
    """The index beside a dict."""

    def __init__(self, salt: int = 3) -> None:
        self.index = IdIndex(salt)
        self.rows: dict[int, int] = {}

    def add(self, ids: Array) -> None:
        ids = np.unique(ids)
        rows, new = self.index.find_or_add(ids)
        assert [one in self.rows for one in ids.tolist()] == (~np.isin(np.arange(len(ids)), new)).tolist()
        self.rows |= zip(ids[new].tolist(), rows[new].tolist(), strict=True)
        assert rows.tolist() == [self.rows[one] for one in ids.tolist()]

    def remove(self, ids: Array) -> None:
        rows = [self.rows.pop(one) for one in np.unique(ids).tolist() if one in self.rows]
        self.index.remove(np.array(rows, np.int64))
        for _ in self.index.tidy():
            pass

    def check(self, *more: int) -> None:
        ids = np.array([*self.rows, *more], np.uint64)
        assert self.index.find(ids).tolist() == [self.rows.get(one, -1) for one in ids.tolist()]
        assert self.index.count == len(self.rows)
        assert len(set(self.rows.values())) == len(self.rows)
        assert self.index.stop - len(self.index._free) == len(self.rows), "numbers of removed rows are given again"


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.lists(IDS, max_size=30)), max_size=12))
def test_rows_are_found_as_in_a_dict(program: list[tuple[bool, list[int]]]) -> None:
    model = Model()
    for adds, ids in program:
        (model.add if adds else model.remove)(ids_of(*ids))
        model.check(*ids, 0, 2**63, 2**64 - 1)


def test_the_index_of_a_table_that_grows_and_shrinks_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small partitions, so that all of splitting, spilling and tidying happens."""
    monkeypatch.setattr(rows_index, "PARTITION_SLOTS", 64)
    generator, model = np.random.default_rng(4), Model()
    for turn in range(60):
        model.add(generator.integers(0, 3000, 200).astype(np.uint64))
        if turn % 4 == 3:
            kept = np.array(list(model.rows), np.uint64)
            model.remove(generator.permutation(kept)[: len(kept) * 2 // 3])
        model.check(*range(0, 3000, 7))
    assert 5 * len(model.index._rows) + model.index.ids.array.nbytes < 3000 * 80


@pytest.mark.parametrize("stride", [1, 1 << 20, 1 << 32, 0x9E3779B97F4A7C15])
def test_ids_that_follow_a_pattern_are_found_too(stride: int) -> None:
    index, ids = IdIndex(9), np.arange(100_000, dtype=np.uint64) * np.uint64(stride)
    rows, _ = index.find_or_add(ids)
    assert np.array_equal(index.find(ids), rows)
    assert np.array_equal(rows, np.arange(len(ids)))
    assert (index.find(ids + np.uint64(len(ids) * stride % 2**64)) < 0).all()


def test_ids_made_to_collide_need_the_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that all begin at one group under salt 0 are spread under another, and are right, if slow, under that one."""
    hashes = np.arange(2000, dtype=np.uint64) << np.uint64(34)
    ids = unmixed(hashes)
    assert np.array_equal(mixed(ids.copy()), hashes)
    probes: dict[int, int] = {}
    zero_bytes = rows_index.zero_bytes
    for salt in (0, 1234567):
        index = IdIndex(salt)
        index.find_or_add(ids)
        calls = 0

        def counted(words: Array) -> Array:
            nonlocal calls
            calls += 1
            return zero_bytes(words)

        with monkeypatch.context() as patch:
            patch.setattr(rows_index, "zero_bytes", counted)
            assert np.array_equal(index.find(ids[::-1]), np.arange(len(ids))[::-1])
        probes[salt] = calls
    assert probes[0] > 100
    assert probes[1234567] < 40


def test_the_index_takes_no_more_than_25_bytes_a_row_at_any_size() -> None:
    index, generator, most = IdIndex(1), np.random.default_rng(2), 0.0
    ids = generator.integers(0, 2**64, 600_000, dtype=np.uint64)
    for low in range(0, len(ids), 20_000):
        index.find_or_add(ids[low : low + 20_000])
        if low >= 100_000:
            used = np.flatnonzero(index._words.view(np.uint8))
            assert index._words.nbytes * 5 / index.count + 8 <= 25
            filled = np.bincount(used // PARTITION_SLOTS) / PARTITION_SLOTS
            most = max(most, float(filled.max()))
    assert most < 0.85
    assert np.array_equal(index.find(ids), np.arange(len(ids)))


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 16])
def test_ids_are_spread_evenly_whatever_they_are(shards: int) -> None:
    for ids in (np.arange(40_000), np.arange(40_000) << 40, np.arange(40_000) * shards):
        counts = np.bincount(shard_of(ids.astype(np.uint64), shards), minlength=shards)
        assert len(counts) == shards
        assert abs(counts - 40_000 / shards).max() < 6 * (40_000 / shards) ** 0.5 + 1


def test_the_shard_of_an_id_is_splitmix_in_plain_numbers() -> None:
    """Every process, and every later version, has to agree on it."""
    numbers = [0, 1, 2, 3, 10**9, 2**63 - 1, 2**63, 2**64 - 1]

    def shard(number: int) -> int:
        word = number ^ 0x5851F42D4C957F2D
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return ((word ^ word >> 31) >> 32) * 5 >> 32

    ids = ids_of(*numbers)
    assert shard_of(ids, 5).tolist() == [shard(number) for number in numbers]
    assert ids.tolist() == numbers, "they are not written"
