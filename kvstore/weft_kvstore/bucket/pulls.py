"""Pulls of slices on a shard: which wait, and what answers them. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from weft_kvstore.arrays import Alike, Array, Ranges, greatest, ranges_alike, ranges_where
from weft_kvstore.bucket.sets import BucketSets
from weft_kvstore.bucket.steps import BucketSteps, UpdateSpec, listed
from weft_kvstore.bucket.update import THE_BARRIER, BucketSpec, BucketUpdate, BucketValues, EncodedValues, Pinnable
from weft_kvstore.description.records import Mode
from weft_kvstore.wire.messages import Reading
from weft_kvstore.wire.outbox import CALL_PRIORITY, OutSegment

# --- A pull on a shard, until it is answered --------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class PullWait:
    """A pull on this shard by `slot`; `peer` is the client that asked. `open` has, by bucket, the slices that are not
    answered; `rows` are those that a pull of a table asks for (`tables.state.AskedRows`). `compressed`: values may be
    encoded for it. `priority` is the call's own: answers to a higher one are sent first. `entries`: how many ranges
    were asked for, of any length, which is what it costs to look at. `waits_in`: the buckets where it waits, or has
    waited.
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
    open: dict[int, Ranges] = field(default_factory=dict)
    dropped: bool = False
    waits_in: list[WaitingPulls] = field(default_factory=list)

    @property
    def settled(self) -> bool:
        """Whether the steps of every slot count, where slots go on by themselves."""
        return self.reading is Reading.SETTLED

    def drop(self) -> None:
        """It was cancelled, or has failed: nothing is kept for it."""
        self.dropped = True
        for pulls in self.waits_in:
            pulls.forget(self)
        self.waits_in = []
        self.open = {}
        self.rows = None

    def want(self, bucket: int, first: int, stop: int) -> None:
        """These slices have to answer."""
        ranges = self.open.get(bucket)
        if ranges is None:
            self.open[bucket] = Ranges((first, stop))
        else:
            ranges.add(first, stop)

    def answered(self, bucket: int, first: int, stop: int) -> bool:
        """These slices have. Whether that was all of the pull."""
        ranges = self.open[bucket]
        if ranges.remove(first, stop):
            del self.open[bucket]
        return not self.open


# --- What answers a pull, or a part of it -----------------------------------------------------------------------------


class AnswerEntry(NamedTuple):
    """What a segment of values says beside slice numbers: see `messages.Values`."""

    request: int
    array: int
    bucket: int
    version: int
    compressed: bool = False


class Pin:
    """Pins `count` parts of an array from number `part` on; nothing if the array is None. `first` is what its owner
    calls the first of them."""

    __slots__ = ("_offset", "pinnable")

    def __init__(self, pinnable: Pinnable | None, part: int, count: int, *, first: int = 0) -> None:
        self.pinnable = pinnable
        self._offset = part - first
        if pinnable is not None:
            pinnable.pinned[part if count == 1 else slice(part, part + count)] += 1

    def release(self, first: int, count: int) -> None:
        """Unpins some that have arrived, or will not be sent."""
        if self.pinnable is not None:
            part = first + self._offset
            self.pinnable.pinned[part if count == 1 else slice(part, part + count)] -= 1


UNPINNED: Final = Pin(None, 0, 0)
"""The owner of segments of an array that is written by nobody."""


AnswerSegment: TypeAlias = OutSegment[AnswerEntry, Pin]
"""Slices, or chunks, of an array that answer a pull, on their way. Its owner pins them until they have arrived."""


# --- The pulls that wait for slices of a bucket, and what answers them ------------------------------------------------


class WaitingPulls:
    """Pulls that wait for slices of a bucket, by version; a table is one slice. Those of a version that no slice has
    reached are not looked at. Who is answered, or gives up, is forgotten at once: what was pulled is held by nobody
    here. `versions` are those of `_waits`, in order."""

    def __init__(self, spec: UpdateSpec, steps: BucketSteps) -> None:
        self._spec = spec
        self._steps = steps
        self._waits: dict[int, dict[int, tuple[int, int, PullWait]]] = {}
        """By version, and by identity: the first and the stop of the slices that a pull wanted when it came."""
        self.versions: list[int] = []

    @property
    def waits(self) -> list[PullWait]:
        """All of them, by version, and in the order in which they came."""
        return [wait for version in self.versions for _, _, wait in self._waits[version].values()]

    def wait_for(self, wait: PullWait, first: int = 0, stop: int = 1) -> None:
        """A pull that waits for some of these slices."""
        version = self._version_of(wait)
        if version not in self._waits:
            self._waits[version] = {}
            insort(self.versions, version)
        self._waits[version][id(wait)] = first, stop, wait
        wait.waits_in.append(self)

    def waiting(self, first: int = 0, stop: int = 1) -> list[PullWait]:
        """The pulls that came for some of these slices, unless for a version that none of them has reached."""
        if not self.versions:
            return []
        steps = self._steps
        reached = steps.version if self._spec.is_sync or not steps.slots else steps.through
        count = bisect_right(self.versions, greatest(reached[..., first:stop]))
        return [
            wait
            for version in self.versions[:count]
            for low, high, wait in self._waits[version].values()
            if low < stop and high > first
        ]

    def forget(self, wait: PullWait) -> None:
        """A pull that waits for nothing here any more."""
        version = self._version_of(wait)
        some = self._waits.get(version)
        if some is not None and some.pop(id(wait), None) is not None and not some:
            del self._waits[version]
            del self.versions[bisect_left(self.versions, version)]

    def _version_of(self, wait: PullWait) -> int:
        """The version before which it is not answered; 0 where slices are at every version for it."""
        steps = self._steps
        has_version = steps.slots and (self._spec.is_sync or wait.settled or wait.slot in steps.indices)
        return wait.version if has_version else 0

    def seen(self, wait: PullWait, first: int = 0, stop: int = 1) -> Array | None:
        """The version that each slice has for a pull; None where it is at every version. Where slots go on by
        themselves a slot sees its own steps."""
        steps = self._steps
        if not steps.slots:
            return None
        if self._spec.is_sync or wait.settled:
            found: Array = steps.version[first:stop]
            return found
        index = steps.indices.get(wait.slot)
        return None if index is None else steps.through[index, first:stop]

    def can(self, wait: PullWait, first: int = 0, stop: int = 1) -> Array:
        """Which slices are at the version of a pull (stop - first) bool."""
        seen, bound = self.seen(wait, first, stop), self._bound(wait)
        if seen is None:
            can = np.ones(stop - first, np.bool_)
        else:
            can = seen == wait.version if wait.reading is Reading.EXACT else seen >= wait.version
        if bound is not None:
            can = can & (self._steps.version[first:stop] >= bound)
        return can

    def _bound(self, wait: PullWait) -> int | None:
        """How many steps every slot must be through with, whoever asks; None where there is no such bound."""
        spec = self._spec
        return wait.version - spec.staleness if spec.mode is Mode.STALE and spec.slots and not wait.settled else None

    def lacks(self, wait: PullWait, slice_: int) -> bool:
        """Whether a pull waits at a slice until somebody sets a value."""
        raise NotImplementedError

    def passed(self, wait: PullWait, first: int, stop: int) -> str | None:
        """Why a pull of an exact version can never be answered, once one of its open slices is beyond it."""
        ranges = wait.open.get(self._spec.number)
        if wait.reading is not Reading.EXACT or ranges is None:
            return None
        for low, high in ranges.overlaps(first, stop):
            beyond = self._steps.version[low:high] > wait.version
            if beyond.any():
                at = low + int(beyond.argmax())
                return f"{self._spec.named(at)} is at version {self._steps.version[at]}: it has passed"
        return None

    def waits_for(self, wait: PullWait) -> tuple[str, list[int]]:
        """What an open pull waits for here, in words, and the slots that are missing."""
        for low, high in wait.open[self._spec.number]:
            can = self.can(wait, low, high)
            if not can.all():
                return self._missing(wait, low + int(can.argmin()))
        return "every slice was answered", []

    def _missing(self, wait: PullWait, slice_: int) -> tuple[str, list[int]]:
        steps, spec, bound, seen = self._steps, self._spec, self._bound(wait), self.seen(wait, slice_, slice_ + 1)
        every, is_there = list(range(len(steps.slots))), seen is None or bool(seen[0] >= wait.version)
        if bound is not None and is_there:
            text, missing = steps.missing(slice_, bound, every)
        else:
            own = every if wait.settled else [steps.indices[wait.slot]] if wait.slot in steps.indices else []
            text, missing = steps.missing(slice_, wait.version, None if spec.is_sync else own)
        key = spec.key_named(slice_)
        if (is_there or not missing) and self.lacks(wait, slice_):
            return f"{key} was never set: a worker has to call init", []
        if not missing and spec.gate is not None:
            version = int(steps.version[slice_])
            text, missing = spec.gate.missing(version)
            return f"{key} has seen {version} steps; {text}", missing
        if missing and key == THE_BARRIER:
            return f"waits for slots {listed(missing)} to call it", missing
        return f"{key} {text}", missing


class BucketPulls(WaitingPulls):
    """Those of a bucket of dense keys, and what answers them."""

    def __init__(self, spec: BucketSpec, steps: BucketSteps, sets: BucketSets, update: BucketUpdate) -> None:
        super().__init__(spec, steps)
        self._spec: BucketSpec = spec
        self._sets = sets
        self._update = update

    def ready(self, wait: PullWait, first: int, stop: int) -> list[Alike]:
        """The open slices among these that can answer, by the version that they have for it."""
        ranges = wait.open.get(self._spec.number)
        wanted = ranges.overlaps(first, stop) if ranges is not None else []
        if len(wanted) == 1:
            return self.answerable(wait, *wanted[0])
        return [one for low, high in wanted for one in self.answerable(wait, low, high)]

    def answerable(self, wait: PullWait, first: int, stop: int) -> list[Alike]:
        """The same among slices that it asks for and that are open."""
        seen = self.seen(wait, first, stop)
        if seen is None:
            alike = [(first, stop, wait.version)]
        else:
            alike = ranges_alike(seen, first) if stop - first > 1 else [(first, stop, int(seen[0]))]
        if self._sets.complete and self._spec.mode is not Mode.STALE:
            version, is_exact = wait.version, wait.reading is Reading.EXACT
            if len(alike) == 1 and alike[0][2] == version:  # As nearly all are.
                return alike
            return [one for one in alike if one[2] == version or (one[2] > version and not is_exact)]
        return [
            (*some, version) for low, high, version in alike for some in ranges_where(self.can(wait, low, high), low)
        ]

    def answers(self, wait: PullWait, first: int, stop: int, version: int) -> list[AnswerSegment]:
        """What answers it for slices that are `ready`, at a version, pinned until it has arrived."""
        update, entry = self._update, AnswerEntry(wait.request, 0, self._spec.number, version)
        arrays: Iterable[tuple[BucketValues, int, int, AnswerEntry]]
        if update.previous is not None and self._is_previous(wait, first, stop, version):
            arrays = [(update.previous, first, stop, entry._replace(version=wait.version))]
        elif wait.compressed and version and not wait.state and update.encoded is not None:
            arrays = self._encoded(update.encoded, first, stop, entry)
        elif wait.state:
            names = enumerate(self._spec.state)
            arrays = [(update.state[name], first, stop, entry._replace(array=number)) for number, name in names]
        else:
            arrays = [(update.values, first, stop, entry)]
        all_priorities, of_call, found = self._spec.part.priorities, wait.priority * CALL_PRIORITY, []
        for values, begin, end, entry in arrays:
            for low, high, held, part, bounds in values.sections(begin, end):
                priority, priorities = int(all_priorities[low]), None
                if high - low > 1 and priority != all_priorities[high - 1]:
                    priorities = all_priorities[low:high] - of_call
                pin = Pin(held, part, high - low, first=low)
                segment: AnswerSegment = OutSegment(
                    entry, low, bounds, held.source, priority=priority - of_call, owner=pin, priorities=priorities
                )
                found.append(segment)
        return found

    def _is_previous(self, wait: PullWait, first: int, stop: int, version: int) -> bool:
        """Whether slices that are one step beyond the version that is asked for are answered with it."""
        if version != wait.version + 1 or wait.state or wait.reading is not Reading.OWN:
            return False
        return bool((self._steps.base[first:stop] < version).all())

    def lacks(self, wait: PullWait, slice_: int) -> bool:
        return self._sets.lacks(slice_, slice_ + 1)

    def can(self, wait: PullWait, first: int = 0, stop: int = 1) -> Array:
        """Which slices can answer (stop - first) bool: none that was never set."""
        can = super().can(wait, first, stop)
        return can if self._sets.complete else can & ~self._sets.lacking(first, stop)

    def _encoded(
        self, encoded: EncodedValues, first: int, stop: int, entry: AnswerEntry
    ) -> Iterator[tuple[BucketValues, int, int, AnswerEntry]]:
        """Encoded slices, and those as they are of which there are no such bytes."""
        values = self._update.values
        for low, high in encoded.missing(first, stop):
            for part in values.elements(low, high):
                encoded.encode(*part)
        for low, high, changed in ranges_alike(encoded.changed[first:stop], first):
            yield values if changed else encoded.values, low, high, entry._replace(compressed=not changed)
