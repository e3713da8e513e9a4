"""Gradients that are encoded on their way, and what their encodings leave out. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from weft_kvstore.arrays import Array, Buffer, bytes_of
from weft_kvstore.client.plan import KeySet
from weft_kvstore.client.runs import PlanRun
from weft_kvstore.compression.description import CompressionError
from weft_kvstore.compression.slices import Residuals, SliceCodec, SliceEncoder
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.sharding import Routing
from weft_kvstore.step_outcome import LossScale, StepOutcome

# --- The bytes of a run of gradients that travel encoded: each slice's are made when they first leave, and kept -------
# A frame is filled at the moment of sending, so the first frame waits for its own slices alone, and what overtakes is
# encoded first.


class EncodedRun:
    """A `Source` of a run of `arrays`, gradients of a step by their place in the call, with the encoder of each that
    keeps a residual. Slices leave in their order, so that the first `_made` of them have bytes."""

    __slots__ = ("_arrays", "_buffer", "_codec", "_encoders", "_made", "_run", "_scale", "_step")

    def __init__(
        self,
        run: PlanRun,
        codec: SliceCodec,
        arrays: Sequence[Array],
        encoders: Sequence[SliceEncoder | None],
        *,
        step: int,
        scale: float,
    ) -> None:
        """`scale`: what gradients that keep a residual are divided by."""
        self._run = run
        self._codec = codec
        self._arrays = arrays
        self._encoders = encoders
        self._step = step
        self._scale = scale
        self._made = 0
        self._buffer = np.empty(int(codec.begins[-1]), np.uint8)

    @property
    def has_begun(self) -> bool:
        """Whether any of it was encoded."""
        return self._made > 0

    def cut(self, start: int, stop: int) -> Sequence[Buffer]:
        last = int(np.searchsorted(self._codec.begins, stop))
        while self._made < last:
            self._made = self._encode(self._made, last)
        return (bytes_of(self._buffer)[start:stop],)

    def _encode(self, first: int, stop: int) -> int:
        """Encodes slices of the run that are of one key. The first one behind them."""
        run, begins = self._run, self._codec.begins
        number = bisect_right(run.part_slices, first) - 1
        stop = min(stop, run.part_slices[number + 1])
        part, origin = run.parts[number], run.part_slices[number]
        flat = self._arrays[part.position].reshape(-1)
        base = part.start // flat.itemsize - int(self._codec.bounds[origin])
        elements = flat[base + int(self._codec.bounds[first]) : base + int(self._codec.bounds[stop])]
        out = self._buffer[begins[first] : begins[stop]]
        encoder = self._encoders[part.position]
        if encoder is None:
            self._codec.encode(first, stop, elements, out)
        else:
            at = part.first + first - origin
            encoder.encode(self._step, at, stop - first, elements, scale=self._scale, out=out)
        return stop


# --- What a slot's gradients are encoded with on their way to the shards, and what it owes of each key ----------------


class GradientEncoders:
    """`scale` is what the loss of the next step is multiplied by: gradients that keep a residual are divided by it.

    A step of a key is encoded once, and after those before it. Invariants: no step before `_next[key]` may be pushed,
    for one of which something was encoded comes before it; `_begun[key]` are the steps whose pushes are under way,
    ascending; `_under_way` counts pushes that are not all encoded, or not all acknowledged.
    """

    def __init__(self, description: StoreDescription, routing: Routing, slot: int) -> None:
        self._slot = slot
        self._scaling = description.commit.loss_scaling if description.commit is not None else None
        self._scale = LossScale(1.0 if self._scaling is None else self._scaling.initial)
        self._under_way = 0
        kept = [
            (key, routing.cuts[place], choice.codec)
            for place, key in enumerate(description.keys)
            if slot in key.slots and (choice := routing.buckets[routing.bucket_of[place]].pushed) and choice.residual
        ]
        self._residuals = Residuals(slot, {key.key: (key.size, codec.dtype) for key, _, codec in kept})
        self._encoders: dict[str, SliceEncoder] = {}
        for key, cut, codec in kept:
            ends = np.minimum(np.arange(cut.count + 1) * cut.step_bytes, cut.nbytes)
            self._encoders[key.key] = SliceEncoder(codec, ends // codec.dtype.itemsize, self._residuals.arrays[key.key])
        self._next = dict.fromkeys(self._encoders, 0)
        self._begun: dict[str, list[int]] = {name: [] for name in self._encoders}

    @property
    def scale(self) -> float:
        return self._scale.scale

    def told(self, outcome: StepOutcome) -> None:
        """What the slots agreed on of a step: the next one's scale follows from it."""
        if self._scaling is None:
            return
        if outcome.loss_scale != self.scale:  # A slot that was taken over begins in the middle.
            self._scale = LossScale(outcome.loss_scale)
        self._scale = self._scale.after(finite=outcome.finite, scaling=self._scaling)

    def begin(self, keys: KeySet, step: int) -> Sequence[SliceEncoder | None]:
        """The encoder of each key for a push of a step; None where the key keeps no residual. Raises StoreRefusedError
        for a step of which a key's was begun before, or a later one: then nothing has."""
        found = [self._encoders.get(name) for name in keys.names]
        mine = [name for name in keys.names if name in self._encoders]
        for name in mine:
            last = max([self._next[name] - 1, *self._begun[name][-1:]])
            if step <= last:
                told = f"step {last} was pushed already, and what compression left out is in later steps"
                raise StoreRefusedError(f"slot {self._slot}: push of key {name!r}, step {step}: {told}")
        for name in mine:
            self._begun[name].append(step)
        self._under_way += 1
        return found

    def ended(self, keys: KeySet, step: int, *, encoded: bool) -> None:
        """A push that was begun has ended. If nothing of it was encoded, nor of a later one, it may be begun again."""
        self._under_way -= 1
        for name in keys.names:
            if name in self._encoders:
                self._begun[name].remove(step)
                if encoded:
                    self._next[name] = max(self._next[name], step + 1)

    def export(self) -> dict[str, Array]:
        """Copies of what is owed, by name. Raises StoreRefusedError while pushes are under way."""
        self._check_idle("export")
        return self._residuals.export()

    def restore(self, named: Mapping[str, Array]) -> None:
        """Takes on what `export` gave. Raises StoreRefusedError for an array that does not fit; then nothing has
        changed."""
        self._check_idle("restore")
        try:
            self._residuals.restore(named)
        except CompressionError as error:
            raise StoreRefusedError(f"slot {self._slot}: restore of residuals: {error}") from error

    def _check_idle(self, call: str) -> None:
        if self._under_way:
            told = f"{self._under_way} pushes are under way"
            raise StoreRefusedError(f"slot {self._slot}: {call} of residuals: {told}")
