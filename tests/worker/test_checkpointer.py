"""Documents of parameters are made piece by piece: what is in them, and how much of a store is in memory for them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load

from weft_kernels.kernel import Array
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import StoreLostError, StoreTimeoutError
from weft_worker.checkpointer import AHEAD, RUN_BYTES, Checkpointer, pull_all

MIB = 1 << 20


def key(name: str, shape: Sequence[int], *, rows: bool = False, slots: Sequence[int] = (0,), **changes: Any) -> Any:
    base = {
        "key": name,
        "dtype": "float32",
        "shape": shape,
        "initializer": {"op_type": "ConstantOfShape", "attributes": {"value": 1.0}},
        "update": "rule",
        "priority": 0,
        "slots": slots,
        "rows": rows,
    }
    return msgspec.convert({**base, **changes}, KeyDescription)


class Numbered:
    """A store without values: an element is its place in the key, and one more (two more) in the state `m` (`v`)."""

    def __init__(self, *keys: KeyDescription) -> None:
        self.keys = {each.key: each for each in keys}
        self.calls: list[tuple[str, int, bool]] = []
        self.rows_at_once = 0

    def pull(
        self, key: str, version: int, ids: Array | None = None, *, settled: bool = False, state: bool = False
    ) -> Future[Any]:
        self.calls.append((key, version, settled))
        if ids is not None:
            self.rows_at_once = max(self.rows_at_once, len(ids))
        value = self._whole(key) if ids is None else self._rows(key, ids)
        return _done({"v": value + 2, "m": value + 1} if state else value)

    def _whole(self, key: str) -> Array:
        described = self.keys[key]
        return np.arange(described.size, dtype=described.dtype).reshape(described.shape)

    def _rows(self, key: str, ids: Array) -> Array:
        width = int(np.prod(self.keys[key].shape[1:]))
        places = ids[:, None] * width + np.arange(width)
        return places.reshape(len(ids), *self.keys[key].shape[1:]).astype(self.keys[key].dtype)


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def checkpointer_of(store: Any, *keys: KeyDescription, state: tuple[str, ...] = ("m", "v")) -> Checkpointer:
    return Checkpointer(store, keys, state, "job-1", 10.0)


def test_tables_and_dense_keys_are_in_it_and_the_state_of_what_trains_where_asked_for():
    keys = (
        key("w", (3, 2)),
        key("table", (5000, 300), rows=True),
        key("frozen", (2,), slots=()),
        key("mean", (2,), update="mean"),
        key("scalar", ()),
        key("empty", (0, 3)),
        key("narrow", (7,), rows=True, dtype="float16"),
    )
    store = Numbered(*keys)
    for with_state in (False, True):
        made = checkpointer_of(store, *keys).document(4, settled=True, with_state=with_state)
        whole = b"".join(made.pieces())
        assert len(whole) == made.size
        found = load(whole)
        for each in keys:
            np.testing.assert_array_equal(found.pop(each.key), store._whole(each.key))
        trained = [each.key for each in keys if each.slots and each.key != "mean"] if with_state else []
        assert found.keys() == {f"weft.state/{name}/{name_of}" for name in "mv" for name_of in trained}
        for name_of in trained:
            np.testing.assert_array_equal(found[f"weft.state/m/{name_of}"], store._whole(name_of) + 1)
            np.testing.assert_array_equal(found[f"weft.state/v/{name_of}"], store._whole(name_of) + 2)
    assert {(version, settled) for _, version, settled in store.calls} == {(4, True)}


def test_a_document_can_be_made_again():
    store = Numbered(key("w", (3, 2)))
    made = checkpointer_of(store, *store.keys.values()).document(4)
    assert b"".join(made.pieces()) == b"".join(made.pieces())


def test_a_table_is_never_whole_in_memory():
    """64 MiB: a few runs of rows are there at once. The same key, whole, takes all of it."""
    peaks = {}
    for rows in (True, False):
        each = key("table", (1 << 16, 256), rows=rows)
        store = Numbered(each)
        made = checkpointer_of(store, each).document(1)
        tracemalloc.start()
        assert sum(map(len, made.pieces())) == made.size > 64 * MIB
        peaks[rows] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert store.rows_at_once == 0
    assert peaks[True] < (AHEAD + 6) * RUN_BYTES
    assert peaks[False] > 64 * MIB


def test_the_store_is_asked_ahead_but_not_for_everything():
    each = key("table", (1 << 16, 256), rows=True)
    store = Numbered(each)
    pieces = checkpointer_of(store, each).document(1).pieces()
    next(pieces)
    assert store.calls == []
    next(pieces)
    assert len(store.calls) == AHEAD + 1


def test_what_the_store_fails_with_comes_out_of_the_pieces():
    class Failing(Numbered):
        def pull(self, *arguments: Any, **named: Any) -> Future[Array]:
            failed: Future[Array] = Future()
            failed.set_exception(StoreLostError("shard 1 is silent"))
            return failed

    each = key("table", (10, 2), rows=True)
    with pytest.raises(StoreLostError, match="shard 1 is silent"):
        list(checkpointer_of(Failing(each), each).document(1).pieces())


def test_what_does_not_come_in_time_is_named():
    class Silent(Numbered):
        def pull(self, *arguments: Any, **named: Any) -> Future[Array]:
            return Future()

    each = key("w", (2,))
    silent = Checkpointer(Silent(each), (each,), (), "job-1", 0.01)  # type: ignore[arg-type]
    with pytest.raises(StoreTimeoutError, match=r"the value of key 'w' at version 1: no answer within 0\.01 s"):
        list(silent.document(1).pieces())
    with pytest.raises(StoreTimeoutError, match=r"no value of \['w'\] at version 1 within 0\.01 s"):
        pull_all(Silent(each), ["w"], 1, 0.01)  # type: ignore[arg-type]
