"""Gradients that are encoded on their way, and what their encodings leave out. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft_kvstore.arrays import Array, Buffer, bytes_of
from weft_kvstore.client.plan import KeyList, KeyPlan, PlanSegment
from weft_kvstore.compression import Codec, SliceCodec
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import PushedTwiceError, StoreRefusedError
from weft_kvstore.settings import STEPS_AHEAD
from weft_kvstore.sharding import Routing
from weft_kvstore.store import LossScale, StepOutcome

# --- The bytes of a segment of gradients that travel encoded: each slice's are made when they first leave, and kept ---
# A frame is filled at the moment of sending, so the first frame waits for its own slices alone, and what overtakes is
# encoded first.


@dataclass(eq=False)
class EncodedSegment:
    """A `Source` of a segment of `arrays`, gradients of a step by their position in the call, with the encoder of each
    that keeps a residual. Slices leave in their order, so that the first `_made` of them have bytes."""

    plan: KeyPlan
    segment: PlanSegment
    arrays: Sequence[Array]
    encoders: Sequence[KeyEncoder | None]
    step: int
    scale: float
    """What gradients that keep a residual are divided by."""

    def __post_init__(self) -> None:
        assert self.segment.pushed is not None
        self._codec = self.segment.pushed
        self._kept = [{} if one is None else one.failed.get(self.step, {}) for one in self.encoders]
        """By position of a key: the bytes of slices that were encoded when the step was pushed before."""
        self._made = 0
        self._buffer = np.empty(int(self._codec.begins[-1]), np.uint8)

    def __call__(self, start: int, stop: int) -> Sequence[Buffer]:
        last = int(np.searchsorted(self._codec.begins, stop))
        while self._made < last:
            self._made = self._encode(self._made, last)
        return (bytes_of(self._buffer)[start:stop],)

    def keep(self) -> None:
        """Its push has failed: what was encoded is sent again as it is."""
        begins = self._codec.begins.tolist()
        for one in range(self._made):
            position, element, _ = self._key_at(one)
            encoder = self.encoders[position]
            if encoder is not None:
                encoder.failed[self.step][encoder.slice_at(element)] = self._buffer[begins[one] : begins[one + 1]]

    def _key_at(self, slice_: int) -> tuple[int, int, int]:
        """Of a slice of the segment: the position of its key, its first element there, and the first slice behind it
        that is not in the same byte range."""
        plan, bounds = self.plan, self.segment.bounds
        start = int(bounds[slice_])
        number = bisect_right(plan.starts, start) - 1
        own = plan.byte_ranges[number]
        element = (own.start + start - plan.starts[number]) // self.arrays[own.position].itemsize
        return own.position, element, int(bounds.searchsorted(plan.starts[number + 1]))

    def _encode(self, first: int, stop: int) -> int:
        """Encodes slices of the segment that are of one key. The first one behind them."""
        position, element, end = self._key_at(first)
        codec, encoder, stop = self._codec, self.encoders[position], min(stop, end)
        at = 0 if encoder is None else encoder.slice_at(element)
        if kept := self._kept[position]:
            if at in kept:
                self._buffer[codec.begins[first] : codec.begins[first + 1]] = kept[at]
                return first + 1
            stop = next((one for one in range(first + 1, stop) if at + one - first in kept), stop)
        elements = self.arrays[position].reshape(-1)[element : element + codec.bounds[stop] - codec.bounds[first]]
        out = self._buffer[codec.begins[first] : codec.begins[stop]]
        if encoder is None:
            codec.encode(first, stop, elements, out=out)
        else:
            encoder.encode_step(self.step, at, at + stop - first, elements, scale=self.scale, out=out)
        return stop


# --- What a slot's gradients are encoded with on their way to the shards, and what it owes of each key ----------------


class KeyEncoder(SliceCodec):
    """The encoder of a key's gradients, and which of its steps may be pushed: one that has not begun, behind all of
    which something was encoded, or one that has failed."""

    __slots__ = ("_arrived", "_left", "begun", "capture_step", "captured", "failed", "furthest")

    def __init__(self, codec: Codec, bounds: Array, residual: Array) -> None:
        super().__init__(codec, bounds, residual)
        self.capture_step = math.inf
        """Before a slice is encoded for this step or a later one, its residual is copied to `captured`."""
        self.captured = np.empty(0, codec.dtype)
        self.furthest = 0
        """The step after the last for which any slice was encoded."""
        self.begun: list[int] = []
        """Steps whose pushes are under way."""
        self._arrived: set[int] = set()
        """Steps that have arrived, unless more than STEPS_AHEAD before the last of them: shards have all of those."""
        self.failed: dict[int, dict[int, Array]] = {}
        """By step what was encoded in pushes that failed, by slice, until the step was pushed again or shards have
        taken one that they take only after it."""

    def slice_at(self, element: int) -> int:
        """The slice that begins with an element of the key."""
        return int(self.bounds.searchsorted(element))

    def begin_capture(self, step: int) -> None:
        """From now on `captured` gets the residual as it is before the step."""
        assert self.residual is not None
        self.capture_step, self.captured = step, np.empty_like(self.residual)
        self._left = np.ones(len(self), np.bool_)

    @property
    def is_captured(self) -> bool:
        return not self._left.any()

    def capture(self, first: int, stop: int) -> None:
        """The residuals of these slices are as they are before the step."""
        assert self.residual is not None
        for slice_ in (first + np.flatnonzero(self._left[first:stop])).tolist():
            some = slice(self.bounds[slice_], self.bounds[slice_ + 1])
            self.captured[some] = self.residual[some]
        self._left[first:stop] = False

    def encode_step(
        self, step: int, first: int, stop: int, elements: Array, *, scale: float = 1.0, out: Array | None = None
    ) -> None:
        """Encodes slices for a step, as `encode` does."""
        if step >= self.capture_step:
            self.capture(first, stop)
        self.furthest = max(self.furthest, step + 1)
        self.encode(first, stop, elements, scale=scale, out=out)

    def is_pushed(self, step: int) -> bool:
        """Whether a push of the step is under way or has arrived."""
        arrived = self._arrived
        return step in self.begun or step in arrived or step < max(arrived, default=0) - STEPS_AHEAD

    def end_push(self, step: int, *, failed: bool) -> None:
        """A push that was begun has ended. If it has failed, it may be begun again."""
        self.begun.remove(step)
        if failed:
            self.failed.setdefault(step, {})
            return
        last = max([step, *self._arrived])
        self._arrived = {one for one in (*self._arrived, step) if one >= last - STEPS_AHEAD}
        if self.failed:
            self.failed = {one: kept for one, kept in self.failed.items() if step - STEPS_AHEAD <= one != step}


class GradientEncoders:
    """`scale` is what the loss of the next step is multiplied by: gradients that keep a residual are divided by it.

    A step of a key is pushed once; one that failed may be pushed again, also after later ones. A slice is encoded once
    for a step: some shards may have taken it from a push that failed, so what was encoded is sent again as it was.
    """

    def __init__(self, description: StoreDescription, routing: Routing, slot: int) -> None:
        self._slot = slot
        self._scaling = description.commit.loss_scaling if description.commit is not None else None
        self._scale = LossScale(1.0 if self._scaling is None else self._scaling.initial)
        self.residuals: dict[str, Array] = {}
        """By key, elements: what encodings have left out so far. Memory is taken as they are written."""
        self._encoders: dict[str, KeyEncoder] = {}
        for key_index, key in enumerate(description.keys):
            codec, slices = routing.buckets[routing.bucket_of[key_index]].pushed, routing.slices[key_index]
            if slot in key.slots and codec is not None and codec.residual:
                residual = self.residuals[key.key] = np.zeros(key.size, codec.dtype)
                bounds = slices.bounds(0, slices.count) // codec.dtype.itemsize
                self._encoders[key.key] = KeyEncoder(codec, bounds, residual)
        self._capture: tuple[int, Callable[[dict[str, Array] | int], None]] | None = None
        """Before which step it is captured what is owed, and what is called with that."""
        self._steps_ended = 0
        """Steps that this slot is through with: their barriers have ended."""

    @property
    def scale(self) -> float:
        return self._scale.scale

    def follow(self, outcome: StepOutcome) -> None:
        """What the slots agreed on of a step: the next one's scale follows from it."""
        if self._scaling is not None and outcome.step >= self._steps_ended:  # It may be ended once more.
            self._scale = outcome.scale.after(finite=outcome.finite, scaling=self._scaling)

    def begin(self, keys: KeyList, step: int) -> dict[int, KeyEncoder | None]:
        """For a push of a step the encoder of each key, by its position; None where the key keeps no residual. A key is
        left out if its step has arrived before: it is not encoded again. Raises StoreRefusedError where a key's step is
        under way: then nothing has begun."""
        found: dict[int, KeyEncoder | None] = {}
        for position, name in enumerate(keys.names):
            one = self._encoders.get(name)
            if one is None or not one.is_pushed(step):
                found[position] = one
            elif step in one.begun:
                twice = all(self._encoders[other].is_pushed(step) for other in keys.names if other in self._encoders)
                error = PushedTwiceError if twice else StoreRefusedError
                detail = "it is being pushed already, and would be encoded twice; wait for that"
                raise error(f"slot {self._slot}: push of key {name!r}, step {step}: {detail}")
        for one in found.values():
            if one is not None:
                one.begun.append(step)
        return found

    def end_push(self, encoders: Iterable[KeyEncoder | None], step: int, *, failed: bool) -> None:
        """A push with these encoders has ended."""
        for one in encoders:
            if one is not None:
                one.end_push(step, failed=failed)
        self._finish_capture()

    def step_ended(self, step: int) -> None:
        """The slot's barrier of a step has ended."""
        self._steps_ended = max(self._steps_ended, step + 1)
        self._finish_capture()

    def capture(self, step: int, captured: Callable[[dict[str, Array] | int], None]) -> None:
        """Calls `captured` with copies of what is owed after the steps before `step`, by key, once all of these are
        encoded; or with a step beyond it, where one is already. What was asked before is dropped."""
        furthest = max((one.furthest for one in self._encoders.values()), default=0)
        self._end_capture()
        if furthest > step:
            captured(furthest)
            return
        try:
            for one in self._encoders.values():
                one.begin_capture(step)
        except MemoryError:
            self._end_capture()
            raise
        self._capture = step, captured
        self._finish_capture()

    def _finish_capture(self) -> None:
        """What is owed changes no more until the step, where all before it have been encoded."""
        if self._capture is None:
            return
        (step, captured), encoders = self._capture, self._encoders.values()
        if self._steps_ended >= step and all(begun >= step for one in encoders for begun in one.begun):
            for one in encoders:
                one.capture(0, len(one))
        if all(one.is_captured for one in encoders):
            owed = {name: one.captured for name, one in self._encoders.items()}
            self._end_capture()
            captured(owed)

    def _end_capture(self) -> None:
        self._capture = None
        for one in self._encoders.values():
            one.capture_step, one.captured = math.inf, np.empty(0)

    def restore(self, residuals: Mapping[str, Array], scale: LossScale | None = None) -> None:
        """Sets the residuals, by key; keys that are not named begin at 0 again. `scale` is that of the next step, where
        there is one. Raises StoreRefusedError while pushes are under way."""
        if under_way := {step for one in self._encoders.values() for step in one.begun}:
            detail = f"pushes of steps {sorted(under_way)} are under way"
            raise StoreRefusedError(f"slot {self._slot}: restore of residuals: {detail}")
        self._scale = self._scale if scale is None else scale
        for key, own in self.residuals.items():
            own[:] = residuals.get(key, 0)
