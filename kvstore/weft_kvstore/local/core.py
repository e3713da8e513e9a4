"""All that the local store decides: the shard's core, without messages. Pure: the time is a parameter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from weft_kvstore.bucket.bucket import Answer, PlainBucket, PullWait
from weft_kvstore.client.agreement import BarrierOperation, Change, CommitOperation, HyperOperation, outcome_of
from weft_kvstore.client.operation import Operation, PullOperation, PushPull, SendOperation, SentRun
from weft_kvstore.client.row_operation import PullRowsOperation, PushRowsOperation
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import (
    PushRefusedError,
    StoreError,
    StoreLostError,
    StorePassedError,
    StoreRefusedError,
    StoreTimeoutError,
)
from weft_kvstore.futures import Deadlines, OtherThread
from weft_kvstore.hyper import ChangeRefusedError, Proposal
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.rows.rows import Rows
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.merger import Merger
from weft_kvstore.shard.snapshot import Captures, Held, MissedError, restore
from weft_kvstore.sharding import routing_of
from weft_kvstore.snapshot_files import Snapshot
from weft_kvstore.tables.state import TableState
from weft_kvstore.wire.codec import Run, ValueRun
from weft_kvstore.wire.messages import PayloadKind

_log = logging.getLogger("weft.store")


class _CommitWait(NamedTuple):
    """A slot's commit, until the step is measured."""

    slot: int
    link: CommitOperation


class LocalCore:
    """The one shard of a description, and the operations of all slots. `outcomes` collects what has ended."""

    def __init__(
        self,
        description: StoreDescription,
        settings: LinkSettings,
        tables: TablePlace | None = None,
        snapshot: Snapshot | None = None,
        *,
        there: OtherThread,
    ) -> None:
        """`there`: the thread that this belongs to, for the others."""
        self.outcomes: list[tuple[Operation, Any, StoreError | None]] = []
        self._timeout_s = settings.request_timeout_s
        self._shard = JobShard(description, 0, tables=tables)
        self._captures = Captures(there)
        if snapshot is not None:
            restore(self._shard, snapshot)
        self._routing = routing_of(description)
        self.rows_pushed = dict.fromkeys(range(description.slots), 0)
        self.rows_pulled = dict.fromkeys(range(description.slots), 0)
        self._merger: Merger = Merger(self, priorities=settings.priorities)
        self._open: dict[int, PullWait | _CommitWait] = {}
        self._number = 0
        self._deadlines = Deadlines()
        self._failed: str | None = None
        if self._shard.gate is not None:
            self._shard.gate.tell = self._commit

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, slot: int, operation: Operation, now: float) -> None:
        """Begins an operation of a slot. Pushes and barriers end at once: the gradient is copied.

        Whatever goes wrong ends this operation, and no other: nobody else knows of it, so nobody else could end it."""
        if self._failed is not None:
            self.outcomes.append((operation, None, StoreLostError(f"slot {slot}: {operation}: {self._failed}")))
            return
        try:
            if isinstance(operation, SendOperation):
                self._send(slot, operation)
                self.outcomes.append((operation, None, None))
            elif isinstance(operation, BarrierOperation):
                self._barrier(slot, operation, now)
            elif isinstance(operation, PullOperation):
                self._pull(slot, operation, now)
            elif isinstance(operation, HyperOperation):
                self.outcomes.append((operation, self._change(slot, operation.change, now), None))
            else:
                raise TypeError(f"{operation} is no operation that a store knows")
        except (PushRefusedError, ChangeRefusedError) as error:
            self.outcomes.append((operation, None, StoreRefusedError(f"slot {slot}: {operation}: {error}")))
        except MemoryError as error:
            self._give_up(operation, StoreError(f"slot {slot}: {operation}: no memory: {error}"))
        except Exception as error:  # noqa: BLE001  # an operation's outermost frame
            _log.exception("slot %d: %s failed", slot, operation)
            failed = StoreError(f"slot {slot}: {operation}: {type(error).__name__}: {error}")
            failed.__cause__ = error
            self._give_up(operation, failed)

    def capture(self, step: int, told: Callable[[Held | MissedError], None], since: int | None) -> None:
        """Captures all that there is at version `step`, once it has come to it; what `told` is given is to be released.
        `since`: of tables what has changed since the capture at that step, if that is known."""
        self._captures.begin(self._shard, step, told, since=since)

    def work_once(self) -> bool:
        """The most urgent piece of work. True if there was one. A rule that fails ends the store."""
        return self._merger.work_once()

    def tick(self, now: float) -> None:
        """Ends pulls and commits whose deadline has come."""
        for number in self._deadlines.due(now, self._open):
            wait = self._open[number]
            shard = self._shard
            waits, _ = shard.waits_for(wait) if isinstance(wait, PullWait) else shard.step_waits_for(wait.link.step)
            self._end(number, StoreTimeoutError(f"{_told(wait)} took over {self._timeout_s:g} s: {waits}"))

    def after_stall(self, stall_s: float) -> None:
        """The process stood still for so long: nothing is late by that time."""
        self._deadlines.after_stall(stall_s)

    def next_tick(self) -> float:
        """When `tick` has something to do again."""
        return self._deadlines.next()

    def close(self, reason: str) -> None:
        """Fails what is open and whatever comes."""
        self._failed = reason
        for number, wait in list(self._open.items()):
            self._end(number, StoreLostError(f"{_told(wait)}: {reason}"))

    def release(self) -> None:
        """Gives back what tables have on disk, once nothing is to be worked on any more."""
        self._shard.close()

    def _barrier(self, slot: int, barrier: BarrierOperation, now: float) -> None:
        self._merger.take(self._shard.declare_nothing(slot, barrier.step, barrier.nothing))
        if not isinstance(barrier, CommitOperation):
            self.outcomes.append((barrier, None, None))
            return
        number = self._next()
        self._await(number, _CommitWait(slot, barrier), now)
        try:
            self._shard.arrive(slot, barrier.step)
        except PushRefusedError:
            self._open.pop(number)
            raise
        self._commit(barrier.step)

    def _commit(self, step: int) -> None:
        """Commits a step that is measured, and tells the slots: there is no other shard to ask."""
        gate = self._shard.gate
        found = gate.measurement(step) if gate is not None else None
        if found is None:
            return
        outcome = outcome_of(step, found.squares, finite=found.finite, scale=found.loss_scale)
        if self._shard.commit(step, norm=outcome.norm, finite=outcome.finite):
            self._merger.go_on(self._shard)
        for number, wait in list(self._open.items()):
            if isinstance(wait, _CommitWait) and wait.link.step == step:
                del self._open[number]
                self.outcomes.append((wait.link, outcome, None))

    def _change(self, slot: int, change: Change, now: float) -> int:
        """Changes hyper-parameters at once: there is no other shard to ask. The step from which they hold."""
        live, proposal = self._shard.live, self._next().to_bytes(16)
        step = live.begun(change.place)[0] if change.step is None else change.step
        live.agreement.propose(Proposal(proposal, slot, b"", step, change.place, change.numbers, now))
        live.agreement.decide(proposal, take=True)
        return step

    def _send(self, slot: int, send: SendOperation) -> None:
        if isinstance(send, PushRowsOperation):
            self._send_rows(slot, send)
        else:
            send.prepare(self._routing)
            self._send_runs(slot, send.runs.get(0, ()))

    def _send_runs(self, slot: int, runs: Iterable[SentRun]) -> None:
        """All of it is copied, for it is the caller's again when this returns."""
        request = self._next()
        for out in runs:
            entry, copy = out.entry, bytearray().join(out.source.cut(int(out.bounds[0]), int(out.bounds[-1])))
            what = (entry.payload_kind, request, entry.bucket, entry.step, out.first, out.count, entry.chunks)
            run = Run(*what, memoryview(copy))
            if entry.payload_kind is PayloadKind.RESTORED:
                self._merger.take(self._shard.restore(slot, run, request))
            elif entry.payload_kind is PayloadKind.GRADIENT:
                self._merger.push(self._shard, slot, run)
            else:
                self._merger.take(self._shard.set_slices(slot, run, request))

    def _send_rows(self, slot: int, send: PushRowsOperation) -> None:
        rows = Rows(send.given.ids.copy(), send.given.values.copy())
        self.rows_pushed[slot] += send.rows_pushed
        if not self._routing.tables[send.place].bytes_on(0):
            return  # A table without elements.
        bucket = self._routing.bucket_of[send.place]
        if send.payload_kind is PayloadKind.GRADIENT:
            self._merger.take(self._shard.accept_rows(slot, bucket, send.step, rows))
        else:
            self._merger.take(self._shard.set_rows(slot, bucket, send.step, rows, self._next()))

    def _pull(self, slot: int, pull: PullOperation, now: float) -> None:
        rows = pull.ids.get(0) if isinstance(pull, PullRowsOperation) else None
        self.rows_pulled[slot] += pull.rows_pulled
        pull.pending, pull.because = pull.prepare(self._routing), {}
        if isinstance(pull, PushPull):
            try:
                self._send_runs(slot, pull.runs.get(0, ()))
            finally:
                pull.let_go()
            pull.future.arrived = True
        if not pull.pending:
            self.outcomes.append((pull, pull.result(), None))
            return
        wait = PullWait(pull, self._next(), pull.version, slot=slot, state=pull.names is not None, reading=pull.reading)
        self._await(wait.request, wait, now)
        if rows is not None:
            self._merger.take(self._shard.ask_rows(wait, pull.asks(0)[0][0], rows))
            return
        for bucket, first, count, _ in pull.asks(0):
            self._shard.ask(wait, bucket, first, count, 0)
        self._merger.ask(wait, self._shard)

    def answer(self, wait: PullWait, table: TableState) -> Iterator[None]:
        """See `Answering`."""
        for part in table.answers(wait):
            if part is None:
                yield
                if wait.dropped:
                    return
                continue
            self._write(wait, part)
        wait.open_tables.discard(table.spec.number)
        self._look(wait)

    def answer_range(self, wait: PullWait, bucket: PlainBucket, first: int, stop: int) -> None:
        """See `Answering`."""
        for part in bucket.pulls.answers(wait, first, stop):
            self._write(wait, part)
        wait.answered(bucket.state.spec.number, first, stop)
        self._look(wait)

    def refuse(self, wait: PullWait, reason: str) -> None:
        """See `Answering`."""
        self._end(wait.request, StorePassedError(f"{_told(wait)}: {reason}"))

    @staticmethod
    def _write(wait: PullWait, part: Answer) -> None:
        payload = part.source.base[int(part.bounds[0]) : int(part.bounds[-1])]
        pull: PullOperation = wait.link
        came = ValueRun(part.array, part.bucket, part.version, part.first, part.parts, payload, part.compressed)
        pull.settle(0, pull.write(0, came))

    def _look(self, wait: PullWait) -> None:
        if wait.is_answered and self._open.pop(wait.request, None) is not None:
            self.outcomes.append((wait.link, wait.link.result(), None))

    def _give_up(self, operation: Operation, error: StoreError) -> None:
        """Ends an operation that could not be begun, or only in part; unless it has ended."""
        for number in [number for number, wait in self._open.items() if wait.link is operation]:
            self._end(number, error)
        if all(ended is not operation for ended, _, _ in self.outcomes):
            self.outcomes.append((operation, None, error))

    def _await(self, number: int, wait: PullWait | _CommitWait, now: float) -> None:
        self._open[number] = wait
        self._deadlines.waiting.append((now + self._timeout_s, number))

    def _end(self, number: int, error: StoreError) -> None:
        """What is open under this number fails, unless it has ended."""
        wait = self._open.pop(number, None)
        if wait is not None:
            if isinstance(wait, PullWait):
                wait.drop()
            self.outcomes.append((wait.link, None, error))

    def _next(self) -> int:
        self._number += 1
        return self._number


def _told(wait: PullWait | _CommitWait) -> str:
    """Whose call it is, as every error begins."""
    return f"slot {wait.slot}: {wait.link}"
