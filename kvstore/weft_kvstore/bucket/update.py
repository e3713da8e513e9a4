"""A bucket's values, as they are and as they travel encoded, and the rule that changes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from weft_graph.program import Update
from weft_kernels.rules.record import Hyper
from weft_kvstore.arrays import Array, Range, Segment, bytes_of, ranges_alike, ranges_where
from weft_kvstore.bucket.steps import RULE_ERRORS, UpdateSpec
from weft_kvstore.bucket.sums import ADDED_ELEMENTS, Gradient
from weft_kvstore.compression import Codec, SliceCodec
from weft_kvstore.description.form import BARRIER_KEY
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.hyper import KeyHyper
from weft_kvstore.sharding import BucketPart
from weft_kvstore.wire.outbox import BufferSource

# --- Pins: parts of arrays that are not written while their bytes are sent --------------------------------------------


class Pinnable:
    """An array in parts; `pinned` (parts) counts the pins on each, and a part is not written while it is pinned.
    `source` has the bytes, from `start` on. `shared`: the array is in shared memory, where peers read it; `original` is
    that array, of a copy."""

    __slots__ = ("array", "original", "pinned", "shared", "source", "start")

    def __init__(self, array: Array, source: BufferSource, start: int, parts: int, *, shared: bool = False) -> None:
        self.original: Pinnable | None = None
        self.array = array
        self.source = source
        self.start = start
        self.shared = shared
        self.pinned = np.zeros(parts, np.int32)

    def copy(self) -> Pinnable:
        """A copy without pins, in private memory."""
        array = self.array.copy()
        copy = Pinnable(array, BufferSource(bytes_of(array), self.source.wrap), 0, len(self.pinned))
        copy.original = self if self.shared else self.original
        return copy

    def copied_back(self) -> Pinnable:
        """The shared original with this copy's values, if it has no pins; else this copy."""
        original = self.original
        if original is None or original.pinned.any():
            return self
        np.copyto(original.array, self.array)
        return original


# --- The values of a bucket on a shard: one flat array, in blocks that are copied where pinned slices are written -----
# A block has whole slices of at most `BLOCK_BYTES` together: it fills a frame, and is what a copy costs where a reader
# is slower than the slots.


BLOCK_BYTES: Final = 1 << 23

MOST_CUTS: Final = 1 << 20
"""How much is remembered of how ranges of slices lie in blocks, which peers push and pull at each step: numbers of 8
bytes, `A_CUT` for each range and some for each of its slices."""

A_CUT: Final = 64


class Cut(NamedTuple):
    """Slices `low` to `high`, which lie in a block: the first is part `part` of it. `bounds` (slices + 1) int64: where
    their bytes begin and end there; `elements`: where their elements are."""

    low: int
    high: int
    block: int
    part: int
    bounds: Array
    elements: slice


class BucketValues:
    """Values (elements) whose slice i has elements `bounds[i]` to `bounds[i + 1]`. Where `changed` (slices, bool) is
    there, it is set for slices that are written."""

    __slots__ = ("_block_of", "_blocks", "_cuts", "_edges", "_remembered", "bounds", "changed", "dtype", "source")

    def __init__(self, values: Array, bounds: Array, *, in_one: bool = False, shared: bool = False) -> None:
        """`in_one`: all of it is one block, for who writes it all at once. `shared`: clients may read `values`
        where they are."""
        self.bounds = bounds
        self.changed: Array | None = None
        self.dtype: np.dtype[Any] = values.dtype
        self._cuts: dict[Range, list[Cut]] = {}
        self._remembered = 0
        self._edges = np.array([0, len(bounds) - 1]) if in_one else _edges(bounds * self.dtype.itemsize)
        self._block_of = np.repeat(np.arange(len(self._edges) - 1), np.diff(self._edges))
        self.source, itemsize = BufferSource(bytes_of(values)), self.dtype.itemsize
        starts = bounds[self._edges].tolist()
        self._blocks = [
            Pinnable(values[start:stop], self.source, start * itemsize, parts, shared=shared)
            for (start, stop), parts in zip(pairwise(starts), np.diff(self._edges).tolist(), strict=True)
        ]

    def sections(self, first: int, stop: int) -> list[tuple[int, int, Pinnable, int, Array]]:
        """Slices by blocks, each with which part of the block the first is, and where slices begin and end in its
        source: (slices + 1) int64 bytes."""
        found = []
        for low, high, block, part, bounds, _ in self._cuts.get((first, stop)) or self._cut(first, stop):
            held = self._blocks[block]
            found.append((low, high, held, part, bounds + held.start if held.start else bounds))
        return found

    def written(self, first: int, stop: int) -> list[tuple[int, int, Array]]:
        """The elements of slices, to be written: by blocks, each with the slices that lie in it."""
        if self.changed is not None:
            self.changed[first:stop] = True
        found = []
        for low, high, block, part, _, elements in self._cuts.get((first, stop)) or self._cut(first, stop):
            held = self._blocks[block]
            if held.original is not None:
                held = self._blocks[block] = held.copied_back()
            if held.pinned[part] if high - low == 1 else held.pinned[part : part + high - low].any():
                held = self._blocks[block] = held.copy()
            found.append((low, high, held.array[elements]))
        return found

    def write(self, segment: Segment) -> None:
        """These are the elements of some slices."""
        origin = self.bounds[segment.first]
        for low, high, elements in self.written(segment.first, segment.stop):
            np.copyto(elements, segment.elements[self.bounds[low] - origin : self.bounds[high] - origin])

    def elements(self, first: int, stop: int) -> Iterator[tuple[int, int, Array]]:
        """The elements of slices, to be read: by blocks, each with the slices that lie in it."""
        for low, high, block, _, _, elements in self._cuts.get((first, stop)) or self._cut(first, stop):
            yield low, high, self._blocks[block].array[elements]

    def _cut(self, first: int, stop: int) -> list[Cut]:
        """How slices lie in blocks."""
        found = []
        for number in range(int(self._block_of[first]), int(self._block_of[stop - 1]) + 1):
            edge, end = int(self._edges[number]), int(self._edges[number + 1])
            low, high = max(edge, first), min(end, stop)
            elements = self.bounds[low : high + 1] - self.bounds[edge]
            some = slice(int(elements[0]), int(elements[-1]))
            found.append(Cut(low, high, number, low - edge, elements * self.dtype.itemsize, some))
        self._remembered += A_CUT + stop - first
        if self._remembered > MOST_CUTS:
            self._cuts.clear()
            self._remembered = A_CUT + stop - first
        self._cuts[first, stop] = found
        return found


def _edges(bounds: Array) -> Array:
    """The slices at which blocks begin, and where the last one ends; `bounds` in bytes."""
    edges, count = [0], len(bounds) - 1
    while edges[-1] < count:
        at = edges[-1]
        fit = int(np.searchsorted(bounds, bounds[at] + BLOCK_BYTES, side="right")) - 1
        edges.append(min(max(fit, at + 1), count))
    return np.array(edges, np.int64)


# --- The values of a bucket, or of a whole key, as they travel encoded to workers: made once for all of them ----------
# What travels     | Is encoded                                                    | With a residual
# -----------------|---------------------------------------------------------------|---------------------
# weights          | when somebody first asks for them after they have changed     | never
# merged gradients | when a step applies, whoever asks; a value that was set never | where the store says


class EncodedValues:
    """`values` are the bytes, pinned and copied as values are. `changed` (slices) bool: of which slices they are not
    those of the value; whoever writes the value sets it. `residual` (elements) is what merged gradients owe to all
    workers; None where nothing is kept."""

    __slots__ = ("_codec", "_is_merged", "changed", "residual", "values")

    def __init__(self, codec: Codec, bounds: Array, *, merged: bool) -> None:
        """`bounds` (slices + 1, int64): where slices begin, elements. `merged`: the value is a merged gradient."""
        self.residual = np.zeros(int(bounds[-1]), codec.dtype) if merged and codec.residual else None
        self._codec = SliceCodec(codec, bounds, self.residual)
        self._is_merged = merged
        self.values = BucketValues(np.empty(int(self._codec.begins[-1]), np.uint8), self._codec.begins)
        self.changed: Array = np.ones(len(bounds) - 1, np.bool_)

    def encode(self, first: int, stop: int, elements: Array | None) -> None:
        """Encodes slices: their weights, or the merged gradient of a step, once for each step; None: it has none."""
        bounds = self._codec.bounds
        for low, high, out in self.values.written(first, stop):
            some = None if elements is None else elements[bounds[low] - bounds[first] : bounds[high] - bounds[first]]
            self._codec.encode(low, high, some, out=out)
        self.changed[first:stop] = False

    def missing(self, first: int, stop: int) -> list[Range]:
        """Slices among these whose bytes are to be made."""
        return [] if self._is_merged else ranges_where(self.changed[first:stop], first)


# --- How what a shard has of a bucket is merged and updated -----------------------------------------------------------


PIECE_ELEMENTS: Final = 1 << 20
"""Elements that a piece computes, of first values or of an update by a rule of a few nodes: some 10 ms."""

BUCKET_PIECES: Final = 2
"""Such pieces that a plain bucket's update takes at once: it crosses memory once, and is what a shard does most."""

PIECE_NODES: Final = 16
"""Nodes of a user's rule that may meet as many elements; with more of them a piece has fewer."""

PIECE_CALLS: Final = 128
"""Slices that such a rule updates in a piece, however small: each is a call of its own, and all of them some 20 ms."""

PIECE_BYTES: Final = 1 << 23
"""What a piece counts for, at most."""

THE_BARRIER: Final = "the barrier"
"""What errors call the barrier's key, of which no caller knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSpec(UpdateSpec):
    """What all slices of dense keys have in common.

    `part` is what this shard has; `keys` are by their index in the description. A piece has at most `piece_slices`
    slices. `hyper_by_key` has the hyper-parameters of keys, by index, that were changed for them alone. `is_whole`: the
    bucket is one key that is updated at once, when all its slices are merged; slices are how it travels. `pushed` and
    `pulled` are how gradients and values are encoded; None: they are not. `keeps_previous`: each slice keeps its value
    of the version before, for a new incarnation of a slot.
    """

    part: BucketPart
    keys: tuple[KeyDescription, ...]
    piece_slices: int
    pushed: Codec | None
    pulled: Codec | None
    is_whole: bool
    keeps_previous: bool
    hyper_by_key: dict[int, KeyHyper] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a whole key."""
        return tuple(self.keys[int(self.part.key_indices[0])].shape)

    @property
    def unscaled(self) -> bool:
        """Whether gradients arrive divided by the loss scale."""
        return self.pushed is not None and self.pushed.residual

    def named(self, slice_: int) -> str:
        """The words by which an error names a slice."""
        return f"{self.key_named(slice_)}, slice {int(self.part.slice_indices[slice_])}"

    def key_named(self, slice_: int) -> str:
        name = self.keys[int(self.part.key_indices[slice_])].key
        return THE_BARRIER if name == BARRIER_KEY else f"key {name!r}"


# --- Carries out updates of a bucket's slices: weights and the rule's state in, and out -------------------------------


class BucketUpdate:
    """`values` are the weights, `state` the rule's arrays. `updates` counts, by slice, the updates made. `encoded` are
    the weights as they travel to workers, where they do so in fewer bytes. `previous` are the weights before the last
    step of each slice, where they are kept: a slot whose process has died may have to do that step again."""

    __slots__ = ("_spec", "encoded", "previous", "state", "updates", "values")

    def __init__(self, spec: BucketSpec, values: BucketValues) -> None:
        self._spec = spec
        self.values = values
        count = int(values.bounds[-1])
        self.state = {
            name: BucketValues(np.full(count, spec.rule.state[name], values.dtype), values.bounds, in_one=spec.is_whole)
            for name in spec.state
        }
        self.updates = np.zeros(len(spec.part), np.int64)
        self.previous: BucketValues | None = None
        if spec.keeps_previous and spec.is_sync and spec.slots:
            self.previous = BucketValues(np.empty(count, values.dtype), values.bounds, in_one=spec.is_whole)
        self.encoded: EncodedValues | None = None
        if spec.pulled is not None:
            self.encoded = EncodedValues(spec.pulled, values.bounds, merged=spec.update is Update.GRADIENT)
            values.changed = self.encoded.changed

    @property
    def has_residual(self) -> bool:
        """Whether compression of merged gradients keeps a residual."""
        return self.encoded is not None and self.encoded.residual is not None

    def residual(self, first: int, stop: int) -> Array:
        """What it has left out of slices so far, to be read or written: (elements)."""
        assert self.encoded is not None
        assert self.encoded.residual is not None
        return self.encoded.residual[self.values.bounds[first] : self.values.bounds[stop]]

    def restore(self, name: str, segment: Segment) -> None:
        """Makes this a state array of some slices."""
        self.state[name].write(segment)

    def without_gradient(self, first: int, stop: int, step: int) -> None:
        """Nobody had anything for a step: a merged gradient is zero, any other value stays."""
        if self.previous is not None:
            for low, high, weight in self.values.elements(first, stop):
                ((_, _, before),) = self.previous.written(low, high)
                np.copyto(before, weight)
        if self._spec.update is Update.GRADIENT:
            for _, _, weight in self.values.written(first, stop):
                weight.fill(0)
            if self.encoded is not None:
                self.encoded.encode(first, stop, None)

    def with_gradient(self, gradient: Gradient, contributors: int, step: int) -> None:
        """Applies a sum of gradients as the update of `step`. Raises RuleFailedError."""
        spec, first, stop = self._spec, gradient.first, gradient.stop
        is_one = stop - first == 1
        alike = [(first, stop, int(self.updates[first]))] if is_one else ranges_alike(self.updates[first:stop], first)
        for begin, end, updates in alike:
            for low, high, weight in self.values.written(begin, end):
                before = None
                if self.previous is not None:
                    ((_, _, before),) = self.previous.written(low, high)  # They are in one block.
                if spec.update is Update.RULE:
                    self._run_rule(low, high, weight, before, gradient, updates + 1, step)
                    continue
                if before is not None:
                    np.copyto(before, weight)
                at = int(self.values.bounds[low] - self.values.bounds[first])
                total = gradient.read(at, at + len(weight), np.empty(len(weight), gradient.dtype))
                if spec.update is Update.GRADIENT:
                    np.copyto(weight, total)
                elif total.dtype.kind == "f":
                    np.divide(total, contributors, out=weight, casting="same_kind")
                else:
                    weight[...] = np.floor_divide(total, contributors)
        self.updates[first if is_one else slice(first, stop)] += 1
        if self.encoded is not None and spec.update is Update.GRADIENT:
            total = gradient.read(0, gradient.count, np.empty(gradient.count, gradient.dtype))
            self.encoded.encode(first, stop, total)

    def _run_rule(  # noqa: PLR0917  # what a rule has for slices
        self, low: int, high: int, weight: Array, before: Array | None, gradient: Gradient, update: int, step: int
    ) -> None:
        """Makes update number `update` of slices `low` to `high`, which lie in one block: `weight` are their elements,
        and `before` is where those go that they have now. A rule that may be cut anywhere gets a gradient that has to
        be put together, or added up, while it is in the cache; what the weights were is copied then too."""
        spec, rule, array = self._spec, self._spec.rule, gradient.array
        origin = int(self.values.bounds[low] - self.values.bounds[gradient.first]) if low > gradient.first else 0
        state = {name: values.written(low, high)[0][2] for name, values in self.state.items()} if self.state else {}
        begin = end = 0
        try:
            pieces: Iterable[tuple[Hyper, int, int]]
            if rule.anywhere and not spec.hyper_by_key:
                pieces = ((spec.hyper.constant or spec.hyper.at(step), 0, len(weight)),)
            else:
                pieces = self._pieces(low, high, step)
            for hyper, begin, end in pieces:  # an error names the slices
                most = end - begin
                if array is None:
                    most = min(most, ADDED_ELEMENTS) if rule.anywhere else most
                    scratch = np.empty(most, gradient.dtype)
                for at in range(begin, end, most):
                    some = slice(at, min(at + most, end))
                    if array is None:
                        given = gradient.read(origin + at, origin + some.stop, scratch[: some.stop - at])
                    else:
                        given = array[origin + at : origin + some.stop]
                    if before is not None:
                        np.copyto(before[some], weight[some])
                    if rule.whole:  # It sees the key as it is.
                        shaped = {name: values.reshape(spec.shape) for name, values in state.items()}
                        rule.apply(weight.reshape(spec.shape), given.reshape(spec.shape), shaped, update, hyper)
                    else:
                        parts = {name: values[some] for name, values in state.items()} if state else state
                        apply = (rule.apply_over if given.flags.writeable else None) or rule.apply
                        apply(weight[some], given, parts, update, hyper)
        except RULE_ERRORS as error:
            elements = self.values.bounds[low : high + 1] - self.values.bounds[low]
            first, last = (np.searchsorted(elements, [begin, max(end - 1, begin)], side="right") - 1).tolist()
            raise spec.failed(step, error, low + first, low + last) from error

    def _pieces(self, low: int, high: int, step: int) -> Iterator[tuple[Hyper, int, int]]:
        """Elements of slices of a block that the rule gets at once, from 0 at slice `low`, and their hyper-parameters.
        It gets slice by slice where it may not be cut anywhere, so that no bit depends on which came together."""
        spec, bounds = self._spec, self.values.bounds
        alike = ranges_alike(spec.part.key_indices[low:high], low) if spec.hyper_by_key else [(low, high, -1)]
        for first, stop, key in alike:
            try:
                hyper = spec.hyper_by_key.get(key, spec.hyper).at(step)
            except RULE_ERRORS as error:  # A schedule's.
                raise spec.failed(step, error, first, first) from error
            edges = (bounds[first : stop + 1] - bounds[low]).tolist()
            if spec.rule.whole or spec.rule.anywhere:
                yield hyper, edges[0], edges[-1]
                continue
            for start, until in pairwise(edges):
                for at in range(start, until, spec.piece_elements):
                    yield hyper, at, min(at + spec.piece_elements, until)
