"""Client and shard cores over a simulated network: fences, silence, restarts, priorities. The time is the test's."""

from __future__ import annotations

import random
import re
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import key_of, store_of
from store_raw import changed_rows, column, values_of
from store_simulation import Simulation
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.bucket.steps import PullWait
from weft_kvstore.client.core import LOG_AFTER_S, MOST_FAILED, QUIET_S, ClientCore
from weft_kvstore.client.link import LinkState
from weft_kvstore.client.operation import Operation
from weft_kvstore.description.form import BARRIER_KEY
from weft_kvstore.description.records import InitializerDescription, KeyDescription, Mode, StoreDescription
from weft_kvstore.errors import StoreClosedError, StoreError, StoreLostError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.library.waits import Barriers
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.wire.codec import decode_reply, decode_request, encode
from weft_kvstore.wire.messages import Done, Push, RefusalCode, Refused, Values

LINK = LinkSettings(silence_s=5.0, ping_interval_s=1.0, request_timeout_s=60.0)
ANY = random.Random()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test sees one order of events, whichever tests run before it."""
    ANY.seed(3)


def zero(name: str, shape: tuple[int, ...], slots: int, *, priority: int = 0) -> KeyDescription:
    key = key_of(name, shape, slots, priority=priority)
    return msgspec.structs.replace(key, initializer=InitializerDescription("ConstantOfShape", {"value": 0.0}))


def table(name: str, shape: tuple[int, ...], slots: int) -> KeyDescription:
    return msgspec.structs.replace(zero(name, shape, slots), rows=True)


def described(*keys: KeyDescription, slots: int = 2, shards: int = 1) -> StoreDescription:
    made = store_of(keys, slots=slots, shards=shards, hyper={"lr": 1.0}, slice_bytes=256)
    return msgspec.structs.replace(made, shards=tuple(f"tcp://shard-{number}" for number in range(shards)))


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def ended(simulation: Simulation, future: Future[Any]) -> Any:
    simulation.finish(ANY, future)
    return future.result(0)


def pass_time(simulation: Simulation, seconds: float) -> None:
    """Lets time pass, a quarter of a second at a time, and all that happens in it."""
    for _ in range(int(seconds * 4)):
        simulation.now += 0.25
        while simulation.step(ANY):
            pass
        for core in simulation.shards:
            core.tick(simulation.now)


VALUES = values_of(1, {"version": 1, "first": 1, "nbytes": 1024})


def test_a_newer_incarnation_replaces_what_is_not_merged_and_is_told_done_for_what_is() -> None:
    simulation = Simulation(described(zero("w", (4,), 3), slots=3), LINK)
    first, second = simulation.stores[0], simulation.stores[1]
    ended(simulation, second.push("w", 0, 10 * ones(4)))  # waits past the gap of slot 0
    again = simulation.join(1, incarnation=2)
    ended(simulation, again.push("w", 0, 20 * ones(4)))
    ended(simulation, first.push("w", 0, ones(4)))
    ended(simulation, simulation.stores[2].push("w", 0, ones(4)))
    assert np.all(ended(simulation, again.pull("w", 1)) == -22.0)
    third = simulation.join(1, incarnation=3)
    ended(simulation, third.push("w", 0, 99 * ones(4)))
    assert np.all(ended(simulation, third.pull("w", 1)) == -22.0)


def test_a_newer_incarnation_replaces_rows_of_which_only_some_had_come() -> None:
    """Its push has other rows, and so another number of chunks: what the old one left would contradict it."""
    narrow = LinkSettings(silence_s=5.0, request_timeout_s=60.0, credit_bytes=256, frame_bytes=256)
    simulation = Simulation(described(table("t", (100, 6), 1), slots=1), narrow)
    ended(simulation, simulation.stores[0].pull("t", 0, np.arange(1)))
    old = simulation.stores[0].push("t", 0, ones(90, 6), np.arange(90))
    shard = simulation.shards[0]
    (unit,) = shard.job.tables.values()
    while not unit.partial_pushes:
        assert simulation.step(ANY)
    ((_, half),) = unit.partial_pushes.items()
    assert 0 < len(half._arrived) < half.count
    again = simulation.join(0, incarnation=2)
    ended(simulation, again.push("t", 0, 3 * ones(10, 6), np.arange(50, 60)))
    assert not old.done()
    found = ended(simulation, again.pull("t", 1, np.array([0, 49, 50, 59, 60])))
    assert found[:, 5].tolist() == [0.0, 0.0, -3.0, -3.0, 0.0]
    assert (shard.counts["malformed_messages"], shard.counts["refused_requests"]) == (0, 0)


def test_a_pull_of_rows_whose_ids_were_lost_in_part_is_asked_again() -> None:
    narrow = LinkSettings(silence_s=5.0, request_timeout_s=60.0, credit_bytes=300, frame_bytes=256)
    simulation = Simulation(described(table("t", (1000, 6), 1), slots=1), narrow)
    store = simulation.stores[0]
    ended(simulation, store.pull("t", 0, np.arange(1)))
    for lost in range(1, 12):
        value = store.pull("t", 0, np.arange(999, 0, -2))
        for _ in range(lost * 3):
            simulation.step(ANY)
        simulation.cut(0, 0)
        assert np.all(ended(simulation, value) == 0.0)
    assert simulation.clients[0].links[0].session > 6
    assert simulation.shards[0].counts["malformed_messages"] == 0
    peer = next(iter(simulation.shards[0].peers.values()))
    assert (peer.ids_bytes, len(peer.pulls)) == (0, 0)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"first": 7}, "Values.first: chunks 7 to 7 of array 0; pull of rows of key 't', version 0 has 4 chunks"),
        ({"count": 2**62}, "Values.first: chunks 0 to"),
        ({"array": 1}, "Values.first: chunks 0 to 0 of array 1; .* 1 arrays"),
        ({"nbytes": 24}, "Values.nbytes: 24, the rows of 't' have 240"),
        ({"bucket": 1}, "Values.bucket: 1, pull of rows of key 't', version 0 asks for bucket 0"),
    ],
)
def test_a_shard_that_answers_rows_with_nonsense_is_left(changed: dict[str, int], told: str) -> None:
    simulation = Simulation(described(table("t", (100, 6), 1), slots=1), LINK)
    store = simulation.stores[0]
    ended(simulation, store.pull("t", 0, np.arange(1)))
    value = store.pull("t", 0, np.arange(40))
    simulation._pump()
    values = values_of(9, {"request": 2, "nbytes": 240, **changed})
    simulation.clients[0].receive(0, encode(values, bytes(changed.get("nbytes", 240))), simulation.now)
    simulation._pump()
    with pytest.raises(StoreLostError, match=f"sent what is no message: {told}"):
        value.result(0)


def test_a_set_that_is_sent_again_after_its_version_has_passed_is_done() -> None:
    """The connection breaks after the shard has taken the value in, and before it can say so."""
    simulation = Simulation(described(zero("w", (4,), 1), table("t", (10, 2), 1), slots=1), LINK)
    store = simulation.stores[0]
    ended(simulation, store.pull("w", 0))
    futures = [store.set("w", 1, 5 * ones(4)), store.set("t", 1, 7 * ones(1, 2), np.array([3]))]
    there = simulation.shards[0].job
    bucket, (rows_there,) = there.buckets[0], there.tables.values()
    while there.waiting_sets < 2:
        assert simulation.step(ANY)
    push = store.push("w", 0, ones(4))
    rows = store.push("t", 0, ones(2, 2), np.array([3, 4]))
    shard_now = simulation.shards[0]
    while min(bucket.versions[0], rows_there.version) < 1:
        simulation._pump()
        connection = simulation.connections[0, 0]
        connection.down.clear()  # what the shard says does not arrive
        if connection.up:
            shard_now.receive(connection.identity, connection.up.popleft(), simulation.now)
        shard_now.work.work_once()
    assert not any(future.done() for future in futures)
    simulation.cut(0, 0)
    for future in (*futures, push, rows):
        ended(simulation, future)
    assert ended(simulation, store.pull("w", 1)).tolist() == [5.0] * 4
    assert ended(simulation, store.pull("t", 1, np.array([3, 4])))[:, 0].tolist() == [7.0, -1.0]


@pytest.mark.parametrize("first", [0, 1])
def test_of_a_step_that_is_not_applied_a_newer_incarnation_pushes_again(first: int) -> None:
    """Whether or not its slot comes first in the sum."""
    simulation = Simulation(described(zero("w", (4,), 2)), LINK)
    ended(simulation, simulation.stores[first].push("w", 0, 5 * ones(4)))
    again = simulation.join(first, incarnation=2)
    ended(simulation, again.push("w", 0, 7 * ones(4)))
    ended(simulation, simulation.stores[1 - first].push("w", 0, ones(4)))
    assert np.all(ended(simulation, again.pull("w", 1)) == -8.0)


def test_an_older_incarnation_is_refused() -> None:
    simulation = Simulation(described(zero("w", (4,), 2)), LINK)
    ended(simulation, simulation.stores[0].pull("w", 0))
    ended(simulation, simulation.join(0, incarnation=3).pull("w", 0))
    old = simulation.join(0, incarnation=2)
    with pytest.raises(StoreRefusedError, match="slot 0: incarnation 2 was replaced by 3"):
        ended(simulation, old.pull("w", 0))
    assert simulation.shards[0].counts["refused_requests"] == 1


def test_the_replaced_incarnation_hears_of_it_when_it_connects_again() -> None:
    simulation = Simulation(described(zero("w", (4,), 2)), LINK)
    old = simulation.stores[0]
    ended(simulation, old.pull("w", 0))
    client, connection = simulation.clients[0], simulation.connections[0, 0]
    ended(simulation, simulation.join(0, incarnation=2).pull("w", 0))
    simulation.clients[0], simulation.connections[0, 0] = client, connection
    value = old.pull("w", 0)
    with pytest.raises(StoreRefusedError, match="incarnation 1 was replaced by 2"):
        ended(simulation, value)


def test_a_second_process_of_one_incarnation_waits_until_the_first_is_silent() -> None:
    simulation = Simulation(described(zero("w", (4,), 2)), LINK)
    ended(simulation, simulation.stores[0].pull("w", 0))
    simulation.now += 1.0
    twin = simulation.join(0, incarnation=1)
    for client in simulation.clients.values():
        for link in client.links:
            link.hello = msgspec.structs.replace(link.hello, process=b"another process!")
    value = twin.pull("w", 0)
    pass_time(simulation, 2.0)
    assert not value.done()
    assert simulation.shards[0].counts["refused_requests"] > 0
    pass_time(simulation, 2.75)
    assert value.result(0).shape == (4,)


def test_a_silent_slot_fails_the_pulls_that_wait_for_it_by_its_name() -> None:
    simulation = Simulation(described(zero("w", (4,), 3), slots=3), LINK)
    for store in simulation.stores.values():
        ended(simulation, store.pull("w", 0))
    ended(simulation, simulation.stores[0].push("w", 0, ones(4)))
    ended(simulation, simulation.stores[2].push("w", 0, ones(4)))
    value = simulation.stores[0].pull("w", 1)
    simulation.silent.add(1)
    pass_time(simulation, 4.0)
    assert not value.done()
    pass_time(simulation, 2.0)
    with pytest.raises(StoreLostError, match=r"slot 1 has been silent for .*'w' .* step 0 waits for slots 1"):
        value.result(0)


def leave(simulation: Simulation, slot: int) -> None:
    """The slot's client says good-bye, and is gone."""
    simulation.clients[slot].close("it is done")
    simulation.step(ANY)
    del simulation.clients[slot]


def test_a_slot_that_left_is_not_told_as_silent() -> None:
    simulation = Simulation(described(zero("w", (4,), 3), slots=3), LINK)
    for store in simulation.stores.values():
        ended(simulation, store.pull("w", 0))
    leave(simulation, 1)
    value = simulation.stores[0].pull("w", 1)
    pass_time(simulation, 4.0)
    assert not value.done()
    pass_time(simulation, 2.0)
    told = r"slot 1 left 5\.\d s ago: .*'w' .* step 0 waits for slots 0, 1, 2"
    with pytest.raises(StoreLostError, match=told):
        value.result(0)
    simulation.join(1, incarnation=2)
    value = simulation.stores[0].pull("w", 1)
    pass_time(simulation, 20.0)
    assert not value.done(), "it is here again"
    for store in simulation.stores.values():
        ended(simulation, store.push("w", 0, ones(4)))
    assert np.all(ended(simulation, value) == -3.0)


def test_a_silent_slot_fails_what_waits_for_it_beside_a_slow_one() -> None:
    """The key asked for first waits for a slot that is there."""
    slow, lost = (msgspec.structs.replace(zero(name, (4,), 3), slots=(slot,)) for slot, name in enumerate("ab"))
    simulation = Simulation(described(slow, lost, slots=3), LINK)
    for store in simulation.stores.values():
        ended(simulation, store.pull("a", 0))
    values = simulation.stores[2].pull(["a", "b"], 1)
    of_the_slow = simulation.stores[2].pull("a", 1)
    simulation.silent.add(1)
    pass_time(simulation, 6.0)
    with pytest.raises(StoreLostError, match=r"slot 1 has been silent for .*'b' .* step 0 waits for slots 1"):
        values.result(0)
    assert not of_the_slow.done()


def test_pulls_that_cannot_wait_for_a_silent_slot_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, lost = (msgspec.structs.replace(zero(name, (4,), 3), slots=(slot,)) for slot, name in enumerate("ab"))
    simulation = Simulation(described(slow, lost, slots=3), LINK)
    for store in simulation.stores.values():
        ended(simulation, store.pull("a", 0))
    asked = [simulation.stores[2].pull("a", 1) for _ in range(5)]
    simulation.silent.add(1)
    looks: list[int] = []
    waits_for = Bucket.pull_waits_for

    def counted(pulls: Bucket, wait: PullWait) -> tuple[str, list[int]]:
        looks.append(wait.request)
        return waits_for(pulls, wait)

    monkeypatch.setattr(Bucket, "pull_waits_for", counted)
    pass_time(simulation, 8.0)
    assert len(set(looks)) <= 1, "the client has asked why the first waits so long"
    assert not any(one.done() for one in asked)


def test_a_slot_that_never_came_is_named_at_the_deadline() -> None:
    simulation = Simulation(described(zero("w", (4,), 2)), LINK)
    del simulation.clients[1]
    ended(simulation, simulation.stores[0].push("w", 0, ones(4)))
    value = simulation.stores[0].pull("w", 1)
    pass_time(simulation, 59.0)
    assert not value.done()
    pass_time(simulation, 2.0)
    with pytest.raises(StoreTimeoutError, match=r"slot 0: pull of key 'w', version 1 .* step 0 waits for slots 1"):
        value.result(0)


def test_a_silent_shard_fails_what_waits_on_it_and_comes_back() -> None:
    simulation = Simulation(described(zero("w", (1000,), 1), slots=1, shards=2), LINK)
    store = simulation.stores[0]
    ended(simulation, store.pull("w", 0))
    value = store.pull("w", 1)
    for _ in range(22):
        simulation.now += 0.25
        simulation.connections.pop((0, 1), None)  # swallowed: no end of the connection is seen
        while simulation.step(ANY):
            simulation.connections.pop((0, 1), None)
    with pytest.raises(StoreLostError, match=r"slot 0: pull of key 'w', version 1: shard 1 at tcp://shard-1 .* silent"):
        value.result(0)
    early = store.pull("w", 0)
    assert not early.done() or isinstance(early.exception(0), StoreLostError)
    pass_time(simulation, 4.0)
    assert np.all(ended(simulation, store.pull("w", 0)) == 0.0)


def test_a_client_that_stood_still_blames_no_shard_though_a_connection_broke_meanwhile() -> None:
    simulation = Simulation(described(zero("w", (10,), 1), slots=1, shards=2), LINK)
    store = simulation.stores[0]
    ended(simulation, store.pull("w", 0))
    value = store.pull("w", 1)
    simulation.now += 30.0
    simulation.cut(0, 1)
    simulation.settle(ANY)
    assert not value.done()
    assert all(link.lost is None for link in simulation.clients[0].links)


def fails(client: ClientCore, future: Future[Any], error: StoreError) -> None:
    """Its operation fails; its future does so only later, on the thread that does the I/O."""
    (operation,) = [one for one in client.open.values() if one.future is future]
    client.end(operation, error)
    client.fail_pulls()


def test_a_pushpull_behind_a_push_that_has_failed_fails_once_its_gradients_have_arrived() -> None:
    """Until then they are read, and may be sent again; they count."""
    simulation = Simulation(described(zero("w", (10,), 2)), LINK)
    store, client, gradient, out = simulation.stores[0], simulation.clients[0], ones(10), np.full(10, 7.0, np.float32)
    ended(simulation, store.pull("w", 0))
    first = store.push("w", 0, ones(10))
    made = [store.pushpull(store.key_list(["w"]), step, [gradient], out=[out]) for step in (1, 2)]
    fails(client, first, StoreLostError("silent"))
    client.end_futures()
    assert [one.done() for one in (first, *made)] == [True, False, False]
    simulation.settle(ANY)
    for future in made:
        with pytest.raises(StoreLostError, match="silent"):
            future.result(0)
    kept = client.failed["w"][0]
    assert (type(kept), str(kept)) == (StoreLostError, "silent")
    with pytest.raises(StoreLostError):
        first.result(0)
    assert kept.__traceback__ is None, "it keeps no array of who has seen it raised"
    gradient[:] = 100.0
    assert not client.open
    store.push("w", 0, ones(10))
    for step in range(3):
        simulation.stores[1].push("w", step, ones(10))
    assert ended(simulation, store.pull("w", 3)).tolist() == [-6.0] * 10
    assert out.tolist() == [7.0] * 10


@pytest.mark.parametrize("rows", [False, True])
def test_pulls_fail_with_the_push_that_they_wait_for_and_those_after_it_until_it_is_pushed_again(
    caplog: pytest.LogCaptureFixture, *, rows: bool
) -> None:
    """The earliest failed push is said. It is known before the future of the push has ended."""
    simulation = Simulation(described(table("w", (10, 2), 1) if rows else zero("w", (10,), 1), slots=1), LINK)
    store, client, ids = simulation.stores[0], simulation.clients[0], np.arange(2)

    def push(step: int) -> Future[Any]:
        return store.push("w", step, ones(2, 2), ids) if rows else store.push("w", step, ones(10))

    def pull(version: int) -> Future[Any]:
        return store.pull("w", version, ids) if rows else store.pull("w", version)

    pushed, pulled = [push(step) for step in range(3)], [pull(version) for version in range(4)]
    fails(client, pushed[1], StoreTimeoutError("late"))
    assert caplog.text == ""
    fails(client, pushed[0], StoreRefusedError("far"))
    assert "it has to be pushed again: far" in caplog.text
    assert not any(one.done() for one in (*pushed, *pulled))
    assert list(client.failed["w"]) == [1, 0]
    client.end_futures()
    what = f"slot 0: pull of {'rows of ' if rows else ''}key 'w', version"
    again = "step {0} has to be pushed again, with step={0}; its push failed: {1}".format
    late = again(1, "late")
    told = [None, f"{what} 1: {again(0, 'far')}", f"{what} 2: {late}", f"{what} 3: {late}"]
    assert [str(one.exception(0)) if one.done() else None for one in pulled] == told
    for version in (1, 3):
        later = pull(version)
        client.end_futures()
        with pytest.raises(StoreRefusedError) as raised:
            later.result(0)
        assert str(raised.value) == f"{what} {version}: {again(0, 'far')}"
    pushed_again = push(0)
    with pytest.raises(StoreTimeoutError, match=late):
        ended(simulation, pull(2))
    assert ended(simulation, pushed_again) is None
    ended(simulation, push(1))
    assert ended(simulation, pull(3)).tolist() == ([[-3.0] * 2] * 2 if rows else [-3.0] * 10)


def test_a_push_that_fails_once_its_step_was_pushed_again_fails_nothing() -> None:
    simulation = Simulation(described(zero("w", (10,), 1), slots=1), LINK)
    store, client = simulation.stores[0], simulation.clients[0]
    first, second, pulled = store.push("w", 0, ones(10)), store.push("w", 0, ones(10)), store.pull("w", 1)
    fails(client, first, StoreTimeoutError("late"))
    assert client.failed == {}
    assert ended(simulation, pulled).tolist() == [-1.0] * 10
    assert ended(simulation, second) is None


def test_of_a_client_that_closes_nothing_has_to_be_pushed_again(caplog: pytest.LogCaptureFixture) -> None:
    simulation = Simulation(described(zero("w", (10,), 1), slots=1), LINK)
    store, client = simulation.stores[0], simulation.clients[0]
    calls = [store.push("w", 0, ones(10)), store.pull("w", 1)]
    client.close("the store was closed")
    client.end_futures()
    assert [type(one.exception(0)) for one in calls] == [StoreClosedError] * 2
    assert (client.failed, caplog.text) == ({}, "")


@pytest.mark.parametrize("error", [StoreLostError("silent"), StoreRefusedError("far")])
def test_of_pushes_that_fail_the_lowest_steps_are_remembered(error: StoreError) -> None:
    simulation = Simulation(described(zero("w", (10,), 1), slots=1), LINK)
    store, client = simulation.stores[0], simulation.clients[0]
    for step in reversed(range(2 * MOST_FAILED)):
        fails(client, store.push("w", step, ones(10)), error)
    assert sorted(client.failed["w"]) == list(range(MOST_FAILED))


def test_pushes_that_fail_together_are_noted_in_one_pass_over_what_is_open() -> None:
    class Counted(dict[int, Operation]):
        passes = 0

        def values(self) -> Any:
            self.passes += 1
            return super().values()

    simulation = Simulation(described(zero("w", (10,), 1), slots=1), LINK)
    store, client = simulation.stores[0], simulation.clients[0]
    pushes = [store.push("w", step, ones(10)) for step in range(20)]
    client.open = Counted(client.open)
    for operation in [*client.open.values()]:
        client.end(operation, StoreTimeoutError("late"))
    client.open.passes = 0
    client.end_futures()
    assert all(one.done() for one in pushes)
    assert client.open.passes <= 2


@pytest.mark.parametrize("trouble", [None, "shard 0 has started anew and has lost its values"])
def test_a_pull_says_what_has_become_of_the_shard_since_the_push_that_it_would_wait_for(trouble: str | None) -> None:
    simulation = Simulation(described(zero("w", (10,), 1), slots=1, shards=2), LINK)
    store, client = simulation.stores[0], simulation.clients[0]
    fails(client, store.push("w", 0, ones(10)), StoreLostError("silent"))
    if trouble is not None:
        client.links[1 - next(iter(client.routing.ranges[0]))].refuse(StoreLostError(trouble))
    pulled = store.pull("w", 1)
    client.end_futures()
    told = "step 0 has to be pushed again, with step=0; its push failed: silent"
    told = f"slot 0: pull of key 'w', version 1: {told}"
    assert str(pulled.exception(0)) == (told if trouble is None else f"{told}; since then: {trouble}")


def test_a_shard_that_started_anew_has_lost_its_values() -> None:
    description = described(zero("w", (4,), 1), slots=1)
    simulation = Simulation(description, LINK)
    ended(simulation, simulation.stores[0].pull("w", 0))
    simulation.shards[0] = ShardCore(b"another boot id!", LINK)
    simulation.shards[0].open(JobShard(description, 0))
    simulation.cut(0, 0)
    value = simulation.stores[0].pull("w", 0)
    with pytest.raises(StoreLostError, match="shard 0 at tcp://shard-0 has started anew and has lost its values"):
        ended(simulation, value)


def test_a_job_that_is_opened_late_is_waited_for_and_one_that_never_is_is_refused() -> None:
    description = described(zero("w", (4,), 1), slots=1)
    simulation = Simulation(description, LINK)
    simulation.shards[0] = ShardCore(bytes(16), LINK)
    value = simulation.stores[0].pull("w", 0)
    pass_time(simulation, 2.0)
    assert not value.done()
    simulation.shards[0].open(JobShard(description, 0))
    pass_time(simulation, 1.0)
    assert value.result(0).shape == (4,)
    simulation = Simulation(description, LINK)
    simulation.shards[0] = ShardCore(bytes(16), LINK)
    value = simulation.stores[0].pull("w", 0)
    pass_time(simulation, 6.0)
    with pytest.raises(StoreRefusedError, match="job 'job', term 1 is not open on this shard"):
        value.result(0)


def test_closing_a_job_fails_its_clients() -> None:
    simulation = Simulation(described(zero("w", (4,), 1), slots=1), LINK)
    ended(simulation, simulation.stores[0].pull("w", 0))
    value = simulation.stores[0].pull("w", 1)
    simulation.settle(ANY)
    simulation.shards[0].close("job 'job' was closed on this shard")
    with pytest.raises(StoreLostError, match="was closed on this shard"):
        ended(simulation, value)
    assert (simulation.shards[0].job, simulation.shards[0].peers) == (None, {})


def test_a_client_that_was_not_connected_when_a_job_was_closed_hears_why_once_it_is() -> None:
    simulation = Simulation(described(zero("w", (4,), 1), slots=1), LINK)
    ended(simulation, simulation.stores[0].pull("w", 0))
    value = simulation.stores[0].pull("w", 1)
    simulation.settle(ANY)
    simulation.cut(0, 0)
    simulation.shards[0].close("the rule has failed")
    with pytest.raises(StoreLostError, match="the rule has failed"):
        ended(simulation, value)


IN_ORDER = described(zero("w", (4,), 1), table("t", (4, 2), 1), slots=1)
ASYNC = msgspec.structs.replace(IN_ORDER, mode=Mode.ASYNC)


@pytest.mark.parametrize("priorities", [range(6), [-9, 0, 0, 0, 0, 0], [0, -3, 5, -4, 4, 9]])
@pytest.mark.parametrize("key", ["w", "t"])
def test_pushes_of_a_key_arrive_in_their_order_whatever_their_priorities(key: str, priorities: list[int]) -> None:
    """In mode async a shard refuses a step that is more than two ahead of the one before it."""
    simulation = Simulation(ASYNC)
    store = simulation.stores[0]
    if key == "w":
        pushes = [store.push("w", step, ones(4), priority=one) for step, one in enumerate(priorities)]
    else:
        ids = np.arange(4)
        pushes = [store.push("t", step, ones(4, 2), ids, priority=one) for step, one in enumerate(priorities)]
    simulation.finish(ANY, *pushes)
    assert [push.exception(0) for push in pushes] == [None] * 6
    value = store.pull("w", 6) if key == "w" else store.pull("t", 6, np.arange(4))
    assert np.all(ended(simulation, value) == -6)


def test_an_urgent_push_comes_behind_what_was_set_of_its_key() -> None:
    simulation = Simulation(IN_ORDER, LinkSettings(credit_bytes=16, frame_bytes=16))
    store = simulation.stores[0]
    calls = [
        store.push("w", 0, ones(4)),
        store.set("w", 1, 10 * ones(4)),
        store.push("w", 1, ones(4), priority=5),
        store.push("t", 0, ones(4, 2), np.arange(4)),
        store.set("t", 1, 10 * ones(4, 2), np.arange(4)),
        store.push("t", 1, ones(4, 2), np.arange(4), priority=5),
    ]
    simulation.finish(ANY, *calls)
    assert [call.exception(0) for call in calls] == [None] * 6
    assert np.all(ended(simulation, store.pull("w", 2)) == 9)
    assert np.all(ended(simulation, store.pull("t", 2, np.arange(4))) == 9)


def test_what_is_not_refused_of_a_value_is_set() -> None:
    """The first slice is beyond the version already, and the others, which leave after it, are not."""
    link = LinkSettings(credit_bytes=256, frame_bytes=256)
    simulation = Simulation(described(zero("w", (640,), 1), slots=1), link)
    simulation.settle(ANY)
    for step in range(2):
        simulation.stores[0].push("w", step, ones(640))
    heard = [0, 0]
    while heard[1] == 0 or simulation.shards[0].work.queue:
        assert simulation.step(ANY)
        heard = [0, 0]
        for direction, parts in simulation.delivered:
            message = decode_request(parts)[0] if direction == "up" else None
            if isinstance(message, Push):
                for step in column(message, "step"):
                    heard[step] += 1
    assert heard[0] == 10
    store = simulation.join(0, incarnation=2)
    was_set = store.set("w", 1, 7 * ones(640))
    simulation.finish(ANY, was_set)
    with pytest.raises(StoreRefusedError, match="version 1: the value cannot be set: it is at version 2 already"):
        was_set.result(0)
    assert ended(simulation, store.pull("w", 1)).tolist() == [-2.0] * 64 + [7.0] * 576


def test_pushes_come_behind_a_pushpull_that_waits_for_a_value_to_be_set() -> None:
    simulation = Simulation(ASYNC)
    store = simulation.stores[0]
    keys = store.key_list("w")
    calls = [store.set("w", 0, 10 * ones(4)), store.pushpull(keys, 0, [ones(4)])]
    calls += [store.push("w", step, ones(4)) for step in range(1, 4)]
    simulation.finish(ANY, *calls)
    assert [call.exception(0) for call in calls] == [None] * 5
    assert np.all(ended(simulation, store.pull("w", 4)) == 6)


def test_a_value_under_way_keeps_its_bytes_when_the_next_step_is_applied() -> None:
    """Slot 1 does not contribute, so nothing holds the key back while its value waits for credit."""
    key = msgspec.structs.replace(zero("w", (640,), 2), slots=(0,))
    simulation = Simulation(described(key), LinkSettings(credit_bytes=256, frame_bytes=256))
    simulation.settle(ANY)
    value = simulation.stores[1].pull("w", 0)
    for _ in range(3):  # the pull arrives, one frame leaves, the rest waits
        simulation._pump()
        connection = simulation.connections[1, 0]
        if connection.up:
            simulation.shards[0].receive(connection.identity, connection.up.popleft(), simulation.now)
    push = simulation.stores[0].push("w", 0, ones(640))
    while not push.done() or simulation.shards[0].work.queue:
        simulation._pump()
        simulation.shards[0].work.work_once()
        up, down = simulation.connections[0, 0].up, simulation.connections[0, 0].down
        if up:
            simulation.shards[0].receive(simulation.connections[0, 0].identity, up.popleft(), simulation.now)
        if down:
            simulation.clients[0].receive(0, down.popleft(), simulation.now)
    assert not value.done()
    assert np.all(ended(simulation, value) == 0.0)
    assert np.all(ended(simulation, simulation.stores[1].pull("w", 1)) == -1.0)


def test_a_shard_that_talks_nonsense_is_left_for_good() -> None:
    simulation = Simulation(described(zero("w", (4,), 1), slots=1), LINK)
    value = simulation.stores[0].pull("w", 1)
    simulation.settle(ANY)
    simulation.clients[0].receive(0, [b"garbage"], simulation.now)
    with pytest.raises(StoreLostError, match="shard 0 at tcp://shard-0 sent what is no message: header: begins"):
        ended(simulation, value)


def test_values_that_do_not_fit_are_nonsense() -> None:
    simulation = Simulation(described(zero("w", (4,), 1), slots=1), LINK)
    value = simulation.stores[0].pull("w", 1)
    simulation.settle(ANY)
    number = next(iter(simulation.clients[0].links[0].requests))
    values = values_of(1, {"request": number, "version": 1, "first": 3, "nbytes": 4})
    simulation.clients[0].receive(0, [bytes(part) for part in encode(values, b"abcd")], simulation.now)
    with pytest.raises(
        StoreLostError,
        match=r"Values\.first: slices 3 to 3 of bucket 0, array 0; .*'w'.* shard 0 for slices 0 to 0 of bucket 0",
    ):
        ended(simulation, value)


def test_a_call_that_waits_long_for_a_slot_says_for_which_and_others_do_not_repeat_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    simulation = Simulation(described(zero("w", (4,), 2), shards=1), LINK)
    first, second = simulation.stores[0], simulation.stores[1]
    for step, lines in enumerate([1, 1, 2]):
        ended(simulation, first.push("w", step, ones(4)))
        pulled = first.pull("w", step + 1)
        again = first.pull("w", step + 1)
        pass_time(simulation, LOG_AFTER_S - 0.5)
        assert len(caplog.messages) == (0, 1, 1)[step]
        pass_time(simulation, 2.5)
        assert len(caplog.messages) == lines
        ended(simulation, second.push("w", step, ones(4)))
        for one in (pulled, again):
            ended(simulation, one)
        pass_time(simulation, 2.0 if step != 1 else QUIET_S)
        assert len(caplog.messages) == lines
    told = r"slot 0: pull of key 'w', version 1 has waited [56] s: shard 0 at tcp://shard-0: .*step 0 waits for slots 1"
    assert re.match(told, caplog.messages[0])


def test_a_barrier_that_waits_long_says_who_has_not_called_it(caplog: pytest.LogCaptureFixture) -> None:
    simulation = Simulation(described(zero(BARRIER_KEY, (), 2), shards=1), LINK)
    store = simulation.stores[0]
    Barriers(store, store.key_list(BARRIER_KEY)).meet()
    simulation.settle(ANY)
    pass_time(simulation, LOG_AFTER_S + 2)
    told = r"slot 0: barrier has waited [567] s: shard 0 at tcp://shard-0: waits for slots 1 to call it"
    assert re.fullmatch(told, "".join(caplog.messages))


def test_a_refusal_names_its_reason() -> None:
    simulation = Simulation(described(zero("w", (4,), 1), slots=1), LINK)
    other = msgspec.structs.replace(simulation.description, seed=8)
    simulation.description = other
    stranger = simulation.join(0, incarnation=2)
    with pytest.raises(StoreRefusedError, match="the client has another description of the store than shard 0"):
        ended(simulation, stranger.pull("w", 0))
    refused = Refused(RefusalCode.OTHER_DESCRIPTION, "x")
    assert decode_reply(encode(refused))[0] == refused


@pytest.mark.parametrize(
    ("begin", "reply", "told"),
    [
        (
            lambda store: store.pull("w", 1),
            Done([0]),
            r"Done.*pull of key 'w', version 1 is not answered so",
        ),
        (lambda store: store.barrier(0, []), VALUES, r"Values\.request: \d+, barrier of step 0 asks for none"),
        (
            lambda store: store.pull("w", 1),
            VALUES,
            r"key 'w', version 1 asks shard 0 for slices 0 to 0 of bucket 0 and 1 arrays",
        ),
    ],
)
def test_a_shard_that_answers_with_what_was_not_asked_is_left(begin: Any, reply: Any, told: str) -> None:
    """A pull does not end by words, nor a barrier by values, nor one shard's slices by those of another."""
    simulation = Simulation(store_of([key_of("w", (512,), 1)], slots=1, shards=2, slice_bytes=1024), LINK)
    ended(simulation, simulation.stores[0].pull("w", 0))
    future = begin(simulation.stores[0])
    client = simulation.clients[0]
    number = next(iter(client.links[0].requests))
    if isinstance(reply, Values):
        message = changed_rows(reply, {"request": number})
    else:
        message = msgspec.structs.replace(reply, request=[number])
    payload = bytes(1024) if isinstance(reply, Values) else None
    client.receive(0, [bytes(part) for part in encode(message, payload)], simulation.now)
    with pytest.raises(StoreLostError, match=told):
        ended(simulation, future)


def test_values_in_memory_that_is_not_shared_any_more_break_the_connection_and_not_the_store() -> None:
    """They were sent before the shard's end was gone; what they had is asked for again on the next connection."""
    simulation = Simulation(described(zero("w", (256,), 1), slots=1), LINK)
    store, client = simulation.stores[0], simulation.clients[0]
    ended(simulation, store.pull("w", 0))
    link = client.links[0]
    assert link.welcome is not None
    link.welcome = msgspec.structs.replace(link.welcome, listener=b"a listener")
    client.receive(0, encode(msgspec.structs.replace(VALUES, at=[(0, 1024)])), simulation.now)
    assert link.state is LinkState.DOWN
    assert np.all(ended(simulation, store.pull("w", 0)) == 0.0)
    client.receive(0, encode(msgspec.structs.replace(VALUES, at=[(0, 1024)])), simulation.now)
    assert link.state is LinkState.REFUSED
    assert "Values.at: the shard shares no memory" in str(link.trouble)


def test_what_another_server_says_before_a_welcome_breaks_the_connection_and_not_the_store() -> None:
    """As a proxy's own page while its shard is away."""
    simulation = Simulation(described(zero("w", (4,), 1), slots=1), LINK)
    store, client = simulation.stores[0], simulation.clients[0]
    ended(simulation, store.pull("w", 0))
    link = client.links[0]
    simulation.cut(0, 0)
    simulation.now = link.next_tick()
    client.tick(simulation.now)
    assert link.state is LinkState.HANDSHAKE
    client.receive(0, [b"400 Bad Request"], simulation.now)
    assert link.state is LinkState.DOWN
    pulled = store.pull("w", 0)
    (waiting,) = client.open.values()
    assert client._waits(waiting).startswith("shard 0 at tcp://shard-0 sent what is no message: header: begins with")
    assert np.all(ended(simulation, pulled) == 0.0)
    assert (link.state, link.trouble) == (LinkState.OPEN, None)
