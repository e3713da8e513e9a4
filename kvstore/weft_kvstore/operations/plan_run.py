"""A run of slices that some keys of a call have on a shard. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft_kvstore.arrays.array import Array
from weft_kvstore.compression.slice_codec import SliceCodec


@dataclass(frozen=True, slots=True)
class Part:
    """What a run has of a key: bytes `start` to `stop` of the value of the key at `position` in the call, from its
    slice `first` on; `whole` where that is all of it."""

    position: int
    first: int
    start: int
    stop: int
    whole: bool


@dataclass(frozen=True, slots=True, eq=False)
class PlanRun:
    """Adjacent slices of what a shard has of a lot: run `number` of a plan, whose slices are numbered from `begin`.

    Slice `first + i` has bytes `bounds[i]` to `bounds[i + 1]` of the run, and priority `priorities[i]`; where all have
    one, it is `priority` and they are None. `parts` are what its keys have there, one behind the other; part i begins
    at byte `starts[i]`, and the last one ends at the last of `starts`. Where there are several, `pick` takes their
    arrays, in order, from those of the call; `partial` are the numbers of parts that are not whole.

    Part i begins at slice `part_slices[i]` of the run, and the last one ends at the last of them. `pushed` and
    `pulled`: what its gradients, and its values, may be encoded with; None as they are.
    """

    number: int
    lot: int
    first: int
    count: int
    begin: int
    bounds: Array
    priority: int
    priorities: Array | None
    parts: tuple[Part, ...]
    starts: tuple[int, ...]
    partial: tuple[int, ...]
    pick: Callable[[Sequence[Array]], Sequence[Array]]
    part_slices: tuple[int, ...]
    pushed: SliceCodec | None
    pulled: SliceCodec | None

    @property
    def stop(self) -> int:
        return self.first + self.count
