"""All that the local store decides: the shard's mind, without messages. Pure: the time is a parameter."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from weft_kvstore.buffers import bytes_of
from weft_kvstore.deadlines import Deadlines
from weft_kvstore.description import StoreDescription
from weft_kvstore.job_shard import JobShard, PullWait
from weft_kvstore.operation import BarrierOperation, Operation, PullOperation, PushOperation
from weft_kvstore.settings import LinkSettings
from weft_kvstore.slice_state import PushRefusedError, SliceState
from weft_kvstore.store import StoreError, StoreLostError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.work_queue import WorkQueue


class LocalMind:
    """One shard that holds every slice, and the operations of all slots. `outcomes` collects what has ended."""

    def __init__(self, description: StoreDescription, settings: LinkSettings) -> None:
        self.outcomes: list[tuple[Operation, Any, StoreError | None]] = []
        self._description = description
        self._timeout_s = settings.request_timeout_s
        self._shard = JobShard(msgspec.structs.replace(description, shards=("local",)), 0)
        self._work: WorkQueue[str] = WorkQueue(priorities=settings.priorities)
        self._open: dict[int, PullWait] = {}
        self._number = 0
        self._deadlines = Deadlines()
        self._failed: str | None = None

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, slot: int, operation: Operation, now: float) -> None:
        """Begins an operation of a slot. Pushes and barriers end at once: the gradient is copied."""
        if self._failed is not None:
            self.outcomes.append((operation, None, StoreLostError(f"slot {slot}: {operation}: {self._failed}")))
            return
        try:
            if isinstance(operation, PushOperation):
                self._push(slot, operation)
            elif isinstance(operation, BarrierOperation):
                self._put_work(self._shard.declare_nothing(slot, operation.step, operation.nothing))
                self.outcomes.append((operation, None, None))
            elif isinstance(operation, PullOperation):
                self._pull(operation, now)
        except PushRefusedError as error:
            self.outcomes.append((operation, None, StoreRefusedError(f"{operation}: {error}")))

    def work_once(self) -> bool:
        """Merges the most urgent slice. True if there was one. A rule that fails ends the store."""
        found = self._work.pop()
        if found is None:
            return False
        one = found[1]
        try:
            with np.errstate(all="ignore"):  # What overflows is the user's to see in the values.
                moved = one.merge()
        except (ArithmeticError, ValueError, TypeError, MemoryError) as error:
            where = f"key {one.spec.key!r}, slice {one.index}, step {one.version}"
            self.close(f"rule {one.spec.rule.name!r} failed on {where}: {error}")
            return True
        if moved:
            for wait in JobShard.answered(one):
                self._answer(wait, one)
        return True

    def tick(self, now: float) -> None:
        """Ends pulls whose deadline has come."""
        for number in self._deadlines.due(now, self._open):
            wait = self._open.pop(number)
            wait.dropped = True
            text = f"{wait.link} took over {self._timeout_s:g} s: {self._shard.waits_for(wait)[0]}"
            self.outcomes.append((wait.link, None, StoreTimeoutError(text)))

    def next_tick(self) -> float:
        """When `tick` has something to do again."""
        return self._deadlines.next()

    def close(self, reason: str) -> None:
        """Fails what is open and whatever comes."""
        self._failed = reason
        waits, self._open = self._open, {}
        for wait in waits.values():
            wait.dropped = True
            self.outcomes.append((wait.link, None, StoreLostError(f"{wait.link}: {reason}")))

    def _push(self, slot: int, push: PushOperation) -> None:
        if push.array.size:
            try:
                copy = bytes_of(push.array.copy())
            except MemoryError as error:
                self.outcomes.append((push, None, StoreError(f"slot {slot}: {push}: no memory: {error}")))
                return
            count = self._shard.slice_count(push.place)
            self._put_work(self._shard.accept(slot, push.place, push.step, copy, first=0, count=count))
        self.outcomes.append((push, None, None))

    def _pull(self, pull: PullOperation, now: float) -> None:
        key = self._description.keys[pull.place]
        if not key.nbytes or pull.names == ():
            self.outcomes.append((pull, pull.result(), None))
            return
        self._number += 1
        wait = PullWait(pull, self._number, pull.place, pull.version, state=pull.names is not None)
        arrays = 1 if pull.names is None else len(pull.names)
        pull.pending = {0: self._shard.slice_count(pull.place) * arrays}
        self._open[wait.request] = wait
        self._deadlines.add(now + self._timeout_s, wait.request)
        for one in self._shard.pull(wait):
            self._answer(wait, one)

    def _answer(self, wait: PullWait, one: SliceState) -> None:
        pull: PullOperation = wait.link
        arrays = [one.weight.array] if pull.names is None else [one.state[name].array for name in pull.names]
        fresh = sum(pull.write(number, one.index, 1, bytes_of(array)) for number, array in enumerate(arrays))
        if pull.settle(0, fresh):
            del self._open[wait.request]
            self.outcomes.append((pull, pull.result(), None))

    def _put_work(self, slices: list[SliceState]) -> None:
        for one in slices:
            self._work.put("local", one)
