"""First values that were shown are not made again, and what is kept of them is bounded."""

from __future__ import annotations

import random

import numpy as np
import pytest

from weft_kvstore.arrays import Array
from weft_kvstore.tables import state as tables_state
from weft_kvstore.tables.state import FirstMade

WIDTH = 4


class Source:
    """Makes rows of their own ids, and counts what it made."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def __call__(self, ids: Array) -> Array:
        self.made += ids.tolist()
        values: Array = np.repeat(ids.astype(np.float32)[:, None], WIDTH, axis=1)
        return values


def ids_of(*ids: int) -> Array:
    return np.array(ids, np.int64)


def test_a_row_that_was_shown_is_not_made_again() -> None:
    source = Source()
    first = FirstMade(source)
    first.shown(ids_of(2, 5, 9))
    first.shown(ids_of(0, 5, 7))
    assert source.made == [2, 5, 9, 0, 7]
    assert first.taken(ids_of(0, 1, 2, 7, 9, 11))[:, 0].tolist() == [0, 1, 2, 7, 9, 11]
    assert source.made == [2, 5, 9, 0, 7, 1, 11]
    assert first.taken(ids_of(1))[:, 0].tolist() == [1]
    assert source.made[-1] == 1, "what came into being is not kept"
    assert first.shown(ids_of()).shape == (0, WIDTH)


def test_a_pull_whose_rows_have_all_come_into_being_is_not_looked_into_again() -> None:
    source = Source()
    first = FirstMade(source)
    first.shown(ids_of(2, 5))
    first.shown(ids_of(3, 8))
    first.taken(ids_of(2, 3, 5))
    assert [rows.ids.tolist() for rows in first._kept] == [[3, 8]]
    assert first.taken(ids_of(3, 8))[:, 0].tolist() == [3, 8]
    assert source.made == [2, 5, 3, 8]


def test_whatever_is_kept_the_values_are_those_that_are_made() -> None:
    choose, source = random.Random(5), Source()
    first = FirstMade(source)
    for _ in range(200):
        ids = ids_of(*sorted(choose.sample(range(60), choose.randrange(12))))
        found = first.shown(ids) if choose.random() < 0.7 else first.taken(ids)
        assert found.tolist() == np.repeat(ids[:, None], WIDTH, axis=1).tolist()
    assert sorted(set(source.made)) == list(range(60))


@pytest.mark.parametrize(("nbytes", "parts"), [(3 * (8 + 4 * WIDTH), 99), (1 << 20, 3)])
def test_the_oldest_is_forgotten_where_it_is_too_much(monkeypatch: pytest.MonkeyPatch, nbytes: int, parts: int) -> None:
    monkeypatch.setattr(tables_state, "KEPT_BYTES", nbytes)
    monkeypatch.setattr(tables_state, "KEPT_PARTS", parts)
    source = Source()
    first = FirstMade(source)
    for number in range(4):
        first.shown(ids_of(number))
    source.made.clear()
    first.taken(ids_of(1, 2, 3))
    assert source.made == []
    first.taken(ids_of(0))
    assert source.made == [0]


def test_a_pull_larger_than_what_may_be_kept_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_state, "KEPT_BYTES", 2 * (8 + 4 * WIDTH))
    source = Source()
    first = FirstMade(source)
    first.shown(ids_of(8))
    first.shown(ids_of(1, 2, 3))
    first.taken(ids_of(1, 8))
    assert source.made == [8, 1, 2, 3, 1]
