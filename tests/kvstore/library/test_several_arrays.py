"""Several arrays for one key, as devices have them: gradients are added up on the way, values come to each array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from face_stores import faces
from weft_kvstore import Key, StoreRefusedError, describe

WAIT_S = 60.0
torch = pytest.importorskip("torch")
STORE = describe(
    {
        "w": Key(shape=(3,), initializer=0.0),
        "m": Key(shape=(2, 3), initializer=0.0),
        "scalar": Key(shape=(), initializer=0.0),
        "half": Key(shape=(2,), dtype="float16", initializer=0.0),
    },
    rule="sgd",
    lr=1.0,
)


def full(number: float, shape: tuple[int, ...] = (3,), dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.full(shape, number, dtype)


@pytest.mark.parametrize("kind", ["network", "local"])
def test_gradients_of_one_key_are_added_up_and_values_come_to_each_array(kind: str) -> None:
    with faces(kind, STORE) as (store,):
        first, second = full(9), full(9)
        store.push("w", [full(1), torch.full((3,), 2.0), full(4)]).result(WAIT_S)
        found = store.pull("w", out=[first, second]).result(WAIT_S)
        assert found[0] is first
        assert found[1] is second
        assert first.tolist() == second.tolist() == [-7, -7, -7]
        assert store.steps("w") == 1


@pytest.mark.parametrize("kind", ["network", "local"])
def test_of_a_list_of_keys_each_may_have_several(kind: str) -> None:
    with faces(kind, STORE) as (store,):
        outs = [[full(9), torch.full((3,), 9.0)], full(9, (2, 3))]
        gradients = [[full(1), full(2)], full(5, (2, 3))]
        found = store.pushpull(["w", "m"], gradients, out=outs).result(WAIT_S)
        assert [array.tolist() for array in found[0]] == [[-3] * 3] * 2
        assert found[1] is outs[1]
        assert outs[1].tolist() == [[-5] * 3] * 2
        assert outs[0][1].tolist() == [-3] * 3


def test_a_list_of_numbers_or_of_rows_is_one_array() -> None:
    """Of a key of n dimensions a list of arrays of n dimensions is several; any other list is the value itself."""
    with faces("local", STORE) as (store,):
        assert store.pushpull("w", [1, 2, 3]).result(WAIT_S).tolist() == [-1, -2, -3]
        assert store.pushpull("w", [np.float32(1)] * 3).result(WAIT_S).tolist() == [-2, -3, -4]
        assert store.pushpull("m", [[1, 2, 3], [4, 5, 6]]).result(WAIT_S).tolist() == [[-1, -2, -3], [-4, -5, -6]]
        assert store.pushpull("scalar", [full(1, ()), full(2, ())]).result(WAIT_S) == -3
        with pytest.raises(StoreRefusedError, match="key 'w'"):
            store.push("w", [])


def test_halves_are_added_up_in_float32() -> None:
    """2048 + 1 is 2048 in float16, so sixteen ones would be lost one by one."""
    with faces("local", STORE) as (store,):
        parts = [full(2048, (2,), "float16")] + [full(1, (2,), "float16")] * 16
        assert store.pushpull("half", parts).result(WAIT_S).tolist() == [-2064, -2064]


def test_what_was_handed_over_is_not_written() -> None:
    with faces("local", STORE) as (store,):
        parts = [full(1), full(2)]
        store.push("w", parts).result(WAIT_S)
        assert [part.tolist() for part in parts] == [[1] * 3, [2] * 3]


@pytest.mark.parametrize(
    ("gradient", "told"),
    [
        ([full(1), full(1, (4,))], r"key 'w': gradient 1: it is float32\[4\], the key float32\[3\]"),
        ([full(1), full(1, (3,), "float64")], r"key 'w': gradient 1: it is float64\[3\]"),
    ],
)
def test_each_of_several_is_checked_before_anything_is_begun(gradient: Any, told: str) -> None:
    with faces("local", STORE) as (store,):
        with pytest.raises(StoreRefusedError, match=told):
            store.pushpull("w", gradient)
        with pytest.raises(StoreRefusedError, match=r"key 'w': out: it is float32\[4\]"):
            store.pushpull("w", full(1), out=[full(0), full(0, (4,))])
        with pytest.raises(StoreRefusedError, match="1 keys take a list of as many values, not 2 values"):
            store.pull(["w"], out=[[full(0), full(0)], [full(0), full(0)]])
        assert store.steps("w") == 0
