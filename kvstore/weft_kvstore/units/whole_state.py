"""A key that is never cut, on its shard: its value, the rule's state, and the steps that are not applied yet. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft_graph.program import Update
from weft_kernels.rules.record import State
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
from weft_kvstore.wire.lending import Lendable, lendable


class WholeState(UnitState[Array, "tuple[int, Array]"]):
    """It travels as slices, and a slot is in when all of them have come; what is set is (index, elements) of a slice.
    The rule gets arrays in the key's shape."""

    __slots__ = ("_assemblies", "_encoded", "_lacking", "_state_arrays", "cut", "pushed", "state", "weight")

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
        self.weight = lendable(values, cut.count)
        self.state: dict[str, Lendable] = {
            name: lendable(np.full(values.shape, spec.rule.state[name], values.dtype), cut.count) for name in spec.state
        }
        self.cut = cut
        self._assemblies: Assemblies[Array] = Assemblies()
        self._state_arrays: State = {name: held.array for name, held in self.state.items()}
        bounds = np.minimum(np.arange(cut.count + 1) * cut.step_bytes, cut.nbytes) // values.dtype.itemsize
        self.pushed = None if pushed is None else SliceCodec(pushed.codec, bounds)
        self._encoded = None if pulled is None else EncodedValues(pulled, bounds, merged=spec.update is Update.GRADIENT)
        self._lacking: set[int] = set(range(cut.count)) if spec.given else set()

    @property
    def nbytes(self) -> int:
        return self.weight.array.nbytes

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

    def answers(self, wait: PullWait) -> Iterator[Answer | None]:
        held = [self.weight] if not wait.state else [self.state[name] for name in self.spec.state]
        bounds = np.minimum(np.arange(self.cut.count + 1) * self.cut.step_bytes, self.cut.nbytes)
        version, priority = self.answered_version(wait), self.spec.priority
        if wait.compressed and version and not wait.state and self._encode():
            yield from self._encoded_answers(version)
            return
        for number, one in enumerate(held):
            yield Answer(number, self.spec.lot, version, 0, bounds, one.source, one, priority)

    @property
    def _parts_begun(self) -> int:
        return self._assemblies.begun

    def _encode(self) -> bool:
        """Whether the value's bytes are there as they travel encoded; made where they can be."""
        if self._encoded is None:
            return False
        if self._encoded.missing(0, self.cut.count):
            self._encoded.make([(0, self.cut.count, self.weight.array.reshape(-1))])
        return not self._encoded.changed.any()

    def _encoded_answers(self, version: int) -> Iterator[Answer]:
        assert self._encoded is not None
        values, spec = self._encoded.values, self.spec
        for low, high, held in values.blocks(0, self.cut.count):
            bounds, part = values.byte_bounds(low, high, held), values.part(low)
            what = (0, spec.lot, version, low, bounds, held.source, held, spec.priority, None, part)
            yield Answer(*what, compressed=True)

    def replace(self, slot: int) -> None:
        super().replace(slot)
        self._assemblies.drop(slot)

    def lacks(self, wait: PullWait) -> bool:
        return bool(self._lacking)

    def _lacks_for(self, total: Array | None) -> bool:
        return bool(self._lacking)

    def _fill(self, value: tuple[int, Array]) -> None:
        if value[0] in self._lacking:
            self._put(value)

    def _put(self, value: tuple[int, Array]) -> None:
        self.weight = _writable(self.weight)
        index, itemsize = value[0], self.spec.dtype.itemsize
        if self._encoded is not None:
            self._encoded.changed[index] = True
        start, stop = self.cut.start(index) // itemsize, self.cut.start(index + 1) // itemsize
        np.copyto(self.weight.array.reshape(-1)[start:stop], value[1])
        self._lacking.discard(index)

    def _apply(self, complete: Complete[Array]) -> Iterator[None]:
        yield from self._change(complete)
        if self._encoded is None:
            return
        if self.spec.update is Update.GRADIENT:
            total = None if complete.total is None else complete.total.reshape(-1)
            self._encoded.merged(complete.step, 0, self.cut.count, total)
        else:
            self._encoded.changed.fill(True)

    def _change(self, complete: Complete[Array]) -> Iterator[None]:
        self.weight = _writable(self.weight)
        weight, total = self.weight.array, complete.total
        if total is None:
            weight.fill(0)
            return
        state: State = self._writable_state() if self.spec.update is Update.RULE else {}
        total = total.reshape(weight.shape)
        piece = self.spec.a_piece
        if weight.size <= piece or (self.spec.update is Update.RULE and self.spec.rule.whole):
            self._update(weight, total, state, complete)
            return
        flat, of_total = weight.reshape(-1), total.reshape(-1)
        of_state = {name: array.reshape(-1) for name, array in state.items()}
        for low in range(0, flat.size, piece):
            some = slice(low, low + piece)
            part = {name: array[some] for name, array in of_state.items()}
            self._update(flat[some], of_total[some], part, complete)
            yield

    def _update(self, weight: Array, total: Array, state: State, complete: Complete[Array]) -> None:
        """Updates some elements of the value."""
        if self.spec.update is Update.GRADIENT:
            np.copyto(weight, total)
        elif self.spec.update is Update.RULE:
            with self.spec.rule_runs(complete.step):
                hyper = self.spec.hyper.at(complete.step)
                self.spec.rule.apply(weight, total, state, self.updates + 1, hyper)
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


def _add(total: Array, gradient: Array) -> Array:
    return np.add(total, gradient, out=total)


def _elements(total: Array) -> Array:
    return total.reshape(-1)
