"""Threads that help with updates: every piece is computed once, and what fails is raised where it is waited for."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

from store_cluster import gradients_of, key_of, store_of
from weft_kvstore.arrays import Segment
from weft_kvstore.serving.shard_server import ApplyPool, ShardServer
from weft_kvstore.shard.job_shard import JobShard


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_every_task_is_carried_out_once_and_counted(threads: int) -> None:
    pool = ApplyPool(threads)
    found: list[int] = []
    for _ in range(20):
        pool.run([partial(found.append, number) for number in range(9)])
    assert sorted(found) == sorted(list(range(9)) * 20)
    counts = list(pool.statistics())
    assert len(counts) == threads + 1
    assert sum(one.pieces for one in counts) == 180
    assert all(one.busy_s >= 0 for one in counts)
    pool.close()


def test_tasks_run_at_the_same_time() -> None:
    pool = ApplyPool(1)
    both = threading.Barrier(2, timeout=20.0)

    def meet() -> None:
        both.wait()

    pool.run([meet, meet])
    pool.close()


@pytest.mark.parametrize("threads", [0, 2])
def test_the_first_error_is_raised_and_the_pool_goes_on(threads: int) -> None:
    pool = ApplyPool(threads)

    def fail() -> None:
        raise ValueError("of my own")

    with pytest.raises(ValueError, match="of my own"):
        pool.run([fail, fail, fail])
    done = threading.Event()
    pool.run([done.set, done.set])
    assert done.is_set()
    pool.close()


def test_a_number_below_none_is_refused() -> None:
    with pytest.raises(ValueError, match="apply threads: at least 0, not -1"):
        ApplyPool(-1)


def test_helped_updates_have_the_same_bits() -> None:
    """Adam on more elements than one piece has."""
    description = store_of([key_of("w", [300_000], 1)], slots=1, shards=1, rule="adam", slice_bytes=1 << 20)
    gradient = gradients_of(description, 0, 0)["w"]
    values = []
    for threads in (0, 2):
        pool = ApplyPool(threads)
        job = JobShard(description, 0, computing=pool)
        bucket = job.buckets[0]
        bucket.state.update.with_gradient(Segment(0, len(bucket.state), gradient.copy()), 1, 0)
        values.append(
            np.concatenate([held.array for _, _, held, *_ in bucket.state.update.values.pieces(0, len(bucket.state))])
        )
        assert sum(one.pieces for one in pool.statistics()) == 1 + threads
        pool.close()
    assert values[0].tobytes() == values[1].tobytes()


def test_a_shard_tells_what_its_threads_have_computed() -> None:
    with ShardServer(apply_threads=2) as server:
        assert [one.name for one in server.statistics().apply_threads] == ["socket", "apply-0", "apply-1"]
    assert not [one for one in threading.enumerate() if one.name.startswith("weft-apply")]
