"""A plain bucket of a job on one shard, made from its description; and how its bytes come in. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from weft_kvstore.arrays import Array, Segment, laid_apart
from weft_kvstore.bucket.pulls import BucketPulls
from weft_kvstore.bucket.state import BucketState
from weft_kvstore.bucket.update import BucketSpec
from weft_kvstore.compression.codecs import PayloadError
from weft_kvstore.compression.slices import SliceCodec
from weft_kvstore.description.records import StoreDescription, first_elements, is_given
from weft_kvstore.same_host.layout import BucketPlaces
from weft_kvstore.same_host.peers import placed
from weft_kvstore.sharding import Routing
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import PayloadKind
from weft_kvstore.wire.runs import Run

FIRST_ELEMENTS: Final = 1 << 22
"""First values that are made before it is asked whether the job is still wanted: some 200 ms."""


@dataclass(frozen=True, slots=True)
class PlainBucket:
    """Its state, and who waits for it. `pushed`: what its gradients come encoded with; None as they are."""

    state: BucketState
    pulls: BucketPulls
    pushed: SliceCodec | None = None

    def check_range(self, first: int, count: int, named: str) -> None:
        """Raises ProtocolError for slices that are not here."""
        if not first + count <= self.state.count or not count:
            told = f"slices {first} to {first + count - 1} of bucket {self.state.spec.number}"
            raise ProtocolError(f"{named}: {told}; this shard has 0 to {len(self.state) - 1}")

    def laid(self, run: Run) -> Segment:
        """The elements of a run of slices; their memory is taken over where it is writable. Raises ProtocolError."""
        self.check_range(run.first, run.count, "Push.first")
        if self.pushed is not None and run.payload_kind == PayloadKind.GRADIENT:
            return Segment(run.first, run.stop, decoded(self.pushed, run, self.state.spec.named))
        stop = run.first + run.count
        self._check_bytes(run, run.payload.nbytes)
        elements: Array = np.frombuffer(run.payload, self.state.update.values.dtype)
        usable = (elements.flags.writeable or run.arena is not None) and elements.flags.aligned
        return Segment(run.first, stop, elements if usable else elements.copy())

    def _check_bytes(self, run: Run, nbytes: int) -> None:
        bounds = self.state.spec.part.bounds
        told = int(bounds[run.first + run.count] - bounds[run.first])
        if told != nbytes:
            what = f"{run.count} slices from {run.first} of bucket {run.bucket}"
            raise ProtocolError(f"Push.nbytes: {nbytes} for {what}, not {told}")

    def laid_apart(self, run: Run, places: BucketPlaces) -> Segment:
        """The same where the elements are in the places of their keys."""
        self.check_range(run.first, run.count, "Push.first")
        self._check_bytes(run, run.nbytes)
        dtype = self.state.update.values.dtype
        assert run.arena is not None
        parts = [
            Segment(*slices, placed(run.arena, where).view(dtype))
            for slices, where in places.pieces(run.first, run.stop)
        ]
        return laid_apart(parts)


def plain_bucket(
    description: StoreDescription, routing: Routing, spec: BucketSpec, shard: int, wanted: Wanted
) -> PlainBucket:
    """The bucket with its first values. Raises ValueError for an initializer that there is not."""
    keys = description.keys
    places = [place for place in routing.buckets[spec.number].keys if shard in routing.runs[place]]
    dtype = np.dtype(keys[places[0]].dtype)
    values = np.empty(int(spec.part.bounds[-1]) // dtype.itemsize, dtype)
    given, begin = np.zeros(len(spec.part), np.bool_), 0
    for place in places:
        run, cut = routing.runs[place][shard], routing.cuts[place]
        start, stop = cut.start(run.start) // dtype.itemsize, cut.start(run.stop) // dtype.itemsize
        for low in range(start, stop, FIRST_ELEMENTS):
            wanted(keys[place].key)
            high = min(low + FIRST_ELEMENTS, stop)
            made = first_elements(keys[place], description.seed, low, high)
            values[begin + low - start : begin + high - start] = made
        first = routing.first_in_bucket[place][shard]
        given[first : first + len(run)] = is_given(keys[place])
        begin += stop - start
    state = BucketState(spec, values, given)
    pushed = None if spec.pushed is None else SliceCodec(spec.pushed.codec, state.bounds)
    return PlainBucket(state, BucketPulls(state), pushed)


def decoded(codec: SliceCodec, run: Run, named: Callable[[int], str]) -> Array:
    """New elements of a run of gradients that came encoded; `named` gives the words for a slice. Raises
    ProtocolError."""
    told = codec.nbytes(run.first, run.stop)
    if told != run.payload.nbytes:
        what = f"{run.count} slices from {run.first} of bucket {run.bucket}, encoded as {codec.codec.name}"
        raise ProtocolError(f"Push.nbytes: {run.payload.nbytes} for {what}, not {told}")
    try:
        return codec.decode(run.first, run.stop, run.payload)
    except PayloadError as error:
        where = named(run.first + error.slice_)
        raise ProtocolError(
            f"payload: {where}, step {run.step}, of a run from slice {run.first} on: {error}"
        ) from error


Wanted = Callable[[str], None]
"""Asked, with a key's name, whether the job is still wanted; raises where it is not."""
