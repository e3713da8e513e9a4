"""What ends a job while it merges, and what does not: of a rule, of the memory, of the store itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from store_cluster import key_of, store_of
from weft_kernels.rules.record import Rule
from weft_kvstore.codec import ProtocolError
from weft_kvstore.job_shard import JobShard
from weft_kvstore.local_mind import LocalMind
from weft_kvstore.merger import Merger
from weft_kvstore.operation import Link, Operation
from weft_kvstore.pull_wait import PullWait
from weft_kvstore.routing import Routing
from weft_kvstore.rows import Rows
from weft_kvstore.settings import LinkSettings
from weft_kvstore.unit_state import AnyUnit

DESCRIPTION = store_of([key_of("w", [8], 2)], slots=2, shards=1)


def raising(error: Exception) -> Callable[..., None]:
    def apply(*_: object, **_options: object) -> None:
        raise error

    return apply


class Ends:
    """A merger of one job, and what it told of it."""

    def __init__(self, apply: Callable[..., None]) -> None:
        rule = Rule(name="mine", state={}, hyper={"rate": 0.1, "weight_decay": 0.0}, apply=apply)
        self.shard = JobShard(DESCRIPTION, 0, rule=rule)
        self.failed: list[tuple[str, str]] = []
        self.answered: list[AnyUnit] = []
        self.merger: Merger[str] = Merger(
            lambda _wait, unit: iter(self.answered.append(unit) or ()),
            lambda job, reason: self.failed.append((job, reason)),
            priorities=True,
        )

    def push_all(self) -> None:
        for slot in (0, 1):
            (unit,) = self.shard.units(0)
            unit.accept(slot, 0, np.ones(8, np.float32))
            self.merger.put("job", [unit])


@pytest.mark.parametrize("error", [ValueError("of my own"), ZeroDivisionError("of my own"), MemoryError("of my own")])
def test_a_rule_that_fails_ends_its_job_by_its_name(error: Exception) -> None:
    ends = Ends(raising(error))
    ends.push_all()
    assert ends.merger.work_once()
    assert ends.failed == [("job", "rule 'mine' failed on key 'w', slice 0, step 0: of my own")]


def test_a_fault_of_the_store_is_not_told_as_the_rules() -> None:
    ends = Ends(raising(TypeError("a fault")))
    ends.push_all()
    with pytest.raises(TypeError, match="a fault"):
        ends.merger.work_once()
    assert ends.failed == []


def test_sums_that_find_no_memory_end_the_job_and_not_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(lambda *_: None)
    ends.push_all()
    monkeypatch.setattr(np, "add", raising(MemoryError("8 bytes")))
    assert ends.merger.work_once()
    assert ends.failed == [("job", "no memory to merge key 'w', slice 0, step 0: 8 bytes")]


def test_whoever_asks_why_hears_of_no_sum_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are made where their failing ends the job, not where somebody asks or a deadline is told."""
    ends = Ends(lambda *_: None)
    wait = PullWait(None, 1, 0, 1, slot=0, state=False, settled=False)
    ends.merger.answer("job", wait, ends.shard.pull(wait, 0))
    assert ends.answered == []
    ends.push_all()
    monkeypatch.setattr(np, "add", raising(MemoryError("8 bytes")))
    assert "being merged" in ends.shard.waits_for(wait)[0]


def test_an_answer_that_loses_a_connection_is_the_last_one_for_it() -> None:
    ends = Ends(lambda *_: None)
    waits = [PullWait(None, number, 0, 1, slot=0, state=False, settled=False) for number in (1, 2)]
    told: list[int] = []

    def answer(wait: PullWait, _unit: AnyUnit) -> Iterator[None]:
        told.append(wait.request)
        for one in waits:
            one.drop()
        yield

    ends.merger = Merger(answer, lambda *_: None, priorities=True)
    for wait in waits:
        ends.merger.answer("job", wait, ends.shard.pull(wait, 0))
    ends.push_all()
    ends.merger.work_once()
    assert told == [1]


class Other(Operation):
    def prepare(self, routing: Routing) -> dict[int, int]:
        return {}

    def begin(self, link: Link) -> None:
        pass

    give_up = begin

    def let_go(self) -> None:
        pass

    def __str__(self) -> str:
        return "another operation"


def test_an_operation_that_the_local_store_does_not_know_is_an_error() -> None:
    with pytest.raises(TypeError, match="another operation"):
        LocalMind(DESCRIPTION, LinkSettings()).begin(0, Other(Future()), 0.0)


def test_rows_for_a_key_that_is_no_table_are_an_error() -> None:
    shard = JobShard(DESCRIPTION, 0)
    rows = Rows(np.zeros(1, np.int64), np.zeros((1, 1), np.float32))
    with pytest.raises(ProtocolError, match="key: 0 has no rows on shard 0"):
        shard.accept_rows(0, 0, 0, rows)
    with pytest.raises(ProtocolError, match="key: 0 has no rows on shard 0"):
        shard.set_rows(0, 0, 1, rows, "origin")
