"""How a bucket's slices are updated: what all of them have in common, and the rule carried out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from weft_graph.program import Update
from weft_kernels.blocks import CACHE_ELEMENTS, whole_blocks
from weft_kernels.kernel import Array
from weft_kernels.rules.record import Hyper, Rule, State
from weft_kernels.run import KernelError
from weft_kvstore.arrays import Range, Segment, ranges_alike
from weft_kvstore.bucket.values import BucketValues, EncodedValues
from weft_kvstore.compression.description import Choice
from weft_kvstore.description.records import KeyDescription, Merge, Mode
from weft_kvstore.hyper import HyperAgreement, KeyHyper
from weft_kvstore.merging.step_gate import StepGate
from weft_kvstore.merging.work import Computing
from weft_kvstore.sharding import BucketPart

# --- What all slices of a plain bucket on a shard have in common ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """Bucket `number` with what this shard has of it.

    `keys` by place in the description. `a_piece`: elements that the rule updates at once, of `slices_a_piece` slices at
    most. `gate`: what holds each step until the slots have agreed on it, where they do. `computing` carries out what
    can be cut. `hold`: what holds a step whose hyper-parameters are being changed; `own` has those of keys, by place,
    that were changed for them alone. `is_whole`: the bucket is one key that is updated at once, when all its slices are
    merged; slices are how it travels. `pushed` and `pulled` say how gradients travel, and values; None as they are.
    """

    number: int
    part: BucketPart
    keys: tuple[KeyDescription, ...]
    slots: tuple[int, ...]
    update: Update
    merge: Merge
    mode: Mode
    staleness: int
    rule: Rule
    hyper: KeyHyper
    a_piece: int
    slices_a_piece: int
    gate: StepGate | None
    computing: Computing
    pushed: Choice | None = None
    pulled: Choice | None = None
    hold: HyperAgreement | None = None
    is_whole: bool = False
    own: dict[int, KeyHyper] = field(default_factory=dict)
    together: bool = field(init=False)
    """Whether a step applies once all slots are in, not each slot's by itself."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "together", self.mode is Mode.SYNC)

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the state arrays."""
        return tuple(self.rule.state) if self.update is Update.RULE else ()

    def is_held(self, step: int) -> bool:
        """Whether a step may not be applied yet."""
        return self.hold is not None and self.hold.holds(step)

    def numbers(self, step: int, first: int, stop: int) -> Iterator[tuple[int, int, Hyper]]:
        """The hyper-parameters of a step for slices, by ranges of them: those of keys that have their own apart."""
        for low, high, place in ranges_alike(self.part.places[first:stop], first):
            yield low, high, self.own.get(place, self.hyper).at(step)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a whole key."""
        return tuple(self.keys[int(self.part.places[0])].shape)

    @property
    def unscaled(self) -> bool:
        """Whether gradients arrive divided by the loss scale."""
        return self.pushed is not None and self.pushed.residual

    def named(self, slice_: int) -> str:
        """The words by which an error names a slice."""
        return f"key {self.keys[int(self.part.places[slice_])].key!r}, slice {int(self.part.indices[slice_])}"

    def key_named(self, slice_: int) -> str:
        return f"key {self.keys[int(self.part.places[slice_])].key!r}"


# --- Carries out updates of a bucket's slices: weights and the rule's state in, and out -------------------------------


ADDED_ELEMENTS: Final = 2 * CACHE_ELEMENTS
"""What is added before the rule has it: more of it leaves the cache, less costs more calls."""

RULE_ERRORS: Final = (ArithmeticError, ValueError, MemoryError, KernelError)
"""What a rule or a schedule may raise on the numbers that it meets. Anything else is a fault of the store."""


class RuleFailedError(Exception):
    """A rule cannot make an update: the job ends, not the shard. The text names the rule, key, slice and step."""


class BucketUpdate:
    """`values` are the weights, `state` the rule's arrays. `updates` counts, by slice, the updates made. `encoded` are
    the weights as they travel to workers, where they do so in fewer bytes."""

    __slots__ = ("_spec", "encoded", "state", "updates", "values")

    def __init__(self, spec: BucketSpec, values: BucketValues) -> None:
        self._spec = spec
        self.values = values
        count = int(values.bounds[-1])
        self.state = {
            name: BucketValues(np.full(count, spec.rule.state[name], values.dtype), values.bounds, in_one=spec.is_whole)
            for name in spec.state
        }
        self.updates = np.zeros(len(spec.part), np.int64)
        self.encoded: EncodedValues | None = None
        if spec.pulled is not None:
            self.encoded = EncodedValues(spec.pulled, values.bounds, merged=spec.update is Update.GRADIENT)
            values.changed = self.encoded.changed

    def restore(self, name: str, laid: Segment) -> None:
        """Makes this a state array of some slices."""
        values = self.state[name]
        for low, high, state in values.written(laid.first, laid.stop):
            np.copyto(state, self._elements_of(laid, laid.elements, low, high))

    def without_gradient(self, first: int, stop: int, step: int) -> None:
        """Nobody had anything for a step: a merged gradient is zero, any other value stays."""
        if self._spec.update is Update.GRADIENT:
            for _, _, weight in self.values.written(first, stop):
                weight.fill(0)
            if self.encoded is not None:
                self.encoded.merged(step, first, stop, None)

    def with_gradient(self, total: Segment, contributors: int, step: int, addend: Array | None = None) -> None:
        """Applies a sum of gradients, which may be written, as the update of `step`. A rule that may be cut anywhere
        adds the `addend` (elements) to it. Raises RuleFailedError."""
        for first, stop, updates in ranges_alike(self.updates[total.first : total.stop], total.first):
            for low, high, weight in self.values.written(first, stop):
                gradient = self._elements_of(total, total.elements, low, high)
                more = None if addend is None else self._elements_of(total, addend, low, high)
                if self._spec.update is not Update.RULE:
                    self._merged(weight, gradient, contributors)
                    continue
                state = {}
                for name, values in self.state.items():
                    ((_, _, state[name]),) = values.written(low, high)  # They are in one block.
                at = low
                try:
                    own = self._spec.own
                    for one in (
                        self._spec.numbers(step, low, high) if own else ((low, high, self._spec.hyper.at(step)),)
                    ):
                        self._run_rule(
                            (low, high), weight, (gradient, more), state, update=updates + 1, numbers=one, step=step
                        )
                        at = one[1]
                except RULE_ERRORS as error:  # A schedule's: what the rule itself raises is told by its slices.
                    raise self._failed(error, at, at, step) from error
        self.updates[total.first : total.stop] += 1
        if self.encoded is not None and self._spec.update is Update.GRADIENT:
            self.encoded.merged(step, total.first, total.stop, total.elements)

    def _run_rule(
        self,
        of: Range,
        weight: Array,
        gradient: tuple[Array, Array | None],
        state: State,
        *,
        update: int,
        numbers: tuple[int, int, Hyper],
        step: int,
    ) -> None:
        """Updates slices that have the same hyper-parameters; the arrays are of slices `of`, the gradient is its one or
        two addends."""
        (first, stop, hyper), rule = numbers, self._spec.rule
        origin = int(self.values.bounds[first] - self.values.bounds[of[0]])
        total, addend = gradient

        def use(some: slice, given: Array) -> None:
            if rule.whole:  # It sees the key as it is.
                shaped = {name: array.reshape(self._spec.shape) for name, array in state.items()}
                rule.apply(weight.reshape(self._spec.shape), given.reshape(self._spec.shape), shaped, update, hyper)
            else:
                parts = {name: array[some] for name, array in state.items()} if state else state
                rule.apply(weight[some], given, parts, update, hyper)

        def add_and_use(low: int, high: int, more: Array) -> None:
            """The sum is used while it is in the cache, and never written to memory."""
            scratch = np.empty(min(high - low, ADDED_ELEMENTS), total.dtype)
            for begin in range(low, high, ADDED_ELEMENTS):
                some = slice(begin, min(begin + ADDED_ELEMENTS, high))
                use(some, np.add(total[some], more[some], out=scratch[: some.stop - begin]))

        def apply(low: int, high: int) -> None:
            some = slice(origin + low, origin + high)
            try:
                if addend is None:
                    use(some, total[some])
                else:
                    add_and_use(some.start, some.stop, addend)
            except RULE_ERRORS as error:
                elements = self.values.bounds[first : stop + 1] - self.values.bounds[first]
                one, last = np.searchsorted(elements, [low, high - 1], side="right") - 1
                raise self._failed(error, first + int(one), first + int(last), step) from error

        count = int(self.values.bounds[stop] - self.values.bounds[first])
        pieces = [(0, count)]
        if not rule.anywhere or count > CACHE_ELEMENTS:
            pieces = list(self._pieces(first, stop))
        self._spec.computing.run([partial(apply, low, high) for low, high in pieces])

    def _failed(self, error: Exception, first: int, last: int, step: int) -> RuleFailedError:
        """What to raise where the rule failed on slices that were computed at once."""
        where = self._spec.named(first)
        if last != first:
            where = f"{where} to {self._spec.named(last)}"
        return RuleFailedError(f"rule {self._spec.rule.name!r} failed on {where}, step {step}: {error}")

    def _elements_of(self, total: Segment, elements: Array | None, first: int, stop: int) -> Array:
        """Of the elements of a total's slices those of some of them."""
        assert elements is not None
        if first == total.first and stop == total.stop:
            return elements
        origin = self.values.bounds[total.first]
        return elements[self.values.bounds[first] - origin : self.values.bounds[stop] - origin]

    def _merged(self, weight: Array, gradient: Array, contributors: int) -> None:
        if self._spec.update is Update.GRADIENT:
            np.copyto(weight, gradient)
        elif gradient.dtype.kind == "f":
            np.divide(gradient, contributors, out=weight, casting="same_kind")
        else:
            weight[...] = np.floor_divide(gradient, contributors)

    def _pieces(self, first: int, stop: int) -> Iterator[Range]:
        """Elements of adjacent slices that the rule gets at once, from 0: where it may be cut anywhere, a part for each
        of those who compute, else slice by slice, so that no bit depends on which slices came together."""
        bounds = self.values.bounds[first : stop + 1] - self.values.bounds[first]
        if self._spec.rule.whole:
            yield 0, int(bounds[-1])
            return
        if self._spec.rule.anywhere:
            end = int(bounds[-1])
            most = max(whole_blocks(-(-end // self._spec.computing.lanes)), CACHE_ELEMENTS)
            yield from ((low, min(low + most, end)) for low in range(0, end, most))
            return
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            yield from ((low, min(low + self._spec.a_piece, end)) for low in range(start, end, self._spec.a_piece))
