"""What a shard holds of a job at one version: captured while training goes on, and brought back. Pure.

A slice is captured when it reaches the version, or at once where it is there. Nothing is copied: its bytes are pinned,
as those of an answer are, so who writes the slice next writes a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np

from weft_kvstore.arrays import Array, Segment, ranges_where
from weft_kvstore.bucket.bucket import PlainBucket
from weft_kvstore.description.records import Mode, StoreDescription
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.snapshot_files import UPDATES, VALUE, Part, SnapshotError, check_place, write_file
from weft_kvstore.step_outcome import LossScale
from weft_kvstore.wire.outbox import Pin


class MissedError(Exception):
    """The version has passed; the message names a key and the version that it is at."""


def unfit(description: StoreDescription) -> str | None:
    """Why no snapshot of a job can be continued exactly; None where it can."""
    if description.mode is not Mode.SYNC:
        return f"its slots go on by themselves (mode {description.mode.value})"
    table = next((key.key for key in description.keys if key.rows), None)
    return None if table is None else f"key {table!r} is a table"


class _Captured(NamedTuple):
    """Slices `first` and on: views of their elements by array, one for each block, and the updates made of each."""

    first: int
    views: dict[str, list[Array]]
    updates: Array


class Capture:
    """What `shard` holds at version `step`. `complete` is called once all slices are there; raises MissedError where a
    slice is beyond it. To be made, and released, where nothing is merged meanwhile."""

    def __init__(self, shard: JobShard, step: int, complete: Callable[[Capture], None]) -> None:
        self.step = step
        self._shard = shard
        self._complete = complete
        self.loss_scale: LossScale | None = None
        """That of step `step`, where steps are committed; once complete."""
        self._taken: dict[int, list[_Captured]] = {}
        self._pins: list[tuple[Pin, int]] = []
        self._left = sum(len(bucket.state) for bucket in shard.buckets.values())
        for bucket in shard.buckets.values():
            state = bucket.state
            beyond = state.steps.version > step
            if state.spec.slots and beyond.any():
                at = int(beyond.argmax())
                raise MissedError(f"{state.spec.key_named(at)} is at version {state.steps.version[at]} already")
        for number, bucket in shard.buckets.items():
            bucket.state.reached = self._reached(number, bucket)
            there = bucket.state.steps.version == step if bucket.state.spec.slots else np.ones(len(bucket.state), bool)
            for first, stop in ranges_where(there, 0):
                self._take(number, bucket, first, stop)
        if not self._left:
            self._end_complete()

    @property
    def is_complete(self) -> bool:
        """Whether all slices are there."""
        return not self._left

    def parts(self) -> list[Part]:
        """All that was captured, once complete. May be read on any thread until it is released."""
        found: list[Part] = []
        for number, bucket in self._shard.buckets.items():
            captured = sorted(self._taken.get(number, []), key=lambda one: one.first)
            for span in spans_of(self._shard, bucket):
                for array in (VALUE, *bucket.state.spec.state):
                    pieces = list(_cut(bucket, captured, array, span))
                    count = sum(len(piece) for piece in pieces)
                    found.append(Part(array, span.key, span.start, count, str(pieces[0].dtype), pieces))
                updates = np.concatenate([one.updates for one in captured])[span.first : span.stop]
                found.append(Part(UPDATES, span.key, span.number, len(updates), "int64", [updates]))
        return found

    def held(self) -> Held:
        """The same with the loss scale."""
        return Held(self.parts(), self.loss_scale)

    def release(self) -> None:
        """Gives everything back, complete or not."""
        self._end()
        for pin, count in self._pins:
            pin.give_back(0, count)
        self._pins.clear()
        self._taken.clear()

    def _end_complete(self) -> None:
        """No slice holds step `step` yet, so nobody has agreed on it: the loss scale is that step's."""
        if self._shard.gate is not None:
            self.loss_scale = self._shard.gate.loss_scale
        self._end()
        self._complete(self)

    def _end(self) -> None:
        for bucket in self._shard.buckets.values():
            bucket.state.reached = None

    def _reached(self, number: int, bucket: PlainBucket) -> Callable[[int, int, int], None]:
        def reached(version: int, first: int, stop: int) -> None:
            if version == self.step:
                self._take(number, bucket, first, stop)
                if not self._left:
                    self._end_complete()

        return reached

    def _take(self, number: int, bucket: PlainBucket, first: int, stop: int) -> None:
        update = bucket.state.update
        views: dict[str, list[Array]] = {}
        for name, values in ((VALUE, update.values), *update.state.items()):
            found = views[name] = []
            for low, high, held, part, _ in values.pieces(first, stop):
                start = values.bounds[low - part]
                found.append(held.array[values.bounds[low] - start : values.bounds[high] - start])
                self._pins.append((Pin(held, part, high - low), high - low))
        self._taken.setdefault(number, []).append(_Captured(first, views, update.updates[first:stop].copy()))
        self._left -= stop - first


class Captures:
    """The capture of a shard that is under way: there is one at a time. Belongs to the shard's thread."""

    def __init__(self) -> None:
        self._open: Capture | None = None

    def begin(self, shard: JobShard, step: int, told: Callable[[Capture | MissedError], None]) -> None:
        """Captures the shard at version `step`; one that is not complete is dropped. `told` has to be quick; what it is
        given is to be released."""
        before, self._open = self._open, None
        if before is not None:
            before.release()

        def complete(capture: Capture) -> None:
            self._open = None
            told(capture)

        try:
            capture = Capture(shard, step, complete)
        except MissedError as error:
            told(error)
        else:
            self._open = None if capture.is_complete else capture


class Held(NamedTuple):
    """Copies of what a process holds at one version, and the loss scale of its step, where there is one."""

    parts: list[Part]
    loss_scale: LossScale | None = None


def held_by(capture: Capture) -> Held:
    """The same as copies; the capture is released."""
    parts = [part._replace(pieces=[np.concatenate(part.pieces)]) for part in capture.parts()]
    held = Held(parts, capture.loss_scale)
    capture.release()
    return held


def saved(folder: str, name: str, take: Callable[[], Held], *, job: str, step: int) -> dict[str, Any]:
    """Writes what a process holds. What is to be reported: the file's name, length and digest, or why there is none."""
    try:
        check_place(folder)
        held = take()
        file = write_file(folder, name, held.parts, {"job": job, "step": str(step)})
    except (SnapshotError, MemoryError) as error:
        return {"step": step, "error": str(error) or type(error).__name__}
    done: dict[str, Any] = {"step": step, "file": msgspec.to_builtins(file)}
    if held.loss_scale is not None:
        done |= {"loss_scale": held.loss_scale.scale, "finite_steps": held.loss_scale.good}
    return done


class Span(NamedTuple):
    """A key's run of slices in a bucket: slices `first` to `stop` there are its slices from `number` on, and its
    elements from `start` on."""

    key: str
    first: int
    stop: int
    number: int
    start: int


def spans_of(shard: JobShard, bucket: PlainBucket) -> Iterator[Span]:
    """What a bucket has of each of its keys, in the order in which they lie there."""
    part, spec = bucket.state.spec.part, bucket.state.spec
    edges = [0, *(np.flatnonzero(np.diff(part.places)) + 1).tolist(), len(part)]
    for first, stop in pairwise(edges):
        if first < stop:
            place, index = int(part.places[first]), int(part.indices[first])
            key = spec.keys[place]
            yield Span(key.key, first, stop, index, shard.cuts[place].start(index) // np.dtype(key.dtype).itemsize)


def _cut(bucket: PlainBucket, captured: list[_Captured], array: str, span: Span) -> Iterator[Array]:
    """The elements of a span, in the pieces in which they were captured."""
    bounds = bucket.state.bounds
    low, high = int(bounds[span.first]), int(bounds[span.stop])
    for one in captured:
        at = int(bounds[one.first])
        for view in one.views[array]:
            begin, end = max(low, at), min(high, at + len(view))
            if begin < end:
                yield view[begin - at : end - at]
            at += len(view)


Read = Callable[[str, str, int, int, np.dtype[Any]], Array]
"""Elements of a key's array: (array, key, start, stop, dtype)."""


def restore(shard: JobShard, step: int, read: Read, loss_scale: LossScale | None = None) -> None:
    """Has a job that nobody has pushed to begin at a version. Raises what `read` raises."""
    for bucket in shard.buckets.values():
        state = bucket.state
        dtype = state.update.values.dtype
        for span in spans_of(shard, bucket):
            stop = span.start + int(state.bounds[span.stop] - state.bounds[span.first])
            arrays = {
                name: Segment(span.first, span.stop, read(name, span.key, span.start, stop, dtype))
                for name in (VALUE, *state.spec.state)
            }
            updates = read(UPDATES, span.key, span.number, span.number + span.stop - span.first, np.dtype(np.int64))
            state.begin_at(step, arrays.pop(VALUE), arrays, updates)
    if shard.gate is not None:
        shard.gate.begin_at(step, loss_scale)
