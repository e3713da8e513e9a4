"""The pieces below a shard's core: merging in a bucket, and the work queue."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from store_cluster import advanced, constant, key_of, store_of
from weft_kernels.rules.record import Rule
from weft_kvstore.arrays import Segment
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.bucket.steps import PullWait
from weft_kvstore.bucket.update import PIECE_BYTES
from weft_kvstore.description.records import Merge
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.merger import Merger
from weft_kvstore.wire.messages import Reading

SIZE = 50


def descend(weight: Any, gradient: Any, _state: Any, _step: int, _hyper: Any) -> None:
    np.subtract(weight, gradient, out=weight)


RULE = Rule(name="plain", state={}, hyper={}, apply=descend)


class OneSlice:
    """A bucket of one slice of zeros. What comes waits until `merge_all`."""

    def __init__(self, slots: int = 4, merge: Merge = Merge.SLOT) -> None:
        description = store_of([constant(key_of("w", [SIZE], slots), 0.0)], slots=slots, shards=1, merge=merge)
        (self.bucket,) = JobShard(description, 0, rule=RULE).buckets.values()
        self.state: Bucket = self.bucket
        self.waiting: list[tuple[int, int]] = []

    @property
    def version(self) -> int:
        return int(self.state.versions[0])

    @property
    def updates(self) -> int:
        return int(self.state.update.updates[0])

    @property
    def weight(self) -> Any:
        ((_, _, block, *_),) = self.state.update.values.sections(0, 1)
        return block.array

    def check(self, slot: int, step: int) -> None:
        self.state.check(slot, step, 0, 1, pushes=True)

    def accept(self, slot: int, step: int, gradient: Any) -> bool:
        found = self.state.accept(slot, step, Segment(0, 1, gradient))
        self.waiting += found
        return bool(found)

    def merge_all(self) -> bool:
        """Merges all that can be. Whether it made an update."""
        before, waiting = self.version, self.waiting
        self.waiting = []
        for slices in waiting:
            list(advanced(self.state, *slices))
        return self.version > before


def ones() -> np.ndarray:
    return np.ones(SIZE, np.float32)


def gradient(slot: int) -> np.ndarray:
    generator = np.random.Generator(np.random.Philox(slot))
    return np.asarray(generator.standard_normal(SIZE) * 10.0 ** generator.uniform(-6, 6, SIZE), np.float32)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_large_gradients_of_slots_that_are_in_are_added_and_not_kept(
    order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a shard would have a gradient of each slot. A newer incarnation does not replace what is added."""
    monkeypatch.setattr("weft_kvstore.bucket.bucket.ADDED_EARLY_BYTES", 1)
    monkeypatch.setattr("weft_kvstore.bucket.bucket.KEPT_GRADIENTS", 2)
    one = OneSlice()
    there: set[int] = set()
    for slot in order[:3]:
        one.waiting += one.state.push(slot, 0, [Segment(0, 1, gradient(slot))])
        there.add(slot)
        kept = [some for pending in (one.state._sums, *one.state._waiting.values()) for some in pending.segments]
        in_order = next(slot for slot in range(5) if slot not in there)
        assert len(kept) == len(there) - max(in_order - 1, 0)
    one.state.replace(1)
    if 0 not in there:
        there.discard(1)
    assert one.state.step_waits_for(0)[1] == sorted({0, 1, 2, 3} - there)
    for slot in range(4):
        one.waiting += one.state.push(slot, 0, [Segment(0, 1, gradient(slot))])
    assert one.merge_all()
    expected = -(((gradient(0) + gradient(1)) + gradient(2)) + gradient(3))
    assert one.weight.tobytes() == expected.tobytes()


def test_what_was_merged_meanwhile_counts_when_a_slot_runs_ahead() -> None:
    """Steps that are complete but not worked off yet do not make a slot look too far ahead."""
    one = OneSlice(slots=1)
    for step in range(6):
        assert one.accept(0, step, ones())
    one.check(0, 8)
    with pytest.raises(PushRefusedError, match="more than 2 steps ahead of step 6"):
        one.check(0, 9)
    assert one.version == 0


def test_a_refused_push_changes_nothing() -> None:
    one = OneSlice(slots=2)
    one.accept(1, 0, None)
    for slot, step in ((1, 0), (0, 3), (7, 0)):
        with pytest.raises(PushRefusedError):
            one.check(slot, step)
    one.accept(0, 0, ones())
    one.merge_all()
    assert (one.version, one.updates) == (1, 1)
    assert np.all(one.weight == -1)


def test_asking_what_a_pull_waits_for_merges_nothing() -> None:
    one = OneSlice(slots=3)
    wait = PullWait(None, 1, 1, slot=0, state=False, reading=Reading.OWN)
    wait.want(0, 0, 1)
    first = gradient(0)
    for slot, given in ((0, first), (1, gradient(1))):
        one.accept(slot, 0, given)
    assert one.bucket.pull_waits_for(wait) == ("key 'w' has seen 0 steps; step 0 waits for slots 2", [2])
    one.accept(2, 0, gradient(2))
    told = "key 'w' has seen 0 steps; step 0 is being merged"
    assert one.bucket.pull_waits_for(wait) == (told, [])
    assert first.tobytes() == gradient(0).tobytes()
    assert one.merge_all()
    assert one.bucket.ready(wait, 0, 1) == [(0, 1, 1)]


def done_by(priorities: Sequence[int], *, by_priority: bool) -> list[str]:
    """The order in which a merger does work of these priorities: "a", "b" and so on, each in two pieces."""
    done: list[str] = []
    merger = Merger(None, priorities=by_priority)  # type: ignore[arg-type]  # nobody is answered

    def work(name: str) -> Iterator[None]:
        done.append(name)
        yield
        done.append(name)

    for number, priority in enumerate(priorities):
        merger._begin(priority, PIECE_BYTES, work("abcdef"[number]))
    while merger.work_once():
        pass
    return done


def test_the_most_urgent_work_is_done_first_and_equals_in_order() -> None:
    assert done_by((2, 1, 2, 0), by_priority=True) == ["d", "d", "b", "b", "a", "a", "c", "c"]


def test_without_priorities_work_is_done_as_it_came() -> None:
    assert done_by((2, 1, 0), by_priority=False) == ["a", "a", "b", "b", "c", "c"]
