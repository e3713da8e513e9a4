"""What is set of a unit holds at once, at its version, or behind the update that is under way; and once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from store_cluster import given as given_key
from store_cluster import key_of, store_of
from weft_kvstore.bucket.gate import PushRefusedError
from weft_kvstore.description.records import KeyDescription, Mode
from weft_kvstore.rows.rows import Rows
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.tables import steps as tables_steps
from weft_kvstore.tables.steps import KeyRules, RowsAhead, TableSets


def value_of(number: float) -> Rows:
    return Rows(np.zeros(1, np.int64), np.full((1, 1), number, np.float32))


class Unit:
    """A unit's sets at a version that the test says; `put` and `filled` are what they have set, newest last."""

    def __init__(self, *, mode: Mode = Mode.SYNC, given: bool = False, slots: int = 2) -> None:
        key = key_of("w", (1,), slots)
        self.steps = SimpleNamespace(version=0)
        self.put: list[float] = []
        self.filled: list[float] = []
        self.sets = TableSets(
            rules_of(given_key(key) if given else key, mode),
            self.steps,  # type: ignore[arg-type]  # of steps only the version is looked at
            SimpleNamespace(
                put=lambda value: self.put.append(float(value.values[0, 0])),
                fill=lambda value: self.filled.append(float(value.values[0, 0])),
            ),
            partial(RowsAhead, 1, np.dtype(np.float32), np.dtype(np.int64), a_piece=8),
        )
        self.sent = 0

    def set(self, version: int, number: float, *, is_changing: bool = False, origin: object = None) -> bool:
        """Whether somebody may have waited for it."""
        self.sent += 1
        origin = self.sent if origin is None else origin
        self.sets.check(0, version, origin)
        return self.sets.accept(version, value_of(number), origin, is_changing=is_changing)

    def due(self) -> list[float]:
        """What the end of an update puts."""
        before = len(self.put)
        for _ in self.sets.put_due():
            pass
        return self.put[before:]


def rules_of(key: KeyDescription, mode: Mode) -> KeyRules:
    table = msgspec.structs.replace(key, rows=True, shape=(1, 1))
    (unit,) = JobShard(store_of([table], slots=2, shards=1, mode=mode), 0).units
    return unit.spec


def test_a_value_holds_at_the_version_that_it_names() -> None:
    unit = Unit()
    assert not unit.set(2, 5.0)
    assert unit.sets.waiting == 1
    for version in (1, 2):
        unit.steps.version = unit.sets.reached = version
        assert unit.due() == ([5.0] if version == 2 else [])
    assert unit.sets.waiting == 0
    assert unit.set(2, 6.0), "it is there already"
    assert unit.put == [5.0, 6.0]


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (0, "slot 0, key 'w', version 0: the value cannot be set: version 0 is the initializer's"),
        (2, "version 2: the value cannot be set: it is at version 3 already"),
        (12, "more than 8 ahead of version 3"),
        (6, r"values wait for versions \[4, 5\] already"),
    ],
)
def test_what_cannot_be_set_is_refused_by_version(version: int, told: str) -> None:
    unit = Unit()
    unit.steps.version = unit.sets.reached = 3
    assert not unit.set(4, 1.0)
    assert not unit.set(5, 1.0)
    with pytest.raises(PushRefusedError, match=told):
        unit.set(version, 1.0)
    assert not unit.set(5, 2.0), "that version has its place"
    assert (unit.sets.waiting, unit.put, unit.filled) == (2, [], [])


def test_what_an_update_under_way_has_read_is_set_no_more() -> None:
    unit = Unit()
    unit.steps.version, unit.sets.reached = 3, 4
    with pytest.raises(PushRefusedError, match="it is at version 4 already"):
        unit.set(3, 1.0, is_changing=True)
    assert not unit.set(4, 2.0, is_changing=True)
    unit.steps.version = 4
    assert unit.due() == [2.0]


def test_a_value_is_taken_in_once_as_long_as_its_origin_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_steps, "SETS_KEPT", 2)
    unit = Unit(mode=Mode.ASYNC)
    assert [unit.set(0, number, origin=one) for number, one in enumerate("aba")] == [True, True, False]
    assert [unit.set(0, number, origin=one) for number, one in enumerate("ca", 3)] == [True, True]
    assert unit.put == [0.0, 1.0, 3.0, 4.0], "a was the first of three"


def test_an_origin_that_is_known_is_never_refused() -> None:
    unit = Unit()
    unit.set(1, 1.0, origin="a")
    unit.steps.version = unit.sets.reached = 4
    assert not unit.set(1, 1.0, origin="a")
    assert unit.put == []


def test_what_comes_during_an_update_holds_behind_it_and_does_not_keep_it_from_ending() -> None:
    unit = Unit(mode=Mode.ASYNC)
    for number in (1.0, 2.0):
        assert unit.set(0, number, is_changing=True)
    assert unit.put == [], "nothing is put while rows are half updated"
    ending: Iterator[None] = unit.sets.put_due()
    for number, _ in enumerate(ending, 3):
        if number < 9:
            assert unit.set(0, number, is_changing=True)
    assert unit.put == [1.0, 2.0, 3.0, 4.0], "who brings one puts one, in their order"
    assert unit.set(0, 9.0, is_changing=True)
    assert unit.put[-1] == 4.0, "the next update has begun"


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ASYNC])
def test_a_first_value_that_comes_late_undoes_nothing(mode: Mode) -> None:
    unit = Unit(mode=mode, given=True)
    unit.steps.version = unit.sets.reached = 3
    assert unit.set(0, 1.0)
    assert unit.set(3, 2.0)
    assert (unit.filled, unit.put) == ([1.0], [2.0])


def test_a_key_that_nobody_contributes_to_holds_at_once() -> None:
    unit = Unit(given=True, slots=0)
    assert unit.set(7, 1.0)
    assert unit.set(0, 2.0)
    assert unit.put == [1.0, 2.0]
