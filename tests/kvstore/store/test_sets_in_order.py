"""Calls of one slot on one key take effect in their order, though data is overtaken by messages of control."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import constant, given, key_of, pushpull_rows, store_of, table_of
from store_simulation import Simulation
from weft_kvstore.description.records import CommitDescription, Mode, StoreDescription
from weft_kvstore.errors import StoreRefusedError, StoreTimeoutError
from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.codec import decode_request
from weft_kvstore.wire.messages import Barrier, Pull, Push

Event = tuple[str, int, int]

NARROW = LinkSettings(credit_bytes=64, frame_bytes=64, silence_s=1e6, request_timeout_s=1e5)
"""A slice at a time: no more of a value leaves before the shard has said that it has what left."""


class Choosing(random.Random):
    """Chooses among the events that are allowed; `stuck` once there was none."""

    def __init__(self, allowed: Callable[[Event], bool], seed: int = 1) -> None:
        super().__init__(seed)
        self._allowed = allowed
        self.stuck = False

    def choice(self, seq: Sequence[Any]) -> Any:
        allowed = [one for one in seq if self._allowed(one)]
        self.stuck = not allowed
        return super().choice(allowed) if allowed else ("work", 0, 0)


def deaf(slot: int) -> Callable[[Event], bool]:
    """Whatever does not reach this slot: none of its values is acknowledged."""
    return lambda event: event[:2] != ("down", slot)


def settle(simulation: Simulation, choose: Choosing) -> None:
    """Until nothing is left to happen that is allowed."""
    choose.stuck = False
    while simulation.step(choose) and not choose.stuck:
        pass


def described(slots: int = 2, *, mode: Mode = Mode.SYNC, commit: bool = False) -> StoreDescription:
    keys = [constant(key_of(name, (64,), slots), 0.0) for name in ("w", "other")]
    keys.append(constant(table_of("t", (64, 4), slots), 0.0))
    keys.append(msgspec.structs.replace(keys[0], key="whole", whole=True))
    found = store_of(keys, slots=slots, shards=2, rule="sgd", hyper={"lr": 1.0}, slice_bytes=64, mode=mode)
    return msgspec.structs.replace(found, commit=CommitDescription() if commit else None)


def opened(description: StoreDescription) -> tuple[Simulation, Any, Any]:
    simulation = Simulation(description, NARROW)
    simulation.settle(random.Random(1))
    return simulation, simulation.stores[0], simulation.stores[description.slots - 1]


def set_value(store: Any, key: str, version: int, number: float) -> Any:
    if key != "t":
        return store.set(key, version, np.full(64, number, np.float32))
    return store.set("t", version, np.full((64, 4), number, np.float32), np.arange(64))


def push(store: Any, key: str, step: int) -> Any:
    if key != "t":
        return store.push(key, step, np.ones(64, np.float32))
    return store.push("t", step, np.ones((64, 4), np.float32), np.arange(64))


def pull(store: Any, key: str, version: int) -> Any:
    return store.pull("t", version, np.arange(64)) if key == "t" else store.pull(key, version)


def number_of(pulled: Any) -> list[float]:
    return np.unique(pulled.result(0)).tolist()


def test_a_pull_between_two_sets_has_what_the_first_has_set() -> None:
    """It waits for the first; the second waits for it."""
    found = store_of([given(key_of("w", (64,), 1))], slots=1, shards=1, slice_bytes=64)
    simulation = Simulation(found, LinkSettings(silence_s=1e6, request_timeout_s=1e5))
    simulation.settle(random.Random(1))
    store, choose = simulation.stores[0], Choosing(deaf(0))
    first, pulled, second, again = (
        set_value(store, "w", 0, 10.0),
        pull(store, "w", 0),
        set_value(store, "w", 0, 100.0),
        pull(store, "w", 0),
    )
    settle(simulation, choose)
    simulation.settle(random.Random(2))
    assert first.done()
    assert second.done()
    assert (number_of(pulled), number_of(again)) == ([10.0], [100.0])


@pytest.mark.parametrize("mode", [Mode.ASYNC, Mode.STALE])
@pytest.mark.parametrize("key", ["w", "t", "whole"])
def test_a_value_holds_behind_the_pushes_that_wait_to_be_merged_and_before_those_that_come_later(
    key: str, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft_kvstore.shard.merger.AT_ONCE_BYTES", -1)
    simulation, store, _ = opened(described(1, mode=mode))
    calls = [push(store, key, 0), push(store, key, 1), set_value(store, key, 2, 7.0), push(store, key, 2)]
    settle(simulation, Choosing(lambda event: event[0] != "work"))
    after = pull(store, key, 3)
    simulation.finish(random.Random(2), *calls, after)
    assert number_of(after) == [6.0]


@pytest.mark.parametrize("key", ["w", "t", "whole"])
def test_a_barrier_comes_behind_a_value_of_one_of_its_keys_and_the_next_barrier_behind_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation, store, other = opened(described())
    other_keys = [one.key for one in simulation.description.keys if one.key != key]
    was_set = set_value(store, key, 1, 7.0)
    messages: list[Any] = []
    link = simulation.clients[0].links[0]
    say = link.say
    monkeypatch.setattr(link, "say", lambda message: (messages.append(message), say(message)))
    barrier = store.barrier(0, [key, *other_keys])
    late = store.barrier(1, [*other_keys])
    for one in (key, *other_keys):
        push(other, one, 0)
    values = {one: pull(other, one, 1) for one in (key, *other_keys)}
    settle(simulation, Choosing(deaf(0)))
    assert not any(one.done() for one in (was_set, barrier, late, values[key]))
    push(store, key, 1)
    push(other, key, 1)
    simulation.finish(random.Random(2), was_set, barrier, late, *values.values())
    assert [m.step for m in messages if isinstance(m, Barrier)] == [0, 1]
    assert number_of(values[key]) == [7.0]
    after = pull(store, key, 2)
    simulation.finish(random.Random(2), after)
    assert number_of(after) == [5.0]
    assert not simulation.clients[0]._setting
    assert not simulation.clients[0]._blocked


@pytest.mark.parametrize("pulls", ["pull", "pushpull"])
def test_the_end_of_a_step_comes_behind_the_ids_of_rows_that_were_pulled_before(pulls: str) -> None:
    """Else the rows would have seen the step after theirs. Acknowledgements are lost, so the ids leave one by one."""
    simulation, store, other = opened(described())
    first = 0
    if pulls == "pull":
        rows = pull(store, "t", 0)
    else:
        first, ids = 1, np.arange(64)
        gradients = np.ones((64, 4), np.float32)
        rows = pushpull_rows(store, 0, gradients, ids, ids.copy())
    ended = store.barrier(first, ["t"])
    for step in range(first + 1):
        push(other, "t", step)
    settle(simulation, Choosing(deaf(0)))
    assert not rows.done()
    simulation.finish(random.Random(2), rows, ended)
    assert number_of(rows) == [-2.0 * first]
    after = pull(store, "t", first + 1)
    simulation.finish(random.Random(2), after)
    assert number_of(after) == [-2.0 * first - 1.0]
    assert not simulation.clients[0]._blocked


@pytest.mark.parametrize("sets", [False, True])
def test_where_steps_are_committed_their_end_comes_behind_what_was_said_of_keys_that_were_pushed(sets: bool) -> None:
    """Else rows of version 0 would have seen step 0, and others would have a version 1 before its value has come."""
    simulation, store, other = opened(described(commit=True))
    simulation.finish(random.Random(1), push(store, "t", 0), push(other, "t", 0))
    said, seen = set_value(store, "t", 1, 7.0) if sets else pull(store, "t", 0), pull(other, "t", 1)
    ended = [one.barrier(0, ["w", "other", "whole"]) for one in (store, other)]
    settle(simulation, Choosing(deaf(0)))
    simulation.finish(random.Random(2), said, seen, *ended)
    assert (number_of(seen), sets or number_of(said)) == ([7.0 if sets else -2.0], sets or [0.0])
    assert not simulation.clients[0]._blocked


@pytest.mark.parametrize(("pulls", "pushes"), [(0, 1), (-1, 0), (-1, 1)])
def test_no_push_overtakes_the_ids_of_rows_that_were_pulled_before(pulls: int, pushes: int) -> None:
    simulation, store, _ = opened(described(1))
    rows = store.pull("t", 0, np.arange(64), priority=pulls)
    pushed = store.push("t", 0, np.ones((64, 4), np.float32), np.arange(64), priority=pushes)
    simulation.finish(random.Random(1), rows, pushed)
    assert number_of(rows) == [0.0]


def test_a_pull_of_rows_that_sends_no_ids_hides_no_earlier_push_from_later_ones() -> None:
    simulation, store, _ = opened(described(1))
    ones, client = np.ones((64, 4), np.float32), simulation.clients[0]
    store.push("t", 0, ones, np.arange(64), priority=-2)
    nothing = store.pull("t", 0, np.zeros(0, np.int64))
    late = store.push("t", 1, ones, np.arange(64), priority=2)
    of_push = next(one for one in client.open.values() if one.future is late)
    simulation._pump()
    assert nothing.done()
    assert (of_push.priority, of_push.send_priority) == (2, -2)


def test_a_push_that_fails_hides_no_earlier_push_from_later_ones() -> None:
    simulation, store, _ = opened(described(1))
    client, ones = simulation.clients[0], np.ones(64, np.float32)
    store.push("w", 0, ones, priority=-2)
    failed = store.push("w", 1, ones, priority=1)
    (of_failed,) = [one for one in client.open.values() if one.future is failed]
    client.end(of_failed, StoreRefusedError("refused"))
    late = store.push("w", 1, ones, priority=2)
    assert [one.send_priority for one in client.open.values() if one.future is late] == [-2]


def test_a_pull_of_one_shards_rows_hides_no_earlier_pull_from_later_pushes() -> None:
    simulation, store, _ = opened(described(1))
    client = simulation.clients[0]
    store.pull("t", 0, np.arange(64), priority=-3)
    some = store.pull("t", 0, np.arange(0, 64, 2))
    late = store.push("t", 0, np.ones((64, 4), np.float32), np.arange(64), priority=3)
    found = {id(one.future): one.send_priority for one in client.open.values()}
    assert (found[id(some)], found[id(late)]) == (-3, -3)


def test_the_answer_to_a_pull_of_rows_keeps_its_priority_though_its_ids_come_behind_a_push() -> None:
    simulation, store, _ = opened(described(1))
    store.push("t", 0, np.ones((64, 4), np.float32), np.arange(64), priority=-1)
    pulled = store.pull("t", 1, np.arange(64), priority=3)
    simulation._pump()
    messages = [*map(decoded, said(simulation))]
    pulls = [one.pull if isinstance(one, Push) else one for one in messages]
    assert {one.priority for one in pulls if isinstance(one, Pull)} == {3}
    simulation.finish(random.Random(1), pulled)


@pytest.mark.parametrize("mode", [Mode.ASYNC, Mode.STALE])
@pytest.mark.parametrize("key", ["w", "t", "whole"])
def test_a_pull_sees_the_value_that_its_slot_has_set_before(key: str, mode: Mode) -> None:
    simulation, store, _ = opened(described(1, mode=mode))
    set_value(store, key, 1, 7.0)
    set_value(store, key, 1, 8.0)
    seen, unrelated = pull(store, key, 0), pull(store, "other", 0)
    settle(simulation, Choosing(deaf(0)))
    simulation.finish(random.Random(3), seen, unrelated)
    assert (number_of(seen), number_of(unrelated)) == ([8.0], [0.0])


@pytest.mark.parametrize("cuts", range(8))
def test_a_broken_connection_changes_no_order(cuts: int) -> None:
    """It breaks after so many messages; then everything is said again."""
    simulation, store, other = opened(described())
    futures = [set_value(store, "w", 1, 7.0), store.barrier(0, ["w", "other"])]
    futures += [push(other, "w", 0), other.barrier(0, ["other"])]
    values = [pull(other, "w", 1), pull(other, "other", 1), pull(store, "w", 1)]
    choose = random.Random(cuts)
    for _ in range(4 * cuts):
        simulation.step(choose)
    for shard in range(2):
        simulation.cut(0, shard)
    simulation.finish(choose, *futures, *values)
    assert [number_of(one) for one in values] == [[7.0], [0.0], [7.0]]


def test_where_steps_are_committed_the_whole_step_comes_behind() -> None:
    simulation, store, other = opened(described(commit=True))
    names = [one.key for one in simulation.description.keys]
    was_set = set_value(store, "w", 1, 7.0)
    ended = [store.barrier(0, names), other.barrier(0, names)]
    value = pull(other, "w", 1)
    settle(simulation, Choosing(deaf(0)))
    assert not any(one.done() for one in (was_set, value, *ended))
    simulation.finish(random.Random(4), was_set, value, *ended)
    assert number_of(value) == [7.0]
    assert ended[0].result(0).finite


def test_a_value_that_is_refused_keeps_nothing_back() -> None:
    simulation, store, other = opened(described())
    for version in (1, 2):
        set_value(store, "w", version, 7.0)
    refused = set_value(store, "w", 3, 9.0)
    futures = [store.barrier(0, ["w"]), push(other, "w", 0)]
    value = pull(other, "w", 1)
    simulation.finish(random.Random(5), refused, *futures, value)
    assert isinstance(refused.exception(0), StoreRefusedError)
    assert number_of(value) == [7.0]


def test_what_comes_behind_says_so_where_its_deadline_passes_and_is_not_said_at_the_end() -> None:
    simulation, store, _ = opened(described())
    set_value(store, "w", 1, 7.0)
    simulation.now += NARROW.request_timeout_s / 2
    barrier, value = store.barrier(0, ["w", "other"]), pull(store, "w", 1)
    settle(simulation, Choosing(deaf(0)))
    client = simulation.clients[0]
    waits = client._waits(next(one for one in client.open.values() if one.future is value))
    assert "it comes behind values or ids of an earlier call, which have not arrived" in waits
    client.close("the end")
    simulation._pump()
    assert not [parts for parts in said(simulation) if isinstance(decode_request(parts)[0], Barrier)]
    for one in (barrier, value):
        with pytest.raises(Exception, match="the end"):
            one.result(0)


def decoded(parts: Any) -> Any:
    return decode_request(parts)[0]


def said(simulation: Simulation) -> list[Any]:
    """All that slots have said, and what is on its way."""
    delivered = [parts for kind, parts in simulation.delivered if kind == "up"]
    return delivered + [parts for one in simulation.connections.values() for parts in one.up]


def test_the_deadline_of_a_value_lets_go_what_comes_behind_it() -> None:
    simulation, store, _ = opened(described(1))
    was_set = set_value(store, "w", 1, 7.0)
    simulation.now += 1.0
    barrier = store.barrier(0, ["w"])
    settle(simulation, Choosing(deaf(0)))
    due = simulation.now + NARROW.request_timeout_s - 0.5
    while simulation.now < due:  # Far less at a time than a process that stood still.
        simulation.now += 0.5
        simulation.clients[0].tick(simulation.now)
    simulation.finish(random.Random(6), was_set, barrier)
    assert isinstance(was_set.exception(0), StoreTimeoutError)
    assert barrier.result(0) is None


def test_values_that_were_set_by_many_calls_hold_once_though_all_are_sent_again() -> None:
    """Their acknowledgements are lost, and another slot has updated them meanwhile."""
    names = [f"k{number}" for number in range(1100)]
    keys = [constant(key_of(name, (1,), 2), 0.0) for name in names]
    description = store_of(keys, slots=2, shards=1, rule="sgd", hyper={"lr": 1.0}, mode=Mode.ASYNC)
    simulation, choose = Simulation(description), Choosing(deaf(0))
    simulation.settle(random.Random(1))
    one, other = simulation.stores[0], simulation.stores[1]
    values = [one.set(name, 1, np.full(1, 50, np.float32)) for name in names]
    settle(simulation, choose)
    pushed = other.push(names, 0, [np.ones(1, np.float32)] * len(names))
    settle(simulation, choose)
    simulation.cut(0, 0)
    simulation.finish(random.Random(1), pushed, *values)
    pulled = other.pull(names, 1)
    simulation.finish(random.Random(1), pulled)
    assert {float(value[0]) for value in pulled.result(0)} == {49.0}


def test_a_client_has_no_more_sets_open_than_shards_know_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft_kvstore.client.core.SETS_KEPT", 2)
    simulation = Simulation(described())
    store, value = simulation.stores[0], np.ones(64, np.float32)
    values = [store.set("w", version, value) for version in (1, 2, 3)]
    simulation.finish(random.Random(1), *values)
    with pytest.raises(StoreRefusedError, match="set of key 'w', version 3: 2 calls that set values have not ended"):
        values[2].result(0)
    again = store.set("other", 1, value)
    simulation.finish(random.Random(1), again)
    assert again.exception(0) is None
