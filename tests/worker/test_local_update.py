"""Workers that update keys themselves: the same bits as with the rule on the shards, and what happens when it fails."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load

import rule_documents
from store_cluster import NamedStore
from weft.api.lifecycle import AllocationEvent
from weft_graph.program import Update
from weft_graph.types import DType
from weft_kernels.kernel import Array
from weft_kernels.rules.lookup import rule_from
from weft_kernels.rules.record import Rule
from weft_kvstore.description.records import KeyDescription, Mode, StoreDescription, descriptions
from weft_kvstore.errors import StoreError, StoreLostError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.shard.snapshot import Captured, MissedError
from weft_worker.errors import TaskError
from weft_worker.local_keys import local_keys_of, on_host
from weft_worker.local_update import LocalUpdateStore
from weft_worker.sharded_store import ShardedStore
from worker_graphs import bags, mlp, normalized
from worker_jobs import BAG_COLUMNS, WAIT_S, Job, programs_of, run_all, save_bags, save_data

ROWS, STEPS, SLOTS = 120, 9, 3
DONE, FAILED = AllocationEvent.DONE, AllocationEvent.FAILED
RULES: Mapping[str, Mapping[str, float]] = {
    "sgd": {"lr": 0.1, "weight_decay": 0.01},
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"lr": 0.01},
    "adagrad": {"lr": 0.1},
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_data(tmp_path / "samples.npz", ROWS + 30, "float32")


def job_of(data: Path, rule: str = "momentum", **options: Any) -> Job:
    """Batches of 50 of 120 rows: each third step has 20."""
    chosen: dict[str, Any] = {"slots": SLOTS, "batch": 50, "rule": rule, "hyper": RULES[rule], "keep_state": True}
    return Job(programs_of(mlp(DType.FLOAT32)), data, STEPS, (0, ROWS), **{**chosen, **options})


def described(job: Job) -> StoreDescription:
    return descriptions.from_builtins(job.store_spec().model_dump(mode="json"))


def outcome(job: Job, **settings: Any) -> dict[str, Array]:
    """The final document's tensors, parameters and state, of a job over the store of one process."""
    with NamedStore(described(job)) as store:
        everything = run_all(job, store.at_slot, **settings)
    for records in everything:
        assert records.last == (DONE, None)
    return load(everything[job.keeper].uploads[0][0])


def assert_same(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("rule", RULES)
def test_workers_that_update_get_the_bits_that_shards_get(data, rule):
    found, expected = outcome(job_of(data, rule, local=True)), outcome(job_of(data, rule))
    assert_same(found, expected)
    assert {name for name in found if name.startswith("weft.state/")} == {
        f"weft.state/{name}/{key}" for name in rule_from(rule).state for key in ("w1", "b1", "w2", "b2")
    }


def test_a_schedule_holds_here_too(data):
    hyper = {"lr": {"schedule": "exponential", "start": 0.1, "factor": 0.5, "steps": 3}}
    found = outcome(job_of(data, "sgd", local=True, hyper=hyper))
    assert_same(found, outcome(job_of(data, "sgd", hyper=hyper)))
    assert not np.array_equal(found["w2"], outcome(job_of(data, "sgd", local=True))["w2"])


@pytest.mark.parametrize("document", [rule_documents.momentum(), rule_documents.normalized()], ids=["flat", "whole"])
def test_a_users_rule_holds_here_too(data, document):
    whole = rule_from(document).whole
    options: dict[str, Any] = {"rule": document, "hyper": {}, "whole": whole}
    found, expected = (outcome(replace(job_of(data, local=local), **options)) for local in (True, False))
    assert_same(found, expected)


@pytest.mark.parametrize("settings", [{"serial": True}, {"steps_in_flight": 1}, {"compute_threads": 3}], ids=str)
def test_how_a_run_uses_its_machine_changes_no_bit(data, settings):
    job = job_of(data, local=True, slots=1 if "serial" in settings else SLOTS)
    assert_same(outcome(job, **settings), outcome(job))


def test_a_slot_without_samples_applies_every_update_and_may_be_the_keeper(data):
    """Batches of two leave the third slot without any sample; it brings what the others trained."""
    few = {"batch": 2, "keeper": 2}
    assert_same(outcome(job_of(data, local=True, **few)), outcome(job_of(data, **few)))


def test_tables_and_running_statistics_stay_with_the_shards(data, tmp_path):
    bag_data = save_bags(tmp_path / "bags.npz", ROWS)
    for graph, source, columns in (
        (bags(DType.FLOAT32), bag_data, BAG_COLUMNS),
        (normalized(DType.FLOAT32), data, None),
    ):
        options: dict[str, Any] = {"programs": programs_of(graph), "data": source}
        if columns is not None:
            options["columns"] = columns
        job = replace(job_of(data), **options)
        assert_same(outcome(replace(job, local=True)), outcome(job))


def test_over_real_shards_evaluation_and_final_values_are_the_same(data):
    options = {"evaluate": (ROWS, ROWS + 30), "evaluate_every": 2}
    plain = job_of(data, **options)
    with NamedStore(described(plain)) as store:
        expected = run_all(plain, store.at_slot)
    with ShardServer("tcp://127.0.0.1:0") as first, ShardServer("tcp://127.0.0.1:0") as second:
        servers = (first, second)
        job = job_of(data, local=True, shards=tuple(server.endpoint for server in servers), **options)
        for number, server in enumerate(servers):
            server.start()
            server.open(described(job), number)
        found = run_all(job)
    assert [records.last for records in found] == [(DONE, None)] * SLOTS
    assert_same(load(found[0].uploads[0][0]), load(expected[0].uploads[0][0]))
    for one, other in zip(found, expected, strict=True):
        assert [m.sums for m in one.metrics if m.split == "evaluate"] == [
            m.sums for m in other.metrics if m.split == "evaluate"
        ]


class Bench:
    """A LocalUpdateStore of slot 0 of two, over the store of one process, with one key `w` of two numbers."""

    def __init__(self, rule: Rule | None = None, timeout_s: float = 30.0) -> None:
        self.description = two_keys()
        store = NamedStore(self.description)
        self.inner = ShardedStore(store, self.description, 0)
        local = local_keys_of(self.description)
        self.store = LocalUpdateStore(self.inner, local, on_host(rule or rule_from("sgd")), timeout_s=timeout_s)
        self.other = store.at_slot(1)

    def step(self, step: int) -> None:
        """Both slots push ones."""
        self.store.push("w", step, np.ones(2, np.float32))
        self.other.push("w/grad", step, np.ones(2, np.float32)).result(WAIT_S)


def key(name: str, **changes: Any) -> KeyDescription:
    base = {
        "key": name,
        "dtype": "float32",
        "shape": [2],
        "initializer": {"op_type": "ConstantOfShape", "attributes": {"value": 1.0}},
        "update": "rule",
        "priority": 0,
        "slots": [],
    }
    return msgspec.convert({**base, **changes}, KeyDescription)


def two_keys(*keys: KeyDescription, mode: Mode = Mode.SYNC) -> StoreDescription:
    pair = (key("w"), key("w/grad", update="gradient", slots=[0, 1]))
    job = Job(programs_of(mlp()), Path("none"), 1, (0, 1), slots=2)
    return msgspec.structs.replace(described(job), keys=keys or pair, mode=mode, hyper={"lr": 0.25})


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.store.close()


def test_a_value_is_the_callers_own_and_of_the_version_asked_for(bench):
    first = bench.store.pull("w", 0).result(WAIT_S)
    first[:] = 99
    later = bench.store.pull("w", 1)
    assert not later.done()
    bench.step(0)
    np.testing.assert_array_equal(later.result(WAIT_S), [0.5, 0.5])
    with pytest.raises(StoreError, match=r"version 0 of key 'w'.* is at version 1 already"):
        bench.store.pull("w", 0).result(WAIT_S)


def test_a_gradient_of_a_step_waits_for_the_update_before_it(bench):
    """A program may have a gradient before it has the value: the shard must not pass what was not pulled."""
    bench.store.pull("w", 0).result(WAIT_S)
    bench.store.push("w", 0, np.ones(2, np.float32))
    early = bench.store.push("w", 1, np.ones(2, np.float32))
    assert not early.done()
    for step in (0, 1):
        bench.other.push("w/grad", step, np.ones(2, np.float32)).result(WAIT_S)
    early.result(WAIT_S)
    np.testing.assert_array_equal(bench.store.pull("w", 2).result(WAIT_S), [0.0, 0.0])


def test_nothing_is_declared_before_the_update_before_it_is_there(bench):
    """Declared ahead, two steps would merge at once and the gradient of the first would never be seen."""
    told = [bench.store.barrier(step, ["w"]) for step in (0, 1, 2)]
    for step in (0, 1, 2):
        bench.other.push("w/grad", step, np.full(2, step + 1, np.float32)).result(WAIT_S)
    for each in told:
        each.result(WAIT_S)
    np.testing.assert_array_equal(bench.store.pull("w", 3).result(WAIT_S), np.full(2, 1 - 0.25 * (1 + 2 + 3)))


def test_rules_run_on_a_thread_of_their_own():
    threads = []

    def apply(weight, gradient, state, step, hyper):
        threads.append(threading.current_thread().name)

    bench = Bench(replace(rule_from("sgd"), apply=apply))
    bench.store.pull("w", 0).result(WAIT_S)
    bench.step(0)
    bench.store.pull("w", 1).result(WAIT_S)
    bench.store.close()
    assert threads == ["local-update"]


def test_a_rule_that_fails_names_key_and_step_and_fails_the_run(data, monkeypatch):
    def apply(weight, gradient, state, step, hyper):
        if step == 3:
            raise FloatingPointError("the state is no number")
        intact(weight, gradient, state, step, hyper)

    rule = rule_from("sgd")
    intact = rule.apply
    monkeypatch.setattr("weft_worker.run.rule_of", lambda description: replace(rule, apply=apply))
    job = job_of(data, "sgd", slots=1, local=True, keep_state=False)
    with NamedStore(described(job)) as store:
        (records,) = run_all(job, store.at_slot)
    event, reason = records.last
    assert event is FAILED
    assert "rule 'sgd' failed on key '" in reason
    assert "step 2: FloatingPointError: the state is no number" in reason


def test_a_version_that_does_not_come_about_fails_by_its_name():
    bench = Bench(timeout_s=0.1)
    with pytest.raises(StoreTimeoutError, match=r"version 7 of key 'w', .* took over 0\.1 s: it has 'w' at version"):
        bench.store.pull("w", 7).result(WAIT_S)
    bench.store.close()


def captured_at(store: LocalUpdateStore, step: int) -> Future[Captured | MissedError]:
    found: Future[Captured | MissedError] = Future()
    store.capture(step, found.set_result)
    return found


def test_a_capture_goes_on_while_its_keys_do_and_ends_by_name_where_they_do_not(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("weft_worker.local_update.time", SimpleNamespace(monotonic=lambda: clock.now))
    bench = Bench(timeout_s=30.0)
    bench.store.pull("w", 0).result(WAIT_S)
    found = captured_at(bench.store, 4)
    for step in range(3):
        clock.now += 14 * 30
        bench.step(step)
        for _ in range(2):  # Its thread has looked after the first.
            bench.store.pull("w", step + 1).result(WAIT_S)
        assert not found.done()
    clock.now += 15 * 30 + 1
    bench.store.pull("w", 3).result(WAIT_S)
    told = r"version 4 of key 'w', which this worker updates took over 450 s: it has 'w' at version 3"
    assert re.fullmatch(told, str(found.result(WAIT_S)))
    bench.store.close()


def test_a_capture_ends_when_the_store_is_closed(bench):
    bench.store.pull("w", 0).result(WAIT_S)
    found = captured_at(bench.store, 4)
    bench.store.close()
    assert str(found.result(WAIT_S)) == "key 'w', which this worker updates: the store was closed"


def test_a_first_value_that_took_too_long_is_asked_for_again(bench):
    late: Future[Array] = Future()
    late.set_exception(StoreTimeoutError("slot 0: pull of key 'w': the given value has not been set"))
    pull = bench.inner.pull
    bench.inner.pull = lambda *_, **__: late
    for waiting in (bench.store.pull("w", 0), bench.store.pull("w", 0)):
        with pytest.raises(StoreTimeoutError, match="has not been set"):
            waiting.result(WAIT_S)
    bench.inner.pull = pull
    np.testing.assert_array_equal(bench.store.pull("w", 0).result(WAIT_S), [1, 1])


def test_what_the_store_fails_with_reaches_who_waits_for_the_key(bench):
    bench.store.pull("w", 0).result(WAIT_S)
    lost: Future[Array] = Future()
    lost.set_exception(StoreLostError("slot 0: pull of key 'w/grad': shard 1 is silent"))
    bench.inner.pull = lambda key, version, **settled: lost  # type: ignore[method-assign]
    bench.step(0)
    with pytest.raises(StoreLostError, match="shard 1 is silent"):
        bench.store.pull("w", 1).result(WAIT_S)


def test_what_cannot_be_pushed_once_its_version_is_there_fails_by_itself(bench):
    def broken(key: str, step: int, gradient: Array) -> Future[None]:
        raise MemoryError("no room for a copy")

    bench.store.pull("w", 0).result(WAIT_S)
    bench.step(0)
    bench.inner.push = broken  # type: ignore[method-assign]
    early = bench.store.push("w", 2, np.ones(2, np.float32))
    bench.store.barrier(1, ["w"])
    bench.other.push("w/grad", 1, np.ones(2, np.float32)).result(WAIT_S)
    with pytest.raises(MemoryError, match="no room for a copy"):
        early.result(WAIT_S)
    np.testing.assert_array_equal(bench.store.pull("w", 2).result(WAIT_S), [0.25, 0.25])


def test_a_key_that_was_declared_for_is_waited_for_together_with_the_others():
    """One that goes on meanwhile has been there; what is wrong with one fails the call."""
    names = ("v", "w")
    pair = [made for name in names for made in (key(name), key(f"{name}/grad", update="gradient", slots=[0, 1]))]
    description = two_keys(*pair)
    inner = NamedStore(description)
    store = LocalUpdateStore(ShardedStore(inner, description, 0), local_keys_of(description), on_host(rule_from("sgd")))
    ones, other = np.ones(2, np.float32), inner.at_slot(1)
    for name in names:
        store.pull(name, 0).result(WAIT_S)
    declared = store.barrier(1, names)
    for name in names:
        assert not declared.done()
        for one, key_of in ((store, name), (other, f"{name}/grad")):
            one.push(key_of, 0, ones).result(WAIT_S)
    declared.result(WAIT_S)
    with pytest.raises(StoreError, match="version 0 of key 'v', which this worker updates: key 'v' is at version 1"):
        store.barrier(0, names).result(WAIT_S)
    store.close()


def test_closing_fails_what_waits_and_what_comes_and_leaves_no_thread():
    before = set(threading.enumerate())
    bench = Bench()
    waiting = bench.store.pull("w", 5)
    declared = bench.store.barrier(4, ["w"])
    bench.store.close()
    bench.store.close()
    for each in (waiting, declared, bench.store.pull("w", 0), bench.store.push("w", 3, np.ones(2, np.float32))):
        with pytest.raises(StoreError):
            each.result(WAIT_S)
    assert set(threading.enumerate()) <= before


def test_a_key_that_workers_update_cannot_be_set_while_the_job_runs(bench):
    with pytest.raises(StoreRefusedError, match="key 'w', version 3: every worker updates it by itself"):
        bench.store.set("w", 3, np.zeros(2, np.float32)).result(WAIT_S)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ([key("v/grad", update="gradient", slots=[0])], "no key of the same name"),
        ([key("w", slots=[1]), key("w/grad", update="gradient", slots=[0])], r"slots \[1\] contribute to 'w' as well"),
        ([key("w", shape=[3]), key("w/grad", update="gradient", slots=[0])], r"float32\[2\]; 'w' is float32\[3\]"),
        ([key("w", rows=True), key("w/grad", update="gradient", slots=[0])], "is no dense key that a rule updates"),
        ([key("w", update="mean"), key("w/grad", update="gradient", slots=[0])], "is no dense key that a rule"),
    ],
)
def test_a_gradient_and_a_key_that_do_not_belong_together_are_refused(keys, says):
    with pytest.raises(TaskError, match=says):
        local_keys_of(two_keys(*keys))


def test_workers_update_in_sync_alone():
    with pytest.raises(TaskError, match="workers update only in mode 'sync', not 'async'"):
        local_keys_of(two_keys(mode=Mode.ASYNC))


def test_the_programs_see_the_key_with_the_slots_of_its_gradient():
    local = local_keys_of(two_keys())
    (seen,) = local.seen.keys
    assert (seen.key, seen.slots, seen.update) == ("w", (0, 1), Update.RULE)
    assert set(local.keys) == {"w"}
