"""Jobs of one shard's daemon leave each other alone, whatever they do: each is a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

import misbehaving_shard_child
from kvstore_daemon import Served, allocation, children_of, until_idle
from same_host_children import wait_until
from store_cluster import WAIT_S, NamedClient, key_of, store_of
from weft.api.lifecycle import AllocationEvent
from weft_kernels.rules.lookup import rules
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError
from weft_kvstore.serving.daemon import ShardSettings
from weft_kvstore.settings import LinkSettings

LINK = LinkSettings(silence_s=WAIT_S, request_timeout_s=WAIT_S)
STEPS = 20
RATE = 0.5


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    before = dict(rules())
    misbehaving_shard_child.prepare()
    patched = pytest.MonkeyPatch()
    patched.setattr("weft_kvstore.serving.daemon.CHILD", "misbehaving_shard_child")
    patched.setattr("weft.agent.children.Child.stop.__defaults__", (0.05,))
    patched.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
    made = Served(ShardSettings(server="http://127.0.0.1:1", name="shard-0", job_memory=1 << 30))
    yield made
    made.end()
    patched.undo()
    for name in set(rules()) - set(before):
        rules().pop(name)  # type: ignore[attr-defined]  # it is a dictionary


def described(job: str, rule: str = "sgd") -> StoreDescription:
    hyper = {"lr": RATE}
    description = store_of([key_of("w", (300,), 1)], slots=1, shards=1, job=job, rule=rule, hyper=hyper)
    return msgspec.structs.replace(description, shards=("",))


@pytest.mark.parametrize(
    ("rule", "wait_s", "raised", "told"),
    [
        ("endless", 1.0, "took over 1 s; .*: no answer", None),
        ("greedy", WAIT_S, "rule 'greedy' failed on key 'w', slice 0, step 0: MemoryError", None),
        ("crashing", 1.0, "the connection is down", "its process was ended by SIGSEGV"),
    ],
)
def test_a_job_that_never_ends_takes_all_memory_or_crashes_leaves_the_others_steps_undisturbed(
    served: Served, rule: str, wait_s: float, raised: str, told: str | None
) -> None:
    honest = described("honest")
    honest = served.opened(honest, "honest")
    wrong = served.opened(described("wrong", rule), "wrong", allocation(honest, "honest"))
    quick = LinkSettings(silence_s=WAIT_S, request_timeout_s=wait_s)
    with NamedClient(honest, 0, settings=LINK) as client, NamedClient(wrong, 0, settings=quick) as other:
        expected = client.pull("w", 0).result(WAIT_S).copy()
        other.push("w", 0, np.ones(300, np.float32))
        waiting = other.pull("w", 1)
        for step in range(STEPS):
            client.push("w", step, np.ones(300, np.float32)).result(WAIT_S)
            expected -= np.float32(RATE) * np.float32(1)
            assert np.array_equal(client.pull("w", step + 1).result(WAIT_S), expected)
        with pytest.raises(StoreError, match=raised):
            waiting.result(WAIT_S)
    if told is not None:
        number, event, reason = served.heard()
        assert (number, event) == ("wrong", AllocationEvent.FAILED)
        assert reason is not None
        assert reason.startswith(told)
    served.order()
    until_idle(served)


def test_of_many_jobs_one_after_the_other_and_at_once_nothing_stays(served: Served) -> None:
    """No process, descriptor or thread; what a job took of memory went with its process."""

    def train(name: str, *beside: StoreDescription) -> None:
        description = served.opened(described(name), name, *(allocation(one, one.job) for one in beside))
        with NamedClient(description, 0, settings=LINK) as client:
            client.push("w", 0, np.ones(300, np.float32)).result(WAIT_S)
            client.pull("w", 1).result(WAIT_S)

    train("first")
    served.order()
    until_idle(served)
    wait_until(lambda: counted(served)[1:] == (0, []))  # Whoever has stopped a child ends a moment after it.
    before = counted(served)
    for number in range(10):
        train(f"job-{number}")
        served.order()
    many = [described(f"many-{number}") for number in range(16)]
    served.order(*(allocation(one, one.job) for one in many))
    assert {served.heard()[:2] for _ in many} == {(one.job, AllocationEvent.READY) for one in many}
    wait_until(lambda: served.daemon.statistics()["jobs"] == 16)
    served.order()
    until_idle(served)
    wait_until(lambda: is_as(counted(served), before))


def is_as(now: tuple[int, int, list[str]], before: tuple[int, int, list[str]]) -> bool:
    """Whether nothing was added; other tests' descriptors may be closed meanwhile."""
    return now[0] <= before[0] and now[1:] == before[1:]


def counted(served: Served) -> tuple[int, int, list[str]]:
    """Descriptors of this process, children of its forkserver, and threads that belong to children."""
    threads = sorted(one.name for one in threading.enumerate() if one.name.startswith(("child", "stop")))
    return len(os.listdir("/proc/self/fd")), len(children_of(served)), threads
