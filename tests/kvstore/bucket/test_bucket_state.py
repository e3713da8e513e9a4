"""A bucket against slices that are kept one by one, in plain NumPy: whatever the cuts, the order and the
repetitions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store_cluster import advanced, constant, key_of, slices_on, store_of, watch_added
from store_cluster import given as given_key
from weft_kvstore.arrays import Segment, norm_of, ranges_where
from weft_kvstore.bucket import bucket
from weft_kvstore.bucket import values as bucket_values
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.bucket.gate import StepGate
from weft_kvstore.bucket.steps import AnswerSegment, PullWait
from weft_kvstore.description.records import CommitDescription, LossScaling, Merge, Mode, first_elements, is_given
from weft_kvstore.errors import PushRefusedError
from weft_kvstore.settings import STEPS_AHEAD
from weft_kvstore.shard.job_shard import JobShard
from weft_kvstore.store import clip_factor
from weft_kvstore.wire.messages import Reading

Array = np.ndarray[Any, np.dtype[Any]]

RATE, MOMENTUM = 0.1, 0.9
ELEMENTS = 4
"""Elements of a slice, but for a key's last one."""


@dataclass(frozen=True)
class Case:
    """What a bucket is like, and what its slots do."""

    shapes: tuple[int, ...]
    priorities: tuple[int, ...]
    given: tuple[bool, ...]
    slots: int
    steps: int
    merge: Merge = Merge.SLOT
    mode: Mode = Mode.SYNC
    commit: CommitDescription | None = None
    replaced: bool = False
    sets: bool = False


@st.composite
def cases(draw: st.DrawFn, mode: Mode = Mode.SYNC) -> Case:
    keys = draw(st.integers(1, 4))
    many = {"min_size": keys, "max_size": keys}
    commit = draw(st.sampled_from([None, None, "clip", "scale"])) if mode is Mode.SYNC else None
    told = {
        None: None,
        "clip": CommitDescription(clip_norm=50.0),
        "scale": CommitDescription(clip_norm=50.0, loss_scaling=LossScaling(4.0, 1)),
    }
    return Case(
        tuple(draw(st.lists(st.integers(1, 14), **many))),
        tuple(draw(st.lists(st.integers(0, 2), **many))),
        tuple(draw(st.lists(st.booleans(), **many))),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(st.sampled_from(list(Merge))),
        mode,
        told[commit],
        draw(st.booleans()),
        draw(st.booleans()) if mode is Mode.SYNC else False,
    )


@dataclass
class Play:
    """A bucket, the pieces of work that wait for it in no order, and a diary of what it merged."""

    case: Case
    choose: random.Random
    work: list[Iterator[tuple[int, int]]] = field(default_factory=list)
    diary: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(slice, slot, step, incarnation) as they were merged."""
    told: dict[tuple[int, int], Array] = field(default_factory=dict)
    """By version and slice what was set."""
    factors: dict[int, float | None] = field(default_factory=dict)
    scales: dict[int, float] = field(default_factory=dict)
    calls: int = 0
    pinned: list[tuple[AnswerSegment, memoryview, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        case = self.case
        keys = []
        for number, (size, priority, is_set) in enumerate(zip(case.shapes, case.priorities, case.given, strict=True)):
            key = key_of(f"k{number}", (size,), case.slots, priority=priority)
            keys.append(given_key(key) if is_set else key)
        hyper = {"lr": RATE, "momentum": MOMENTUM}
        self.description = msgspec.structs.replace(
            store_of(keys, slots=case.slots, shards=1, rule="momentum", hyper=hyper, slice_bytes=4 * ELEMENTS),
            merge=case.merge,
            mode=case.mode,
            commit=case.commit,
        )
        (made,) = JobShard(self.description, 0).buckets.values()
        part = made.spec.partition
        self.gate = StepGate(case.commit, case.slots) if case.commit is not None else None
        if self.gate is not None:
            self.gate.expect(len(part))
        spec = replace(
            made.spec,
            piece_elements=self.choose.choice([1, 6, 1000]),
            piece_slices=self.choose.choice([1, 3, 1000]),
            gate=self.gate,
        )
        order = sorted(range(len(keys)), key=lambda place: (case.priorities[place], place))
        values = np.concatenate([first_elements(keys[place], 7, 0, keys[place].size) for place in order])
        self.given = np.array([is_given(keys[place]) for place, _ in slices_on(part)])
        self.first = values.copy()
        self.state = Bucket(spec, values, self.given.copy())
        watch_added(self.state, self._added)
        self.incarnation = [0] * case.slots
        self.arrived: set[tuple[int, int]] = set()

    @property
    def slices(self) -> int:
        return self.state.count

    def _added(self, slot: int, step: int, first: int, stop: int) -> None:
        self.diary += [(number, slot, step, self.incarnation[slot]) for number in range(first, stop)]

    def size(self, number: int) -> int:
        return int(self.state.bounds[number + 1] - self.state.bounds[number])

    def drawn(self, *seed: int, size: int) -> Array:
        generator = np.random.Generator(np.random.Philox(_mixed(seed)))
        return np.asarray(generator.standard_normal(size) * 10.0 ** generator.uniform(-4, 4, size), np.float32)

    def has_nothing(self, slot: int, step: int, number: int) -> bool:
        return (slot * 7 + step * 3 + slices_on(self.state.spec.partition)[number][0]) % 5 == 0

    def gradient(self, slot: int, step: int, number: int, incarnation: int) -> Array:
        found = self.drawn(1, slot, step, number, incarnation, size=self.size(number))
        if self.case.commit is not None and self.case.commit.loss_scaling is not None and (slot + step) % 4 == 3:
            found[0] = np.inf
        return found

    def push(self, slot: int, step: int, first: int, stop: int) -> bool:
        """A segment with gradients, or one of slices without; False where it is refused for coming early."""
        nothing = self.has_nothing(slot, step, first)
        while stop > first + 1 and any(self.has_nothing(slot, step, one) != nothing for one in range(first, stop)):
            stop -= 1
        try:
            self.state.check(slot, step, first, stop, pushes=not nothing)
        except PushRefusedError as error:
            if "steps ahead" not in str(error):
                raise
            return False
        parts = [self.gradient(slot, step, one, self.incarnation[slot]) for one in range(first, stop)]
        segment = Segment(first, stop, None if nothing else np.concatenate(parts))
        self.work += [advanced(self.state, *one) for one in self.state.accept(slot, step, segment)]
        return True

    def tell(self, version: int, first: int, stop: int) -> None:
        """Sets a segment, at a version that has not passed, and may hear itself twice; what is refused changes
        nothing."""
        self.calls += 1
        origin = self.calls
        values = [self.drawn(2, version, one, origin, size=self.size(one)) for one in range(first, stop)]
        try:
            changed = self.state.set(0, version, Segment(first, stop, np.concatenate(values)), origin)
        except PushRefusedError:
            return
        self.work += [advanced(self.state, *one) for one in changed]
        if self.choose.random() < 0.3:
            again = [self.drawn(3, one, size=self.size(one)) for one in range(first, stop)]
            assert self.state.set(0, version, Segment(first, stop, np.concatenate(again)), origin) == []
        for number, value in zip(range(first, stop), values, strict=True):
            self.told[version, number] = value

    def work_once(self) -> None:
        if self.work:
            one = self.choose.choice(self.work)
            if next(one, None) is None:
                self.work.remove(one)

    def pin(self) -> None:
        """A reader takes some slices away with it for a while."""
        wait = PullWait(None, 1, 0, slot=0, state=self.choose.random() < 0.5, reading=Reading.OWN)
        wait.want(self.state.spec.number, 0, self.slices)
        for first, stop, version in self.state.ready(wait, 0, self.slices):
            for part in self.state.answers(wait, first, stop, version):
                (payload,) = part.source(int(part.bounds[0]), int(part.bounds[-1]))
                self.pinned.append((part, memoryview(payload), bytes(payload)))

    def release(self) -> None:
        while self.pinned:
            segment, payload, before = self.pinned.pop()
            assert bytes(payload) == before, "what is lent was written"
            segment.owner.release(segment.first, segment.count)

    def go_on(self) -> None:
        """Commits what is measured."""
        gate = self.gate
        if gate is None:
            return
        for step in range(self.case.steps):
            found = gate.measured(step)
            if found is None or gate.committed(step) is not None:
                continue
            norm = norm_of(found.squares) if found.finite else float("nan")
            assert found.loss_scale is not None
            self.scales[step] = found.loss_scale.scale
            assert gate.commit(step, norm=norm, finite=found.finite)
            committed = gate.committed(step)
            assert committed is not None
            self.factors[step] = committed.factor
            self.work.append(advanced(self.state, 0, self.slices))

    def replace(self, slot: int) -> None:
        self.state.replace(slot)
        self.incarnation[slot] += 1

    def run(self) -> None:
        """Every slot pushes every slice of every step, cut anywhere, some twice; until nothing is left to do."""
        choose, case = self.choose, self.case
        due = [(slot, step) for slot in range(case.slots) for step in range(case.steps)]
        left = {place: list(range(self.slices)) for place in due}
        while any(left.values()):
            self._something_else()
            slot, step = choose.choice(sorted(place for place, slices in left.items() if slices))
            first = choose.choice(left[slot, step])
            stop = min(self.slices, first + choose.randint(1, self.slices))
            if self.push(slot, step, first, stop):
                kept = self.has_nothing(slot, step, first)
                for one in range(first, stop):
                    if self.has_nothing(slot, step, one) != kept:
                        break
                    if one in left[slot, step]:
                        left[slot, step].remove(one)
            else:
                self.work_once()
            if case.replaced and choose.random() < 0.03:
                self.replace(slot)
                left.update({place: list(range(self.slices)) for place in due if place[0] == slot})
        self._fill()
        while True:
            while self.work:
                self.work_once()
            self._arrive_all()
            self.go_on()
            if not self.work:
                break
        self.release()

    def _something_else(self) -> None:
        choose = self.choose
        for _ in range(choose.randint(0, 3)):
            self.work_once()
        if choose.random() < 0.2:
            self.pin()
        if choose.random() < 0.2:
            self.release()
        if self.gate is not None and choose.random() < 0.5:
            for slot in range(self.case.slots):
                for step in range(self.case.steps):
                    if (slot, step) not in self.arrived and choose.random() < 0.5:
                        self._arrive(slot, step)
            self.go_on()
        if self.case.sets and choose.random() < 0.3:
            first = choose.randrange(self.slices)
            stop = choose.randint(first + 1, self.slices)
            self.tell(choose.randint(0, self.case.steps), first, stop)

    def _arrive(self, slot: int, step: int) -> None:
        assert self.gate is not None
        try:
            self.gate.arrive(slot, step)
            self.arrived.add((slot, step))
        except PushRefusedError:
            pass

    def _fill(self) -> None:
        """What has no value is set."""
        for number in range(self.slices):
            if self.given[number] and not any(version == 0 and one == number for version, one in self.told):
                self.tell(0, number, number + 1)

    def _arrive_all(self) -> None:
        for slot in range(self.case.slots if self.gate is not None else 0):
            for step in range(self.case.steps):
                if (slot, step) not in self.arrived:
                    self._arrive(slot, step)


def _mixed(seed: tuple[int, ...]) -> int:
    found = 0
    for one in seed:
        found = found * 1_000_003 + one + 1
    return found % (1 << 120)


def plain(play: Play) -> tuple[list[Array], list[Array]]:
    """Weights and velocities by slice, one slice after the other."""
    weights, velocities = [], []
    for number in range(play.slices):
        low, high = int(play.state.bounds[number]), int(play.state.bounds[number + 1])
        weight = play.first[low:high].copy()
        velocity = np.zeros(high - low, np.float32)
        weight = play.told.get((0, number), weight)
        mine = [entry[1:] for entry in play.diary if entry[0] == number]
        if play.case.mode is Mode.SYNC:
            for step in range(play.case.steps):
                total = None
                for slot, _, incarnation in (one for one in mine if one[1] == step):
                    gradient = play.gradient(slot, step, number, incarnation)
                    total = gradient if total is None else total + gradient
                factor = play.factors.get(step, 1.0)
                if total is not None and factor is not None:
                    total = total * np.float32(1 / play.scales.get(step, 1.0)) * np.float32(factor)
                    velocity = velocity * np.float32(MOMENTUM) + total
                    weight = weight - velocity * np.float32(RATE)
                weight = play.told.get((step + 1, number), weight)
        else:
            for slot, step, incarnation in mine:
                velocity = velocity * np.float32(MOMENTUM) + play.gradient(slot, step, number, incarnation)
                weight = weight - velocity * np.float32(RATE)
        weights.append(weight)
        velocities.append(velocity)
    return weights, velocities


def check(play: Play) -> None:
    """Each slot's gradients once, in order, and the bits of the plain slices."""
    case, state = play.case, play.state
    assert (state.versions == case.steps).all()
    pushed = [
        (number, slot, step)
        for number in range(play.slices)
        for slot in range(case.slots)
        for step in range(case.steps)
        if not play.has_nothing(slot, step, number)
    ]
    assert Counter(entry[:3] for entry in play.diary) == Counter(pushed)
    for number in range(play.slices):
        mine = [(step, slot) for one, slot, step, _ in play.diary if one == number]
        if case.mode is Mode.SYNC and case.merge is Merge.SLOT:
            assert mine == sorted(mine)
        elif case.mode is Mode.SYNC:
            assert [step for step, _ in mine] == sorted(step for step, _ in mine)
        for slot in range(case.slots):
            own = [step for step, of in mine if of == slot]
            assert own == sorted(own)
    weights, velocities = plain(play)
    for held, expected in ((state.update.values, weights), (state.update.state["momentum"], velocities)):
        for first, stop, elements in held.written(0, play.slices):
            assert elements.tobytes() == np.concatenate(expected[first:stop]).tobytes(), (first, stop)
    for step, factor in play.factors.items():
        check_clipped(play, step, factor)


def check_clipped(play: Play, step: int, factor: float | None) -> None:
    """The norm is that of all sums of the step, each slice's squares added up in float64."""
    squares: list[float] = []
    for number in range(play.slices):
        mine = [(slot, inc) for one, slot, at, inc in play.diary if (one, at) == (number, step)]
        if mine:
            total = play.gradient(mine[0][0], step, number, mine[0][1])
            for slot, incarnation in mine[1:]:
                total = total + play.gradient(slot, step, number, incarnation)
            total = total * np.float32(1 / play.scales[step])
            squares.append(float(np.square(total, dtype=np.float64).sum()))
    finite = bool(np.isfinite(squares).all())
    commit = play.case.commit
    assert commit is not None
    if not finite and commit.loss_scaling is not None:
        assert factor is None
    else:
        assert factor == clip_factor(norm_of(squares), commit.clip_norm or 1.0)


def played(case: Case, choose: random.Random) -> Play:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bucket_values, "BLOCK_BYTES", choose.choice([16, 80, 1 << 20]))
        patched.setattr(bucket, "ADDED_EARLY_BYTES", choose.choice([1, 20, 1 << 20]))
        patched.setattr(bucket, "KEPT_GRADIENTS", choose.choice([2, 3]))
        play = Play(case, choose)
        with np.errstate(all="ignore"):
            play.run()
            check(play)
    return play


quick = settings(max_examples=90, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(cases(), st.integers(0, 1 << 30))
def test_in_sync_a_bucket_has_the_bits_of_its_slices(case: Case, seed: int) -> None:
    played(case, random.Random(seed))


@quick
@given(cases(mode=Mode.ASYNC), st.integers(0, 1 << 30))
def test_in_async_each_slots_steps_apply_once_and_in_order_and_their_replay_has_the_bits(case: Case, seed: int) -> None:
    played(case, random.Random(seed))


@pytest.mark.parametrize("mode", list(Mode))
def test_what_came_early_is_looked_at_once_more_when_it_is_due(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient must not cost what waits of all others."""
    keys = [key_of(f"k{number}", [ELEMENTS], 1) for number in range(40)]
    description = msgspec.structs.replace(store_of(keys, slots=1, shards=1), mode=mode)
    (bucket,) = JobShard(description, 0).buckets.values()
    state, looks = bucket, 0

    def counted(wanted: np.ndarray, offset: int = 0) -> list[tuple[int, int]]:
        nonlocal looks
        looks += 1
        return ranges_where(wanted, offset)

    monkeypatch.setattr("weft_kvstore.bucket.steps.ranges_where", counted)
    pushed = 0
    for step in reversed(range(STEPS_AHEAD + 1)):
        for number in range(len(keys)):
            state.check(0, step, number, number + 1, pushes=True)
            found = state.accept(0, step, Segment(number, number + 1, np.full(ELEMENTS, step, np.float32)))
            pushed += 1
            assert found == ([] if step else [(number, number + 1)])
    assert looks <= 3 * pushed
    assert (state.arrived == STEPS_AHEAD + 1).all()
    with pytest.raises(PushRefusedError, match=f"more than {STEPS_AHEAD} steps ahead"):
        state.check(0, 2 * (STEPS_AHEAD + 1), 0, 1, pushes=True)


def test_a_slot_that_is_replaced_pushes_again_what_came_early_and_it_counts_once() -> None:
    """Large gradients of a step are added as they come, but none of a step behind one that is not applied: what the
    slot had pushed of that is forgotten."""
    elements = bucket.ADDED_EARLY_BYTES // 4
    key = constant(key_of("w", (elements,), 5), 0.0)
    description = store_of([key], slots=5, shards=1, hyper={"lr": 1.0}, slice_bytes=bucket.ADDED_EARLY_BYTES)
    state = JobShard(description, 0).buckets[0]

    def push(slot: int, step: int) -> None:
        todo = state.push(slot, step, [Segment(0, 1, np.ones(elements, np.float32))])
        while todo:
            state.advance(todo)

    for step in (0, 1):
        for slot in range(4):
            push(slot, step)
    push(4, 0)
    state.replace(2)
    push(2, 1)
    push(4, 1)
    assert state.versions.tolist() == [2]
    ((_, _, found),) = state.update.values.elements(0, 1)
    assert set(found.tolist()) == {-10.0}
