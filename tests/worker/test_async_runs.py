"""Slots that go their own way: none waits for another, but for the run's last look at the parameters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from store_cluster import NamedStore
from weft.api.lifecycle import AllocationEvent
from weft_graph.types import DType
from weft_kernels.kernel import Array
from weft_kvstore.description.records import descriptions
from weft_kvstore.errors import StoreLostError, StoreTimeoutError
from weft_worker.patience import patiently
from weft_worker.sharded_store import ShardedStore
from worker_graphs import bags
from worker_jobs import BAG_COLUMNS, WAIT_S, Job, Records, programs_of, run_all, run_of, save_bags

ROWS, HELD_OUT = 128, 30
DONE, RUNNING = AllocationEvent.DONE, AllocationEvent.RUNNING


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_bags(tmp_path / "bags.npz", ROWS + HELD_OUT)


def job_of(data: Path, **options: Any) -> Job:
    chosen: dict[str, Any] = {"steps": 6, "train": (0, ROWS), "batch": 64, "mode": "async", **options}
    return Job(programs_of(bags(DType.FLOAT64)), data, columns=BAG_COLUMNS, **chosen)


@contextmanager
def store_for(job: Job) -> Iterator[NamedStore]:
    description = descriptions.from_builtins(job.store_spec().model_dump(mode="json"))
    with NamedStore(description) as store:
        yield store


def late_until(others: list[Records], store: Any) -> Any:
    """The store, whose deadline passes for what needs every slot's steps until there are others."""

    def impatient(ask: Callable[..., Future[Array]]) -> Callable[..., Future[Array]]:
        def asked(*given: Any, settled: bool = False, **how: Any) -> Future[Array]:
            if others or not settled:
                return ask(*given, settled=settled, **how)
            late: Future[Array] = Future()
            late.set_exception(StoreTimeoutError("slot 1 is missing"))
            return late

        return asked

    found = ShardedStore(store, store._description, store._slot)
    found.pull = impatient(found.pull)  # type: ignore[method-assign]
    return found


def test_one_slot_alone_gets_the_bits_that_it_gets_in_sync(data):
    documents = []
    for mode in ("async", "sync"):
        job = job_of(data, mode=mode, evaluate=(ROWS, ROWS + HELD_OUT))
        with store_for(job) as store:
            (records,) = run_all(job, store.at_slot)
        assert records.last == (DONE, None)
        documents.append(load(records.uploads[0][0]))
    for key, value in documents[1].items():
        np.testing.assert_array_equal(documents[0][key], value, err_msg=key)


class Noted:
    """A slot's store; keeps the gradient of `w` of the first step. What others push waits for that of slot 0, whose
    first values would have seen it otherwise."""

    def __init__(self, store: Any, first: threading.Event, slot: int) -> None:
        self.store = store
        self.first = first
        self.slot = slot
        self.gradient: Array | None = None

    def __getattr__(self, call: str) -> Any:
        return getattr(self.store, call)

    def push(self, key: str, step: int, gradient: Array, ids: Array | None = None) -> Future[None]:
        if (key, step) == ("w", 0):
            self.gradient = gradient.copy()
            if self.slot == 0:
                self.first.set()
        if self.slot > 0:
            assert self.first.wait(WAIT_S)
        return self.store.push(key, step, gradient, ids)


def test_a_slots_loss_is_the_mean_of_its_own_batch(data):
    """In sync half of a step's samples make half of the gradient."""
    found = {}
    for mode in ("async", "sync"):
        job = job_of(data, mode=mode, slots=2, steps=1)
        with store_for(job) as store:
            first = threading.Event()
            noted = [Noted(store.at_slot(slot), first, slot) for slot in range(2)]
            run_all(job, lambda slot, noted=noted: noted[slot])
        found[mode] = noted[0].gradient
    np.testing.assert_allclose(found["async"], 2 * found["sync"], rtol=1e-12)


def test_a_slot_comes_to_its_end_while_another_has_not_begun(data):
    job = job_of(data, slots=2, keeper=1)
    with store_for(job) as store:
        (records,) = run_all(job, store.at_slot, slots=[0])
        assert records.last == (DONE, None)
        assert records.steps == list(range(1, 7))
        (keeper,) = run_all(job, store.at_slot, slots=[1])
    assert keeper.last == (DONE, None)


def test_intermediate_evaluations_take_what_is_there_and_the_end_waits_for_all(data):
    """The keeper says for whom it waits, beyond the store's own deadline; what it brings has every slot's steps."""
    job = job_of(data, slots=2, evaluate=(ROWS, ROWS + HELD_OUT), evaluate_every=2)
    with store_for(job) as store:
        first = Records()
        others: list[Records] = []
        intact = first.report

        def report(**facts: Any) -> None:
            intact(**facts)
            if facts.get("logs") and not others:
                assert [m.step for m in first.metrics if m.split == "evaluate"] == [2, 4]
                others.append(Records())
                run_of(job, 1, others[0], lambda task: store.at_slot(1)).start()

        first.report = report  # type: ignore[method-assign]
        run_of(job, 0, first, lambda task: late_until(others, store.at_slot(0))).start()
        for records in (first, *others):
            assert records.over.wait(WAIT_S)
        assert others[0].over.wait(WAIT_S)
        values = {key: store.pull(key, 6, settled=True).result(WAIT_S) for key in ("w", "b")}
    assert first.last == others[0].last == (DONE, None)
    assert "worker 0 waits for the others' last steps, for up to 3600 s: slot 1 is missing" in first.logs[0].message
    for key, value in values.items():
        np.testing.assert_array_equal(load(first.uploads[0][0])[key], value, err_msg=key)
    brought = load(first.uploads[0][0])
    with np.load(data) as columns:
        ids, labels = columns["ids"][ROWS:], columns["y"][ROWS:]
    scores = brought["table"][ids].mean(axis=1) @ brought["w"] + brought["b"]
    chosen = scores[np.arange(HELD_OUT), labels] - np.log(np.exp(scores).sum(axis=1))
    last = [records.metrics[-1] for records in (first, *others)]
    assert [(each.split, each.step) for each in last] == [("evaluate", 6)] * 2
    assert sum(each.sums["loss"] for each in last) == pytest.approx(-float(chosen.sum()))


def test_slots_without_samples_come_to_their_end(data):
    job = job_of(data, slots=3, batch=2)
    with store_for(job) as store:
        everything = run_all(job, store.at_slot)
    assert [records.last for records in everything] == [(DONE, None)] * 3


class Attempts:
    """Futures that fail with what is in line, then give 7."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked = 0

    def __call__(self) -> Future[int]:
        self.asked += 1
        future: Future[int] = Future()
        if self.errors:
            future.set_exception(self.errors.pop(0))
        else:
            future.set_result(7)
        return future


def waited(attempts: Attempts, told: list[str], deadline_s: float = 10.0) -> int:
    clock = iter(range(1000))
    return patiently(
        attempts,
        "slot 0 waits",
        timeout_s=1.0,
        deadline_s=deadline_s,
        tell=told.append,
        clock=lambda: float(next(clock)),
    )


def test_patience_asks_again_while_only_time_has_passed_and_says_so_once():
    told: list[str] = []
    attempts = Attempts(*(StoreTimeoutError("slot 1 is missing"),) * 3)
    assert waited(attempts, told) == 7
    assert attempts.asked == 4
    assert told == ["slot 0 waits, for up to 10 s: slot 1 is missing"]


def test_patience_ends_at_its_deadline_with_what_is_missing():
    attempts = Attempts(*(StoreTimeoutError("slot 1 is missing"),) * 100)
    with pytest.raises(StoreTimeoutError, match="slot 1 is missing"):
        waited(attempts, [])
    assert attempts.asked == 10


def test_patience_does_not_wait_for_what_is_lost():
    attempts = Attempts(StoreLostError("shard 0 is silent"))
    with pytest.raises(StoreLostError):
        waited(attempts, [])
    assert attempts.asked == 1
