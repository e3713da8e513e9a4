"""What one shard has of a key that is no table: a run of adjacent slices, or the whole key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft_kvstore.buffers import bytes_of
from weft_kvstore.codec import ProtocolError
from weft_kvstore.push_run import Run
from weft_kvstore.routing import KeySlices
from weft_kvstore.slice_state import SliceState, WholeState
from weft_kvstore.store import Array
from weft_kvstore.unit_state import KeyRules, Lendable


@dataclass(frozen=True, slots=True)
class KeyPart:
    """Slices `run` of a key. `units` merge them: one each, or one for all."""

    spec: KeyRules
    cut: KeySlices
    run: range
    units: tuple[SliceState, ...]

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.units)

    def unit(self, index: int) -> SliceState:
        """The unit that has a slice."""
        return self.units[0] if len(self.units) == 1 else self.units[index - self.run.start]

    def cut_payload(self, run: Run) -> list[tuple[int, Array]]:
        """The slices of a run, each with its number.

        Their memory is taken over where it is writable. Raises ProtocolError for a run that is not here, or is of
        another length.
        """
        if not (self.run.start <= run.first and run.stop <= self.run.stop):
            raise ProtocolError(
                f"Push.first: slices {run.first} to {run.stop - 1} of key {self.spec.key!r}; "
                f"this shard has {self.run.start} to {self.run.stop - 1}"
            )
        told = self.cut.length(run.first, run.count)
        if told != run.payload.nbytes:
            raise ProtocolError(
                f"Push.nbytes: {run.payload.nbytes} for {run.count} slices from {run.first} of key {self.spec.key!r}, "
                f"not {told}"
            )
        bounds = [self.cut.start(index) - self.cut.start(run.first) for index in range(run.first, run.stop + 1)]
        cutting = zip(range(run.first, run.stop), bounds, bounds[1:], strict=False)
        return [(index, _writable(run.payload[start:stop], self.spec.dtype)) for index, start, stop in cutting]


def key_part(spec: KeyRules, cut: KeySlices, run: range, values: Array, shape: tuple[int, ...] | None) -> KeyPart:
    """The part of a key with these first values (elements of the run); `shape` is the key's where it is whole."""
    state = {name: np.full(values.size, spec.rule.state[name], spec.dtype) for name in spec.state}
    if shape is not None:
        held = {name: Lendable(array.reshape(shape), bytes_of(array), 0) for name, array in state.items()}
        whole = WholeState(spec, cut, Lendable(values.reshape(shape), bytes_of(values), 0), held)
        return KeyPart(spec, cut, run, (whole,))
    bases = {name: bytes_of(array) for name, array in state.items()}
    base, begin, itemsize = bytes_of(values), cut.start(run.start), spec.dtype.itemsize
    slices: list[SliceState] = []
    for index in run:
        start, stop = cut.start(index) - begin, cut.start(index + 1) - begin
        cutting = slice(start // itemsize, stop // itemsize)
        own = {name: Lendable(array[cutting], bases[name], start) for name, array in state.items()}
        slices.append(SliceState(spec, index, Lendable(values[cutting], base, start), own))
    return KeyPart(spec, cut, run, tuple(slices))


def _writable(payload: memoryview, dtype: np.dtype[Any]) -> Array:
    """The payload as an array that a merge may write: itself where it can be, else a copy."""
    array: Array = np.frombuffer(payload, dtype)
    return array if array.flags.writeable and array.flags.aligned else array.copy()
