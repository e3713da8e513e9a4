"""What a key that is never cut is worth on its shard: its value and the rule's state, set and updated. Pure.

Arrays are in the key's shape, for the rule sees that. While their bytes are on their way to somebody they are not
written: a copy takes their place.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft_graph.program import Update
from weft_kernels.rules.record import State
from weft_kvstore.arrays.array import Array
from weft_kvstore.compression.choice import Choice
from weft_kvstore.lot.encoded_values import EncodedValues
from weft_kvstore.merging.steps import Complete
from weft_kvstore.sharding.slices import KeySlices
from weft_kvstore.units.key_rules import KeyRules
from weft_kvstore.wire.lending import Lendable, lendable


class WholeValues:
    """Slice i of the value is elements `bounds[i]` to `bounds[i + 1]` of it, and bytes `byte_bounds` of those.

    Invariants: `_lacking` has the slices that were never set, and have no first value; `_state_arrays` are those of
    `state`.
    """

    __slots__ = ("_encoded", "_lacking", "_spec", "_state_arrays", "bounds", "byte_bounds", "state", "weight")

    def __init__(self, spec: KeyRules, cut: KeySlices, first: Array, pulled: Choice | None) -> None:
        """`first` is the first value, in the key's shape; `pulled` says how values travel, None as they are."""
        self._spec = spec
        self.weight = lendable(first, cut.count)
        self.state: dict[str, Lendable] = {
            name: lendable(np.full(first.shape, spec.rule.state[name], first.dtype), cut.count) for name in spec.state
        }
        self._state_arrays: State = {name: held.array for name, held in self.state.items()}
        self.byte_bounds: Array = np.minimum(np.arange(cut.count + 1) * cut.step_bytes, cut.nbytes)
        self.bounds: Array = self.byte_bounds // first.dtype.itemsize
        merged = spec.update is Update.GRADIENT
        self._encoded = None if pulled is None else EncodedValues(pulled, self.bounds, merged=merged)
        self._lacking: set[int] = set(range(cut.count)) if spec.given else set()

    @property
    def lacks(self) -> bool:
        """Whether a slice was never set, and has no first value."""
        return bool(self._lacking)

    def encoded(self) -> EncodedValues | None:
        """The value's bytes as they travel encoded, which are made where they can be; None where they are not there."""
        encoded = self._encoded
        if encoded is None:
            return None
        slices = len(encoded.changed)
        if encoded.missing(0, slices):
            encoded.make([(0, slices, self.weight.array.reshape(-1))])
        return None if encoded.changed.any() else encoded

    def fill(self, index: int, elements: Array) -> None:
        """Sets a slice if it was never set."""
        if index in self._lacking:
            self.put(index, elements)

    def put(self, index: int, elements: Array) -> None:
        """Sets a slice."""
        self.weight = _writable(self.weight)
        if self._encoded is not None:
            self._encoded.changed[index] = True
        np.copyto(self.weight.array.reshape(-1)[self.bounds[index] : self.bounds[index + 1]], elements)
        self._lacking.discard(index)

    def apply(self, complete: Complete[Array], update: int) -> Iterator[None]:
        """Makes the key's update of that number, the first is 1; stops after each piece. Raises RuleFailedError,
        MemoryError."""
        yield from self._change(complete, update)
        if self._encoded is None:
            return
        if self._spec.update is Update.GRADIENT:
            total = None if complete.total is None else complete.total.reshape(-1)
            self._encoded.merged(complete.step, 0, len(self._encoded.changed), total)
        else:
            self._encoded.changed.fill(True)

    def _change(self, complete: Complete[Array], update: int) -> Iterator[None]:
        self.weight = _writable(self.weight)
        spec, weight, total = self._spec, self.weight.array, complete.total
        if total is None:
            weight.fill(0)
            return
        state: State = self._writable_state() if spec.update is Update.RULE else {}
        total = total.reshape(weight.shape)
        piece = spec.a_piece
        if weight.size <= piece or (spec.update is Update.RULE and spec.rule.whole):
            self._update(weight, total, state, complete, update)
            return
        flat, of_total = weight.reshape(-1), total.reshape(-1)
        of_state = {name: array.reshape(-1) for name, array in state.items()}
        for low in range(0, flat.size, piece):
            some = slice(low, low + piece)
            part = {name: array[some] for name, array in of_state.items()}
            self._update(flat[some], of_total[some], part, complete, update)
            yield

    def _update(self, weight: Array, total: Array, state: State, complete: Complete[Array], update: int) -> None:
        """Updates some elements of the value."""
        spec = self._spec
        if spec.update is Update.GRADIENT:
            np.copyto(weight, total)
        elif spec.update is Update.RULE:
            with spec.rule_runs(complete.step):
                spec.rule.apply(weight, total, state, update, spec.hyper.at(complete.step))
        elif total.dtype.kind == "f":
            np.divide(total, complete.contributors, out=weight)
        else:
            np.floor_divide(total, complete.contributors, out=weight)

    def _writable_state(self) -> State:
        """The state's arrays, to be written."""
        if any(held.lent.any() for held in self.state.values()):
            self.state = {name: _writable(held) for name, held in self.state.items()}
            self._state_arrays = {name: held.array for name, held in self.state.items()}
        return self._state_arrays


def _writable(held: Lendable) -> Lendable:
    """The array, to be written. While its bytes are on their way to somebody, a copy takes its place."""
    return held.copied() if held.lent.any() else held
