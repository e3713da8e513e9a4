"""The steps of a bucket or table: which have arrived, by slot and slice, and which pushes and pulls wait. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from weft_graph.program import Update
from weft_kernels.rules.record import Rule
from weft_kernels.run import KernelError
from weft_kvstore.arrays import FEW, Array, Range, Ranges, Segment, ranges_where
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.bucket.sets import KnownSets
from weft_kvstore.bucket.values import PendingSegments, Pin
from weft_kvstore.description.records import Merge
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.hyper import KeyHyper
from weft_kvstore.settings import STEPS_AHEAD
from weft_kvstore.wire.messages import Reading
from weft_kvstore.wire.outbox import OutSegment

# --- How a bucket or a table is merged and updated --------------------------------------------------------------------


RULE_ERRORS: Final = (ArithmeticError, ValueError, MemoryError, KernelError)
"""Errors that a rule or a schedule may raise on the numbers that it gets. Any other is a fault of the store."""


THE_BARRIER: Final = "the barrier"
"""What errors call the key of barriers, which users do not see."""


class JobFailedError(Exception):
    """The job ends, not the shard: a rule cannot make an update, or there is no memory. The text names the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSpec:
    """How bucket `number`, of dense keys or of a table, is merged and updated. `is_sync`: a step applies once all slots
    have pushed it, not each slot's by itself. `staleness`: how many steps slots may be apart; None where there is no
    bound. `piece_elements`: elements that the rule updates at once. `gate`: what holds each step until the slots have
    agreed on it, where they do."""

    number: int
    slots: tuple[int, ...]
    update: Update
    merge: Merge
    is_sync: bool
    staleness: int | None
    rule: Rule
    hyper: KeyHyper
    piece_elements: int
    gate: StepGate | None

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the state arrays."""
        return tuple(self.rule.state) if self.update is Update.RULE else ()

    @property
    def is_ruled(self) -> bool:
        """Whether a rule ever updates it."""
        return self.update is Update.RULE and bool(self.slots)

    @property
    def sets_at_once(self) -> bool:
        """Whether a value that is set is there at once: in async and stale mode, or where nobody contributes."""
        return not self.is_sync or not self.slots

    def updates_at(self, version: int) -> int:
        """How many updates there have been once each slot has made so many steps."""
        return version if self.is_sync else version * len(self.slots)

    def key_named(self, slice_: int) -> str:
        """The words by which an error names the key of a slice."""
        raise NotImplementedError

    def named(self, slice_: int) -> str:
        """The words by which an error names a slice."""
        return self.key_named(slice_)

    def failed(self, step: int, error: Exception, first: int = 0, last: int = 0) -> JobFailedError:
        """The error where the rule has failed on slices that were computed at once."""
        where = self.named(first) if last == first else f"{self.named(first)} to {self.named(last)}"
        detail = str(error) or type(error).__name__  # A MemoryError has no words.
        return JobFailedError(f"rule {self.rule.name!r} failed on {where}, step {step}: {detail}")


# --- A pull on a shard, until it is answered --------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class PullWait:
    """A pull on this shard by `slot`; `peer` is the client. `unanswered` has, by bucket, the slices that are not
    answered; `rows` are those that a pull of a table asks for (`tables.RequestedRows`). `compressed`: values may be
    encoded for it. `priority` is the call's own: answers to a higher one are sent first. `entries`: how many ranges
    were asked for, of any length, which is what it costs to look at.
    """

    peer: Any
    request: int
    version: int
    _: KW_ONLY
    slot: int
    state: bool
    reading: Reading
    compressed: bool = False
    priority: int = 0
    entries: int = 0
    rows: Any = None
    unanswered: dict[int, Ranges] = field(default_factory=dict)
    dropped: bool = False

    def drop(self, buckets: Mapping[int, BucketSteps]) -> None:
        """It was cancelled, or has failed: removes it from its shard's `buckets`."""
        self.dropped = True
        for number in self.unanswered:
            buckets[number].forget_pull(self)
        self.unanswered = {}
        self.rows = None

    def want(self, bucket: int, first: int, stop: int) -> None:
        """Adds slices that have to answer."""
        ranges = self.unanswered.get(bucket)
        if ranges is None:
            self.unanswered[bucket] = Ranges((first, stop))
        else:
            ranges.add(first, stop)

    def answered(self, bucket: int, first: int, stop: int) -> bool:
        """These slices have answered. Returns whether the pull is answered in full."""
        ranges = self.unanswered[bucket]
        if ranges.remove(first, stop):
            del self.unanswered[bucket]
        return not self.unanswered


class AnswerEntry(NamedTuple):
    """The fields of a segment of values beside its slice numbers: see `messages.Values`."""

    request: int
    array: int
    bucket: int
    version: int
    compressed: bool = False


AnswerSegment: TypeAlias = OutSegment[AnswerEntry, Pin | None]
"""Slices, or chunks, of an array that answer a pull, on their way. Its owner pins them until they have arrived;
None where nobody writes the array."""


# --- The steps of a bucket's slices, or of a table, which is one slice: what is pushed and pulled ---------------------


MOST_RESTORED: Final = 1 << 60
"""Steps, and updates, that a store may begin with: what is counted from there stays within 64 bits."""


class BucketSteps:
    """Which steps of a bucket have arrived on a shard, by slot and slice, and what waits for others.

    `arrived[i]`: how many steps have arrived from contributing slot number i, by slice, and `added[i]` how many of
    them are added up. `versions` counts those that are added up of every slot and applied. Invariant: `versions` <=
    `added` <= `arrived`, except that in async and stale mode `versions` is the least of `added`. `began_at` is
    the version with which a slice began. `indices` has the number of each slot that contributes. `pushed[i]`: whether
    the slot had gradients of the last step that is added up of it and not applied.

    `_waiting` has, by the number of a slot and step, the gradients that came and are not added up, or that the slot
    has none: of steps that are in, and of at most STEPS_AHEAD steps that came before the one before them.

    Pulls wait by the version before which they are not answered, and those of a version that no slice has reached are
    not looked at. A pull that is answered, or given up, is forgotten at once: nothing here keeps what it was for.
    """

    def __init__(self, spec: UpdateSpec, bounds: Array) -> None:
        """Slice i has the elements from `bounds[i]` to before `bounds[i + 1]`."""
        self.spec = spec
        self.bounds = bounds
        self.count = slices = len(bounds) - 1
        """How many slices."""
        self.indices = {slot: index for index, slot in enumerate(spec.slots)}
        self.arrived = np.zeros((len(spec.slots), slices), np.int64)
        self.added = np.zeros((len(spec.slots), slices), np.int64)
        self.pushed = np.zeros((len(spec.slots), slices), np.bool_)
        self.versions = np.zeros(slices, np.int64)
        self.began_at = np.zeros(slices, np.int64)
        self.reached: Callable[[int, int, int], None] | None = None
        """Called with (version, first, stop) of slices that have reached a version together, while a capture runs."""
        self.known_sets = KnownSets()
        """The slices, or chunks of a table, that the last calls have set or restored."""
        self._waiting: dict[tuple[int, int], PendingSegments] = {}
        self._adds_early = False
        self._pulls: dict[int, dict[int, tuple[int, int, PullWait]]] = {}
        """By version, and by identity: the first and the stop of the slices that a pull wanted when it came."""
        self.pulled_versions: list[int] = []
        """The versions for which pulls wait, in order."""
        self.was_set: Range | None = None
        """Where values were set, while pulls that wait for them are not answered."""

    # --- Pushes

    @property
    def has_waiting(self) -> bool:
        """Whether anything has come that is neither applied nor in a sum."""
        return bool(self._waiting)

    def push(self, slot: int, step: int, segments: Sequence[Segment]) -> list[Range]:
        """Stores a slot's gradients of adjacent slices, as `check` and `accept` do; most come as the next step of their
        slices. Returns the slices that may have a step complete."""
        first, stop = segments[0].first, segments[-1].stop
        index, is_sync = self.indices.get(slot), self.spec.is_sync
        if index is not None and (index, step + 1) not in self._waiting:  # Else that early step is due with this one.
            arrived = self.arrived[:, first:stop]
            least, greatest = extremes(arrived)
            is_next = least[index] == greatest[index] == step
            if is_next and (not is_sync or step <= min(least) + STEPS_AHEAD):  # As nearly all are.
                arrived[index] = step + 1
                pending = self._waiting.get((index, step))
                if pending is None:
                    self._waiting[index, step] = PendingSegments(self.bounds, segments)
                else:
                    pending.put(*segments)
                if self._adds_early:
                    self._add_early(index, step, first, stop)
                greatest[index] += 1
                return [(first, stop)] if not is_sync or min(greatest) > step else []
        self.check(slot, step, first, stop, pushes=True)
        accepted = [one for segment in segments for one in self.accept(slot, step, segment)]
        for first, stop in accepted if self._adds_early else ():
            self._add_early(self.indices[slot], step, first, stop)
        return accepted

    def check(self, slot: int, step: int, first: int, stop: int, *, pushes: bool) -> None:
        """Raises PushRefusedError if a slot's gradients, or its declaration that it has none, contradict what it sent
        before, or are too many steps ahead."""
        spec, index = self.spec, self.indices.get(slot)
        if index is None:
            raise PushRefusedError(f"{self._where(slot, step, first)}: only slots {list(spec.slots)} contribute to it")
        arrived = self.arrived[index, first:stop]
        wrong: list[int] = []
        if spec.is_sync and step < arrived.max():  # Of added steps, only one that is not applied is known.
            open_ = (self.versions[first:stop] == step) & (self.added[index, first:stop] == step + 1)
            wrong = (first + np.flatnonzero(open_ & (self.pushed[index, first:stop] != pushes))).tolist()
        waiting = self._waiting.get((index, step))
        for one in waiting.within(first, stop) if waiting is not None else ():
            if (one.elements is not None) != pushes:
                wrong.append(max(one.first, first))
        if wrong:
            was, now = ("declared nothing", "pushes") if pushes else ("pushed", "declares nothing")
            raise PushRefusedError(f"{self._where(slot, step, wrong[0])}: the slot {was} before and {now} now")
        those = self.arrived[:, first:stop] if spec.is_sync else self.arrived[index : index + 1, first:stop]
        if step > those.min() + STEPS_AHEAD:
            at = int(those.min(axis=0).argmin())
            behind = int(those[:, at].min())
            slots = spec.slots if spec.is_sync else [slot]
            missing = [one for one, there in zip(slots, those[:, at], strict=True) if there <= behind]
            detail = f"more than {STEPS_AHEAD} steps ahead of step {behind}, which waits for slots {listed(missing)}"
            raise PushRefusedError(f"{self._where(slot, step, first + at)}: {detail}")

    def accept(self, slot: int, step: int, segment: Segment) -> list[Range]:
        """Stores gradients that `check` has accepted, whose memory is the bucket's from then on, or the word that there
        are none. Returns the slices that may have a step complete. Gradients that arrived before are ignored, so that
        each push counts once."""
        index, arrived = self.indices[slot], self.arrived[self.indices[slot]]
        here = arrived[segment.first : segment.stop]
        accepted, early = ranges_where(here == step, segment.first), ranges_where(here < step, segment.first)
        if accepted or early:
            pending = self._waiting.setdefault((index, step), PendingSegments(self.bounds))
            for first, stop in (*accepted, *early):
                pending.replace(segment, first, stop)  # A repeated early push is the same.
        due = accepted
        while due:
            step += 1
            for first, stop in due:
                arrived[first:stop] = step
            waiting = self._waiting.get((index, step)) or PendingSegments(self.bounds)
            due = [
                one
                for first, stop in due
                for low, high, _ in waiting.within(first, stop)
                for one in ranges_where(arrived[max(low, first) : min(high, stop)] == step, max(low, first))
            ]
        return accepted

    def replace(self, slot: int) -> None:
        """A newer incarnation fills the slot: forgets what the old one pushed and was not added."""
        index = self.indices.get(slot)
        if index is not None:
            for of, step in [key for key in self._waiting if key[0] == index]:
                del self._waiting[of, step]
            self.arrived[index] = self.added[index]

    def at_version(self, version: int) -> tuple[Array, Array]:
        """Which slices are at a version (slices) bool, and which are beyond it. A key to which no slot
        contributes is at every version."""
        if not self.spec.slots:
            return np.ones(self.count, np.bool_), np.zeros(self.count, np.bool_)
        return self.versions == version, self.versions > version

    def begin_steps_at(self, version: int, first: int, stop: int) -> None:
        """Untouched slices begin at a version."""
        for counts in (self.arrived, self.added, self.versions, self.began_at):
            counts[..., first:stop] = version

    def check_restored(self, slot: int, version: int, first: int, stop: int) -> None:
        """Raises PushRefusedError where slices cannot be brought back at a version."""
        detail = ""
        if self.spec.gate is not None:
            detail = "a store with commit cannot be restored: its steps begin at 0"
        elif max(version, self.spec.updates_at(version)) >= MOST_RESTORED:
            detail = "a store is restored at a step below 2^60, and with fewer updates of all slots together"
        elif not self.is_untouched(first, stop):
            detail = "it cannot be restored: a step of it has begun; restore before anybody pushes"
        if detail:
            raise PushRefusedError(f"{self._where(slot, version, first)}: {detail}")

    def is_untouched(self, first: int, stop: int) -> bool:
        """Whether no slot has pushed any step of these slices, or declared that it has nothing."""
        waiting = [one for one in self._waiting.values() if one.within(first, stop)]
        return not waiting and bool((self.arrived[:, first:stop] == self.began_at[first:stop]).all())

    def _add_early(self, index: int, step: int, first: int, stop: int) -> None:
        """Where it `_adds_early`: some slices of a slot's gradients have come."""

    def _order(self, step: int) -> Sequence[int]:
        """The slots, by their numbers, in the order in which their gradients of a step are added."""
        if self.spec.merge is Merge.ARRIVAL:
            return [index for index, of in self._waiting if of == step]
        return range(len(self.spec.slots))

    def _where(self, slot: int, step: int, slice_: int) -> str:
        return f"slot {slot}, {self.spec.named(slice_)}, step {step}"

    # --- Pulls

    def add_pull(self, wait: PullWait, first: int = 0, stop: int = 1) -> None:
        """Adds a pull that waits for some of these slices."""
        version = self._version_of(wait)
        if version not in self._pulls:
            self._pulls[version] = {}
            insort(self.pulled_versions, version)
        self._pulls[version][id(wait)] = first, stop, wait

    def pulls_of(self, first: int = 0, stop: int = 1) -> list[PullWait]:
        """The pulls that came for some of these slices, unless for a version that none of them has reached."""
        if not self.pulled_versions:
            return []
        reached = self.versions[None] if self.spec.is_sync or not self.spec.slots else self.added
        count = bisect_right(self.pulled_versions, max(extremes(reached[:, first:stop])[1]))
        return [
            wait
            for version in self.pulled_versions[:count]
            for low, high, wait in self._pulls[version].values()
            if low < stop and high > first
        ]

    def forget_pull(self, wait: PullWait) -> None:
        """Removes a pull that waits for nothing here any more."""
        version = self._version_of(wait)
        some = self._pulls.get(version)
        if some is not None and some.pop(id(wait), None) is not None and not some:
            del self._pulls[version]
            del self.pulled_versions[bisect_left(self.pulled_versions, version)]

    def _version_of(self, wait: PullWait) -> int:
        """The version before which it is not answered; 0 where slices are at every version for it."""
        return 0 if self.seen(wait, 0, 0) is None else wait.version

    def seen(self, wait: PullWait, first: int = 0, stop: int = 1) -> Array | None:
        """The version that each slice has for a pull; None where it is at every version. In async and stale mode a slot
        sees its own steps."""
        if not self.spec.slots:
            return None
        if self.spec.is_sync or wait.reading is Reading.SETTLED:
            found: Array = self.versions[first:stop]
            return found
        index = self.indices.get(wait.slot)
        return None if index is None else self.added[index, first:stop]

    def can_answer(self, wait: PullWait, first: int = 0, stop: int = 1) -> Array:
        """Which slices can answer a pull (stop - first) bool: those at its version, if every slot is within the bound
        of staleness."""
        seen, bound = self.seen(wait, first, stop), self._bound(wait)
        if seen is None:
            can = np.ones(stop - first, np.bool_)
        else:
            can = seen == wait.version if wait.reading is Reading.EXACT else seen >= wait.version
        if bound is not None:
            can = can & (self.versions[first:stop] >= bound)
        return can

    def _bound(self, wait: PullWait) -> int | None:
        """How many steps of every slot must be applied, whoever asks; None where there is no such bound."""
        staleness = self.spec.staleness if self.spec.slots and wait.reading is not Reading.SETTLED else None
        return None if staleness is None else wait.version - staleness

    def uninitialized(self, first: int, stop: int, wait: PullWait | None = None) -> Array:
        """Which slices wait until somebody sets a value (stop - first) bool: with their next step, or with a pull."""
        raise NotImplementedError

    def uninitialized_named(self, slice_: int) -> str:
        """Names what an uninitialized slice waits for."""
        return f"{self.spec.key_named(slice_)} was never set: a worker has to call init"

    def passed(self, wait: PullWait, first: int, stop: int) -> str | None:
        """Why a pull of an exact version can never be answered, once one of its unanswered slices is beyond it."""
        ranges = wait.unanswered.get(self.spec.number)
        for low, high in ranges.overlaps(first, stop) if ranges is not None else ():
            beyond = self.versions[low:high] > wait.version
            if beyond.any():
                at = low + int(beyond.argmax())
                return f"{self.spec.named(at)} is at version {self.versions[at]}: it has passed"
        return None

    def pull_waits_for(self, wait: PullWait) -> tuple[str, list[int]]:
        """What an open pull waits for here, in words, and the slots that are missing."""
        for low, high in wait.unanswered[self.spec.number]:
            can = self.can_answer(wait, low, high)
            if not can.all():
                return self._missing(wait, low + int(can.argmin()))
        return "every slice was answered", []

    def _missing(self, wait: PullWait, slice_: int) -> tuple[str, list[int]]:
        spec, bound, seen = self.spec, self._bound(wait), self.seen(wait, slice_, slice_ + 1)
        is_there = seen is None or bool(seen[0] >= wait.version)
        if spec.is_sync:
            text, missing = self.step_waits_for(slice_)
        else:
            of, version = list(self.indices.values()), wait.version
            if bound is not None and is_there:
                version = bound
            elif wait.reading is not Reading.SETTLED:
                of = [self.indices[wait.slot]] if wait.slot in self.indices else []
            text, missing = self._behind(slice_, version, of)
        key = spec.key_named(slice_)
        if (is_there or not missing) and self.uninitialized(slice_, slice_ + 1, wait)[0]:
            return self.uninitialized_named(slice_), []
        if not missing and spec.gate is not None:
            version = int(self.versions[slice_])
            text, missing = spec.gate.missing(version)
            return f"{key} has seen {version} steps; {text}", missing
        if missing and key == THE_BARRIER:
            return f"waits for slots {listed(missing)} to call it", missing
        return f"{key} {text}", missing

    def step_waits_for(self, slice_: int) -> tuple[str, list[int]]:
        """What the next step of a slice waits for, in words, and the slots that are missing."""
        step = int(self.versions[slice_])
        arrived = self.arrived[:, slice_].tolist()
        missing = [slot for slot, there in zip(self.spec.slots, arrived, strict=True) if there <= step]
        return f"has seen {step} steps; {_waits_for(step, missing)}", missing

    def _behind(self, slice_: int, version: int, of: list[int]) -> tuple[str, list[int]]:
        """The same for a version, in async or stale mode; `of`: the numbers of the slots whose steps count."""
        behind = {self.spec.slots[p]: int(self.arrived[p, slice_]) for p in of if self.added[p, slice_] < version}
        first = min(behind.values(), default=version)
        missing = [slot for slot, step in behind.items() if step == first and step < version]
        slots = missing or [self.spec.slots[p] for p in of]
        return f"has seen {first} steps of slots {listed(slots)}; {_waits_for(first, missing)}", missing


def _waits_for(step: int, missing: list[int]) -> str:
    return f"step {step} waits for slots {listed(missing)}" if missing else f"step {step} is being merged"


def listed(slots: list[int]) -> str:
    return ", ".join(map(str, slots))


def extremes(numbers: Array) -> tuple[list[int], list[int]]:
    """The least and the greatest of each row of int64 numbers (rows, n)."""
    if numbers.size <= FEW:
        rows = numbers.tolist()
        return [*map(min, rows)], [*map(max, rows)]
    return np.minimum.reduce(numbers, axis=1).tolist(), np.maximum.reduce(numbers, axis=1).tolist()
