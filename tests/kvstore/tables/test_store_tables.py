"""What every store promises about tables, values that are set, whole keys, merged gradients, async and schedules: one
suite over the networked store and the local one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, ByName, constant, given, key_of, store_of, stores_of, table_of
from weft_graph.ir import Initializer
from weft_graph.program import Update
from weft_kernels.initializers import first_values
from weft_kernels.rules.record import Rule
from weft_kvstore.description.check import DescriptionError, check_description
from weft_kvstore.description.records import InitializerDescription, KeyDescription, Mode, StoreDescription
from weft_kvstore.errors import StoreRefusedError, StoreTimeoutError
from weft_kvstore.settings import LinkSettings

Make = Callable[..., Sequence[ByName]]


@pytest.fixture(params=["network", "local"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda description, settings=None: stack.enter_context(stores_of(request.param, description, settings))


def simple(*keys: KeyDescription, slots: int = 1, shards: int = 2, **others: Any) -> StoreDescription:
    return store_of(keys, slots=slots, shards=shards, **{"hyper": {"lr": 0.5}, "slice_bytes": 256, **others})


def ints(*ids: int) -> np.ndarray:
    return np.array(ids, np.int64)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def got(store: ByName, key: str, ids: np.ndarray, version: int, **flags: bool) -> np.ndarray:
    return store.pull(key, version, ids, **flags).result(WAIT_S)


@pytest.mark.parametrize("draw", ["RandomUniform", "RandomNormal"])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_rows_begin_as_a_dense_key_of_that_shape_does(make: Make, draw: str, width: int) -> None:
    numbers = {"low": -1.0, "high": 1.0} if draw == "RandomUniform" else {"mean": 0.0, "scale": 1.0}
    table = msgspec.structs.replace(table_of("t", (501, width), 1), initializer=InitializerDescription(draw, numbers))
    (store,) = make(simple(table, shards=3, slice_bytes=64))
    ids = np.random.default_rng(2).permutation(501).astype(np.int64)[:300]
    whole = first_values(Initializer(draw, numbers), seed=7, key="t", start=0, stop=501 * width, dtype="float32")
    assert got(store, "t", ids, 0).tobytes() == whole.reshape(501, width)[ids].tobytes()
    store.push("t", 0, np.zeros((200, width), np.float32), ids[:200]).result(WAIT_S)
    assert got(store, "t", ids, 1).tobytes() == whole.reshape(501, width)[ids].tobytes()


def test_many_rows_are_the_callers_own_and_stay_as_they_were(make: Make) -> None:
    (store,) = make(simple(constant(table_of("t", (4000, 16), 1), 1.0), shards=1, slice_bytes=1 << 17))
    ids, pulled = np.arange(0, 4000, 2), []
    for step in range(4):
        store.push("t", step, ones(2000, 16), ids).result(WAIT_S)
        pulled.append(got(store, "t", ids, step + 1))
        pulled[0] += 1.0
    assert [(rows.min(), rows.max()) for rows in pulled] == [(4.5, 4.5), (0.0, 0.0), (-0.5, -0.5), (-1.0, -1.0)]


def test_rows_come_in_the_order_asked_for_with_repetitions_padding_and_none(make: Make) -> None:
    (store,) = make(simple(constant(table_of("t", (100, 2, 3), 1), 1.0)))
    store.push("t", 0, np.stack([ones(2, 3), 2 * ones(2, 3)]), ints(7, 3)).result(WAIT_S)
    rows = got(store, "t", ints(3, -1, 7, 99, 3, -5, 7), 1)
    assert (rows.dtype, rows.shape) == (np.float32, (7, 2, 3))
    assert rows[:, 0, 0].tolist() == [0.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.5]
    assert np.all(rows == rows[:, :1, :1])
    assert got(store, "t", ints(), 1).shape == (0, 2, 3)
    assert got(store, "t", ints(-1), 1).tolist() == [[[0.0] * 3] * 2]
    assert got(store, "t", ints(5, 4, 6), 1)[:, 0, 0].tolist() == [1.0] * 3


def test_pushed_rows_may_be_written_once_the_future_has_ended(make: Make) -> None:
    stores = make(simple(constant(table_of("t", (10, 4), 2), 0.0), slots=2))
    ids, rows = ints(1, 2), ones(2, 4)
    stores[1].push("t", 0, rows, ids).result(WAIT_S)
    ids[:], rows[:] = 5, 100.0
    stores[0].push("t", 0, ones(0, 4), ints()).result(WAIT_S)
    assert got(stores[0], "t", ints(1, 2, 5), 1)[:, 0].tolist() == [-0.5, -0.5, 0.0]


def test_a_frozen_table_and_one_without_elements_have_every_version(make: Make) -> None:
    frozen = msgspec.structs.replace(constant(table_of("f", (10, 2), 1), 3.0), slots=())
    (store,) = make(simple(frozen, table_of("none", (0, 4), 1), table_of("thin", (4, 0), 1)))
    assert got(store, "f", ints(9, 9), 12).tolist() == [[3.0, 3.0]] * 2
    store.set("f", 20, 4 * ones(1, 2), ints(9)).result(WAIT_S)
    assert got(store, "f", ints(9, 8), 12)[:, 0].tolist() == [4.0, 3.0], "no step will come that it could wait for"
    assert got(store, "none", ints(-1), 3).tolist() == [[0.0] * 4]
    assert got(store, "thin", ints(2, 1), 3).shape == (2, 0)
    store.push("thin", 0, ones(2, 0), ints(2, 1)).result(WAIT_S)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda store: store.set("w", 0, ones(9, 2)),
            "slice 0, version 0: the value cannot be set: version 0 is",
        ),
        (lambda store: store.set("w", 9, ones(9, 2)), "cannot be set: more than 8 ahead of version 0"),
    ],
)
def test_a_value_that_cannot_be_set_is_refused(make: Make, call: Callable[[ByName], Any], told: str) -> None:
    (store,) = make(simple(table_of("t", (9, 2), 1), key_of("w", (9, 2), 1)))
    with pytest.raises(StoreRefusedError, match=told):
        call(store).result(WAIT_S)
    assert got(store, "t", ints(8), 0).shape == (1, 2)


def test_a_pull_of_rows_that_waits_too_long_says_for_whom() -> None:
    told = r"pull of rows of key 't', version 1 .*step 0 waits for slots 0, 2"
    described = simple(table_of("t", (9, 2), 3), slots=3, shards=1)
    with stores_of("local", described, LinkSettings(request_timeout_s=0.5)) as stores:
        stores[1].push("t", 0, ones(1, 2), ints(1)).result(WAIT_S)
        with pytest.raises(StoreTimeoutError, match=told):
            got(stores[1], "t", ints(1), 1)


def test_a_given_key_has_no_value_before_one_is_set(make: Make) -> None:
    stores = make(simple(given(key_of("w", (300,), 2)), given(table_of("t", (50, 3), 2)), slots=2))
    value, rows = stores[1].pull("w", 0), stores[1].pull("t", 0, ints(3, 40))
    pushed = [store.push("w", 0, ones(300)) for store in stores]
    stores[0].set("t", 0, np.stack([4 * ones(3), ones(3)]), ints(40, 1)).result(WAIT_S)
    for future in pushed:
        future.result(WAIT_S)
    assert not value.done()
    assert not rows.done()
    stores[0].set("w", 0, 2 * ones(300)).result(WAIT_S)
    stores[0].set("t", 0, 3 * ones(2, 3), ints(3, -1)).result(WAIT_S)
    assert rows.result(WAIT_S)[:, 0].tolist() == [3.0, 4.0]
    assert np.all(value.result(WAIT_S) >= 1.0)
    assert np.all(stores[0].pull("w", 1).result(WAIT_S) == 1.0)


@pytest.mark.parametrize("key", ["w", "t"])
def test_what_was_never_set_is_told_after_the_deadline(key: str) -> None:
    """In one process, where the shard's answer is there before the deadline on a busy machine too."""
    described = simple(given(key_of("w", (3,), 1)), given(table_of("t", (5, 3), 1)), shards=1)
    with stores_of("local", described, LinkSettings(request_timeout_s=0.5)) as (store,):
        pull = store.pull("w", 0) if key == "w" else store.pull("t", 0, ints(2))
        with pytest.raises(StoreTimeoutError, match=f"key '{key}', version 0 .*key '{key}' was never set"):
            pull.result(WAIT_S)


def test_state_may_start_at_any_number_and_rows_that_are_new_have_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halve(weight: Any, gradient: Any, state: Any, _step: int, _hyper: Any) -> None:
        np.multiply(state["scale"], 0.5, out=state["scale"])
        np.subtract(weight, gradient * state["scale"], out=weight)

    rule = Rule("halve", {"scale": 8.0}, {"lr": 1.0}, halve)
    for module in (
        "weft_kvstore.client.plan",
        "weft_kvstore.shard.job_shard",
        "weft_kvstore.description.check",
    ):
        monkeypatch.setattr(f"{module}.rule_of", lambda *_: rule)
    (store,) = make(simple(constant(table_of("t", (9, 2), 1), 0.0), constant(key_of("w", (300,), 1), 0.0)))
    assert store.pull("w", 0, state=True).result(WAIT_S)["scale"].tolist() == [8.0] * 300
    store.push("t", 0, ones(1, 2), ints(2)).result(WAIT_S)
    store.push("t", 1, ones(2, 2), ints(2, 5)).result(WAIT_S)
    assert got(store, "t", ints(2, 5, 6), 2)[:, 0].tolist() == [-6.0, -4.0, 0.0]
    state = store.pull("t", 2, ints(2, 5, 6), state=True).result(WAIT_S)
    assert state["scale"][:, 1].tolist() == [2.0, 4.0, 8.0]


def test_hyper_parameters_follow_schedules_by_step_and_multipliers_by_key(make: Make) -> None:
    schedule = {"schedule": "piecewise", "start": 1.0, "boundaries": [{"step": 2, "factor": 0.5}]}
    keys = [
        constant(key_of("w", (300,), 1), 0.0),
        msgspec.structs.replace(constant(key_of("v", (300,), 1), 0.0), multipliers={"lr": 10.0}),
        msgspec.structs.replace(constant(table_of("t", (9, 2), 1), 0.0), multipliers={"lr": 0.0}),
    ]
    (store,) = make(simple(*keys, hyper={"lr": schedule}))
    store.barrier(0, ["w", "v", "t"]).result(WAIT_S)
    for step in range(1, 4):
        store.push("w", step, ones(300)).result(WAIT_S)
        store.push("v", step, ones(300)).result(WAIT_S)
        store.push("t", step, ones(1, 2), ints(3)).result(WAIT_S)
    from weft_graph.rules.schedule import value_at

    told = -sum(value_at(schedule, step) for step in range(1, 4))
    assert len({value_at(schedule, step) for step in range(1, 4)}) == 2
    assert np.all(store.pull("w", 4).result(WAIT_S) == told)
    assert np.all(store.pull("v", 4).result(WAIT_S) == 10 * told)
    assert np.all(got(store, "t", ints(3), 4) == 0.0)


def test_in_async_a_slot_waits_for_itself_alone_unless_it_asks_for_all(make: Make) -> None:
    keys = [constant(key_of("w", (300,), 2), 0.0), constant(table_of("t", (50, 3), 2), 0.0)]
    stores = make(simple(*keys, slots=2, mode=Mode.ASYNC))
    for step in range(5):
        stores[1].push("w", step, ones(300)).result(WAIT_S)
        stores[1].push("t", step, ones(2, 3), ints(1, 9)).result(WAIT_S)
        assert np.all(stores[1].pull("w", step + 1).result(WAIT_S) == -0.5 * (step + 1))
        assert got(stores[1], "t", ints(9, 2), step + 1)[:, 0].tolist() == [-0.5 * (step + 1), 0.0]
    settled = [stores[1].pull("w", 1, settled=True), stores[1].pull("t", 1, ints(1), settled=True)]
    assert stores[0].pull("w", 0).result(WAIT_S)[0] == -2.5
    assert not any(future.done() for future in settled)
    stores[0].push("w", 0, ones(300)).result(WAIT_S)
    stores[0].barrier(0, ["t"]).result(WAIT_S)
    assert settled[0].result(WAIT_S)[0] == -3.0
    assert settled[1].result(WAIT_S)[0, 0] == -2.5
    assert stores[1].pull("w", 1, settled=True, state=True).result(WAIT_S) == {}
    stores[0].set("w", 0, 7 * ones(300)).result(WAIT_S)
    assert stores[0].pull("w", 0).result(WAIT_S)[0] == 7.0, "in async a value holds at once"


def test_in_async_a_pull_that_waits_too_long_says_for_whom() -> None:
    described = simple(constant(key_of("w", (300,), 2), 0.0), slots=2, mode=Mode.ASYNC)
    with stores_of("local", described, LinkSettings(request_timeout_s=0.5)) as stores:
        for step in range(3):
            stores[0].push("w", step, ones(300)).result(WAIT_S)
        late = [stores[0].pull("w", 4), stores[0].pull("w", 3, settled=True)]
        with pytest.raises(StoreTimeoutError, match=r"version 4 .*step 3 waits for slots 0"):
            late[0].result(WAIT_S)
        with pytest.raises(StoreTimeoutError, match=r"version 3 .*step 0 waits for slots 1"):
            late[1].result(WAIT_S)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"shape": ()}, "a scalar is no table"),
        ({"whole": True}, "cannot be whole"),
        ({"update": Update.MEAN}, "updated by the rule, not by mean"),
        ({"shape": (2, 1 << 23)}, "a row has 33554432 bytes"),
        ({"multipliers": {"speed": 2.0}}, "multipliers: rule 'sgd' has no 'speed'"),
        ({"rows": False, "update": Update.GRADIENT}, "no merged gradient of a step in mode async"),
    ],
)
def test_a_table_that_cannot_be_is_refused_by_name(changed: dict[str, Any], told: str) -> None:
    key = msgspec.structs.replace(table_of("t", (9, 2), 1), **changed)
    with pytest.raises(DescriptionError, match=f"key 't': .*{told}"):
        check_description(simple(key, mode=Mode.ASYNC))
