"""`KVStore`: what its users see, held against NumPy, over shards and locally."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from face_stores import WAIT_S, Make, faces, ones, zero
from weft_kvstore import (
    CommitDescription,
    Key,
    KVStore,
    StoreClosedError,
    StoreRefusedError,
    StoreTimeoutError,
    describe,
)
from weft_kvstore.library.calls import KeyCall


def test_a_plain_program_needs_no_step_numbers(make: Make) -> None:
    """Two slots, three steps of gradient descent; the same in NumPy."""
    description = describe({"w": zero(40, 3), "b": zero(3)}, slots=2, rule="sgd", lr=0.5, slice_bytes=64)
    stores = make(description)
    generator = np.random.Generator(np.random.Philox(1))
    expected = [np.zeros((40, 3), np.float32), np.zeros(3, np.float32)]
    for step in range(3):
        drawn = [[generator.standard_normal(one.shape, np.float32) for one in expected] for _ in stores]
        futures = [store.pushpull(["w", "b"], gradients) for store, gradients in zip(stores, drawn, strict=True)]
        expected = [value - np.float32(0.5) * (one + other) for value, one, other in zip(expected, *drawn, strict=True)]
        for future in futures:
            for value, want in zip(future.result(WAIT_S), expected, strict=True):
                np.testing.assert_array_equal(value, want)
        assert [store.steps("w") for store in stores] == [step + 1] * 2


def test_a_pull_waits_for_what_its_slot_has_pushed(make: Make) -> None:
    one, other = make(describe({"w": zero(300)}, slots=2, rule="sgd", lr=1.0))
    assert np.all(one.pull("w").result(WAIT_S) == 0.0)
    one.push("w", ones(300))
    value = one.pull("w")
    assert not value.done()
    other.push("w", 2 * ones(300)).result(WAIT_S)
    assert np.all(value.result(WAIT_S) == -3.0)


def test_a_pull_does_not_write_the_pushed_array_and_a_push_again_adds_the_same(make: Make) -> None:
    (store,) = make(describe({"w": zero(4)}, rule="sgd", lr=1.0))
    gradient = ones(4)
    for step in range(4):
        assert np.all(store.pushpull("w", gradient).result(WAIT_S) == -(step + 1.0))
        assert np.all(gradient == 1.0)


def test_the_first_value_is_that_of_one_slot_whatever_the_others_say(make: Make) -> None:
    stores = make(describe({"w": (3,), 5: ones(2)}, slots=3, rule="sgd"))
    pulled = stores[0].pull(["w", 5])
    for store in reversed(stores):
        store.init(["w", 5], [np.full(3, store.slot, np.float32), ones(2) * store.slot], by=1).result(WAIT_S)
    for value in pulled.result(WAIT_S):
        assert np.all(value == 1.0)


def test_whoever_has_the_value_gives_it(make: Make) -> None:
    stores = make(describe({"w": (3,), "t": Key(shape=(5, 2), rows=True)}, slots=2, rule="sgd"))
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    stores[1].init(["w", "t"], [ones(3), rows], by=None).result(WAIT_S)
    assert np.all(stores[0].pull("w").result(WAIT_S) == 1.0)
    np.testing.assert_array_equal(stores[0].pull_rows("t", [4, 0]).result(WAIT_S), rows[[4, 0]])


def test_a_key_that_nobody_gave_says_so(make_alone: Make) -> None:
    (store,) = make_alone(describe({"w": (3,)}, rule="sgd"), timeout_s=0.5)
    with pytest.raises(StoreTimeoutError, match="key 'w' was never set"):
        store.pull("w").result(WAIT_S)


def test_the_number_5_and_the_string_5_are_two_keys(make: Make) -> None:
    (store,) = make(describe({5: zero(2), "5": zero(3), 2**64 - 1: zero(4)}, rule="sgd", lr=1.0))
    assert store.keys == (5, "5", 2**64 - 1)
    store.push([5, 2**64 - 1], [ones(2), ones(4)])
    five, text, largest = store.pull([np.uint64(5), "5", 2**64 - 1]).result(WAIT_S)
    assert (five.tolist(), text.tolist(), largest.tolist()) == ([-1.0] * 2, [0.0] * 3, [-1.0] * 4)


def test_rows_come_in_the_shape_of_their_ids(make: Make) -> None:
    (store,) = make(describe({"t": Key(shape=(10, 2), rows=True, initializer=0.0)}, rule="sgd", lr=1.0))
    store.push_rows("t", [[1, 7], [1, -1]], ones(2, 2, 2))
    found = store.pull_rows("t", np.array([[7, 1, 0]], np.uint8)).result(WAIT_S)
    assert found.tolist() == [[[-1.0, -1.0], [-2.0, -2.0], [0.0, 0.0]]]
    store.push_rows("t", [], ones(0, 2))
    assert store.pull_rows("t", []).result(WAIT_S).shape == (0, 2)
    out = np.empty((2, 2), np.float32)
    assert store.pull_rows("t", [1, 0], out=out).result(WAIT_S) is out
    assert out.tolist() == [[-2.0, -2.0], [0.0, 0.0]]


def test_lists_of_tables_take_lists_of_ids(make: Make) -> None:
    tables = {name: Key(shape=(9, 2), rows=True, initializer=0.0) for name in ("s", "t")}
    (store,) = make(describe(tables, rule="sgd", lr=1.0))
    store.push_rows(["s", "t"], [[1], [2, 2]], [ones(1, 2), ones(2, 2)])
    of_s, of_t = store.pull_rows(["s", "t"], [[1, 2], [2]]).result(WAIT_S)
    assert (of_s.tolist(), of_t.tolist()) == ([[-1.0, -1.0], [0.0, 0.0]], [[-2.0, -2.0]])
    store.set_rows("t", [3], [[5, 6]], version=2).result(WAIT_S)
    store.push_rows("t", [], ones(0, 2))
    assert store.pull_rows("t", [3]).result(WAIT_S).tolist() == [[5.0, 6.0]]


def test_values_land_in_the_callers_arrays(make: Make) -> None:
    (store,) = make(describe({"w": zero(4), "b": zero(2, 2)}, rule="sgd", lr=1.0))
    strided = np.full((2, 4), 9.0, np.float32).T[::2]
    outs = [np.empty(4, np.float32), strided]
    found = store.pushpull(["w", "b"], [ones(4), ones(2, 2)], out=outs).result(WAIT_S)
    assert found[0] is outs[0]
    assert found[1] is strided
    assert outs[0].tolist() == [-1.0] * 4
    assert np.all(strided == -1.0)
    gradient = ones(4)
    assert store.pushpull("w", gradient, out=gradient).result(WAIT_S) is gradient
    assert gradient.tolist() == [-2.0] * 4


def test_a_slot_that_skips_a_key_ends_its_step(make: Make) -> None:
    one, other = make(describe({"w": zero(2), "b": zero(2)}, slots=2, rule="sgd", lr=1.0))
    one.push(["w", "b"], [ones(2), ones(2)])
    other.push("w", ones(2))
    assert other.end_step().result(WAIT_S) is None
    assert one.pull("b").result(WAIT_S).tolist() == [-1.0, -1.0]
    assert other.steps("b") == 1
    for store in (one, other):
        store.push("b", ones(2))
        store.end_step().result(WAIT_S)
    assert other.pull(["w", "b"]).result(WAIT_S)[1].tolist() == [-3.0, -3.0]


def test_steps_and_versions_may_be_said(make: Make) -> None:
    (store,) = make(describe({"w": zero(2)}, rule="sgd", lr=1.0))
    store.push("w", ones(2), step=0)
    store.push("w", ones(2), step=0)
    store.push("w", ones(2))
    assert store.pull("w").result(WAIT_S).tolist() == [-2.0, -2.0]
    assert store.pushpull("w", ones(2), step=2).result(WAIT_S).tolist() == [-3.0, -3.0]
    store.set("w", [7, 8], version=4).result(WAIT_S)
    store.push("w", ones(2))
    assert store.pull("w", version=4).result(WAIT_S).tolist() == [7.0, 8.0]


def test_slots_meet_at_a_barrier(make: Make) -> None:
    one, other = make(describe({"w": zero(2)}, slots=2, rule="sgd"))
    for _ in range(3):
        met = one.barrier()
        assert not met.done()
        other.barrier().result(WAIT_S)
        met.result(WAIT_S)
    assert "#barrier" not in one.keys


def test_a_barrier_that_a_slot_does_not_reach_names_it(make_alone: Make) -> None:
    one, *_ = make_alone(describe({"w": zero(2)}, slots=3, rule="sgd"), timeout_s=0.5)
    with pytest.raises(StoreTimeoutError, match=r"^slot 0: barrier took over .*waits for slots 1, 2 to call it$"):
        one.barrier().result(WAIT_S)
    with pytest.raises(StoreTimeoutError, match=r"^slot 0: pushpull of key 'w', step 0 took.*waits for slots 1, 2"):
        one.pushpull("w", ones(2)).result(WAIT_S)


def test_in_async_mode_nobody_waits_and_a_barrier_is_one(make: Make) -> None:
    one, other = make(describe({"w": zero(2)}, slots=2, rule="sgd", lr=1.0, mode="async"))
    assert one.pushpull("w", ones(2)).result(WAIT_S).tolist() == [-1.0, -1.0]
    met = one.barrier()
    assert not met.done()
    other.push("w", ones(2))
    other.barrier().result(WAIT_S)
    met.result(WAIT_S)
    assert one.pull("w", settled=True).result(WAIT_S).tolist() == [-2.0, -2.0]


@pytest.mark.parametrize("mode", ["async", "stale"])
def test_in_async_and_stale_mode_a_value_is_set_whatever_its_version(make: Make, mode: str) -> None:
    keys = {"given": Key((2,)), "made": zero(2), "rows": Key((3, 2), rows=True)}
    (store,) = make(describe(keys, rule="sgd", lr=1.0, mode=mode))
    store.init(["given", "rows"], [ones(2), ones(3, 2)]).result(WAIT_S)
    for version in (0, 3, 0):
        store.push(["given", "made"], [ones(2), ones(2)])
        value = ones(2) * (version + 7)
        store.set(["given", "made"], [value, value], version=version)
        store.set_rows("rows", [1], [value], version=version)
        assert [one.tolist() for one in store.pull(["given", "made"]).result(WAIT_S)] == [value.tolist()] * 2
        assert store.pull_rows("rows", [1, 2]).result(WAIT_S).tolist() == [value.tolist(), [1, 1]]


def test_committed_steps_tell_what_all_agreed_on(make: Make) -> None:
    commit = CommitDescription(clip_norm=1.0)
    stores = make(describe({"w": zero(2)}, slots=2, rule="sgd", lr=1.0, commit=commit))
    for store in stores:
        store.push("w", np.array([3.0, 4.0], np.float32) / 2)
    outcomes = [store.end_step() for store in stores]
    assert [outcome.result(WAIT_S).norm for outcome in outcomes] == [5.0, 5.0]
    np.testing.assert_allclose(stores[0].pull("w").result(WAIT_S), [-0.6, -0.8], rtol=1e-6)
    met = [store.barrier() for store in stores]
    assert [one.result(WAIT_S) for one in met] == [None, None]


def test_whole_numbers_are_no_part_of_a_gradient_that_is_clipped(make: Make) -> None:
    keys = {"n": Key((2,), "int32", update="gradient"), "w": zero(2)}
    (store,) = make(describe(keys, rule="sgd", lr=1.0, commit=CommitDescription(clip_norm=1.0)))
    for norm, gradient in [(5.0, [3.0, 4.0]), (math.nan, [math.inf, 4.0])]:
        store.push(["n", "w"], [np.array([10, 20], np.int32), np.array(gradient, np.float32)])
        np.testing.assert_equal(store.end_step().result(WAIT_S).norm, norm)
        assert store.pull("n").result(WAIT_S).tolist() == [10, 20]


def test_without_a_rule_the_value_is_the_sum_of_the_last_step(make: Make) -> None:
    stores = make(describe({"w": Key(shape=(3,), update="gradient")}, slots=2))
    for _ in range(2):
        sums = [store.pushpull("w", ones(3) * (store.slot + 1)) for store in stores]
        assert [one.result(WAIT_S).tolist() for one in sums] == [[3.0] * 3] * 2


def test_the_rule_its_numbers_and_its_state_can_be_read(make: Make) -> None:
    lr = {"schedule": "linear", "start": 1.0, "end": 0.0, "steps": 4}
    keys = {"w": zero(2), "b": Key(shape=(2,), initializer=0.0, multipliers={"lr": 2.0})}
    (store,) = make(describe(keys, rule="momentum", lr=lr, momentum=0.5))
    assert store.rule == "momentum"
    assert [store.hyper("b", step=step)["lr"] for step in (0, 1, 4)] == [2.0, 1.5, 0.0]
    store.push(["w", "b"], [ones(2), ones(2)])
    assert store.hyper("w") == {"lr": 0.75, "momentum": 0.5, "weight_decay": 0.0}
    assert store.pull_state("w").result(WAIT_S)["momentum"].tolist() == [1.0, 1.0]
    assert [set(one) for one in store.pull_state(["w", "b"]).result(WAIT_S)] == [{"momentum"}] * 2


def test_a_pull_fails_with_the_push_that_it_would_wait_for(make: Make) -> None:
    """Not at its deadline: nobody may look at the push's own future."""
    one, _ = make(describe({"w": zero(2)}, slots=2, rule="sgd"))
    pushes = [one.push("w", ones(2)) for _ in range(4)]
    with pytest.raises(StoreRefusedError, match=r"key 'w', slice 0, step 3: .*waits for slots 1"):
        one.pull("w").result(WAIT_S)
    with pytest.raises(StoreRefusedError, match="step 3"):
        pushes[3].result(WAIT_S)


def test_a_pull_of_before_does_not_fail_with_a_later_push(make: Make) -> None:
    one, other = make(describe({"w": zero(2)}, slots=2, rule="sgd", lr=1.0))
    for _ in range(4):
        one.push("w", ones(2))
    other.push("w", ones(2))
    assert one.pull("w", version=1).result(WAIT_S).tolist() == [-2.0, -2.0]


def test_arrays_go_when_nobody_has_them_and_not_when_cycles_are_collected(make: Make) -> None:
    keys = {"w": zero(2), "b": zero(2), "t": Key(shape=(4, 2), rows=True, initializer=0.0)}
    (store,) = make(describe(keys, rule="sgd", lr=1.0))
    store.pushpull(["w", "b"], [ones(2), ones(2)]).result(WAIT_S)
    gc.disable()
    try:
        gradients, rows = [ones(2), ones(2)], ones(4, 2)
        futures = [store.pushpull(["w", "b"], gradients), store.pushpull_rows("t", np.arange(4), rows)]
        values = [*futures[0].result(WAIT_S), futures[1].result(WAIT_S)]
        held = [weakref.ref(array) for array in (*gradients, rows, *values)]
        del gradients, rows, values, futures
        store.pull("w").result(WAIT_S)  # what the store's thread had in hand, it has put down since
        assert [one() for one in held] == [None] * 6
    finally:
        gc.enable()


SAME: list[tuple[str, Callable[[KVStore, list[Any]], Any]]] = [
    ("init", lambda one, keys: one.init(keys, [ones(2)] * 2)),
    ("push", lambda one, keys: one.push(keys, [ones(2)] * 2)),
    ("pull", lambda one, keys: one.pull(keys)),
    ("pushpull", lambda one, keys: one.pushpull(keys, [ones(2)] * 2)),
    ("pull_state", lambda one, keys: one.pull_state(keys)),
    ("set", lambda one, keys: one.set(keys, [ones(2)] * 2, version=1)),
    ("read_consistent", lambda one, keys: one.read_consistent(keys)),
    ("push_rows", lambda one, keys: one.push_rows(keys, [[0]] * 2, [ones(1, 2)] * 2)),
    ("pull_rows", lambda one, keys: one.pull_rows(keys, [[0]] * 2)),
    ("pushpull_rows", lambda one, keys: one.pushpull_rows(keys, [[0]] * 2, [ones(1, 2)] * 2)),
    ("pull_state_rows", lambda one, keys: one.pull_state_rows(keys, [[0]] * 2)),
    ("set_rows", lambda one, keys: one.set_rows(keys, [[0]] * 2, [ones(1, 2)] * 2, version=1)),
]


def test_a_call_of_no_keys_ends_with_nothing() -> None:
    with KVStore.local(describe({"w": zero(2)}, rule="sgd")) as store:
        empty = [store.pull([]), store.pushpull([], []), store.pull_rows([], []), store.pushpull_rows([], [], [])]
        assert [one.result(WAIT_S) for one in empty] == [[]] * 4
        for call in (store.push([], []), store.set([], [], version=1), store.push_rows([], [], [])):
            call.result(WAIT_S)


@pytest.mark.parametrize(("call", "make"), SAME, ids=[call for call, _ in SAME])
@pytest.mark.parametrize("again", [np.int64, np.uint8])
def test_a_key_is_named_twice_whatever_type_its_number_has(
    call: str, make: Callable[[KVStore, list[Any]], Any], again: type[np.integer[Any]]
) -> None:
    key = Key(shape=(4, 2), rows=True, initializer=0.0) if call.endswith("_rows") else Key(shape=(2,))
    with KVStore.local(describe({7: key}, rule="sgd", lr=1.0)) as store:
        with pytest.raises(StoreRefusedError, match=f"slot 0: {call}: key 7 is named twice"):
            make(store, [7, again(7)])
        assert store.steps(7) == 0


BOTH = {"w": zero(3), "t": Key(shape=(4, 2), rows=True, initializer=0.0), "g": (2,)}
BOTH |= {"u": BOTH["t"], "n": Key((2,), update="gradient")}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda one: one.push("v", ones(3)), r"slot 0: push of key 'v': the store has no such key; there are 'w', 't'"),
        (lambda one: one.hyper("v"), r"slot 0: hyper of key 'v': the store has no such key"),
        (lambda one: one.pull(7), r"pull of key 7: the store has no such key"),
        (lambda one: one.pull(True), r"key True: a string or a number, not bool"),
        (lambda one: one.pull(-1), r"key -1: a number from 0 to 2\*\*64 - 1"),
        (lambda one: one.pull(""), "a key has at least one character"),
        (lambda one: one.pull("#barrier"), "key '#barrier': a string must not begin with '#'"),
        (lambda one: one.pull({"w"}), "a key or a list of keys, not set"),
        (lambda one: one.pull(["w", "g", "w"]), "key 'w' is named twice"),
        (lambda one: one.push(["w", "g"], [ones(3)]), "2 keys take a list of as many values, not 1 values"),
        (lambda one: one.push(["w", "g"], ones(2, 3)), "2 keys take a list of as many values, not ndarray"),
        (lambda one: one.pull("t"), "pull of key 't': it is a table: say which rows, with pull_rows"),
        (lambda one: one.push("t", ones(4, 2)), "push of key 't': it is a table: say which rows, with push_rows"),
        (lambda one: one.pull_rows("w", [0]), "pull_rows of key 'w': it is no table: call pull"),
        (
            lambda one: one.push("w", np.ones(3)),
            r"float64\[3\], the key float32\[3\]; convert it with .astype\('float3",
        ),
        (lambda one: one.push("w", ones(3, 1)), r"gradient: it is float32\[3, 1\], the key float32\[3\]"),
        (lambda one: one.push("w", "abc"), "gradient: str cannot be float32"),
        (lambda one: one.push("w", None), "gradient: NoneType cannot be float32"),
        (lambda one: one.push("w", [1, 2, 1j]), "gradient: list of complex128 cannot be float32"),
        (lambda one: one.push("w", [[1], [2, 3]]), "gradient: "),
        (lambda one: one.push("w", ones(3), step=-1), r"slot 0: push: step: a number from 0 to 2\*\*62 - 1, not -1"),
        (lambda one: one.push("w", ones(3), step=10**19), "step: a number from 0 to .*, not 10000000000000000000"),
        (lambda one: one.push_rows("t", [0, 4], ones(2, 2)), "push_rows of key 't': id 4: the table has rows 0 to 3"),
        (lambda one: one.push_rows("t", [2**63], ones(1, 2)), r"ids: 9223372036854775808 is beyond 2\*\*63"),
        (
            lambda one: one.push_rows(["u", "t"], [[0], [9]], [ones(1, 2)] * 2),
            "key 't': id 9: the table has rows 0 to 3",
        ),
        (
            lambda one: one.pull_rows("t", np.zeros(2**22 + 1, int)),
            "pull_rows of key 't': 4194305 rows; a call may have",
        ),
        (lambda one: one.pull_rows("t", [4]), "pull_rows of key 't': id 4: the table has rows 0 to 3"),
        (
            lambda one: one.set_rows("t", [4], ones(1, 2), version=1),
            "set_rows of key 't': id 4: the table has rows 0 to 3",
        ),
        (lambda one: one.pushpull("t", ones(4, 2)), "it is a table: say which rows, with pushpull_rows"),
        (lambda one: one.pull_state("t"), "it is a table: say which rows, with pull_state_rows"),
        (lambda one: one.pull_state_rows("w", [0]), "pull_state_rows of key 'w': it is no table: call pull_state"),
        (lambda one: one.set("w", ones(3), version=None), r"set: version: a number from 0 to 2\*\*62 - 1, not None"),
        (lambda one: one.set_hyper("speed", 1.0), "slot 0: set_hyper: rule 'sgd' has no 'speed'; it has .*lr"),
        (
            lambda one: one.set_hyper("rescale_grad", 1.0),
            "has no .rescale_grad., unless its description names it; it has lr",
        ),
        (
            lambda one: one.set_hyper("lr", 1e39, key="w"),
            "set_hyper of key 'w': 'lr': 1e.39 is infinite in float32",
        ),
        (lambda one: one.set_hyper("lr", "fast"), "slot 0: set_hyper: 'lr': a finite number, not 'fast'"),
        (lambda one: one.read_consistent("t"), "it is a table: of tables there is no read_consistent"),
        (lambda one: one.pull(b"w"), "a key or a list of keys, not bytes"),
        (lambda one: one.push("w", np.ma.masked_array(ones(3), [1, 0, 0])), "gradient: it is a masked array"),
        (lambda one: one.pull("w", out=np.ma.masked_array(ones(3), [1, 0, 0])), "out: it is a masked array"),
        (lambda one: one.pull_rows("t", np.ma.masked_array([1, 2], [1, 0])), "ids: it is a masked array"),
        (lambda one: one.pull("w", version=1.5), "version: a number from 0 to .*, not 1.5"),
        (lambda one: one.init("g", ones(2), by="0"), "slot 0: init: by: slot '0' of 2"),
        (lambda one: one.pull("w", out=[0, 0, 0]), "out: an array that can be written, not int"),
        (lambda one: one.pull("w", out=np.empty(3)), r"out: it is float64\[3\], the value float32\[3\]"),
        (lambda one: one.pushpull("w", ones(3), out=np.empty(2)), r"pushpull of key 'w': out: it is float64\[2\]"),
        (lambda one: one.pull("w", out=np.broadcast_to(np.float32(0), 3)), "out: it cannot be written"),
        (lambda one: one.pull_rows("t", [1, True]), "pull_rows of key 't': ids: whole numbers, not bool"),
        (lambda one: one.pull_rows("t", [[1, 2], [np.True_, 0]]), "ids: whole numbers, not bool"),
        (lambda one: one.pull_rows("t", True), "ids: whole numbers, not bool"),
        (lambda one: one.push_rows("t", [2**63, True], ones(2, 2)), "ids: whole numbers, not bool"),
        (
            lambda one: one.pull_rows("t", [0.5]),
            "pull_rows of key 't': ids: whole numbers are expected, not list of float64",
        ),
        (lambda one: one.pull_rows("t", np.ones(1)), "ids: whole numbers, not float64; convert them with .astype"),
        (lambda one: one.pull_rows("t", np.ones(1, bool)), "ids: whole numbers, not bool; np.flatnonzero says which"),
        (lambda one: one.pull_rows("t", np.array([2**63], np.uint64)), r"ids: 9223372036854775808 is beyond 2\*\*63"),
        (
            lambda one: one.push_rows("t", [0, 1], ones(3, 2)),
            r"rows: it is float32\[3, 2\], the ids take float32\[2, 2\]",
        ),
        (
            lambda one: one.init("w", ones(3)),
            "init of key 'w': the description gives its first value; with initializer = \"given\" a worker gives it",
        ),
        (lambda one: one.init("n", ones(2)), "init of key 'n': with update = \"gradient\" its value is the sum"),
        (lambda one: one.init("g"), "init of key 'g': slot 0 has to give a value"),
        (lambda one: one.init("g", ones(2), by=2), "by: slot 2 of 2"),
        (lambda one: one.end_step(10**15), "end_step: step 1000000000000000: the next to end is step 0"),
    ],
)
def test_a_wrong_call_raises_at_once_and_begins_nothing(call: Callable[[KVStore], object], told: str) -> None:
    with faces("local", describe(BOTH, slots=2, rule="sgd")) as (store, _):
        with pytest.raises(StoreRefusedError, match=told):
            call(store)
        assert [store.steps(key) for key in store.keys] == [0] * len(BOTH)


def test_a_wait_names_the_call_that_is_missing() -> None:
    with faces("local", describe({"w": zero(3), "g": (2,)}, slots=2, rule="sgd", commit={}), timeout_s=0.4) as stores:
        for store in stores:
            store.push("w", ones(3))
        with pytest.raises(StoreTimeoutError, match="step 0 waits until end_step is called by slots 0, 1"):
            stores[0].pull("w").result(WAIT_S)
        with pytest.raises(StoreTimeoutError, match="key 'g' was never set: a worker has to call init"):
            stores[0].pull("g", version=0).result(WAIT_S)
        ends = [store.end_step() for store in stores]
        with pytest.raises(StoreTimeoutError, match="key 'g' was never set: a worker has to call init"):
            ends[0].result(WAIT_S)
    with faces("local", describe({"w": zero(3), "v": zero(3)}, slots=2, rule="sgd"), timeout_s=0.4) as stores:
        for store in stores:
            store.push("w", ones(3)).result(WAIT_S)
        with pytest.raises(StoreTimeoutError, match=r"read_consistent of 2 keys .*, version 1 took over"):
            stores[0].read_consistent(["w", "v"]).result(WAIT_S)


def test_a_stale_wait_names_the_slots_that_are_behind() -> None:
    with faces("local", describe({"w": zero(3)}, slots=2, rule="sgd", mode="stale"), timeout_s=0.4) as (store, _):
        store.push("w", ones(3))
        store.push("w", ones(3))
        with pytest.raises(StoreTimeoutError, match="has seen 0 steps of slots 1; step 0 waits for slots 1"):
            store.pull("w").result(WAIT_S)


def test_a_read_at_one_version_asks_once_where_other_keys_have_no_elements(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store,) = make(describe({"none": zero(0), "w": zero(2)}, rule="sgd", lr=1.0))
    store.push(["none", "w"], [ones(0), ones(2)]).result(WAIT_S)
    asked, begin = [], KeyCall.begin

    def noted(call: KeyCall, versions: list[int], *arguments: Any, **options: Any) -> Future[Any]:
        asked.append(versions)
        return begin(call, versions, *arguments, **options)

    monkeypatch.setattr(KeyCall, "begin", noted)
    version, (none, value) = store.read_consistent(["none", "w"]).result(WAIT_S)
    assert (version, none.tolist(), value.tolist(), asked) == (1, [], [-1, -1], [[0, 0]])


@pytest.mark.parametrize("mode", ["async", "stale"])
def test_a_read_at_one_version_is_refused_at_once_where_no_version_is_of_all_slots(mode: str) -> None:
    with faces("local", describe({"w": zero(3)}, slots=2, rule="sgd", mode=mode)) as (store, _):
        told = f"slot 0: read_consistent: in mode {mode} each slot has versions of its own"
        with pytest.raises(StoreRefusedError, match=told):
            store.read_consistent(["w"])


def test_a_tables_state_comes_in_the_shape_of_the_ids(make: Make) -> None:
    tables = {name: Key(shape=(9, 2), rows=True, initializer=0.0) for name in ("s", "t")}
    (store,) = make(describe(tables, rule="momentum", lr=1.0, momentum=0.5))
    store.push_rows(["s", "t"], [[1], [2, 2]], [ones(1, 2), ones(2, 2)])
    one = store.pull_state_rows("t", [[2, 0], [-1, 2]]).result(WAIT_S)
    assert one["momentum"].tolist() == [[[2.0, 2.0], [0.0, 0.0]], [[0.0, 0.0], [2.0, 2.0]]]
    both = store.pull_state_rows(["s", "t"], [[1], []], version=1).result(WAIT_S)
    assert [state["momentum"].tolist() for state in both] == [[[1.0, 1.0]], []]


def test_a_slot_that_does_not_contribute_reads_and_cannot_push(make: Make) -> None:
    one, reader = make(describe({"w": Key(shape=(2,), initializer=0.0, slots=[0])}, slots=2, rule="sgd", lr=1.0))
    one.pushpull("w", ones(2)).result(WAIT_S)
    assert reader.pull("w").result(WAIT_S).tolist() == [-1.0, -1.0]
    with pytest.raises(StoreRefusedError, match=r"slot 1: push of key 'w': only slots \[0\] contribute to it"):
        reader.push("w", ones(2))


def test_a_first_value_is_not_given_again_once_steps_have_begun(make: Make) -> None:
    (store,) = make(describe({"w": (2,)}, rule="sgd"))
    store.init("w", ones(2)).result(WAIT_S)
    store.push("w", ones(2)).result(WAIT_S)
    with pytest.raises(StoreRefusedError, match="init of key 'w': slot 0 has begun its steps"):
        store.init("w", ones(2))


def test_a_key_that_was_pushed_before_it_had_a_value_gets_one_as_the_error_of_init_says(make: Make) -> None:
    (store,) = make(describe({"w": (2,)}, rule="sgd", lr=1.0))
    pushed = store.push("w", ones(2))
    with pytest.raises(
        StoreRefusedError, match=r"where it has no value yet, set\('w', value, version=0\) gives it one"
    ):
        store.init("w", ones(2))
    store.set("w", 5 * ones(2), version=0).result(WAIT_S)
    pushed.result(WAIT_S)
    assert store.pull("w").result(WAIT_S).tolist() == [4.0, 4.0]


def test_a_closed_store_says_so(make: Make) -> None:
    store = make(describe({"w": zero(2)}, slots=2, rule="sgd"))[0]
    store.push("w", ones(2)).result(WAIT_S)
    waiting = store.pull("w")
    with store:
        pass
    store.close()
    with pytest.raises(StoreClosedError, match="the store was closed"):
        waiting.result(WAIT_S)
    with pytest.raises(StoreClosedError, match="closed"):
        store.push("w", ones(2)).result(WAIT_S)


def test_what_was_sent_is_counted() -> None:
    with faces("network", describe({"w": zero(300)}, rule="sgd")) as (store,):
        store.pushpull("w", ones(300)).result(WAIT_S)
        statistics = store.statistics()
        assert sum(link.payload_bytes_sent for link in statistics.links) == 1200
        assert statistics.operations == 0
