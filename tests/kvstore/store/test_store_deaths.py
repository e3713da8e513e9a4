"""A worker or a shard that dies between any two messages: what waits for it fails in time, by slot, key and step."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, NamedClient, clients_of, key_of, served, store_of, table_of
from store_processes import shard_processes
from store_simulation import Simulation
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreLostError
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.peer import Peer

MOST_S = 10.0
"""Of the simulation's own time."""

SOON_S = 30.0
"""Of real time, on a machine that is busy: half of the requests' own deadline."""

SETTINGS = LinkSettings(silence_s=1.5, ping_interval_s=0.2, request_timeout_s=60.0)


class DeadShard:
    """What is left of a shard: connections that lead nowhere."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.outgoing: list[Any] = []
        self.work = self.links = self

    def receive(self, *_: object) -> None:
        pass

    def wants_flush(self) -> bool:
        return False

    def tick(self, _: float) -> None:
        pass

    def disconnect(self, _: bytes) -> None:
        pass


def described(slots: int) -> StoreDescription:
    """Keys with slices on both shards, and a table."""
    keys = [key_of("a", (16,), slots), key_of("b", (40,), slots), table_of("t", (9, 2), slots)]
    return store_of(keys, slots=slots, shards=2, slice_bytes=32, rule="adam")


def begun(simulation: Simulation, slot: int) -> dict[str, Future[Any]]:
    """Two steps of a slot, and what an error of each has to name."""
    store, found = simulation.stores[slot], {}
    for step in range(2):
        for key, size in (("a", 16), ("b", 40)):
            found[f"push of key '{key}', step {step}"] = store.push(key, step, np.ones(size, np.float32))
            found[f"pull of key '{key}', version {step + 1}"] = store.pull(key, step + 1)
        rows = np.ones((5, 2), np.float32)
        found[f"push of rows of key 't', step {step}"] = store.push("t", step, rows, np.arange(5))
        found[f"pull of rows of key 't', version {step + 1}"] = store.pull("t", step + 1, np.arange(4))
    found["change of lr to 0.5 for all keys, step 2"] = store.set_hyper({"lr": 0.5}, step=2)
    return found


def after_death(victim: str, messages: int) -> int:
    """Runs until so many messages have come, lets the victim die, and looks at what the others hear. How many futures
    have failed by the death; -1 where the program was over before."""
    choose = random.Random(messages)
    simulation = Simulation(described(2))
    simulation.settle(choose)  # Who was never there is not missed before the deadline.
    simulation.delivered.clear()
    futures = {slot: begun(simulation, slot) for slot in range(2)}
    while len(simulation.delivered) < messages:
        if not simulation.step(choose):
            return -1
    survivors = [0] if victim == "slot 1" else [0, 1]
    if victim == "slot 1":
        simulation.silent.add(1)
    else:
        simulation.shards[1] = DeadShard()  # type: ignore[call-overload]  # it is asked for nothing else
    died = simulation.now
    waiting = [future for slot in survivors for future in futures[slot].values()]
    while not all(future.done() for future in waiting):
        assert simulation.now - died < MOST_S, [name for name, one in futures[0].items() if not one.done()]
        for _ in range(2000):
            if not simulation.step(choose):
                break
        simulation.now += 0.25
        for core in simulation.shards:
            core.tick(simulation.now)
    failed = 0
    for slot in survivors:
        for name, future in futures[slot].items():
            error = future.exception(0)
            if error is None:
                continue
            failed += 1
            assert isinstance(error, StoreLostError), repr(error)
            for words in (f"slot {slot}: ", name, "shard 1 at " if victim == "shard 1" else "slot 1 has been silent"):
                assert words in str(error), f"{words!r} is not in {error}"
    return failed


@pytest.mark.parametrize("victim", ["slot 1", "shard 1"])
def test_whoever_dies_at_any_message_is_named_to_all_who_wait(victim: str) -> None:
    failed = [after_death(victim, messages) for messages in range(0, 200, 3)]
    assert -1 in failed, "every message of the program was the last one once"
    assert sum(one > 0 for one in failed) >= 3
    assert 0 in failed, "late enough, nobody needs the dead any more"


WORKER = """
import sys, msgspec, numpy as np
from weft_kvstore import KVStore
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.peer import Peer
description = msgspec.json.decode(open(sys.argv[1], "rb").read(), type=StoreDescription)
store = KVStore.connect(description, 1)
for step in range(100000):
    store.push("a", np.ones(16, np.float32))
    store.push("b", np.ones(40, np.float32))
    store.pull("a").result()
    store.pull("b").result()
"""


@contextmanager
def worker(description: StoreDescription, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Slot 1 in a process of its own."""
    path = directory / "worker.json"
    path.write_bytes(msgspec.json.encode(description))
    process = subprocess.Popen([sys.executable, "-c", WORKER, str(path)], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)


def trains(client: NamedClient, first: int, steps: int) -> Iterator[Future[Any]]:
    for step in range(first, first + steps):
        yield client.push("a", step, np.ones(16, np.float32))
        yield client.push("b", step, np.ones(40, np.float32))
        yield client.pull("a", step + 1)
        yield client.pull("b", step + 1)


def named(futures: list[Future[Any]], since: float, *words: str) -> None:
    """Every one that fails does so in time, and names these; some do."""
    errors = [future.exception(SOON_S - (time.monotonic() - since)) for future in futures]
    told = [str(error) for error in errors if error is not None]
    assert told
    assert all(isinstance(error, StoreLostError) for error in errors if error is not None), told
    for text in told:
        assert re.search(r"key '[ab]', (step|version) \d+", text), text
        assert all(word in text for word in words), text


def test_a_worker_that_is_killed_is_named_to_the_others(tmp_path: Path) -> None:
    """All three are silent for a second or two where the machine is busy, so the silence is that of a user's store."""
    last, settings = 10, LinkSettings()
    with ExitStack() as stack:
        description, _ = stack.enter_context(served(described(2), settings))
        keys = tuple(key for key in description.keys if not key.rows)
        process = stack.enter_context(worker(description, tmp_path))
        client = NamedClient(description, 0, settings=settings)
        stack.callback(client.close)
        assert len(keys) == 2
        for future in trains(client, 0, last):
            future.result(WAIT_S)
        futures = list(trains(client, last, 2))
        process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        steps = last + 2
        while not any(future.exception() for future in futures if future.done()):
            assert time.monotonic() - killed < SOON_S
            if all(future.done() for future in futures):
                futures = list(trains(client, steps, 1))
                steps += 1
            time.sleep(0.01)
        named(futures, killed, "slot 0: ", "slot 1 has been silent")


def test_a_shard_that_is_killed_fails_what_waits_on_it_and_nothing_else(tmp_path: Path) -> None:
    """Key `wide` has slices on both shards, and so has table `t` rows; key `narrow` has one on shard 0 alone."""
    keys = [key_of("narrow", (256,), 2), key_of("wide", (2048,), 2), table_of("t", (40, 4), 2)]
    spread = store_of(keys, slots=2, shards=2, hyper={"lr": 1.0})
    gradient = np.ones(2048, np.float32)
    with ExitStack() as stack:
        description, start = stack.enter_context(shard_processes(spread, tmp_path))
        processes = [start(shard) for shard in range(2)]
        first, second = stack.enter_context(clients_of(description, SETTINGS))
        narrow = first.pull("narrow", 0).result(WAIT_S)
        first.push("wide", 0, gradient).result(WAIT_S)
        waiting = {
            "slot 0: pull of key 'wide', version 1": first.pull("wide", 1),
            "slot 1: pull of key 'wide', version 1": second.pull("wide", 1),
            "slot 0: pull of rows of key 't', version 1": first.pull("t", 1, np.arange(4)),
        }
        processes[1].kill()
        waiting["slot 0: push of key 'wide', step 1"] = first.push("wide", 1, gradient)
        waiting["slot 0: barrier of step 1"] = first.barrier(1, [])
        for what, future in waiting.items():
            error = future.exception(SOON_S)
            assert isinstance(error, StoreLostError), repr(error)
            assert all(words in str(error) for words in (what, "shard 1 at ")), f"{what}: {error}"
        for client in (first, second):
            client.push("narrow", 0, np.ones(256, np.float32)).result(WAIT_S)
        assert np.array_equal(second.pull("narrow", 1).result(WAIT_S), narrow - np.float32(2))


def test_a_fault_of_a_shard_wherever_it_is_fails_the_job_and_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise MemoryError("8 bytes")

    description = store_of([key_of("w", [8], 1)], slots=1, shards=1)
    with served(description) as (given, _), clients_of(given, LinkSettings(silence_s=WAIT_S)) as (client,):
        client.pull("w", 0).result(WAIT_S)
        monkeypatch.setattr(Peer, "write", none)
        with pytest.raises(StoreLostError, match="no memory: 8 bytes"):
            client.pull("w", 0).result(WAIT_S)
