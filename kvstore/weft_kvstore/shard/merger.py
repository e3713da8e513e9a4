"""Merging and answering, the most urgent first and piece by piece. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final, Literal

from weft_kvstore.arrays import FEW, Range, Segment
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.bucket.steps import JobFailedError, PullWait
from weft_kvstore.bucket.update import PIECE_BYTES
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.shard.links import Links
from weft_kvstore.shard.peer import MAX_IDS_BYTES, Peer
from weft_kvstore.tables import RequestedRows, TableState
from weft_kvstore.wire.codec import PushSegment
from weft_kvstore.wire.messages import FailureCode, PayloadKind, Reading

# --- Merging and answering, the most urgent first and piece by piece --------------------------------------------------
# No piece takes longer than some 50 ms, a rule's update of a whole key left out: between two of them the shard looks at
# its socket, and answers pings.


BATCH_UNITS: Final = 16
BATCH_BYTES: Final = 1 << 20
"""Pieces, or bytes of them, that may be worked on before values leave for links that are busy anyway: fuller frames."""

AT_ONCE_BYTES: Final = 1 << 20
"""Gradients of so few bytes, of a few slices, are merged when they are received if nothing else waits: to queue them
takes longer."""

AT_ONCE_S: Final = 0.01
"""Once a message has led to so much merging, what else it leads to is queued, however little each is."""

MAX_QUEUED_SEGMENTS: Final = 1 << 16
"""Segments of values that may wait for one connection, however few bytes they have: each costs the shard some time."""

WorkStage = Literal["merge", "answer"]


class Merger:
    """Stores what peers send for the tables and buckets of a job, merges it, and puts answers to pulls into the peers'
    outboxes. `queue` is a heap of tasks that wait: priority, number of arrival, bytes of a piece, and an iterator that
    stops after each piece. The caller turns NumPy's warnings off: an overflow shows in the values. An error that is no
    refusal ends the job, and the merger must not be used after it."""

    def __init__(self, links: Links, *, priorities: bool) -> None:
        self._links = links
        self._priorities = priorities
        self.clock: Callable[[], float] = float
        """The time in seconds, where `at_once_s` is measured."""
        self.at_once_s = 0.0
        """Seconds of merging while messages were received; the server sets it back to 0."""
        self.queue: list[tuple[int, int, int, Iterator[None]]] = []
        self.has_merged = False
        """Whether gradients of buckets were merged; `ShardCore.wants_flush` sets it back to False."""
        self._sequence = 0
        self.batch_count = self.batch_bytes = 0
        """Pieces, and bytes of them, since `ShardCore.flush` has set both back to 0."""
        self.stage: WorkStage = "merge"
        """Which work the last piece was."""

    # --- What comes, and is checked. All raise PushRefusedError where it contradicts what is there; what is refused
    # changes nothing.

    def rows(self, peer: Peer, pushed: PushSegment) -> None:
        """Takes in a segment of chunks: of a push of rows, of the ids of a pull, or of both in one. The pull can be
        answered once it has all of its ids."""
        table, is_push = peer.shard.tables[pushed.bucket], pushed.payload_kind == PayloadKind.GRADIENT
        wait = peer.pulls.get(pushed.request)
        rows: RequestedRows | None = None if wait is None else wait.rows
        if is_push and (rows is None or not rows.are_pushed):
            wait = None
        elif wait is None:  # It was cancelled meanwhile.
            return
        elif (
            rows is None
            or rows.table is not table
            or rows.are_pushed is not is_push
            or pushed.chunks != (rows.chunks or pushed.chunks)
        ):
            detail = f"{wait.request} does not ask for {pushed.chunks} chunks of bucket {pushed.bucket}"
            raise PushRefusedError(f"Push.request: {detail}")
        layout, reader = table.layout, table.reader
        ids, values = reader.rows(pushed) if is_push else (reader.ids(pushed), None)
        is_due = values is not None and table.push_rows(peer.slot, pushed.step, ids, values, pushed)
        if wait is not None and rows is not None:
            before, has_all = rows.nbytes, False
            try:
                has_all = rows.add(pushed, layout.rows_up if is_push else layout.ids_up, ids)
            except PushRefusedError as error:
                self._links.fail(peer, wait.request, FailureCode.REFUSED, str(error))
            peer.ids_bytes += rows.nbytes - before
            if has_all:
                wait.want(pushed.bucket, 0, 1)
                if is_due:  # The merge answers it.
                    table.add_pull(wait)
                else:
                    self.ask(wait, peer.shard)
        if values is not None and is_due:
            self.merge(table, nbytes=values.nbytes)
        if wait is not None and peer.ids_bytes > MAX_IDS_BYTES and wait.request in peer.pulls:
            detail = f"{peer.ids_bytes} bytes of ids of pulls wait already; wait for some of them"
            self._links.fail(peer, wait.request, FailureCode.REFUSED, detail)

    def push_nothing(self, shard: JobShard, slot: int, step: int, keys: Iterable[int]) -> None:
        """The slot has nothing for these keys in this step."""
        ranges = shard.contributed(keys)
        segments = [(shard.all_buckets[number], first, stop) for number, some in ranges.items() for first, stop in some]
        for bucket, first, stop in segments:  # All before any: what is refused changes nothing.
            bucket.check(slot, step, first, stop, pushes=False)
        accepted = [(bucket, bucket.accept(slot, step, Segment(first, stop, None))) for bucket, first, stop in segments]
        for bucket, new in accepted:
            for low, high in new:
                self.merge(bucket, low, high)

    def set(self, shard: JobShard, slot: int, pushed: PushSegment, origin: Hashable) -> None:
        """Sets or restores a segment, of slices or of a table's chunks, in order with what is pushed. `origin` tells
        the segments of one set from those of another, so that each counts once."""
        bucket = shard.all_buckets[pushed.bucket]
        for first, stop in bucket.receive_set(slot, pushed, origin):
            low, high = bucket.was_set or (first, stop)
            bucket.was_set = min(low, first), max(high, stop)
            self.merge(bucket, first, stop)

    def ask(self, wait: PullWait, shard: JobShard) -> None:
        """Answers what a pull asks for, as far as that is possible now; the rest waits."""
        for number in list(wait.unanswered):
            self._look_at(wait, shard.all_buckets[number], 0, shard.all_buckets[number].count)

    def work_once(self) -> bool:
        """The next piece of what is most urgent. True if there was one."""
        if not self.queue:
            return False
        entry = heapq.heappop(self.queue)
        _, _, nbytes, task = entry
        self.stage = "merge"
        self.batch_count += 1
        self.batch_bytes += nbytes
        for _ in task:
            heapq.heappush(self.queue, entry)  # It keeps its number, so it stays ahead of equals that came later.
            break
        return True

    def merge(
        self, bucket: Bucket | TableState, first: int = 0, stop: int = 1, nbytes: int = AT_ONCE_BYTES + 1
    ) -> None:
        """Merges what may have a step complete: slices of a bucket, or a table, to which so many bytes have come."""
        if isinstance(bucket, TableState):
            bucket.merge_is_due = True
            self._work_on(bucket, nbytes)
            return
        partition = bucket.spec.partition
        nbytes = int(partition.bounds[stop] - partition.bounds[first]) if stop - first <= FEW else PIECE_BYTES
        self._begin(int(partition.priorities[first]), nbytes, self._changing(bucket, [(first, stop)]))

    def _work_on(self, table: TableState, nbytes: int = PIECE_BYTES) -> None:
        """Queues the one task of a table, which runs until there is nothing to be done."""
        if not table.has_task:
            table.has_task = True
            self._begin(table.spec.priority, nbytes, self._working_on(table))

    def _begin(self, priority: int, nbytes: int, task: Iterator[None]) -> None:
        """Queues a task. The first piece of a small one runs while its message is handled, if nothing else waits: to
        queue it takes longer."""
        if not self.queue and nbytes <= AT_ONCE_BYTES and self.at_once_s < AT_ONCE_S:
            begun = self.clock()
            try:
                for _ in task:
                    break
                else:
                    return
            finally:
                self.at_once_s += self.clock() - begun
        self._sequence += 1
        heapq.heappush(
            self.queue, (priority if self._priorities else 0, self._sequence, min(nbytes, PIECE_BYTES), task)
        )

    def _changing(self, bucket: Bucket, todo: list[Range]) -> Iterator[None]:
        first = todo[0][0]
        try:
            while todo:
                if bucket.was_set is not None:
                    self._answer_set(bucket, *bucket.was_set)
                changed = bucket.advance(todo)
                self.has_merged = True  # Even if nothing changed: a step that was only measured was added up.
                if changed is None:
                    return
                if bucket.pulled_versions:
                    self._answer_range(bucket, *changed)
                if todo:
                    yield
        except MemoryError as error:
            raise JobFailedError(f"no memory to update {bucket.spec.named(first)}: {error}") from error

    def _answer_set(self, bucket: Bucket | TableState, first: int, stop: int) -> None:
        """Answers pulls that have waited for values that were set, before these change: once for many."""
        bucket.was_set = None
        self._answer_range(bucket, first, stop)

    def _answer_range(self, bucket: Bucket | TableState, first: int, stop: int) -> None:
        for wait in bucket.pulls_of(first, stop):
            self._look_at(wait, bucket, first, stop)

    def _look_at(self, wait: PullWait, bucket: Bucket | TableState, first: int, stop: int) -> None:
        """Answers a pull from those of these slices that can, or fails it. While slices of the bucket are unanswered,
        the pull waits."""
        for low, high, version in bucket.ready(wait, first, stop):
            if not isinstance(bucket, TableState):
                self.answer_range(wait, bucket, low, high, version)
            elif bucket.fits_one_piece(wait):
                wait.answered(bucket.spec.number, 0, 1)
                for _ in self.answer(wait, version, bucket):
                    pass
            elif not bucket.merge_is_due:
                wait.answered(bucket.spec.number, 0, 1)  # It waits no longer, but for its turn.
                bucket.to_answer.append((wait, version))
                self._work_on(bucket)
            if wait.dropped:
                return
        if wait.reading is Reading.EXACT and (passed := bucket.passed(wait, first, stop)) is not None:
            self._links.fail(wait.peer, wait.request, FailureCode.PASSED, passed)
        left = wait.unanswered.get(bucket.spec.number)
        if left is not None:
            bucket.add_pull(wait, *left.hull)
        elif bucket.pulled_versions:
            bucket.forget_pull(wait)

    def _working_on(self, table: TableState) -> Iterator[None]:
        """Answers long pulls of a table and merges it, alternately. All rows of an answer are of one version, so
        answers go first; pulls that arrive while a merge is due are answered after it."""
        try:
            while table.merge_is_due or table.was_set is not None or table.to_answer:
                if table.was_set is not None:
                    table.merge_is_due = False  # Else long pulls that wait for these values come after the merge.
                    self._answer_set(table, *table.was_set)
                    table.merge_is_due = True
                if table.to_answer:  # More may be set meanwhile.
                    yield from self.answer(*table.to_answer.popleft(), table)
                else:
                    has_merged = yield from table.merging()
                    table.merge_is_due = False
                    self._answer_range(table, 0, 1)
                    table.merge_is_due = has_merged and table.has_waiting
        except MemoryError as error:
            raise JobFailedError(
                f"no memory to merge step {table.version} of {table.spec.named(0)}: {error}"
            ) from error
        table.has_task = False

    # --- What answers a pull goes into its peer's outbox

    def answer(self, wait: PullWait, version: int, table: TableState) -> Iterator[None]:
        """A table's answer to a pull, unless that was cancelled; stops after each piece of it."""
        if wait.dropped:
            return
        self.stage = "answer"
        peer: Peer = wait.peer
        if not self._may_queue(wait):
            return
        try:
            for segment in table.answers(wait, version):
                if segment is not None:
                    peer.outbox.put(segment, segment.entry.request)
                    continue
                self._links.waiting[peer] = None
                yield
                if wait.dropped:
                    return
                self.stage = "answer"
        except MemoryError as error:
            raise JobFailedError(f"no memory to answer a pull of {table.spec.named(0)}: {error}") from error
        peer.forget(wait)
        self._links.waiting[peer] = None

    def answer_range(self, wait: PullWait, bucket: Bucket, first: int, stop: int, version: int) -> None:
        """Answers a pull, which waits or has just arrived, from slices of a bucket that are ready at a version."""
        peer: Peer = wait.peer
        if self._may_queue(wait):
            for answer in bucket.answers(wait, first, stop, version):
                peer.outbox.put(answer, answer.entry.request)
            if wait.unanswered and wait.answered(bucket.spec.number, first, stop):
                peer.forget(wait)
            self._links.waiting[peer] = None

    def _may_queue(self, wait: PullWait) -> bool:
        """Whether more values may wait for the peer; if not, the pull is refused."""
        peer: Peer = wait.peer
        nbytes, segments = peer.outbox.queued_bytes, peer.outbox.queued_segments
        if nbytes <= peer.most_queued + BATCH_BYTES and segments < MAX_QUEUED_SEGMENTS:
            return True
        detail = f"{nbytes} bytes of values in {segments} segments wait to be fetched already; wait for some of them"
        self._links.fail(peer, wait.request, FailureCode.REFUSED, detail)
        return False
