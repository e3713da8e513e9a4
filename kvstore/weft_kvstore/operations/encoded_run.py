"""The bytes of a run of gradients that travel encoded: each slice's are made when they first leave, and kept. Pure.

A frame is filled at the moment of sending, so the first frame waits for its own slices alone, and what overtakes is
encoded first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.arrays.buffers import Buffer, bytes_of
from weft_kvstore.compression.slice_codec import SliceCodec
from weft_kvstore.compression.slice_encoder import SliceEncoder
from weft_kvstore.operations.plan_run import PlanRun


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
