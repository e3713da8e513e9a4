"""The keys of one call, looked up and cut for the shards once for all calls that name them; gradients that are encoded
on their way, and what their encodings leave out. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final

import numpy as np

from weft_graph.program import Update
from weft_kvstore.arrays import Array, Buffer, bytes_of
from weft_kvstore.client.runs import SMALL_BYTES, Part, PlanRun, PullLayout, pull_layout
from weft_kvstore.compression.description import Choice, CompressionError
from weft_kvstore.compression.slices import Residuals, SliceCodec, SliceEncoder
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.sharding import Routing, RowCut, row_cut
from weft_kvstore.step_outcome import LossScale, StepOutcome

# --- Where the values of some keys lie on the shards, as runs of buckets that are as long as can be -------------------
# Made once for a set of keys and used by every push and pull of them, so that a call does nothing for each slice.


@dataclass(frozen=True, slots=True, eq=False)
class KeyPlan:
    """`runs` by shard, and `of_bucket` by shard and bucket, ascending; `asks` is what a pull asks a shard for, (bucket,
    first slice, slices, 0); `counts` how many slices each shard has, `total` how many there are.

    `part_firsts` (parts) int64 has the number of each part's first slice, over all runs in the order of their `begin`,
    and `part_positions` (parts) its key's. `packed` and `single` are where a pull's values go: see `PullLayout`.
    `has_pushed` and `has_pulled`: whether gradients, or values, of any of the keys travel encoded.
    """

    runs: Mapping[int, tuple[PlanRun, ...]]
    of_bucket: Mapping[tuple[int, int], Sequence[PlanRun]]
    asks: Mapping[int, list[tuple[int, int, int, int]]]
    counts: Mapping[int, int]
    total: int
    part_firsts: Array
    part_positions: Array
    packed: PullLayout
    single: PullLayout
    has_pushed: bool
    has_pulled: bool


def key_plan(
    routing: Routing, places: Sequence[int], dtypes: Sequence[np.dtype[Any]], shapes: Sequence[tuple[int, ...]]
) -> KeyPlan:
    """The plan of the keys at these places of the description, which are distinct."""
    here: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for position, place in enumerate(places):
        for shard, first in routing.first_in_bucket[place].items():
            here.setdefault((shard, routing.bucket_of[place]), []).append((first, position))
    runs: dict[int, list[PlanRun]] = {}
    firsts: list[int] = []
    number = total = 0
    for shard, bucket in sorted(here):
        for adjacent in _adjacent(routing, places, shard, sorted(here[shard, bucket])):
            made = _run(routing, places, adjacent, shard=shard, bucket=bucket, number=number, begin=total)
            runs.setdefault(shard, []).append(made)
            firsts += [total + first - made.first for first, _ in adjacent]
            total += made.count
            number += 1
    found = {shard: tuple(some) for shard, some in runs.items()}
    in_order = [run for some in found.values() for run in some]
    of_bucket: dict[tuple[int, int], list[PlanRun]] = {}
    for shard, some in found.items():
        for run in some:
            of_bucket.setdefault((shard, run.bucket), []).append(run)
    return KeyPlan(
        runs=found,
        of_bucket=of_bucket,
        asks={shard: [(run.bucket, run.first, run.count, 0) for run in some] for shard, some in found.items()},
        counts={shard: sum(run.count for run in some) for shard, some in found.items()},
        total=total,
        part_firsts=np.array(firsts, np.int64),
        part_positions=np.array([part.position for run in in_order for part in run.parts], np.int64),
        packed=pull_layout(in_order, dtypes, shapes, packed=True),
        single=pull_layout(in_order, dtypes, shapes, packed=False),
        has_pushed=any(run.pushed is not None for run in in_order),
        has_pulled=any(run.pulled is not None for run in in_order),
    )


def _adjacent(
    routing: Routing, places: Sequence[int], shard: int, keys: Iterable[tuple[int, int]]
) -> list[list[tuple[int, int]]]:
    """Keys (first slice, position) in ascending order, in groups of which each continues the one before it."""
    groups: list[list[tuple[int, int]]] = []
    stop = -1
    for first, position in keys:
        if first != stop:
            groups.append([])
        groups[-1].append((first, position))
        stop = first + len(routing.runs[places[position]][shard])
    return groups


def _run(
    routing: Routing,
    places: Sequence[int],
    keys: Sequence[tuple[int, int]],
    *,
    shard: int,
    bucket: int,
    number: int,
    begin: int,
) -> PlanRun:
    held = routing.buckets[bucket].parts[shard]
    first = keys[0][0]
    stop = keys[-1][0] + len(routing.runs[places[keys[-1][1]]][shard])
    priorities = held.priorities[first:stop]
    parts = []
    for _, position in keys:
        place = places[position]
        cut, run = routing.cuts[place], routing.runs[place][shard]
        whole = len(run) == cut.count
        parts.append(Part(position, run.start, cut.start(run.start), cut.start(run.stop), whole))
    starts = [0, *accumulate(part.stop - part.start for part in parts)]
    bounds = held.bounds[first : stop + 1] - held.bounds[first]
    return PlanRun(
        number=number,
        bucket=bucket,
        first=first,
        count=stop - first,
        begin=begin,
        bounds=bounds,
        priority=int(priorities[0]),
        priorities=None if priorities[0] == priorities[-1] else priorities,
        parts=tuple(parts),
        starts=tuple(starts),
        partial=tuple(number for number, part in enumerate(parts) if not part.whole),
        pick=itemgetter(*(part.position for part in parts)),
        part_slices=(*(one - first for one, _ in keys), stop - first),
        pushed=_codec(routing.buckets[bucket].pushed, bounds),
        pulled=_codec(routing.buckets[bucket].pulled, bounds),
    )


def _codec(choice: Choice | None, bounds: Array) -> SliceCodec | None:
    """For slices that begin at these bytes."""
    return None if choice is None else SliceCodec(choice.codec, bounds // choice.codec.dtype.itemsize)


# --- The keys of one call, in its order, with what every call of them needs anew --------------------------------------


NAMES_SHOWN: Final = 4


class KeySet:
    """Keys that are pushed, set or pulled together; none is a table, and none is there twice.

    `places` are those in the description. `is_small`: a message may have all of it and more. `others` are the keys to
    which the slot of the call does not contribute, `moving` the numbers of those to which anybody does. The plan is
    `made` once, at the first call: two threads that make it at once make the same.
    """

    __slots__ = ("dtypes", "is_small", "made", "moving", "names", "others", "places", "shapes")

    def __init__(self, keys: Sequence[KeyDescription], places: Sequence[int], slot: int) -> None:
        self.places = tuple(places)
        self.names = tuple(key.key for key in keys)
        self.dtypes: tuple[np.dtype[Any], ...] = tuple(np.dtype(key.dtype) for key in keys)
        self.shapes = tuple(tuple(key.shape) for key in keys)
        self.is_small = sum(key.size * np.dtype(key.dtype).itemsize for key in keys) <= SMALL_BYTES
        self.others = tuple(key for key in keys if slot not in key.slots)
        self.moving = tuple(number for number, key in enumerate(keys) if key.slots)
        self.made: KeyPlan | None = None

    def __len__(self) -> int:
        return len(self.names)

    def described(self, number: int) -> str:
        """A key's dtype and shape, in words."""
        return f"{self.dtypes[number]}{list(self.shapes[number])}"

    def plan(self, routing: Routing) -> KeyPlan:
        """Where they lie; `routing` is the same in every call."""
        if self.made is None:
            self.made = key_plan(routing, self.places, self.dtypes, self.shapes)
        return self.made

    def __str__(self) -> str:
        if len(self.names) == 1:
            return f"key {self.names[0]!r}"
        shown = ", ".join(map(repr, self.names[:NAMES_SHOWN]))
        more = len(self.names) - NAMES_SHOWN
        return f"{len(self.names)} keys ({shown}{f' and {more} more' if more > 0 else ''})"


# --- The keys that a store has, found by the names that a caller says, and what is worked out of them once ------------


KEY_SETS_KEPT: Final = 64
"""Of several keys, so many are remembered: a program that trains has a few."""


class KnownKeys:
    """One slot's keys. `places` has the place of each in the description. Whoever asks for one says for which `call`,
    as the error names it. Any thread may ask: those that make the same thing at once make it alike."""

    __slots__ = ("_cuts", "_description", "_many", "_one", "_slot", "_state", "places")

    def __init__(self, description: StoreDescription, slot: int) -> None:
        self.places = {key.key: place for place, key in enumerate(description.keys)}
        self._description = description
        self._slot = slot
        self._one: dict[str, KeySet] = {}
        self._many: dict[tuple[str, ...], KeySet] = {}
        self._cuts: dict[str, RowCut] = {}
        self._state: dict[str, tuple[str, ...]] = {}

    def known(self, name: str, call: str) -> KeyDescription:
        """Any key. Raises StoreRefusedError for one that there is not."""
        place = self.places.get(name)
        if place is None:
            raise StoreRefusedError(f"slot {self._slot}: {call} of key {name!r}: the store has no such key")
        return self._description.keys[place]

    def table(self, name: str, call: str) -> KeyDescription:
        """A key that goes by rows. Raises StoreRefusedError for one that does not."""
        key = self.known(name, call)
        if not key.rows:
            raise StoreRefusedError(f"slot {self._slot}: {call} of rows of key {name!r}: it is no table")
        return key

    def one(self, name: str, call: str) -> KeySet:
        """A key that is no table, as a set of one. Raises StoreRefusedError."""
        found = self._one.get(name)
        if found is None:
            found = self._one[name] = KeySet([self._dense(name, call)], [self.places[name]], self._slot)
        return found

    def many(self, names: Sequence[str], call: str) -> KeySet:
        """Keys that are distinct and no tables. Raises StoreRefusedError."""
        if isinstance(names, str):
            raise StoreRefusedError(f"slot {self._slot}: {call} of keys: {names!r} is one name, not several")
        wanted = tuple(names)
        if len(wanted) == 1:
            return self.one(wanted[0], call)
        found = self._many.get(wanted)
        if found is None:
            found = self._set_of(wanted, call)
            if len(self._many) >= KEY_SETS_KEPT:
                self._many = {}
            self._many[wanted] = found
        return found

    def state_of(self, key: KeyDescription) -> tuple[str, ...]:
        """The names of the arrays that its rule keeps; none where no rule updates it."""
        if key.update is not Update.RULE:
            return ()
        found = self._state.get(key.key)
        if found is None:
            found = self._state[key.key] = tuple(rule_of(self._description, key).state)
        return found

    def row_cut(self, key: KeyDescription) -> RowCut:
        """How a table's rows are dealt to shards, and cut into chunks."""
        found = self._cuts.get(key.key)
        if found is None:
            found = row_cut(key, self._description.slice_bytes, len(self._description.shards))
            self._cuts[key.key] = found
        return found

    def _set_of(self, wanted: tuple[str, ...], call: str) -> KeySet:
        keys = [self._dense(name, call) for name in wanted]
        if len(set(wanted)) < len(wanted):
            twice = next(name for number, name in enumerate(wanted) if name in wanted[:number])
            raise StoreRefusedError(f"slot {self._slot}: {call} of {len(wanted)} keys: {twice!r} is there twice")
        return KeySet(keys, [self.places[name] for name in wanted], self._slot)

    def _dense(self, name: str, call: str) -> KeyDescription:
        key = self.known(name, call)
        if key.rows:
            raise StoreRefusedError(f"slot {self._slot}: {call} of key {name!r}: it is a table, which goes by rows")
        return key


# --- The bytes of a run of gradients that travel encoded: each slice's are made when they first leave, and kept -------
# A frame is filled at the moment of sending, so the first frame waits for its own slices alone, and what overtakes is
# encoded first.


class EncodedRun:
    """A `Source` of a run of `arrays`, gradients of a step by their place in the call, with the encoder of each that
    keeps a residual. Slices leave in their order, so that the first `_made` of them have bytes."""

    __slots__ = ("_arrays", "_buffer", "_codec", "_encoders", "_made", "_run", "_scale", "_step")

    def __init__(
        self,
        run: PlanRun,
        codec: SliceCodec,
        arrays: Sequence[Array],
        encoders: Sequence[SliceEncoder | None],
        *,
        step: int,
        scale: float,
    ) -> None:
        """`scale`: what gradients that keep a residual are divided by."""
        self._run = run
        self._codec = codec
        self._arrays = arrays
        self._encoders = encoders
        self._step = step
        self._scale = scale
        self._made = 0
        self._buffer = np.empty(int(codec.begins[-1]), np.uint8)

    @property
    def has_begun(self) -> bool:
        """Whether any of it was encoded."""
        return self._made > 0

    def cut(self, start: int, stop: int) -> Sequence[Buffer]:
        last = int(np.searchsorted(self._codec.begins, stop))
        while self._made < last:
            self._made = self._encode(self._made, last)
        return (bytes_of(self._buffer)[start:stop],)

    def _encode(self, first: int, stop: int) -> int:
        """Encodes slices of the run that are of one key. The first one behind them."""
        run, begins = self._run, self._codec.begins
        number = bisect_right(run.part_slices, first) - 1
        stop = min(stop, run.part_slices[number + 1])
        part, origin = run.parts[number], run.part_slices[number]
        flat = self._arrays[part.position].reshape(-1)
        base = part.start // flat.itemsize - int(self._codec.bounds[origin])
        elements = flat[base + int(self._codec.bounds[first]) : base + int(self._codec.bounds[stop])]
        out = self._buffer[begins[first] : begins[stop]]
        encoder = self._encoders[part.position]
        if encoder is None:
            self._codec.encode(first, stop, elements, out)
        else:
            at = part.first + first - origin
            encoder.encode_step(self._step, at, at + stop - first, elements, scale=self._scale, out=out)
        return stop


# --- What a slot owes after a step, taken while later ones are encoded ------------------------------------------------


class ResidualCapture:
    """Of each key its residual as it is before step `step`: a slice is copied before it is encoded for that step or one
    behind it."""

    def __init__(
        self,
        step: int,
        encoders: Mapping[str, SliceEncoder],
        told: Callable[[dict[str, Array] | int], None],
    ) -> None:
        self.step = step
        self.told = told
        self.owed: dict[str, Array] = {}
        self._encoders = encoders
        self._open = {name: np.ones(len(one), np.bool_) for name, one in encoders.items()}
        self._left = sum(len(one) for one in encoders.values())
        for name, one in encoders.items():
            assert one.residual is not None
            self.owed[name] = np.empty_like(one.residual)
            one.encodes = partial(self._encodes, name)

    @property
    def is_complete(self) -> bool:
        return not self._left

    def take_all(self) -> None:
        """Nothing changes before the step any more."""
        for name, open_ in self._open.items():
            self._take(name, np.flatnonzero(open_))

    def _encodes(self, name: str, step: int, first: int, stop: int) -> None:
        if step >= self.step:
            self._take(name, first + np.flatnonzero(self._open[name][first:stop]))

    def _take(self, name: str, slices: Array) -> None:
        one, owed = self._encoders[name], self.owed[name]
        assert one.residual is not None
        for slice_ in slices.tolist():
            some = slice(one.bounds[slice_], one.bounds[slice_ + 1])
            owed[some] = one.residual[some]
        self._open[name][slices] = False
        self._left -= len(slices)


# --- What a slot's gradients are encoded with on their way to the shards, and what it owes of each key ----------------


class GradientEncoders:
    """`scale` is what the loss of the next step is multiplied by: gradients that keep a residual are divided by it.

    A step of a key is encoded once, and after those before it. Invariants: no step before `_next[key]` may be pushed,
    for one of which something was encoded comes before it; `_begun[key]` are the steps whose pushes are under way,
    ascending; `_under_way` counts pushes that are not all encoded, or not all acknowledged.
    """

    def __init__(self, description: StoreDescription, routing: Routing, slot: int) -> None:
        self._slot = slot
        self._scaling = description.commit.loss_scaling if description.commit is not None else None
        self._scale = LossScale(1.0 if self._scaling is None else self._scaling.initial)
        self._under_way = 0
        kept = [
            (key, routing.cuts[place], choice.codec)
            for place, key in enumerate(description.keys)
            if slot in key.slots and (choice := routing.buckets[routing.bucket_of[place]].pushed) and choice.residual
        ]
        self._residuals = Residuals(slot, {key.key: (key.size, codec.dtype) for key, _, codec in kept})
        self._encoders: dict[str, SliceEncoder] = {}
        for key, cut, codec in kept:
            ends = np.minimum(np.arange(cut.count + 1) * cut.step_bytes, cut.nbytes)
            self._encoders[key.key] = SliceEncoder(codec, ends // codec.dtype.itemsize, self._residuals.arrays[key.key])
        self._next = dict.fromkeys(self._encoders, 0)
        self._begun: dict[str, list[int]] = {name: [] for name in self._encoders}
        self._capture: ResidualCapture | None = None
        self._passed = 0
        """Steps that this slot is through with: their barriers have ended."""

    @property
    def scale(self) -> float:
        return self._scale.scale

    @property
    def residuals(self) -> Residuals:
        """What is owed now."""
        return self._residuals

    def told(self, outcome: StepOutcome) -> None:
        """What the slots agreed on of a step: the next one's scale follows from it."""
        if self._scaling is None:
            return
        if outcome.loss_scale != self.scale:  # A slot that was taken over begins in the middle.
            self._scale = LossScale(outcome.loss_scale)
        self._scale = self._scale.after(finite=outcome.finite, scaling=self._scaling)

    def begin(self, keys: KeySet, step: int) -> Sequence[SliceEncoder | None]:
        """The encoder of each key for a push of a step; None where the key keeps no residual. Raises StoreRefusedError
        for a step of which a key's was begun before, or a later one: then nothing has."""
        found = [self._encoders.get(name) for name in keys.names]
        mine = [name for name in keys.names if name in self._encoders]
        for name in mine:
            last = max([self._next[name] - 1, *self._begun[name][-1:]])
            if step <= last:
                told = f"step {last} was pushed already, and what compression left out is in later steps"
                raise StoreRefusedError(f"slot {self._slot}: push of key {name!r}, step {step}: {told}")
        for name in mine:
            self._begun[name].append(step)
        self._under_way += 1
        return found

    def ended(self, keys: KeySet, step: int, *, encoded: bool) -> None:
        """A push that was begun has ended. If nothing of it was encoded, nor of a later one, it may be begun again."""
        self._under_way -= 1
        for name in keys.names:
            if name in self._encoders:
                self._begun[name].remove(step)
                if encoded:
                    self._next[name] = max(self._next[name], step + 1)
        self._look()

    def passed(self, step: int) -> None:
        """The slot's barrier of a step has ended."""
        self._passed = max(self._passed, step + 1)
        self._look()

    def capture(self, step: int, told: Callable[[dict[str, Array] | int], None]) -> None:
        """Calls `told` with copies of what is owed after the steps before `step`, by key, once all of these are
        encoded; or with a step beyond it, where one is already. What was asked before is dropped."""
        furthest = max((one.furthest for one in self._encoders.values()), default=0)
        self._drop()
        if furthest > step:
            told(furthest)
            return
        self._capture = ResidualCapture(step, self._encoders, told)
        self._look()

    def _look(self) -> None:
        """What is owed changes no more until the step, where all before it have been encoded."""
        capture = self._capture
        if capture is None:
            return
        if self._passed >= capture.step and not any(
            one < capture.step for some in self._begun.values() for one in some
        ):
            capture.take_all()
        if capture.is_complete:
            self._drop()
            capture.told(capture.owed)

    def _drop(self) -> None:
        self._capture = None
        for one in self._encoders.values():
            one.encodes = None

    def export(self) -> dict[str, Array]:
        """Copies of what is owed, by name. Raises StoreRefusedError while pushes are under way."""
        self._check_idle("export")
        return self._residuals.export()

    def restore(self, named: Mapping[str, Array], scale: LossScale | None = None) -> None:
        """Takes on what `export` gave, and the loss scale of the next step, where there is one. Raises
        StoreRefusedError for an array that does not fit; then nothing has changed."""
        self._check_idle("restore")
        self._scale = self._scale if scale is None else scale
        try:
            self._residuals.restore(named)
        except CompressionError as error:
            raise StoreRefusedError(f"slot {self._slot}: restore of residuals: {error}") from error

    def _check_idle(self, call: str) -> None:
        if self._under_way:
            told = f"{self._under_way} pushes are under way"
            raise StoreRefusedError(f"slot {self._slot}: {call} of residuals: {told}")
