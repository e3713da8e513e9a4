"""A call's own priority: what its messages say, which values it may be, and that no value depends on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft_kvstore.shard.core
from face_stores import faces
from weft_kvstore import DescriptionError, Key, KVStore, StoreRefusedError, describe
from weft_kvstore.wire.messages import Pull

WAIT_S = 60.0
STORE = describe(
    {"w": Key(shape=(2,), initializer=0.0), "table": Key(shape=(4, 2), rows=True, initializer=0.0)}, rule="sgd", lr=1.0
)
ONES = np.ones(2, np.float32)
ROWS = np.ones((1, 2), np.float32)


@pytest.mark.parametrize("number", [int, np.int64])
@pytest.mark.parametrize("kind", ["network", "local"])
def test_values_are_the_same_at_any_priority(kind: str, number: type[Any]) -> None:
    with faces(kind, STORE) as (store,):
        store.push("w", ONES, priority=number(-3)).result(WAIT_S)
        assert store.pull("w", priority=number(1 << 30)).result(WAIT_S).tolist() == [-1, -1]
        assert store.pushpull("w", ONES, priority=number(7)).result(WAIT_S).tolist() == [-2, -2]
        assert store.pull("w", priority=number(0)).result(WAIT_S).tolist() == [-2, -2]
        store.push_rows("table", [1], ROWS, priority=number(2)).result(WAIT_S)
        assert store.pull_rows("table", [1, 2], priority=number(-2)).result(WAIT_S).tolist() == [[-1, -1], [0, 0]]
        rows = store.pushpull_rows("table", [1], ROWS, [2, 1], priority=number(3))
        assert rows.result(WAIT_S).tolist() == [[0, 0], [-2, -2]]


@pytest.mark.parametrize("priority", [None, 0.0, False, 1.0, True, "", "high", (1 << 30) + 1, -(1 << 30) - 1])
@pytest.mark.parametrize(
    "call",
    [
        lambda store, priority: store.push("w", ONES, priority=priority),
        lambda store, priority: store.pull("w", priority=priority),
        lambda store, priority: store.pushpull("w", ONES, priority=priority),
        lambda store, priority: store.push_rows("table", [1], ROWS, priority=priority),
        lambda store, priority: store.pull_rows("table", [1], priority=priority),
        lambda store, priority: store.pushpull_rows("table", [1], ROWS, priority=priority),
    ],
)
def test_what_is_no_priority_is_refused_and_begins_nothing(call: Callable[[KVStore, Any], Any], priority: Any) -> None:
    with faces("local", STORE) as (store,):
        with pytest.raises(StoreRefusedError, match=r"priority: a whole number from -1073741824 to 1073741824, not "):
            call(store, priority)
        assert (store.steps("w"), store.steps("table")) == (0, 0)


def test_a_described_priority_is_within_what_a_calls_outweighs() -> None:
    with pytest.raises(DescriptionError, match=r"keys\[0\].priority: expected `int` <= 2147483647"):
        describe({"w": Key(shape=(2,), priority=1 << 31)}, rule="sgd")


def test_pulls_of_one_message_have_one_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard is told each call's own; a call that names none says nothing."""
    heard: list[int] = []
    decode = weft_kvstore.shard.core.decode_request

    def decoded(parts: Any) -> Any:
        message, payload, number = decode(parts)
        if isinstance(message, Pull):
            heard.extend([message.priority] * len(message.asks))
        return message, payload, number

    monkeypatch.setattr(weft_kvstore.shard.core, "decode_request", decoded)
    with faces("network", STORE) as (store,):
        pulls = [store.pull("w", priority=one) for one in (0, 5, -5)]
        for pull in pulls:
            pull.result(WAIT_S)
    assert sorted(heard) == [-5, 0, 5]
