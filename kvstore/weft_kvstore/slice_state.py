"""One slice on a shard, or a whole key: its value, the rule's state, and the steps that are not applied yet. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from weft_graph.program import Update
from weft_kernels.rules.record import State
from weft_kvstore.assembly import Assemblies
from weft_kvstore.buffers import bytes_of
from weft_kvstore.pull_wait import PullWait
from weft_kvstore.routing import KeySlices
from weft_kvstore.sets_ahead import SetsAhead, SlicesAhead
from weft_kvstore.steps import Complete
from weft_kvstore.store import Array
from weft_kvstore.unit_state import Answer, KeyRules, Lendable, UnitState
from weft_kvstore.work import PIECE_SLICES


class SliceState(UnitState[Array, "tuple[int, Array]"]):
    """A slice. What is set is (index, elements): of a slice its own index, of a whole key one of its slices."""

    __slots__ = ("_lacking", "_state_arrays", "state", "weight")

    def __init__(self, spec: KeyRules, index: int, weight: Lendable, state: Mapping[str, Lendable]) -> None:
        super().__init__(spec, index, _add)
        self.weight = weight
        self.state = dict(state)
        self._state_arrays: State = {name: held.array for name, held in state.items()}
        self._lacking: set[int] = set(self.indices) if spec.given else set()

    @property
    def indices(self) -> range:
        """The slices that it holds."""
        return range(self.index, self.index + 1)

    @property
    def nbytes(self) -> int:
        return self.weight.array.nbytes

    def named(self, slot: int) -> str:
        return f"slot {slot}, key {self.spec.key!r}, slice {self.index}"

    def accept_slice(self, slot: int, step: int, _index: int, gradient: Array) -> bool:
        """Takes in the gradient of one slice, as `accept` does."""
        return self.accept(slot, step, gradient)

    def answers(self, wait: PullWait) -> Iterator[Answer | None]:
        held = [self.weight] if not wait.state else [self.state[name] for name in self.spec.state]
        for number, one in enumerate(held):
            yield Answer(number, self.index, one.base, one.start, one.stop, one)

    def lacks(self, wait: PullWait) -> bool:
        return bool(self._lacking)

    def _lacks_for(self, total: Array | None) -> bool:
        return bool(self._lacking)

    def _gradient_elements(self, total: Array) -> Array:
        return total.reshape(-1)

    def _nothing_ahead(self) -> SetsAhead[tuple[int, Array]]:
        return SlicesAhead()

    def _put(self, value: tuple[int, Array]) -> None:
        self.weight = writable(self.weight)
        np.copyto(self._elements(value[0]), value[1])
        self._lacking.discard(value[0])

    def _elements(self, _index: int) -> Array:
        """A slice of the value, to be written."""
        return self.weight.array

    def _apply(self, complete: Complete[Array]) -> Iterator[None]:
        self.weight = writable(self.weight)
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
            with self._rule_runs(complete.step):
                hyper = self.spec.hyper.at(complete.step)
                self.spec.rule.apply(weight, total, state, self.updates + 1, hyper)
        elif total.dtype.kind == "f":
            np.divide(total, complete.contributors, out=weight)
        else:
            np.floor_divide(total, complete.contributors, out=weight)

    def _writable_state(self) -> State:
        """The state's arrays, to be written."""
        if any(held.lent for held in self.state.values()):
            self.state = {name: writable(held) for name, held in self.state.items()}
            self._state_arrays = {name: held.array for name, held in self.state.items()}
        return self._state_arrays


class WholeState(SliceState):
    """A key that is never cut: it travels as slices, and a slot is in when all of them have come. The rule gets arrays
    in the key's shape. `index` is 0."""

    __slots__ = ("_assemblies", "_cut")

    def __init__(self, spec: KeyRules, cut: KeySlices, weight: Lendable, state: Mapping[str, Lendable]) -> None:
        self._cut = cut
        self._assemblies: Assemblies[Array] = Assemblies()
        super().__init__(spec, 0, weight, state)

    @property
    def indices(self) -> range:
        return range(self._cut.count)

    def check(self, slot: int, step: int, *, pushes: bool) -> None:
        super().check(slot, step, pushes=pushes)
        self._assemblies.check(slot, step, self.where(slot, step), count=self._cut.count if pushes else None)

    def accept_slice(self, slot: int, step: int, index: int, gradient: Array) -> bool:
        if self.steps.is_over(slot, step):
            return False
        parts = self._assemblies.add(slot, step, index, gradient, self._cut.count)
        if parts is None:
            return False
        return self.accept(slot, step, parts[0] if len(parts) == 1 else np.concatenate(parts))

    def answers(self, wait: PullWait) -> Iterator[Answer | None]:
        held = [self.weight] if not wait.state else [self.state[name] for name in self.spec.state]
        for one in held:
            one.lent += 1  # Between pieces it may be updated: a copy takes its place then.
        try:
            for number, one in enumerate(held):
                for index in self.indices:
                    yield Answer(number, index, one.base, self._cut.start(index), self._cut.start(index + 1), one)
                    if not (index + 1) % PIECE_SLICES:
                        yield None
        finally:
            for one in held:
                one.lent -= 1

    def is_one_piece(self, wait: PullWait) -> bool:
        return self._cut.count * (len(self.spec.state) if wait.state else 1) <= PIECE_SLICES

    def replace(self, slot: int) -> None:
        super().replace(slot)
        self._assemblies.drop(slot)

    def _elements(self, index: int) -> Array:
        itemsize = self.spec.dtype.itemsize
        start, stop = self._cut.start(index) // itemsize, self._cut.start(index + 1) // itemsize
        return self.weight.array.reshape(-1)[start:stop]


def writable(held: Lendable) -> Lendable:
    """The array, to be written. While its bytes are on their way to somebody, a copy takes its place."""
    if not held.lent:
        return held
    array = held.array.copy()
    return Lendable(array, bytes_of(array), 0)


def _add(total: Array, gradient: Array) -> Array:
    return np.add(total, gradient, out=total)
