"""A bucket of dense keys on a shard: stores gradients, applies steps and answers pulls, over ranges of slices. Pure.

Gradients are stored as they arrive (`push`), and wait until those of all slots of their step are there. Then their sum
updates the values (`advance`), piece by piece. A slice's value is of one version at any time: nobody sees a half-made
update.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays import FEW, Alike, Array, Range, Segment, exact_sum, ranges_alike, ranges_where
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.bucket.sets import check_version
from weft_kvstore.bucket.steps import AnswerEntry, AnswerSegment, BucketSteps, PullWait, extremes
from weft_kvstore.bucket.update import BucketSpec, BucketUpdate
from weft_kvstore.bucket.values import BucketValues, EncodedValues, Gradient, PendingSegments, Pin, sum_dtype
from weft_kvstore.compression import PayloadError, SliceCodec
from weft_kvstore.description.records import Merge, StoreDescription, first_elements, is_given
from weft_kvstore.errors import OpenStoppedError, PushRefusedError
from weft_kvstore.wire.codec import ProtocolError, PushSegment
from weft_kvstore.wire.messages import PayloadKind, Reading
from weft_kvstore.wire.outbox import CALL_PRIORITY, OutSegment

# --- A bucket's way through its steps ---------------------------------------------------------------------------------


ADDED_EARLY_BYTES: Final = 1 << 16
"""Gradients of so many bytes may be added before the step's last ones are there: else those of all slots are kept."""

KEPT_GRADIENTS: Final = 4
"""So many of them wait to be added: a sum of several crosses memory once."""

OF_ROWS: Final = (PayloadKind.IDS, PayloadKind.RESTORED_STATE)
"""What is pushed of tables alone."""


class Bucket(BucketSteps):
    """In sync mode the gradients of a step are added in the order of slots: the last ones while
    the rule reads them, and large ones of the slots before as they come, so that a shard has no gradient of each."""

    def __init__(self, spec: BucketSpec, values: Array, given: Array, *, shared: bool = False) -> None:
        """`values` are the first values (elements); where a slice is `given` (slices) bool they are set later.
        `shared`: clients may read `values` where they are."""
        super().__init__(spec, spec.partition.bounds // values.dtype.itemsize)
        self.spec: BucketSpec = spec
        bounds = self.bounds
        self.update = BucketUpdate(spec, BucketValues(values, bounds, in_one=spec.is_whole, shared=shared))
        self._given = given
        self._uninitialized = given.copy()
        """Slices that were never set, and have no first value."""
        self.all_initialized = not given.any()
        """Whether every slice has a value."""
        self.pending_sets: dict[tuple[int, int], PendingSegments] = {}
        """Values for versions to come, by the number of a slot and the version: of the slot in async and stale mode,
        else of number 0."""
        self._codec = None if spec.pushed is None else SliceCodec(spec.pushed, bounds)
        """How gradients arrive encoded; None where they are not."""
        is_mean = spec.update is Update.MEAN
        self._sum_dtype = sum_dtype(values.dtype) if is_mean else None
        """The type in which gradients are added whose mean is wanted."""
        self._is_clipped = not is_mean and values.dtype.kind == "f"  # Whole numbers are no part of a gradient.
        """Whether its sums are measured and clipped, where steps are committed."""
        self._is_scaled = spec.pushed is None or not spec.pushed.residual
        """Whether gradients arrive multiplied by the loss scale."""
        self._sums = PendingSegments(bounds)
        """What is added of the next step of slices, and not applied."""
        count = len(spec.slots)
        self._adds_early = spec.is_sync and count > KEPT_GRADIENTS
        self._groups = [range(count)] if spec.is_sync and count else [range(one, one + 1) for one in range(count)]
        """The slots, by their numbers, whose gradients are one update."""

    @property
    def sets_waiting(self) -> int:
        """Slices that were set for versions that are still to come; may be asked on any thread."""
        return sum(map(len, list(self.pending_sets.values())))

    # --- What comes: gradients, that there are none, and values of a step with which a store begins

    def out_of_range(self, first: int, count: int, named: str) -> ProtocolError:
        """The error for slices that are not on this shard."""
        detail = f"slices {first} to {first + count - 1} of bucket {self.spec.number}"
        return ProtocolError(f"{named}: {detail}; this shard has 0 to {self.count - 1}")

    def check_segment(self, pushed: PushSegment) -> None:
        """Raises ProtocolError for a segment of rows, of slices that are not here, or with bytes that are none of
        theirs. It looks at nothing that changes: so all segments of a message are checked before anything of it
        happens, and who takes one in has to look for contradictions alone."""
        first, count, buffers = pushed.first, pushed.count, pushed.buffers
        if pushed.payload_kind in OF_ROWS or (pushed.chunks and pushed.payload_kind != PayloadKind.RESTORED):
            raise ProtocolError(f"bucket: {pushed.bucket} has no rows")
        if not 0 < count <= self.count - first:
            raise self.out_of_range(first, count, "Push.first")
        codec = self._codec if pushed.payload_kind == PayloadKind.GRADIENT else None
        begins = self.spec.partition.bounds if codec is None else codec.begins
        nbytes = buffers[0].nbytes if len(buffers) == 1 else sum(one.nbytes for one in buffers)
        if begins[first + count] - begins[first] != nbytes:
            encoded = "" if codec is None else f", encoded as {codec.codec.name}"
            what = f"{count} slices from {first} of bucket {pushed.bucket}{encoded}"
            raise ProtocolError(f"Push.nbytes: {nbytes} for {what}, not {begins[first + count] - begins[first]}")
        if codec is None:
            return
        try:
            codec.check(first, first + count, pushed.payload)
        except PayloadError as error:
            where = f"{self.spec.named(first + error.slice_)}, step {pushed.step}"
            raise ProtocolError(f"payload: {where}, of a segment from slice {first} on: {error}") from error

    def segments_of(self, pushed: PushSegment) -> list[Segment]:
        """The elements of a segment that is checked; their memory is taken over where it is writable."""
        first, stop = pushed.first, pushed.first + pushed.count
        if self._codec is not None and pushed.payload_kind == PayloadKind.GRADIENT:
            return [Segment(first, stop, self._codec.decode(first, stop, pushed.payload))]
        bounds, dtype, stops = self.spec.partition.bounds, self.update.values.dtype, [stop]
        if len(pushed.buffers) > 1:
            ends = np.cumsum([buffer.nbytes for buffer in pushed.buffers]) + bounds[first]
            stops = np.searchsorted(bounds, ends).tolist()
            if (bounds[stops] != ends).any():  # A slice lies in two buffers.
                return self.segments_of(pushed.copied())
        found = []
        for buffer, stop in zip(pushed.buffers, stops, strict=True):
            elements: Array = np.frombuffer(buffer, dtype)
            found.append(Segment(first, stop, elements if elements.flags.aligned else elements.copy()))
            first = stop
        return found

    def _add_early(self, index: int, step: int, first: int, stop: int) -> None:
        """Adds the gradients of some slices that are next in the order of the sum, where that of a slot is new among
        them and some slot's are still missing."""
        nbytes = (self.bounds[stop] - self.bounds[first]) * self.update.values.dtype.itemsize
        if nbytes < ADDED_EARLY_BYTES or (self.versions[first:stop] != step).any():
            return
        there: list[int] = []
        for one in self._order(step):
            if not (self.arrived[one, first:stop] > step).all():
                break
            there.append(one)
        if index not in there or (self.arrived[:, first:stop] > step).all():
            return
        layers = [self._sums, *[self._waiting[one, step] for one in there if (one, step) in self._waiting]]
        covered = [layer.covered(first, stop) for layer in layers]
        if covered.count(stop - first) >= KEPT_GRADIENTS and {*covered} <= {0, stop - first}:
            self._add(there, step, first, stop)

    def _add(self, indices: Sequence[int], step: int, first: int, stop: int) -> list[Segment]:
        """Adds the gradients that slots have of slices, in this order; they wait as one. Returns the sums; None for
        slices of which nobody has any."""
        found = []
        for low, high, layers, _ in self._take(indices, step, first, stop):
            total = Gradient(self.bounds, low, high, layers).total() if layers else None
            found.append(Segment(low, high, total))
            if total is not None:
                self._sums.put(found[-1])
        self.added[indices, first:stop] = step + 1
        return found

    def receive_set(self, slot: int, pushed: PushSegment, origin: Hashable) -> list[Range]:
        """Sets or restores slices; `origin` is the call. Returns the ranges for which pulls or a merge may have waited.
        Raises PushRefusedError where nothing was changed."""
        (segment,) = self.segments_of(pushed)
        if pushed.payload_kind == PayloadKind.VALUE:
            return self.set(slot, pushed.step, segment, origin)
        return self.restore(slot, pushed.step, pushed.chunks, segment, origin)

    def set(self, slot: int, version: int, segment: Segment, origin: Hashable) -> list[Range]:
        """Sets slices now, or keeps the values for their version, or until what the slot has pushed is applied; of a
        call, the `origin`, each slice once. The ranges for which pulls or a merge may have waited. Raises
        PushRefusedError for a version that has passed, that is too far ahead, or that is one too many."""
        spec, index, changed = self.spec, 0, []
        new = self.known_sets.new(segment.first, segment.stop, origin)
        if spec.sets_at_once:
            index = self.indices.get(slot, -1)
        else:
            self._check_set(slot, version, new)
        for low, high in new:
            now, given, uninitialized = self.versions[low:high], self._given[low:high], self._uninitialized[low:high]
            if not spec.sets_at_once:
                at_once, later = now == version, np.where(now < version, version, 0)
            else:
                later = np.zeros(high - low, np.int64)
                if self._waiting and index >= 0:  # Behind what the slot has pushed, which may wait for a first value.
                    arrived, added = self.arrived[index, low:high], self.added[index, low:high]
                    later = np.where((arrived > added) & ~uninitialized, arrived, 0)
                at_once = later == 0
                if not version and spec.slots:
                    # A first value is given once: a process that starts anew does not undo what was learned since.
                    at_once, later = np.where(given, uninitialized, at_once), np.where(given, 0, later)
            for first, stop in ranges_where(at_once, low):
                self._put(self._sums.narrow(segment, first, stop))
                changed.append((first, stop))
            for first, stop, number in ranges_alike(later, low):
                if number:
                    self.pending_sets.setdefault((index, number), PendingSegments(self.bounds)).replace(
                        segment, first, stop
                    )
        self.known_sets.add(segment.first, segment.stop, origin)
        return changed

    def _check_set(self, slot: int, version: int, new: list[Range]) -> None:
        for first, stop in new:
            for low, high, now in ranges_alike(self.versions[first:stop], first):
                at = low + int(self._given[low:high].argmin())  # The first that is not, if there is one.
                for slice_ in range(low, high) if self.pending_sets else (at,):  # Each counts what waits for itself.
                    waiting = [of for (_, of), some in self.pending_sets.items() if some.within(slice_, slice_ + 1)]
                    where, given = f"slot {slot}, {self.spec.named(slice_)}", bool(self._given[slice_])
                    check_version(where, version, now, now, given=given, waiting=waiting)

    def apply_sets(self, index: int, version: int, first: int, stop: int) -> None:
        """These slices are at a version now, of slot number `index`: what was set for it holds."""
        waiting = self.pending_sets.get((index, version))
        for segment in waiting.take(first, stop) if waiting is not None else ():
            self._put(segment)
        if not waiting:
            self.pending_sets.pop((index, version), None)

    def put_sets_of(self, slot: int) -> None:
        """What the slot has pushed is forgotten: values that have waited behind it, in async and stale mode, hold
        now."""
        index = self.indices.get(slot, -1)
        for of in sorted(key for key in self.pending_sets if key[0] == index and self.spec.sets_at_once):
            for segment in self.pending_sets.pop(of).segments:
                self._put(segment)

    def _put(self, segment: Segment) -> None:
        """These slices have this value now."""
        self.update.values.write(segment)
        if not self.all_initialized:
            self._uninitialized[segment.first : segment.stop] = False
            self.all_initialized = not self._uninitialized.any()

    def restore(self, slot: int, version: int, number: int, segment: Segment, origin: Hashable) -> list[Range]:
        """Restores slices that nobody has pushed: their value at a version if `number` is 0, else the rule's state
        array of that number. Returns the ranges that pulls may have waited for. Raises PushRefusedError."""
        changed = []
        new = self.known_sets.new(segment.first, segment.stop, origin)
        for low, high in new:
            self.check_restored(slot, version, low, high)
            if number > len(self.spec.state):
                detail = f"the rule has {len(self.spec.state)} state arrays, not {number}"
                raise PushRefusedError(f"{self._where(slot, version, low)}: {detail}")
        for low, high in new:
            value = self._sums.narrow(segment, low, high)
            if number:
                self.update.state[self.spec.state[number - 1]].write(value)
            else:
                self.begin_at(version, value, {}, self.spec.updates_at(version))
                changed.append((low, high))
        self.known_sets.add(segment.first, segment.stop, origin)
        return changed

    def begin_at(
        self,
        version: int,
        value: Segment,
        state: Mapping[str, Segment],
        updates: Array | int,
        owed: Array | None = None,
    ) -> None:
        """Has slices that nobody has pushed begin at a version: with a value, the rule's arrays by name, the number of
        updates made of each slice (slices) int64, or of all, and what compression owes to all workers (elements)."""
        if owed is not None:
            assert self.update.residual is not None
            self.update.residual[self.bounds[value.first] : self.bounds[value.stop]] = owed
        self._put(value)
        for name, segment in state.items():
            self.update.state[name].write(segment)
        self.update.updates[value.first : value.stop] = updates
        if self.spec.slots:
            self.begin_steps_at(version, value.first, value.stop)

    def advance(self, todo: list[Range]) -> Range | None:
        """Applies the next step to some of the slices `todo`, and removes from it those that have no further step
        complete. Returns the slices that have changed, None if there are none. Raises JobFailedError, MemoryError."""
        while todo:
            first, stop = todo.pop()
            for indices in self._groups:
                piece = self._next_piece(indices, first, stop)
                if piece is None:
                    continue
                low, high, step = piece
                is_done = self._apply(indices, step, low, high)
                if not self.spec.is_sync:  # Of any slot, and any of these slices, another step may be next.
                    if self._waiting:
                        todo.append((first, stop))
                    return low, high
                if high < stop:
                    todo.append((high, stop))
                if is_done:
                    if (0, step + 1) in self._waiting:
                        todo.append((low, high))
                    return low, high
        return None

    def _next_piece(self, indices: range, first: int, stop: int) -> tuple[int, int, int] | None:
        """The first of these slices whose next step has arrived from all of these slots and that have a value, as many
        as one piece may have, and that step. A whole key is one piece."""
        spec = self.spec
        arrived = self.arrived[indices.start : indices.stop]
        done = self.versions if spec.is_sync else self.added[indices.start]
        if spec.is_whole:
            first, stop = 0, self.count
        arrived, done = arrived[:, first:stop], done[first:stop]
        numbers = done.tolist() if done.size <= FEW else [int(done.min()), int(done.max())]
        least, greatest = extremes(arrived)
        behind, last, oldest, newest = min(least), min(greatest), min(numbers), max(numbers)
        if last <= oldest:
            return None
        low, high, step = first, stop, oldest
        if not (oldest == newest < behind and self.all_initialized):  # Nearly always it is.
            ready: Array = np.logical_and.reduce(arrived > done) & ~self._uninitialized[first:stop]
            low = int(ready.argmax())
            if not ready[low] or (spec.is_whole and not ready.all()):
                return None
            step = int(done[low])
            other = ~ready[low:] | (done[low:] != step)
            low, high = first + low, first + low + int(other.argmax()) if other.any() else stop
        if spec.is_whole or high - low == 1:
            return low, high, step
        most = int(np.searchsorted(self.bounds, self.bounds[low] + spec.piece_elements, side="right")) - 1
        return low, min(max(most, low + 1), low + spec.piece_slices, high), step

    def _apply(self, indices: range, step: int, first: int, stop: int) -> bool:
        """Applies a step that has arrived to slices. False where it is not committed."""
        spec = self.spec
        factor: float | None = 1.0
        at = first if stop - first == 1 else slice(first, stop)
        if spec.gate is not None:
            is_new: Array = np.logical_or.reduce(self.added[:, first:stop] <= step)
            for low, high in ranges_where(is_new, first):
                self._measure(spec.gate, step, low, high)
            committed = spec.gate.committed(step)
            if committed is None:
                return False
            factor = committed.factor
        order = self._order(step) if spec.is_sync and spec.merge is Merge.ARRIVAL else indices
        for low, high, layers, contributors in self._take(order, step, first, stop):
            if layers and factor is not None:
                for one in layers[0] if factor != 1.0 and self._is_clipped else ():  # All is in one sum by now.
                    np.multiply(one.elements, one.elements.dtype.type(factor), out=one.elements)
                self.update.with_gradient(Gradient(self.bounds, low, high, layers), contributors, step)
            elif spec.is_sync:
                self.update.without_gradient(low, high)
        self.added[indices.start : indices.stop, at] = step + 1
        self.versions[at] = step + 1 if spec.is_sync else self.added[:, at].min(axis=0)
        if self.pending_sets:
            self.apply_sets(indices.start, step + 1, first, stop)
        if spec.is_sync and self.reached is not None:
            self.reached(step + 1, first, stop)
        return True

    def _measure(self, gate: StepGate, step: int, first: int, stop: int) -> None:
        """Adds what there is of a complete step of slices, and tells the gate the exact sum of their sums of squares,
        each in float64; None where that is not finite. What was multiplied by the loss scale is divided by it."""
        scale = gate.loss_scale.scale if self._is_scaled else 1.0
        for low, high, total in self._add(self._order(step), step, first, stop):
            squares: int | None = 0
            if total is not None and self._is_clipped:
                if scale != 1.0:
                    np.multiply(total, total.dtype.type(1.0 / scale), out=total)
                edges = (self.bounds[low : high + 1] - self.bounds[low]).tolist()
                each = [np.square(total[begin:end], dtype=np.float64).sum() for begin, end in pairwise(edges)]
                squares = exact_sum(np.array(each))
            gate.hold(step, squares, high - low)

    def _take(
        self, indices: Sequence[int], step: int, first: int, stop: int
    ) -> list[tuple[int, int, list[list[Segment]], int]]:
        """Removes what slots, in this order, have of a step of slices, behind what is added of it. By ranges to which
        equally many slots contribute: the gradients, and how many slots that are."""
        sums = self._sums.take(first, stop) if self._sums.segments else []
        layers, is_alike = [sums] if sums else [], not sums
        for index in indices:
            pending = self._waiting.get((index, step))
            if pending is None:
                continue  # It is in the sum.
            segments, layer = pending.take(first, stop), []
            if not pending.segments:
                del self._waiting[index, step]
            for one in segments:
                self.pushed[index, one.first : one.stop] = has_gradient = one.elements is not None
                if has_gradient:
                    layer.append(one if self._sum_dtype is None else self._widened(one))
            if layer:
                layers.append(layer)
                is_alike = is_alike and len(layer) == len(segments)
        if is_alike:
            return [(first, stop, layers, len(layers))]
        pushed, found = self.pushed if self.spec.is_sync else self.pushed[indices], []
        for low, high, count in ranges_alike(np.count_nonzero(pushed[:, first:stop], axis=0), first):
            here = [[one for one in layer if one.first < high and low < one.stop] for layer in layers]
            found.append((low, high, [layer for layer in here if layer], count))
        return found

    def _widened(self, segment: Segment) -> Segment:
        """In the type of the sum."""
        return segment._replace(elements=segment.elements.astype(self._sum_dtype or segment.elements.dtype, copy=False))

    # --- Pulls, and what answers them

    def ready(self, wait: PullWait, first: int, stop: int) -> list[Alike]:
        """The unanswered slices among these that can answer, by the version that they have for it."""
        ranges = wait.unanswered.get(self.spec.number)
        wanted = ranges.overlaps(first, stop) if ranges is not None else []
        if len(wanted) == 1:
            return self.answerable(wait, *wanted[0])
        return [one for low, high in wanted for one in self.answerable(wait, low, high)]

    def answerable(self, wait: PullWait, first: int, stop: int) -> list[Alike]:
        """The same for slices that are all unanswered, or have just been asked for."""
        seen = self.seen(wait, first, stop)
        if seen is None:
            alike = [(first, stop, wait.version)]
        else:
            alike = ranges_alike(seen, first) if stop - first > 1 else [(first, stop, int(seen[0]))]
        if self.all_initialized and self.spec.staleness is None:
            version, is_exact = wait.version, wait.reading is Reading.EXACT
            if len(alike) == 1 and alike[0][2] == version:  # As nearly all are.
                return alike
            return [one for one in alike if one[2] == version or (one[2] > version and not is_exact)]
        return [
            (*some, version)
            for low, high, version in alike
            for some in ranges_where(self.can_answer(wait, low, high), low)
        ]

    def answers(self, wait: PullWait, first: int, stop: int, version: int) -> list[AnswerSegment]:
        """The segments that answer a pull from slices that are `ready` at a version; these are pinned until they have
        arrived."""
        update, entry = self.update, AnswerEntry(wait.request, 0, self.spec.number, version)
        arrays: Iterable[tuple[BucketValues, int, int, AnswerEntry]]
        if update.previous is not None and self._is_previous(wait, first, stop, version):
            arrays = [(update.previous, first, stop, entry._replace(version=wait.version))]
        elif wait.state:
            names = enumerate(self.spec.state)
            arrays = [(update.state[name], first, stop, entry._replace(array=number)) for number, name in names]
        elif wait.compressed and version and update.encoded is not None:
            arrays = self._encoded(update.encoded, first, stop, entry)
        else:
            arrays = [(update.values, first, stop, entry)]
        all_priorities, of_call, found = self.spec.partition.priorities, wait.priority * CALL_PRIORITY, []
        for values, begin, end, entry in arrays:
            for low, high, block, index, bounds in values.sections(begin, end):
                priority, priorities = int(all_priorities[low]), None
                if high - low > 1 and priority != all_priorities[high - 1]:
                    priorities = all_priorities[low:high] - of_call
                pin = Pin(block, index, high - low, first=low)
                segment: AnswerSegment = OutSegment(
                    entry, low, bounds, block.source, priority=priority - of_call, owner=pin, priorities=priorities
                )
                found.append(segment)
        return found

    def _is_previous(self, wait: PullWait, first: int, stop: int, version: int) -> bool:
        """Whether a pull of the version before that of these slices is answered with their previous values."""
        if version != wait.version + 1 or wait.state or wait.reading is not Reading.OWN:
            return False
        return bool((self.began_at[first:stop] < version).all())

    def uninitialized(self, first: int, stop: int, wait: PullWait | None = None) -> Array:
        found: Array = self._uninitialized[first:stop]
        return found

    def can_answer(self, wait: PullWait, first: int = 0, stop: int = 1) -> Array:
        """Which slices can answer (stop - first) bool: none that is uninitialized."""
        can = super().can_answer(wait, first, stop)
        return can if self.all_initialized else can & ~self._uninitialized[first:stop]

    def _encoded(
        self, encoded: EncodedValues, first: int, stop: int, entry: AnswerEntry
    ) -> Iterator[tuple[BucketValues, int, int, AnswerEntry]]:
        """Encoded slices, and those as they are of which there are no such bytes."""
        values = self.update.values
        for low, high in encoded.missing(first, stop):
            for one in values.elements(low, high):
                encoded.encode(*one)
        for low, high, changed in ranges_alike(encoded.changed[first:stop], first):
            yield values if changed else encoded.values, low, high, entry._replace(compressed=not changed)

    # --- Gradients in a client's memory

    def reads(self, slot: int, pushed: PushSegment) -> bool:
        """Whether gradients of a slot's segment that wait for their step are in the client's memory."""
        pending = self._waiting.get((self.indices.get(slot, -1), pushed.step))
        return pending is not None and any(
            map(_is_elsewhere, pending.within(pushed.first, pushed.first + pushed.count))
        )

    def copy_pending(self, slot: int) -> None:
        """Copies gradients of a slot that are in the client's memory, which is not read after that."""
        index = self.indices.get(slot)
        for pending in [some for (of, _), some in self._waiting.items() if of == index]:
            pending.segments = [
                one._replace(elements=one.elements.copy()) if _is_elsewhere(one) else one for one in pending.segments
            ]


def _is_elsewhere(segment: Segment) -> bool:
    """Whether its elements may be in the memory of another process, which can only be read."""
    return segment.elements is not None and not segment.elements.flags.writeable


# --- Made from the description ----------------------------------------------------------------------------------------


FIRST_ELEMENTS: Final = 1 << 22
"""Elements of first values that are made before `stopped` is asked again: some 200 ms."""


def make_bucket(
    description: StoreDescription,
    spec: BucketSpec,
    stopped: Callable[[], bool],
    *,
    memory: Array | None = None,
) -> Bucket:
    """The bucket with its first values, in `memory` (bytes) that clients may read, where there is some. Raises
    OpenStoppedError soon after `stopped` says so, and ValueError for an initializer that there is not."""
    keys, partition = description.keys, spec.partition
    dtype = np.dtype(keys[partition.ranges[0].key_index].dtype)
    count = int(partition.bounds[-1]) // dtype.itemsize
    values: Array = np.empty(count, dtype) if memory is None else memory.view(dtype)
    given = np.zeros(len(partition), np.bool_)
    for key_range in partition.ranges:
        key = keys[key_range.key_index]
        begin = int(partition.bounds[key_range.first]) // dtype.itemsize - key_range.start
        for low in range(key_range.start, key_range.end, FIRST_ELEMENTS):
            if stopped():
                raise OpenStoppedError(f"key {key.key!r}: the job is not wanted any more")
            high = min(low + FIRST_ELEMENTS, key_range.end)
            values[begin + low : begin + high] = first_elements(key, description.seed, low, high)
        given[key_range.first : key_range.stop] = is_given(key)
    return Bucket(spec, values, given, shared=memory is not None)
