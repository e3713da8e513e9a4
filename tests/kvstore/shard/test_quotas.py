"""Quotas on bytes, keys and rows of a job and of all: at open, and of what waits and grows after it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from store_cluster import WAIT_S, given, key_of, store_of, table_of
from store_raw import hello_of, push_of
from weft_graph.program import Update
from weft_kvstore import describe
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.records import (
    CommitDescription,
    GrowthDescription,
    KeyDescription,
    Sparse,
    StoreDescription,
)
from weft_kvstore.errors import StoreError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.quotas import Holds, Quotas
from weft_kvstore.same_host.peers import Memory
from weft_kvstore.serving import shard_server as serving_shard_server
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.account import Account, Ledger, QuotaError
from weft_kvstore.shard.core import ShardCore
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.sharding import NOTED_BYTES, NOTED_OF_A_SLOT, need_of
from weft_kvstore.wire.codec import encode

LINK = LinkSettings(silence_s=WAIT_S, request_timeout_s=WAIT_S, same_host=False)
SIZE = 256
"""Elements of a key: one slice of 1 KiB."""


def a_job(job: str = "job", keys: int = 1, slots: int = 2, rule: str = "sgd") -> StoreDescription:
    return store_of([key_of(f"k{n}", [SIZE], slots) for n in range(keys)], slots=slots, shards=1, job=job, rule=rule)


def growing(width: int = 8, slots: int = 1) -> KeyDescription:
    return msgspec.structs.replace(table_of("t", [0, width], slots), growth=GrowthDescription())


@contextmanager
def serving(quotas: Quotas, *jobs: StoreDescription) -> Iterator[tuple[ShardServer, list[list[StoreClient]]]]:
    """A shard with these jobs, and a client for each slot of each."""
    clients: list[list[StoreClient]] = []
    with ShardServer(quotas=quotas) as server:
        try:
            for one in jobs:
                here = msgspec.structs.replace(one, shards=(server.endpoint,))
                server.open(here, 0)
                clients.append([StoreClient(here, slot, settings=LINK) for slot in range(one.slots)])
            yield server, clients
        finally:
            for client in [one for some in clients for one in some]:
                client.close()


def ones(size: int = SIZE) -> np.ndarray:
    return np.ones(size, np.float32)


@pytest.mark.parametrize("sparse", list(Sparse))
@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
def test_what_a_job_needs_is_what_its_shard_holds(rule: str, sparse: Sparse) -> None:
    table_key = msgspec.structs.replace(table_of("t", [100, 6], 2), sparse=sparse)
    keys = [key_of("a", [1000], 2), key_of("b", [3, 7], 2), table_key]
    frozen = msgspec.structs.replace(key_of("frozen", [50], 2), slots=())
    merged = msgspec.structs.replace(key_of("merged", [50], 2), update=Update.GRADIENT)
    description = store_of([*keys, frozen, merged], slots=2, shards=2, rule=rule)
    total = Holds()
    for shard in (0, 1):
        need, made = need_of(description, shard), JobShard(description, shard)
        total += need
        bytes_held = noted = 0
        for bucket in made.buckets.values():
            arrays = [bucket.state.update.values, *bucket.state.update.state.values()]
            bytes_held += bucket.state.nbytes * len(arrays)
            noted += len(bucket.state) * (NOTED_BYTES + NOTED_OF_A_SLOT * len(bucket.state.spec.slots))
        (table,) = made.units
        bytes_held += table.held.arrays.nbytes
        if table.held.history is not None:
            bytes_held += table.held.history._seen.array.nbytes
        assert need.nbytes == bytes_held + noted
        assert need.rows == 50
    assert total.rows == 100


def test_what_is_noted_of_slices_is_counted_at_least() -> None:
    """Slices of four bytes: more is noted of them than they hold."""
    description = store_of([key_of("w", [1 << 14], 3)], slots=3, shards=1, slice_bytes=4)
    shard = JobShard(description, 0)
    (bucket,) = shard.buckets.values()
    arrays = [
        bucket.state.steps.came,
        bucket.state.steps.through,
        bucket.state.steps.version,
        bucket.state.update.updates,
        *(getattr(bucket.state.spec.part, name) for name in ("places", "indices", "priorities", "bounds")),
    ]
    assert need_of(description, 0).nbytes >= bucket.state.nbytes + sum(one.nbytes for one in arrays)


@pytest.mark.parametrize(
    ("quota", "told"),
    [
        ({"job_bytes": 2 * SIZE * 4}, r"quota job_bytes: (\d+) bytes on this shard, 2048 may be"),
        ({"job_keys": 1}, "quota job_keys: 2 keys on this shard, 1 may be \\(--job-keys\\)"),
        (
            {"total_keys": 3},
            "quota total_keys: 4 keys of all jobs on this shard, 3 may be, and 2 are this job's \\(--total-keys\\)",
        ),
        (
            {"total_bytes": 4 * 1024},
            r"quota total_bytes: \d+ bytes of all jobs on this shard, 4096 may be, and \d+ are",
        ),
        ({"job_rows": 99}, "quota job_rows: 100 rows of tables on this shard, 99 may be"),
        ({"total_rows": 99}, "quota total_rows: 100 rows of tables of all jobs on this shard, 99 may be"),
    ],
)
def test_a_job_that_would_exceed_a_quota_is_refused_at_open_by_both_numbers(quota: dict[str, int], told: str) -> None:
    small = a_job("small", keys=2, slots=1)
    large = a_job("large", keys=2, slots=1)
    if "rows" in next(iter(quota)):
        large = store_of([table_of("t", [100, 2], 1)], slots=1, shards=1, job="large")
    with ShardServer(quotas=Quotas(**quota)) as server:
        if "total" in next(iter(quota)):
            server.open(small, 0)
        with pytest.raises(QuotaError, match=f"job 'large': {told}"):
            server.open(large, 0)
        assert server.statistics().jobs == ("total" in next(iter(quota)))


def test_the_key_by_which_slots_meet_is_no_key_of_the_jobs() -> None:
    described = describe({"w": (SIZE,), 5: (3,)}, slots=2, shards=["tcp://127.0.0.1:1"], rule="sgd")
    assert len(described.keys) == 3
    assert need_of(described, 0).keys == 2
    with ShardServer(quotas=Quotas(job_keys=2)) as server:
        server.open(described, 0)
        assert server.statistics().per_job[0].holds.keys == 2


def test_what_was_refused_or_closed_makes_room_again() -> None:
    one = need_of(a_job(), 0)
    with ShardServer(quotas=Quotas(total_bytes=one.nbytes)) as server:
        for term in (1, 2, 3):
            here = msgspec.structs.replace(a_job(), term=term)
            server.open(here, 0)
            with pytest.raises(QuotaError, match="job 'other'"):
                server.open(a_job("other"), 0)
            with pytest.raises(StoreError):
                server.open(here, 0)
            server.close_job("job", term)
        bad = msgspec.structs.replace(a_job("bad"), shards=("", ""))
        with pytest.raises(ValueError, match="shard 7"):
            server.open(bad, 7)
        server.open(a_job("other"), 0)


def test_a_push_beyond_the_quota_is_refused_by_name_and_nothing_is_lost() -> None:
    """Two slots; the second one's gradients wait for those of the first, which come last."""
    description = a_job()
    room = need_of(description, 0).nbytes + 2 * SIZE * 4
    with serving(Quotas(job_bytes=room), description) as (server, [(first, second)]):
        for step in (0, 1):
            second.push("k0", step, ones()).result(WAIT_S)
        with pytest.raises(
            StoreRefusedError, match=r"slot 1, key 'k0', slice 0, step 2: quota job_bytes: \d+ bytes"
        ) as e:
            second.push("k0", 2, ones()).result(WAIT_S)
        assert str(room + SIZE * 4) in str(e.value)
        assert f"{room} may be" in str(e.value)
        before = first.pull("k0", 0).result(WAIT_S)
        with pytest.raises(StoreRefusedError, match="slot 0, key 'k0', slice 0, step 0: quota job_bytes"):
            first.push("k0", 0, ones()).result(WAIT_S)
        assert server.statistics().refused == 2
        server._ledger.quotas = Quotas()  # what was taken in is there still, once there is room
        for step in (0, 1):
            first.push("k0", step, ones()).result(WAIT_S)
        after = first.pull("k0", 2).result(WAIT_S)
        assert np.array_equal(after, before - 2 * 2 * ones() * np.float32(0.01)) or np.all(after < before)


def test_gradients_that_are_merged_count_no_more() -> None:
    description = a_job(slots=1)
    room = need_of(description, 0).nbytes + SIZE * 4
    with serving(Quotas(job_bytes=room), description) as (server, [(only,)]):
        for step in range(20):
            only.push("k0", step, ones()).result(WAIT_S)
            only.pull("k0", step + 1).result(WAIT_S)
        (job,) = server._core.jobs.values()
        gc.collect()
        assert job.shard.account.waiting == Holds()


def test_a_replaced_worker_leaves_nothing_that_counts() -> None:
    description = a_job()
    with serving(Quotas(), description) as (server, [(_, second)]):
        for step in (0, 1):
            second.push("k0", step, ones()).result(WAIT_S)
        (job,) = server._core.jobs.values()
        assert job.shard.account.waiting.nbytes == 2 * SIZE * 4
        second.close()
        here = msgspec.structs.replace(description, shards=(server.endpoint,))
        with StoreClient(here, 1, incarnation=2, settings=LINK) as again:
            again.pull("k0", 0).result(WAIT_S)
            assert job.shard.account.waiting == Holds()


def test_values_set_for_versions_to_come_count() -> None:
    description = store_of([given(key_of("k0", [SIZE], 1))], slots=1, shards=1)
    room = need_of(description, 0).nbytes + 2 * SIZE * 4
    with serving(Quotas(job_bytes=room), description) as (_, [(only,)]):
        only.set("k0", 0, ones()).result(WAIT_S)
        for version in (1, 2):
            only.set("k0", version, ones()).result(WAIT_S)
        with pytest.raises(StoreRefusedError, match="slot 0, key 'k0', slice 0, step 1: quota job_bytes"):
            only.push("k0", 1, ones()).result(WAIT_S)


def test_a_growing_table_grows_to_its_quota_of_rows_and_goes_on_with_those_it_has() -> None:
    description = store_of([growing()], slots=1, shards=1)
    with serving(Quotas(job_rows=100), description) as (server, [(only,)]):
        ids, rows = np.arange(80), np.ones((80, 8), np.float32)
        only.push_rows("t", 0, ids, rows).result(WAIT_S)
        only.pull_rows("t", ids, 1).result(WAIT_S)
        with pytest.raises(
            StoreRefusedError, match="key 't', step 1: quota job_rows: 120 rows of tables on this shard"
        ):
            only.push_rows("t", 1, np.arange(40, 120), rows).result(WAIT_S)
        only.push_rows("t", 1, np.arange(20, 100), rows).result(WAIT_S)
        for step in range(2, 5):  # No row is new: what it has it may use.
            only.push_rows("t", step, ids, rows).result(WAIT_S)
        assert only.pull_rows("t", ids, 5).result(WAIT_S).shape == (80, 8)
        assert server._core.ledger.refusal(next(iter(server._core.jobs.values())).shard.account, Holds(0, 0, 1))


@pytest.mark.parametrize("committed", [False, True])
def test_rows_of_a_sum_count_though_no_message_holds_them(*, committed: bool) -> None:
    """Each slot shares a row with the first one, so that the others of its rows are copied into the sum."""
    slots = 4
    description = store_of([growing(slots=slots)], slots=slots, shards=1)
    if committed:
        description = msgspec.structs.replace(description, commit=CommitDescription(clip_norm=1e9))
    with serving(Quotas(job_rows=100), description) as (server, [clients]):
        account = next(iter(server._core.jobs.values())).shard.account
        clients[0].push_rows("t", 0, np.zeros(1, np.int64), ones(8)[None]).result(WAIT_S)
        ids = np.arange(80)
        clients[1].push_rows("t", 0, ids, np.ones((80, 8), np.float32)).result(WAIT_S)
        gc.collect()
        assert account.now.rows >= 80
        with pytest.raises(StoreRefusedError, match="slot 2, key 't', step 0: quota job_rows"):
            clients[2].push_rows("t", 0, np.array([0, *range(100, 170)]), np.ones((71, 8), np.float32)).result(WAIT_S)
        for slot in (2, 3):
            clients[slot].push_rows("t", 0, ids[:1], ones(8)[None]).result(WAIT_S)
        if committed:
            for future in [client.barrier(0, []) for client in clients]:
                future.result(WAIT_S)
        clients[0].pull_rows("t", ids, 1).result(WAIT_S)
        gc.collect()
        assert account.now.rows == 80, "once they are in the table they count there alone"
        assert account.waiting.rows == 0


class ArenaListener:
    """Where a client has brought an arena already."""

    name = b"listener"

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.bytes = np.zeros(nbytes, np.uint8)

    def expect(self, most_bytes: int) -> bytes:
        return b"ticket"

    def forget(self, ticket: bytes) -> None:
        pass

    def arena(self, ticket: bytes) -> Memory:
        return self

    def bytes_at(self, offset: int, nbytes: int) -> np.ndarray:
        return self.bytes[offset : offset + nbytes]


def test_a_client_that_changes_its_arena_meanwhile_gets_the_rows_that_were_checked() -> None:
    """The ids that the quota lets pass are old ones; then others stand there."""
    description = store_of([growing()], slots=1, shards=1, slice_bytes=1 << 16)
    old, new = (np.arange(first, first + 80, dtype=np.uint64) for first in (0, 1000))
    listener = ArenaListener(80 * (8 + 8 * 4))

    class Changing(Ledger):
        def refusal(self, account: Account, more: Holds) -> str | None:
            reason = super().refusal(account, more)
            if not more.rows:
                listener.bytes[: new.nbytes] = new.view(np.uint8)
            return reason

    core = ShardCore(bytes(16), LINK, Changing(Quotas(job_rows=100)))
    core.open(JobShard(description, 0))
    core.arenas = listener
    table = next(iter(core.jobs.values())).shard.parts.table(0)
    core.hear(b"one", encode(hello_of(description, 0)), 0.0)
    for step in range(2):
        listener.bytes[: old.nbytes] = old.view(np.uint8)
        push = push_of(0, [listener.nbytes], frame=step + 1, step=step, chunks=1, count=1)
        core.hear(b"one", encode(msgspec.structs.replace(push, at=0)), 0.0)
        while core.work_once():
            pass
        assert table.version == step + 1
    assert table.touched == 80
    assert np.all(table.held.find(new) < 0)
    (job,) = core.jobs.values()
    gc.collect()
    assert job.shard.account.waiting == Holds()


def test_a_growing_table_grows_to_its_quota_of_bytes() -> None:
    description = store_of([growing(width=64)], slots=1, shards=1, rule="momentum")
    quota = 1 << 20
    with serving(Quotas(job_bytes=quota), description) as (server, [(only,)]):
        pushed, step = 0, 0

        def grow() -> None:
            nonlocal pushed, step
            while step < 100:
                ids = np.arange(pushed, pushed + 100)
                only.push_rows("t", step, ids, np.ones((100, 64), np.float32)).result(WAIT_S)
                only.pull_rows("t", ids[:1], step + 1).result(WAIT_S)
                pushed, step = pushed + 100, step + 1

        told = rf"key 't', step \d+: quota job_bytes: \d+ bytes .*, {quota} may be"
        with pytest.raises(StoreRefusedError, match=told):
            grow()
        assert quota / 3 < pushed * 64 * 4 * 2 <= quota
        (job,) = server._core.jobs.values()
        assert job.shard.account.now.nbytes <= quota
        assert only.pull_rows("t", np.arange(100), step).result(WAIT_S).shape == (100, 64)


def test_a_pull_of_rows_whose_answer_has_no_room_is_refused() -> None:
    description = store_of([growing(width=64)], slots=1, shards=1)
    with serving(Quotas(job_bytes=1 << 20), description) as (server, [(only,)]):
        with pytest.raises(StoreRefusedError, match=r"key 't', version 0: quota job_bytes: \d+ bytes"):
            only.pull_rows("t", np.arange(5000), 0).result(WAIT_S)
        assert only.pull_rows("t", np.arange(500), 0).result(WAIT_S).shape == (500, 64)
        assert server.statistics().waiting_pulls == 0


def test_all_jobs_together_have_a_quota() -> None:
    jobs = [a_job(name) for name in ("a", "b")]
    room = 2 * need_of(jobs[0], 0).nbytes + 3 * SIZE * 4
    with serving(Quotas(total_bytes=room), *jobs) as (_, [(_, of_a), (_, of_b)]):
        of_a.push("k0", 0, ones()).result(WAIT_S)
        for step in (0, 1):
            of_b.push("k0", step, ones()).result(WAIT_S)
        for client in (of_a, of_b):
            with pytest.raises(StoreRefusedError, match=r"quota total_bytes: .* of all jobs on this shard"):
                client.push("k0", 2, ones()).result(WAIT_S)


def test_memory_counts_while_anything_refers_to_it() -> None:
    account = Account()
    array = np.zeros(100, np.uint8)
    account.own(array)
    view = array[10:20]
    account.own(view)
    del array
    assert account.waiting == Holds(100)
    del view
    assert account.waiting == Holds()
    payload = account.taken_over(memoryview(bytes(50)))
    assert not payload.readonly
    assert account.waiting == Holds(50)
    part = np.frombuffer(payload[3:9], np.uint8)
    del payload
    assert account.waiting == Holds(50)
    del part
    assert account.waiting == Holds()
    account.taken_over(memoryview(np.zeros(64, np.uint8))[8:16])
    assert account.waiting == Holds()


def test_quotas_below_none_are_none() -> None:
    with pytest.raises(ValueError, match="job_rows must be at least 0, not -1"):
        Quotas(job_rows=-1)
    ledger = Ledger(Quotas(total_bytes=10))
    assert ledger.refusal(ledger.reserve("a", Holds(4)), Holds(6)) is None
    with pytest.raises(QuotaError, match="job 'b': quota total_bytes: 11 bytes of all jobs"):
        ledger.reserve("b", Holds(7))


def test_a_job_that_was_not_opened_in_time_is_not_opened_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be on no account, and whoever tries again would hear that it is open."""
    begun, go_on = threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        go_on.wait(WAIT_S)

    with ShardServer(quotas=Quotas(total_keys=1)) as server:
        description = msgspec.structs.replace(a_job(), shards=(server.endpoint,))
        other = threading.Thread(target=server._commands.carry_out, args=[busy])
        other.start()
        assert begun.wait(WAIT_S)
        with monkeypatch.context() as patched:
            patched.setattr(serving_shard_server, "COMMAND_TIMEOUT_S", 0.02)
            with pytest.raises(StoreTimeoutError, match="did not answer"):
                server.open(description, 0)
        go_on.set()
        other.join(WAIT_S)
        server.close_job("another", None)  # Behind whatever waits.
        assert server.statistics().jobs == 0
        server.open(description, 0)
        assert server.statistics().jobs == 1


def test_a_command_that_has_begun_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(serving_shard_server, "COMMAND_TIMEOUT_S", 0.02)
    done: list[bool] = []

    def slow() -> None:
        threading.Timer(0.1, go_on.set).start()
        done.append(go_on.wait(WAIT_S))

    with ShardServer() as server:
        server._commands.carry_out(slow)
    assert done == [True]
