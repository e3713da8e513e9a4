"""uint8 and bfloat16 keys, and 16-bit keys whose values, sums and state are float32 on their shard."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from face_stores import faces
from weft_kvstore import DescriptionError, Key, KVStore, StoreRefusedError, describe

WAIT_S = 60.0
torch = pytest.importorskip("torch")
HALVES = [("float16", np.dtype(np.float16)), ("bfloat16", np.dtype(ml_dtypes.bfloat16))]
Array = np.ndarray[Any, np.dtype[Any]]


def mixed(name: str, **fields: Any) -> Key:
    return Key(shape=(300,), dtype=name, multi_precision=True, **fields)


@pytest.mark.parametrize("kind", ["network", "local"])
@pytest.mark.parametrize(("name", "dtype"), HALVES)
def test_small_steps_add_up_in_a_float32_copy(kind: str, name: str, dtype: np.dtype[Any]) -> None:
    """1 - 40 * 2^-12: each step is less than half of what 16 bits can tell from 1, and all of them are not."""
    described = describe({"w": mixed(name, initializer=1.0)}, rule="sgd", lr=2.0**-12, slice_bytes=512)
    with faces(kind, described) as (store,):
        ones = np.ones(300, dtype)
        values = [store.pushpull("w", ones).result(WAIT_S) for _ in range(40)]
    assert {value.dtype for value in values} == {dtype}
    assert values[0].tolist() == [1.0] * 300
    assert values[-1].tolist() == np.full(300, 1 - 40 / 4096).astype(dtype).tolist()


@pytest.mark.parametrize("kind", ["network", "local"])
@pytest.mark.parametrize(("name", "dtype"), HALVES)
def test_gradients_are_summed_in_float32_and_rounded_once(kind: str, name: str, dtype: np.dtype[Any]) -> None:
    """256 + 1 is 256 in bfloat16, and 2048 + 1 is 2048 in float16: slot by slot nothing would be added."""
    whole = 256.0 if name == "bfloat16" else 2048.0
    described = describe({"g": mixed(name, update="gradient")}, slots=5, slice_bytes=512)
    with faces(kind, described) as stores:
        numbers = [whole, 1, 1, 1, 1]
        futures = [store.pushpull("g", np.full(300, n, dtype)) for store, n in zip(stores, numbers, strict=True)]
        for future in futures:
            value = future.result(WAIT_S)
            assert value.dtype == dtype
            assert value.tolist() == [float(np.float32(whole + 4).astype(dtype))] * 300


@pytest.mark.parametrize("kind", ["network", "local"])
def test_the_rules_state_is_float32_and_has_what_16_bits_have_not(kind: str) -> None:
    """The square of 2^-14 is 0 in float16."""
    described = describe({"w": mixed("float16", initializer=0.0)}, rule="adam", lr=0.5)
    with faces(kind, described) as (store,):
        value = store.pushpull("w", np.full(300, 2.0**-14, np.float16)).result(WAIT_S)
        state = store.pull_state("w").result(WAIT_S)
    assert state["variance"].dtype == np.float32
    assert (state["variance"] > 0).all()
    assert value.tolist() == pytest.approx([-0.5] * 300, rel=1e-3)


def test_gradients_and_values_of_16_bits_travel_in_16_bits() -> None:
    sizes = {}
    for name in ("float16", "float32"):
        key = Key(shape=(100_000,), dtype=name, initializer=0.0, multi_precision=name == "float16" or None)
        with faces("network", describe({"w": key}, rule="sgd", lr=1.0)) as (store,):
            store.pull("w").result(WAIT_S)
            before = store.statistics().links
            store.pushpull("w", np.ones(100_000, name)).result(WAIT_S)
            after = store.statistics().links
            sizes[name] = tuple(
                sum(getattr(b, field) - getattr(a, field) for a, b in zip(before, after, strict=True))
                for field in ("payload_bytes_sent", "payload_bytes_received")
            )
    assert sizes == {"float16": (200_000, 200_000), "float32": (400_000, 400_000)}


@pytest.mark.parametrize("kind", ["network", "local"])
@pytest.mark.parametrize(("name", "dtype"), HALVES)
def test_every_call_takes_and_gives_the_users_type(kind: str, name: str, dtype: np.dtype[Any]) -> None:
    described = describe(
        {
            "w": Key((3,), name, multi_precision=True),
            "t": Key((4, 2), name, multi_precision=True, rows=True, initializer=0),
        },
        rule="sgd",
        lr=1.0,
    )
    with faces(kind, described) as (store,):
        store.init("w", np.array([1, 2, 3], dtype)).result(WAIT_S)
        out = np.zeros(3, dtype)
        assert store.pull("w", out=out).result(WAIT_S) is out
        assert out.tolist() == [1, 2, 3]
        store.set("w", np.array([4, 5, 6], dtype), version=1).result(WAIT_S)
        store.push("w", [np.ones(3, dtype), np.ones(3, dtype)]).result(WAIT_S)
        assert store.read_consistent(["w"]).result(WAIT_S)[1][0].dtype == dtype
        assert store.pull("w").result(WAIT_S).tolist() == [4, 5, 6]
        store.push_rows("t", [1], np.ones((1, 2), dtype)).result(WAIT_S)
        rows = store.pull_rows("t", [1, 0]).result(WAIT_S)
        assert rows.dtype == dtype
        assert rows.tolist() == [[-1, -1], [0, 0]]
        assert store.pushpull("w", [1.0, 2.0, 3.0]).result(WAIT_S).tolist() == [3, 3, 3]
        with pytest.raises(StoreRefusedError, match=rf"it is float32\[3\], the key {name}\[3\]"):
            store.push("w", np.ones(3, np.float32))
        with pytest.raises(StoreRefusedError, match="gradient_buffer of key 'w': its shard has float32"):
            store.gradient_buffer("w")


@pytest.mark.parametrize("kind", ["network", "local"])
def test_pytorchs_bfloat16_is_pushed_and_pulled_into(kind: str) -> None:
    with faces(kind, describe({"w": Key((3,), "bfloat16", initializer=0.0)}, rule="sgd", lr=1.0)) as (store,):
        out = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
        found = store.pushpull("w", torch.tensor([1, 2, 3], dtype=torch.bfloat16), out=out).result(WAIT_S)
        assert found is out
        assert out.tolist() == [-1, -2, -3]


def test_whole_numbers_of_python_become_those_of_the_key_where_it_has_them() -> None:
    with KVStore.local(describe({"w": Key((2,), "uint8", update="gradient", initializer=0.0)})) as store:
        assert store.pushpull("w", [0, 255]).result(WAIT_S).tolist() == [0, 255]
        for numbers in ([1, 256], [1, -1]):
            with pytest.raises(StoreRefusedError, match=r"push of key 'w': gradient: .*uint8"):
                store.push("w", numbers)


@pytest.mark.parametrize("kind", ["network", "local"])
def test_uint8_keys_are_summed_and_averaged(kind: str) -> None:
    described = describe(
        {"sum": Key((3,), "uint8", update="gradient"), "mean": Key((3,), "uint8", update="mean", initializer=7)},
        slots=2,
    )
    with faces(kind, described) as stores:
        assert stores[0].pull("mean").result(WAIT_S).tolist() == [7, 7, 7]
        gradient = np.array([1, 100, 200], np.uint8)
        futures = [store.pushpull(["sum", "mean"], [gradient // 2, gradient]) for store in stores]
        for future in futures:
            total, mean = future.result(WAIT_S)
            assert total.dtype == mean.dtype == np.uint8
            assert total.tolist() == [0, 100, 200]
            assert mean.tolist() == [1, 100, 200]


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (Key((3,), "float32", multi_precision=True), r"keys\[0\].multi_precision: it is for float16 and bfloat16, not"),
        (Key((3,), "bfloat16", multi_precision=False), r"keys\[0\].multi_precision: shards always keep a bfloat16 key"),
        (Key((3,), "uint8"), "key 'w': a rule updates floating-point values, not uint8"),
        (Key((3,), "uint8", update="mean", initializer=256), "256.0 is no uint8"),
        (Key((3,), "uint8", update="mean", initializer=-1), "-1.0 is no uint8"),
    ],
)
def test_types_that_cannot_be_meant_are_refused(key: Key, told: str) -> None:
    with pytest.raises(DescriptionError, match=told):
        describe({"w": key}, rule="sgd")
