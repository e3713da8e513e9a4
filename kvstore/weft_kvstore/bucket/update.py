"""A bucket's values, as they are and as they travel encoded, and the rule that changes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from weft_graph.program import Update
from weft_kernels.rules.record import Hyper
from weft_kvstore.arrays import Array, ranges_alike
from weft_kvstore.bucket.steps import RULE_ERRORS, THE_BARRIER, UpdateSpec
from weft_kvstore.bucket.values import ADDED_ELEMENTS, BucketValues, EncodedValues, Gradient
from weft_kvstore.compression import Codec
from weft_kvstore.description.form import BARRIER_KEY
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.hyper import KeyHyper
from weft_kvstore.sharding import BucketPartition

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSpec(UpdateSpec):
    """What all slices of dense keys have in common.

    `partition` is what this shard has; `keys` are by their index in the description. A piece has at most `piece_slices`
    slices. `hyper_by_key` has the hyper-parameters of keys, by index, that were changed for them alone. `is_whole`: the
    bucket is one key that is updated at once, when all its slices are merged; slices are how it travels. `pushed` and
    `pulled` are how gradients and values are encoded; None: they are not. `keeps_previous`: each slice keeps its value
    of the version before, for a new incarnation of a slot.
    """

    partition: BucketPartition
    keys: tuple[KeyDescription, ...]
    piece_slices: int
    pushed: Codec | None
    pulled: Codec | None
    is_whole: bool
    keeps_previous: bool
    hyper_by_key: dict[int, KeyHyper] = field(default_factory=dict)

    def named(self, slice_: int) -> str:
        """The words by which an error names a slice."""
        (key_range,) = self.partition.ranges_in(slice_, slice_ + 1)
        return f"{self.key_named(slice_)}, slice {key_range.number + slice_ - key_range.first}"

    def key_named(self, slice_: int) -> str:
        name = self.keys[self.partition.ranges_in(slice_, slice_ + 1)[0].key_index].key
        return THE_BARRIER if name == BARRIER_KEY else f"key {name!r}"


# --- Carries out updates of a bucket's slices: weights and the rule's state in, and out -------------------------------


class BucketUpdate:
    """`values` are the weights, `state` the rule's arrays. `updates` counts, by slice, the updates made. `encoded` are
    the weights as they travel to workers, where they do so in fewer bytes. `previous` are the weights before the last
    step of each slice, where they are kept: a slot whose process has died may have to do that step again."""

    __slots__ = ("_spec", "encoded", "previous", "residual", "state", "updates", "values")

    def __init__(self, spec: BucketSpec, values: BucketValues) -> None:
        self._spec = spec
        self.values = values
        count = int(values.bounds[-1])
        self.state = {
            name: BucketValues(np.full(count, spec.rule.state[name], values.dtype), values.bounds, in_one=spec.is_whole)
            for name in spec.state
        }
        self.updates = np.zeros(len(spec.partition), np.int64)
        self.previous: BucketValues | None = None
        if spec.keeps_previous and spec.is_sync and spec.slots:
            self.previous = BucketValues(np.empty(count, values.dtype), values.bounds, in_one=spec.is_whole)
        self.encoded: EncodedValues | None = None
        if spec.pulled is not None:
            self.encoded = EncodedValues(spec.pulled, values.bounds, merged=spec.update is Update.GRADIENT)
            values.changed = self.encoded.changed
        self.residual = None if self.encoded is None else self.encoded.residual
        """What compression of merged gradients has left out so far (elements), where it keeps that."""

    def without_gradient(self, first: int, stop: int) -> None:
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
        """Applies a sum of gradients as the update of `step`. Raises JobFailedError."""
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
                        summed = gradient.read(origin + at, origin + some.stop, scratch[: some.stop - at])
                    else:
                        summed = array[origin + at : origin + some.stop]
                    if before is not None:
                        np.copyto(before[some], weight[some])
                    if rule.whole:  # It sees the key as it is.
                        shape = spec.keys[spec.partition.ranges[0].key_index].shape
                        shaped = {name: values.reshape(shape) for name, values in state.items()}
                        rule.apply(weight.reshape(shape), summed.reshape(shape), shaped, update, hyper)
                    else:
                        views = {name: values[some] for name, values in state.items()} if state else state
                        apply = (rule.apply_over if summed.flags.writeable else None) or rule.apply
                        apply(weight[some], summed, views, update, hyper)
        except RULE_ERRORS as error:
            elements = self.values.bounds[low : high + 1] - self.values.bounds[low]
            first, last = (np.searchsorted(elements, [begin, max(end - 1, begin)], side="right") - 1).tolist()
            raise spec.failed(step, error, low + first, low + last) from error

    def _pieces(self, low: int, high: int, step: int) -> Iterator[tuple[Hyper, int, int]]:
        """Elements of slices of a block that the rule gets at once, from 0 at slice `low`, and their hyper-parameters.
        It gets slice by slice where it may not be cut anywhere, so that no bit depends on which came together."""
        spec, bounds = self._spec, self.values.bounds
        alike = [(low, high, -1)]
        if spec.hyper_by_key:
            ranges = spec.partition.ranges_in(low, high)
            alike = [(max(one.first, low), min(one.stop, high), one.key_index) for one in ranges]
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
