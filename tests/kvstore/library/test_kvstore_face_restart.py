"""A `KVStore` whose process takes over from one that died, and calls of it that concern the whole job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from face_stores import WAIT_S, faces
from store_cluster import served
from weft_kvstore import Key, KVStore, StoreDescription, StoreRefusedError, describe
from weft_kvstore.store import LossScale

Join = Callable[..., KVStore]
"""join(slot, ...): a process that comes for a slot; whoever was there before is gone."""


@contextmanager
def joining(kind: str, description: StoreDescription) -> Iterator[Join]:
    with ExitStack() as stack:
        incarnations = dict.fromkeys(range(description.slots), 0)
        if kind == "local":
            store = stack.enter_context(KVStore.local(description, timeout_s=WAIT_S))
            yield lambda slot, *, step=0: store.at_slot(slot, step=step)
            return
        found, _ = stack.enter_context(served(msgspec.structs.replace(description, shards=("", ""))))

        def join(slot: int, *, step: int = 0) -> KVStore:
            incarnations[slot] += 1
            made = KVStore.connect(found, slot, step=step, incarnation=incarnations[slot], timeout_s=WAIT_S)
            return stack.enter_context(made)

        yield join


@pytest.fixture(params=["network", "local"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ones() -> np.ndarray:
    return np.ones(3, np.float32)


def described(*, slots: int = 1, mode: str = "sync", **others: Any) -> StoreDescription:
    keys = {"w": Key(shape=(3,)), "b": Key(shape=(3,), initializer=0.0)}
    return describe(keys, slots=slots, rule="sgd", lr=1.0, mode=mode, **others)


def test_a_process_that_counts_anew_where_one_was_before_hears_of_it(kind: str) -> None:
    with joining(kind, described()) as join:
        first = join(0)
        first.init("w", ones())
        for _ in range(3):
            first.pushpull(["w", "b"], [ones(), ones()]).result(WAIT_S)
        second = join(0)
        second.push("b", ones()).result(WAIT_S)
        with pytest.raises(StoreRefusedError, match=r"slot 0: pull of key 'b': it has seen 3 steps .*step=3"):
            second.pull("b").result(WAIT_S)
        out = ones()
        with pytest.raises(
            StoreRefusedError,
            match=r"pull of key '[wb]': it has seen 3 steps .*incarnation=.*; to start over, restart the shards",
        ):
            second.pull(["w", "b"], out=[out, ones()]).result(WAIT_S)
        third = join(0, step=3)
        third.init("w", 100 * ones()).result(WAIT_S)
        assert np.array_equal(third.pull("w").result(WAIT_S), ones() - 3)
        assert np.array_equal(third.pushpull("w", ones()).result(WAIT_S), ones() - 4)


@pytest.mark.parametrize("call", ["numbered", "rows", "rows of each shard", "numbered rows"])
def test_a_process_that_pushes_numbered_steps_or_rows_anew_hears_of_it_too(kind: str, call: str) -> None:
    tables = {"t": Key(shape=(4, 2), rows=True, initializer=0.0)}
    description = describe({"w": Key(shape=(3,), initializer=0.0), **tables}, rule="sgd", lr=1.0)
    ids = [0, 1, 2] if call == "rows of each shard" else [1]

    def one_step(store: KVStore, step: int) -> np.ndarray:
        number = step if call.startswith("numbered") else None
        if call == "numbered":
            return store.pushpull("w", ones(), step=number).result(WAIT_S)
        return store.pushpull_rows("t", ids, np.ones((len(ids), 2), np.float32), step=number).result(WAIT_S)

    with joining(kind, description) as join:
        first = join(0)
        for step in range(3):
            assert (one_step(first, step) == -step - 1).all()
        assert not first.pull_rows("t", [-1]).result(WAIT_S).any()
        second = join(0)
        assert not second.pull_rows("t", []).result(WAIT_S).size  # It says nothing of the table.
        for step in range(2):  # What was pushed has arrived: it is not to be pushed again.
            with pytest.raises(StoreRefusedError, match=r"pull of key '[wt]': it has seen 3 steps .*step=3"):
                one_step(second, step)
        third = join(0, step=3)
        assert (one_step(third, 3) == -4).all()


def test_a_process_goes_on_in_the_middle_of_a_step(kind: str) -> None:
    """The one before it has pushed some keys of the step."""
    with joining(kind, described()) as join:
        first = join(0)
        first.init("w", ones())
        first.pushpull(["w", "b"], [ones(), ones()]).result(WAIT_S)
        first.pushpull("w", ones()).result(WAIT_S)
        second = join(0, step=1)
        w, b = second.pull(["w", "b"]).result(WAIT_S)
        assert np.array_equal(w, ones() - 2)
        assert np.array_equal(b, -ones())
        assert np.array_equal(second.pull("b").result(WAIT_S), -ones())
        for number in (2, 3):
            w, b = second.pushpull(["w", "b"], [ones(), ones()]).result(WAIT_S)
            assert np.array_equal(w, ones() - number)
            assert np.array_equal(b, -number * ones())


def test_two_objects_that_push_the_same_slot_hear_of_each_other() -> None:
    with KVStore.local(described()) as first:
        first.init("w", ones())
        first.pushpull("w", ones()).result(WAIT_S)
        second = first.at_slot(0, step=1)
        second.pushpull("w", ones()).result(WAIT_S)
        with pytest.raises(StoreRefusedError, match=r"pull of key 'w': it has seen 2 steps .* has begun 1: another"):
            first.pull("w").result(WAIT_S)


def test_who_only_reads_may_come_at_any_time(kind: str) -> None:
    with joining(kind, described()) as join:
        first = join(0)
        first.init("w", ones())
        first.pushpull("w", ones()).result(WAIT_S)
        second = join(0)
        assert np.array_equal(second.pull("w", version=1).result(WAIT_S), ones() - 1)


@pytest.mark.parametrize("mode", ["async", "stale"])
def test_a_first_value_that_is_given_again_does_not_undo_what_was_learned(kind: str, mode: str) -> None:
    with joining(kind, described(mode=mode)) as join:
        first = join(0)
        first.init("w", ones()).result(WAIT_S)
        first.pushpull("w", ones()).result(WAIT_S)
        second = join(0)
        second.init("w", 50 * ones()).result(WAIT_S)
        assert np.array_equal(second.pull("w", version=1).result(WAIT_S), ones() - 1)
        second.set("w", 7 * ones(), version=1).result(WAIT_S)
        assert np.array_equal(second.pull("w", version=1).result(WAIT_S), 7 * ones())


def test_barriers_go_on_where_the_process_before_met_the_others(kind: str) -> None:
    with joining(kind, described(slots=2)) as join:
        first, other = join(0), join(1)
        for _ in range(2):
            for met in [first.barrier(), other.barrier()]:
                met.result(WAIT_S)
        second = join(0)
        met = second.barrier()
        assert not met.done()
        with pytest.raises(TimeoutError):
            met.result(0.3)
        other.barrier().result(WAIT_S)
        met.result(WAIT_S)
        for met in [second.barrier(), other.barrier()]:
            met.result(WAIT_S)


@pytest.mark.parametrize("dies_at", [None, 3])
@pytest.mark.parametrize("growth_interval", [1, 3])
@pytest.mark.parametrize("compression", [None, {"gradients": {"kind": "bf16"}, "least_bytes": 0}])
def test_a_process_that_goes_on_where_losses_are_scaled_learns_the_scale_first(
    kind: str, compression: dict[str, Any] | None, growth_interval: int, dies_at: int | None
) -> None:
    """The scale doubles, so that a gradient of another one's is another number."""
    commit = {"loss_scaling": {"initial": 4.0, "growth_interval": growth_interval}}
    keys = {"w": Key(shape=(3,), initializer=0.0)}
    description = describe(keys, slots=2, rule="sgd", lr=1.0, commit=commit, compression=compression)
    scaling = description.commit and description.commit.loss_scaling
    assert scaling is not None
    with joining(kind, description) as join:
        stores, scales = [join(0), join(1)], [LossScale(scaling.initial)] * 2
        for step in range(6):
            if step == dies_at:
                stores[0] = store = join(0, step=step)
                with pytest.raises(StoreRefusedError, match=r"step 3 follows from step 2: call end_step\(2\)"):
                    store.push("w", ones())
                before = store.end_step(step - 1).result(WAIT_S)
                assert before is not None
                scales[0] = before.scale.after(finite=before.finite, scaling=scaling)
            for store, scale in zip(stores, scales, strict=True):
                store.push("w", ones() * scale.scale)
            outcomes = [ended.result(WAIT_S) for ended in [store.end_step() for store in stores]]
            scales = [one.scale.after(finite=one.finite, scaling=scaling) for one in outcomes if one is not None]
        np.testing.assert_array_equal(stores[1].pull("w").result(WAIT_S), -12 * ones())


def test_keys_are_read_at_one_version_while_slots_push(kind: str) -> None:
    """Each step adds one to every key, so that values of one version are equal."""
    names = ["w", "b", "c"]
    keys = {name: Key(shape=(64,), initializer=0.0, slots=(0, 1)) for name in names}
    description = describe(keys, slots=3, rule="sgd", lr=1.0, slice_bytes=64)
    with faces(kind, description) as (*trainers, reader):
        ends: list[int] = []
        """The step before which all end; nobody is further than one step ahead of another when it is said."""

        def train(store: KVStore) -> None:
            step = 0
            while not ends or step < ends[0]:
                store.pushpull(names, [-np.full(64, 0.5, np.float32)] * 3).result(WAIT_S)
                step += 1

        threads = [threading.Thread(target=train, args=(trainer,), daemon=True) for trainer in trainers]
        for thread in threads:
            thread.start()
        seen: list[int] = []
        while len(seen) < 60 or seen[-1] < 150:  # They go on for as long as somebody reads a version that is to come.
            version, values = reader.read_consistent(names).result(WAIT_S)
            assert all(np.all(value == version) for value in values), version
            seen.append(version)
        ends.append(max(trainer.steps("w") for trainer in trainers) + 3)
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert seen == sorted(seen)
        assert any(0 < version < 150 for version in seen), "nobody has pushed meanwhile"
