"""A whole key's value and state: set by slices, updated in pieces, and never written while their bytes travel."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from store_cluster import given as given_key
from store_cluster import key_of, store_of
from weft_graph.program import Update
from weft_kvstore.arrays.array import Array
from weft_kvstore.merging.steps import Complete
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.parts import ShardParts
from weft_kvstore.units.whole_values import WholeValues

SHAPE = (8, 5)
A_SLICE = 16
"""Elements: 40 are two slices and a half."""


def values_of(*, a_piece: int | None = None, update: Update = Update.RULE, given: bool = False) -> WholeValues:
    key = msgspec.structs.replace(key_of("w", SHAPE, 1), whole=True, update=update)
    description = store_of(
        [given_key(key) if given else key], slots=1, shards=1, rule="momentum", hyper={"rate": 0.5}, slice_bytes=64
    )
    parts: ShardParts = JobShard(description, 0).parts
    unit = parts.whole(0)
    spec = unit.spec if a_piece is None else replace(unit.spec, a_piece=a_piece)
    return WholeValues(spec, unit.cut, np.ones(SHAPE, np.float32), None)


def total_of(number: float = 1.0) -> Array:
    return np.full(SHAPE, number, np.float32)


def test_slices_lie_one_behind_the_other_and_the_last_may_be_short() -> None:
    values = values_of()
    assert values.bounds.tolist() == [0, 16, 32, 40]
    assert values.byte_bounds.tolist() == [0, 64, 128, 160]


def test_what_is_lent_is_not_written_by_an_update_nor_by_what_is_set() -> None:
    values = values_of()
    for write in (
        lambda: list(values.apply(Complete(0, 1, total_of()), 1)),
        lambda: values.put(1, np.full(A_SLICE, 7, np.float32)),
    ):
        before = {"weight": values.weight, **values.state}
        bytes_before = {name: held.array.tobytes() for name, held in before.items()}
        for held in before.values():
            held.lent[1] += 1
        write()
        assert {name: held.array.tobytes() for name, held in before.items()} == bytes_before
        assert values.weight is not before["weight"]
        assert values.weight.array.tobytes() != bytes_before["weight"]


def test_what_is_not_lent_is_written_where_it_lies() -> None:
    values = values_of()
    weight, momentum = values.weight, values.state["momentum"]
    assert list(values.apply(Complete(0, 1, total_of()), 1)) == []
    assert values.weight is weight
    assert values.state["momentum"] is momentum
    assert np.all(weight.array == 0.5)
    assert np.all(momentum.array == 1.0)


def test_a_long_update_is_made_in_pieces_to_the_same_bits() -> None:
    found = []
    for a_piece, pieces in ((16, 3), (40, 0)):
        values, total = values_of(a_piece=a_piece), np.linspace(0, 1, 40, dtype=np.float32).reshape(SHAPE)
        assert len(list(values.apply(Complete(0, 1, total), 1))) == pieces
        found.append(values.weight.array.tobytes())
    assert found[0] == found[1]


def test_a_key_that_is_given_lacks_a_value_until_each_slice_is_set() -> None:
    values = values_of(given=True)
    for index in (2, 0, 1):
        assert values.lacks
        values.fill(index, np.full(8 if index == 2 else A_SLICE, index, np.float32))
    assert not values.lacks
    values.fill(1, np.full(A_SLICE, 9, np.float32))
    assert values.weight.array.reshape(-1).tolist() == [0.0] * 16 + [1.0] * 16 + [2.0] * 8
    values.put(1, np.full(A_SLICE, 9, np.float32))
    assert values.weight.array.reshape(-1)[16:32].tolist() == [9.0] * 16


@pytest.mark.parametrize(
    ("update", "total", "wanted"),
    [(Update.GRADIENT, 6.0, 6.0), (Update.GRADIENT, None, 0.0), (Update.MEAN, 6.0, 2.0)],
)
def test_a_merged_gradient_or_its_mean_takes_the_value_s_place(
    update: Update, total: float | None, wanted: float
) -> None:
    values = values_of(update=update)
    list(values.apply(Complete(0, 3, None if total is None else total_of(total)), 1))
    assert np.all(values.weight.array == wanted)
    assert values.state == {}


def test_a_value_that_travels_as_it_is_has_no_other_bytes() -> None:
    assert values_of().encoded() is None
