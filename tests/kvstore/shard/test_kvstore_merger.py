"""What ends a job while it merges, and what does not: of a rule, of the memory, of the store itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from store_cluster import key_of, store_of, table_of
from weft_kernels.rules.record import Rule
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.bucket.steps import JobFailedError, PullWait
from weft_kvstore.bucket.values import BucketValues
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.merger import Merger
from weft_kvstore.tables import TableState
from weft_kvstore.wire.codec import PushSegment
from weft_kvstore.wire.messages import FailureCode, PayloadKind, Reading

DESCRIPTION = store_of([key_of("w", [8], 2)], slots=2, shards=1)


def raising(error: Exception) -> Callable[..., None]:
    def apply(*_: object, **_options: object) -> None:
        raise error

    return apply


class Ends(Merger):
    """A merger of one job, and what it told of it. The key is plain, or whole."""

    def __init__(self, apply: Callable[..., None], *, whole: bool = False) -> None:
        rule = Rule(name="mine", state={}, hyper={"lr": 0.1, "weight_decay": 0.0}, apply=apply)
        description = msgspec.structs.replace(
            DESCRIPTION, keys=(msgspec.structs.replace(DESCRIPTION.keys[0], whole=whole),)
        )
        self.shard = JobShard(description, 0, rule=rule)
        self.answered: list[int] = []
        super().__init__(None, priorities=True)  # type: ignore[arg-type]  # it has no links

    def answer(self, wait: PullWait, version: int, table: TableState) -> Iterator[None]:
        self.answered.append(wait.request)
        yield

    def answer_range(self, wait: PullWait, bucket: Bucket, first: int, stop: int, version: int) -> None:
        self.answered.append(wait.request)

    def refuse(self, wait: PullWait, reason: str, code: FailureCode = FailureCode.PASSED) -> None:
        raise AssertionError(reason)

    def push_all(self) -> None:
        for slot in (0, 1):
            segment = PushSegment(0, 0, 0, 0, 0, 1, 0, [memoryview(bytearray(np.ones(8, np.float32).tobytes()))])
            bucket = self.shard.buckets[0]
            for first, stop in bucket.push(slot, 0, bucket.segments_of(segment)):
                self.merge(bucket, first, stop)

    def pull(self, wait: PullWait) -> None:
        wait.want(0, 0, 1)
        self.ask(wait, self.shard)

    def work(self) -> None:
        while self.work_once():
            pass


def pull_of(request: int) -> PullWait:
    return PullWait(None, request, 1, slot=0, state=False, reading=Reading.OWN)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("error", [ValueError("of my own"), ZeroDivisionError("of my own"), MemoryError("of my own")])
def test_a_rule_that_fails_ends_its_job_by_its_name(error: Exception, whole: bool) -> None:
    ends = Ends(raising(error), whole=whole)
    with pytest.raises(JobFailedError, match=r"^rule 'mine' failed on key 'w', slice 0, step 0: of my own$"):
        ends.push_all()


def test_a_fault_of_the_store_is_not_told_as_the_rules() -> None:
    ends = Ends(raising(TypeError("a fault")))
    with pytest.raises(TypeError, match=r"^a fault$"):
        ends.push_all()


@pytest.mark.parametrize("whole", [False, True])
def test_sums_that_find_no_memory_end_the_job_and_not_the_shard(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    ends = Ends(lambda *_: None, whole=whole)
    monkeypatch.setattr(np, "add", raising(MemoryError("8 bytes")))
    with pytest.raises(JobFailedError, match=r"^rule 'mine' failed on key 'w', slice 0, step 0: 8 bytes$"):
        ends.push_all()


def test_weights_that_find_no_memory_end_the_job_and_name_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(lambda *_: None)
    monkeypatch.setattr(BucketValues, "written", raising(MemoryError("8 bytes")))
    with pytest.raises(JobFailedError, match=r"^no memory to update key 'w', slice 0: 8 bytes$"):
        ends.push_all()


@pytest.mark.parametrize("whole", [False, True])
def test_whoever_asks_why_hears_of_no_sum_that_fails(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    """Sums are made where their failing ends the job, not where somebody asks or a deadline is told."""
    monkeypatch.setattr("weft_kvstore.shard.merger.AT_ONCE_BYTES", 0)
    ends = Ends(lambda *_: None, whole=whole)
    wait = pull_of(1)
    ends.pull(wait)
    assert ends.answered == []
    ends.push_all()
    monkeypatch.setattr(np, "add", raising(MemoryError("8 bytes")))
    assert "being merged" in ends.shard.waits_for(wait)[0]


class Readers(Ends):
    """Two pulls of a table's rows, which take long, and come again as soon as they are answered; and a slot that pushes
    the next step as soon as the last one is merged."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None)
        self.shard = JobShard(store_of([table_of("t", (8, 2), 1)], slots=1, shards=1), 0)
        self.table, self.version = self.shard.tables[0], 0
        self.table.reached = lambda *_: self.push_next()
        for number in (0, 1):
            self.ask_again(number)
        self.push_next()

    def ask_again(self, number: int) -> None:
        wait = PullWait(None, number, 0, slot=0, state=False, reading=Reading.OWN)
        self.shard.ask(wait, 0, 0, 1, 1)
        ids = np.arange(8)
        pushed = PushSegment(PayloadKind.IDS, number, 0, 0, 0, 1, 1, [memoryview(ids.tobytes())])
        self.rows(self.client({number: wait}), pushed)

    def push_next(self) -> None:
        payload = bytearray(np.arange(8).tobytes() + bytes(64))
        self.rows(self.client({}), PushSegment(0, 0, 0, self.table.version, 0, 1, 1, [memoryview(payload)]))

    def client(self, pulls: dict[int, PullWait]) -> Any:
        return SimpleNamespace(shard=self.shard, slot=0, pulls=pulls, ids_bytes=0)

    def answer(self, wait: PullWait, version: int, table: TableState) -> Iterator[None]:
        for _ in range(3):
            assert version == table.version, "the rows of an answer are those of one version"
            yield
        self.answered.append(wait.request)
        self.ask_again(wait.request)


def test_those_who_read_a_table_without_end_and_those_who_push_to_it_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TableState, "fits_one_piece", lambda *_: False)
    readers = Readers()
    for _ in range(100):
        assert readers.work_once()
    assert readers.table.version >= 10
    assert min(readers.answered.count(0), readers.answered.count(1)) >= 10
