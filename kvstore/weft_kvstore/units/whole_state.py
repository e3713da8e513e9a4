"""A key that is never cut, on its shard: what is pushed to it, set and pulled of it, step by step. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.compression.choice import Choice
from weft_kvstore.compression.slice_codec import SliceCodec
from weft_kvstore.lot.encoded_values import EncodedValues
from weft_kvstore.merging.answer import Answer
from weft_kvstore.merging.assembly import Assemblies
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.merging.steps import Complete
from weft_kvstore.sharding.slices import KeySlices
from weft_kvstore.units.key_rules import KeyRules
from weft_kvstore.units.sets_ahead import SlicesAhead
from weft_kvstore.units.unit_state import UnitState
from weft_kvstore.units.whole_values import WholeValues


class WholeState(UnitState[Array, "tuple[int, Array]"]):
    """It travels as slices, and a slot is in when all of them have come; what is set is (index, elements) of a slice.
    `pushed` decodes gradients; None where they travel as they are."""

    __slots__ = ("_assemblies", "_values", "cut", "pushed")

    def __init__(
        self,
        spec: KeyRules,
        cut: KeySlices,
        values: Array,
        *,
        pushed: Choice | None = None,
        pulled: Choice | None = None,
    ) -> None:
        """`values` are the first ones, in the key's shape. `pushed` and `pulled` say how gradients travel, and values;
        None as they are."""
        super().__init__(spec, _add, _elements, SlicesAhead)
        self.cut = cut
        self._assemblies: Assemblies[Array] = Assemblies()
        self._values = WholeValues(spec, cut, values, pulled)
        self.pushed = None if pushed is None else SliceCodec(pushed.codec, self._values.bounds)

    @property
    def nbytes(self) -> int:
        return self._values.weight.array.nbytes

    def check(self, slot: int, step: int, *, pushes: bool) -> None:
        super().check(slot, step, pushes=pushes)
        self._assemblies.check(slot, step, self.spec.where(slot, step), count=self.cut.count if pushes else None)

    def accept_slice(self, slot: int, step: int, index: int, gradient: Array) -> bool:
        """Takes in the gradient of one slice, as `accept` does those of all."""
        if self.steps.is_over(slot, step):
            return False
        parts = self._assemblies.add(slot, step, index, gradient, self.cut.count)
        if parts is None:
            return False
        return self.accept(slot, step, parts[0] if len(parts) == 1 else np.concatenate(parts))

    @property
    def _parts_begun(self) -> int:
        return self._assemblies.begun

    def replace(self, slot: int) -> None:
        super().replace(slot)
        self._assemblies.drop(slot)

    def answers(self, wait: PullWait) -> Iterator[Answer | None]:
        values, version = self._values, self.answered_version(wait)
        if wait.compressed and version and not wait.state:
            encoded = values.encoded()
            if encoded is not None:
                yield from self._encoded_answers(encoded, version)
                return
        arrays = [values.state[name] for name in self.spec.state] if wait.state else [values.weight]
        for number, one in enumerate(arrays):
            yield Answer(number, self.spec.lot, version, 0, values.byte_bounds, one.source, one, self.spec.priority)

    def _encoded_answers(self, encoded: EncodedValues, version: int) -> Iterator[Answer]:
        values, spec = encoded.values, self.spec
        for low, high, held in values.blocks(0, self.cut.count):
            bounds, part = values.byte_bounds(low, high, held), values.part(low)
            what = (0, spec.lot, version, low, bounds, held.source, held, spec.priority, None, part)
            yield Answer(*what, compressed=True)

    def lacks(self, wait: PullWait) -> bool:
        return self._values.lacks

    def _lacks_for(self, total: Array | None) -> bool:
        return self._values.lacks

    def _fill(self, value: tuple[int, Array]) -> None:
        self._values.fill(*value)

    def _put(self, value: tuple[int, Array]) -> None:
        self._values.put(*value)

    def _apply(self, complete: Complete[Array]) -> Iterator[None]:
        return self._values.apply(complete, self.updates + 1)


def _add(total: Array, gradient: Array) -> Array:
    return np.add(total, gradient, out=total)


def _elements(total: Array) -> Array:
    return total.reshape(-1)
