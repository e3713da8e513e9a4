"""Steps that are committed: clipped by the norm of the whole gradient, skipped where it overflows, with a scale of the
loss that every process works out alike."""

from __future__ import annotations

import math
import random
from concurrent.futures import Future
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store_cluster import WAIT_S, ByName, constant, key_of, store_of, stores_of, table_of
from store_simulation import Simulation
from weft_graph.program import Update
from weft_kvstore.arrays import UNIT_EXPONENT, exact_sum, norm_of, terms_of
from weft_kvstore.description.check import DescriptionError, check_description
from weft_kvstore.description.records import CommitDescription, LossScaling, Mode, StoreDescription
from weft_kvstore.errors import StoreRefusedError, StoreTimeoutError
from weft_kvstore.settings import LinkSettings
from weft_kvstore.store import StepOutcome
from weft_kvstore.wire.codec import decode_reply, decode_request
from weft_kvstore.wire.messages import Barrier, Commit, Done, Measure, Measured

finite_squares = st.floats(min_value=0, max_value=1e300)


def committed(shards: int = 2, slots: int = 3, rule: str = "sgd", **commit: object) -> StoreDescription:
    keys = [constant(key_of("a", (40, 8), slots), 0.0), constant(key_of("b", (5,), slots), 0.0)]
    keys.append(constant(table_of("t", (30, 3), slots), 0.0))
    hyper = {"lr": 1.0} if rule == "sgd" else {"lr": 0.5}
    description = store_of(keys, slots=slots, shards=shards, rule=rule, hyper=hyper, slice_bytes=256)
    return msgspec.structs.replace(description, commit=CommitDescription(**commit))  # type: ignore[arg-type]


def gradient(slot: int, step: int, shape: tuple[int, ...]) -> np.ndarray:
    generator = np.random.default_rng([slot, step, len(shape)])
    return (generator.standard_normal(shape) * 10.0 ** generator.uniform(-3, 3, shape)).astype(np.float32)


def ids_of(slot: int) -> np.ndarray:
    return np.arange(slot, 30, 2)


def push_all(store: ByName, slot: int, step: int, scale: float = 1.0) -> Future[StepOutcome | None]:
    scaled = np.float32(scale)
    store.push("a", step, gradient(slot, step, (40, 8)) * scaled)
    store.push("b", step, gradient(slot, step, (5,)) * scaled)
    store.push("t", step, gradient(slot, step, (len(ids_of(slot)), 3)) * scaled, ids_of(slot))
    return store.barrier(step, [])


def merged(step: int) -> dict[str, np.ndarray]:
    """The sums over three slots, rows of the table in a whole array."""
    table = np.zeros((30, 3), np.float32)
    for slot in range(3):
        table[ids_of(slot)] += gradient(slot, step, (len(ids_of(slot)), 3))
    a, b = (sum(gradient(slot, step, shape) for slot in range(3)) for shape in ((40, 8), (5,)))
    return {"a": np.asarray(a), "b": np.asarray(b), "t": table}


def values_of(store: ByName, version: int) -> dict[str, np.ndarray]:
    pulls = {"a": store.pull("a", version), "b": store.pull("b", version)}
    pulls["t"] = store.pull("t", version, np.arange(30))
    return {key: pull.result(WAIT_S) for key, pull in pulls.items()}


@pytest.mark.parametrize("kind", ["network", "local"])
def test_a_gradient_is_clipped_by_the_norm_of_all_keys_as_pytorch_does(kind: str) -> None:
    with stores_of(kind, committed(clip_norm=2.0)) as stores:
        outcomes = [push_all(store, slot, 0) for slot, store in enumerate(stores)]
        told = {future.result(WAIT_S) for future in outcomes}
        values = values_of(stores[0], 1)
    total = merged(0)
    norm = np.linalg.norm(np.concatenate([part.reshape(-1).astype(np.float64) for part in total.values()]))
    (outcome,) = told
    assert outcome is not None
    assert (outcome.step, outcome.finite, outcome.loss_scale) == (0, True, 1.0)
    assert math.isclose(outcome.norm, norm, rel_tol=1e-12)
    factor = np.float32(min(1.0, 2.0 / (norm + 1e-6)))
    for key, part in total.items():
        np.testing.assert_array_equal(values[key], -(part * factor))


@pytest.mark.parametrize("kind", ["network", "local"])
@pytest.mark.parametrize("clip_norm", [None, 1e30])
def test_a_step_that_is_not_finite_is_skipped_where_that_is_asked_for(kind: str, clip_norm: float | None) -> None:
    """Values, the rule's state and its count of updates are as if the step had never been."""
    description = committed(rule="adam", skip=True, clip_norm=clip_norm)
    reference = msgspec.structs.replace(committed(rule="adam"), commit=None)
    with stores_of(kind, description) as stores, stores_of("local", reference) as plain:
        version = 0
        for step in range(4):
            wrong = {1: math.inf, 2: math.nan}.get(step)
            outcomes = [
                push_all(store, slot, step, wrong if wrong and slot == 2 else 1.0) for slot, store in enumerate(stores)
            ]
            assert {each.result(WAIT_S).finite for each in outcomes} == {wrong is None}
            if wrong is None:
                for slot, store in enumerate(plain):
                    push_rows_of(store, slot, version, step)
                version += 1
            values, same = values_of(stores[0], step + 1), values_of(plain[0], version)
            assert all(values[key].tobytes() == same[key].tobytes() for key in values)


@pytest.mark.parametrize("kind", ["network", "local"])
def test_a_step_that_overflows_is_skipped_and_the_scale_halves_and_grows_again(kind: str) -> None:
    scaling = LossScaling(initial=2.0**16, growth_interval=2)
    description = committed(rule="adam", loss_scaling=scaling)
    reference = msgspec.structs.replace(committed(rule="adam"), commit=None)
    scales = []
    with stores_of(kind, description) as stores, stores_of("local", reference) as plain:
        version = 0
        for step in range(6):
            scale = scales[-1] if scales else scaling.initial
            before = values_of(stores[0], step)
            outcomes = [
                push_all(store, slot, step, math.inf if (step, slot) == (1, 2) else scale)
                for slot, store in enumerate(stores)
            ]
            (outcome,) = {repr(future.result(WAIT_S)): future.result(WAIT_S) for future in outcomes}.values()
            assert outcome is not None
            assert (outcome.finite, outcome.loss_scale) == (step != 1, scale)
            values = values_of(stores[0], step + 1)
            if step == 1:
                assert math.isnan(outcome.norm)
                assert all(values[key].tobytes() == before[key].tobytes() for key in values)
            else:
                for slot, store in enumerate(plain):
                    push_rows_of(store, slot, version, step)
                version += 1
                same = values_of(plain[0], version)
                assert all(values[key].tobytes() == same[key].tobytes() for key in values), "and the rule's step count"
            scales.append(next_scale(scales, scaling, step, finite=outcome.finite))
    assert scales == [2.0**16, 2.0**15, 2.0**15, 2.0**16, 2.0**16, 2.0**17]


def push_rows_of(store: ByName, slot: int, version: int, step: int) -> None:
    """The gradients of a step as those of another version."""
    store.push("a", version, gradient(slot, step, (40, 8)))
    store.push("b", version, gradient(slot, step, (5,)))
    store.push("t", version, gradient(slot, step, (len(ids_of(slot)), 3)), ids_of(slot))


def next_scale(scales: list[float], scaling: LossScaling, step: int, *, finite: bool) -> float:
    """Written down by hand: step 1 overflows; steps 2 and 3, then 4 and 5, are two good ones in a row."""
    now = scales[-1] if scales else scaling.initial
    return now / 2 if not finite else now * 2 if step in {3, 5} else now


def test_a_barrier_that_waits_says_which_slot_is_missing() -> None:
    with stores_of("local", committed(clip_norm=1.0), LinkSettings(request_timeout_s=0.5)) as stores:
        waiting = [push_all(stores[slot], slot, 0) for slot in (0, 1)]
        for future in waiting:
            with pytest.raises(StoreTimeoutError, match=r"(waits for|end_step is called by) slots 2"):
                future.result(WAIT_S)


def test_no_version_moves_before_every_slot_has_said_its_barrier() -> None:
    with stores_of("network", committed(clip_norm=1.0)) as stores:
        for slot in (0, 1):
            push_all(stores[slot], slot, 0)
        stores[2].push("a", 0, gradient(2, 0, (40, 8))).result(WAIT_S)
        stores[2].push("b", 0, gradient(2, 0, (5,))).result(WAIT_S)
        pull = stores[0].pull("b", 1)
        stores[2].push("t", 0, gradient(2, 0, (len(ids_of(2)), 3)), ids_of(2)).result(WAIT_S)
        assert not pull.done()
        stores[2].barrier(0, []).result(WAIT_S)
        pull.result(WAIT_S)


def test_a_commit_that_says_something_else_is_refused_and_changes_nothing() -> None:
    simulation = Simulation(committed(1, slots=1, clip_norm=1.0))
    choose = random.Random(0)
    outcome = push_all(simulation.stores[0], 0, 0)
    simulation.finish(choose, outcome)
    gate = simulation.shards[0].job.step_gate("Commit")
    norm = outcome.result(0).norm  # type: ignore[union-attr]
    assert gate.commit(0, norm=norm, finite=True) is False
    with pytest.raises(Exception, match=r"commit of step 0: norm 1\.0, finite True; it was norm"):
        gate.commit(0, norm=1.0, finite=True)
    with pytest.raises(Exception, match="commit of step 1, which is not measured"):
        gate.commit(1, norm=1.0, finite=True)


def test_a_step_far_ahead_of_what_is_committed_is_refused() -> None:
    simulation = Simulation(committed(1, slots=2, clip_norm=1.0))
    choose = random.Random(0)
    barrier = simulation.stores[0].barrier(3, [])
    simulation.finish(choose, barrier)
    with pytest.raises(StoreRefusedError, match="more than 2 steps ahead of step 0, which is not committed"):
        barrier.result(0)


def test_a_silent_slot_fails_the_barriers_of_the_others() -> None:
    simulation = Simulation(committed(1, clip_norm=1.0), LinkSettings(silence_s=5.0, request_timeout_s=100.0))
    choose = random.Random(0)
    simulation.settle(choose)
    waiting = push_all(simulation.stores[0], 0, 0)
    push_all(simulation.stores[1], 1, 0)
    simulation.silent.add(2)
    for _ in range(80):
        simulation.now += 0.1
        simulation.settle(choose) if simulation.now < 2 else [simulation.step(choose) for _ in range(50)]
        simulation.shards[0].tick(simulation.now)
    with pytest.raises(Exception, match="slot 2 has been silent"):
        waiting.result(0)


def test_a_barrier_ends_though_a_connection_breaks_between_what_a_shard_says_of_it() -> None:
    """It says what it has measured, and then that it has the barrier."""
    simulation = Simulation(committed(2, slots=1, clip_norm=1.0))
    choose = random.Random(0)
    simulation.settle(choose)
    barrier = simulation.stores[0].barrier(0, ["a", "b", "t"])
    simulation.cut(0, 1)  # So the other shard measures later.
    simulation._pump()
    shard, connection = simulation.shards[0], simulation.connections[0, 0]
    while connection.up:  # In one round: what is done is said with its end.
        shard.receive(connection.identity, connection.up.popleft(), simulation.now)
    while shard.work.work_once():
        pass
    while type(decode_reply(simulation.delivered[-1][1])[0]) is not Measured:
        assert simulation.step(choose)
    assert type(decode_reply(connection.down[0])[0]) is Done
    simulation.cut(0, 0)
    simulation.finish(choose, barrier)
    assert barrier.result(0) == StepOutcome(0, 0.0, True, 1.0)


def test_a_job_without_commits_sends_the_messages_that_it_always_sent() -> None:
    plain = msgspec.structs.replace(committed(1, slots=1), commit=None)
    kinds: dict[bool, list[str]] = {}
    for description in (plain, committed(1, slots=1, clip_norm=1.0)):
        simulation = Simulation(description)
        simulation.finish(random.Random(0), push_all(simulation.stores[0], 0, 0))
        read = {"up": decode_request, "down": decode_reply}
        said = [type(read[way](parts)[0]).__name__ for way, parts in simulation.delivered]
        kinds[description.commit is not None] = [kind for kind in said if kind != "Acknowledge"]
    more = {kind.__name__ for kind in (Measure, Measured, Commit)}
    assert not more & set(kinds[False])
    assert {kind: kinds[True].count(kind) for kind in more} == dict.fromkeys(more, 1)
    assert kinds[True].count("Done") == kinds[False].count("Done") + 1
    assert Barrier.__name__ in kinds[False]


@pytest.mark.parametrize("message", [Measure(1, 0), Commit(1, 0, 1.0, finite=True)])
def test_measures_and_commits_of_a_job_without_commits_are_refused(message: Measure | Commit) -> None:
    plain = msgspec.structs.replace(committed(1, slots=1), commit=None)
    simulation = Simulation(plain)
    choose = random.Random(0)
    simulation.settle(choose)
    simulation.clients[0].links[0].say(message)
    waiting = simulation.stores[0].pull("a", 1)
    simulation.finish(choose, waiting)
    with pytest.raises(StoreRefusedError, match=rf"{type(message).__name__}\.step: the job's steps are not committed"):
        waiting.result(0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"mode": Mode.ASYNC, "commit": CommitDescription(clip_norm=1.0)}, "commit: it needs mode 'sync', not 'async'"),
        ({"commit": CommitDescription(clip_norm=0.0)}, r"commit\.clip_norm: expected `float` > 0"),
        ({"commit": CommitDescription(clip_norm=math.nan)}, r"commit\.clip_norm: expected `float` > 0"),
        ({"commit": CommitDescription(loss_scaling=LossScaling(3.0, 1))}, r"initial: a power of two, not 3\.0"),
        ({"commit": CommitDescription(loss_scaling=LossScaling(4.0, 0))}, "growth_interval: expected `int` >= 1"),
    ],
)
def test_what_cannot_be_committed_is_refused_by_its_field(changes: dict[str, object], told: str) -> None:
    with pytest.raises(DescriptionError, match=told):
        check_description(msgspec.structs.replace(committed(), **changes))


@pytest.mark.parametrize(("dtype", "update"), [("float16", Update.RULE), ("float32", Update.GRADIENT)])
def test_loss_scaling_needs_a_gradient_that_can_be_divided_and_shards_that_update(dtype: str, update: Update) -> None:
    key = msgspec.structs.replace(key_of("k", (4,), 1), dtype=dtype, update=update)
    description = store_of([key], slots=1, shards=1)
    scaled = CommitDescription(loss_scaling=LossScaling(4.0, 2))
    skipping = CommitDescription(skip=True)
    for commit in [scaled, *([skipping] if update is Update.GRADIENT else [])]:
        with pytest.raises(DescriptionError, match="key 'k'"):
            check_description(msgspec.structs.replace(description, commit=commit))


@settings(max_examples=200)
@given(st.lists(finite_squares, max_size=30), st.randoms(use_true_random=False))
def test_sums_are_exact_and_no_grouping_changes_the_norm(values: list[float], choose: random.Random) -> None:
    total = exact_sum(np.asarray(values))
    assert total is not None
    assert Fraction(total) * Fraction(2) ** UNIT_EXPONENT == sum(map(Fraction, values))
    shuffled = choose.sample(values, len(values))
    half = len(shuffled) // 2
    parts = [exact_sum(np.asarray(part)) for part in (shuffled[:half], shuffled[half:])]
    assert norm_of([term for part in parts for term in terms_of(part or 0)]) == norm_of(terms_of(total))
    assert math.isclose(norm_of(values), math.sqrt(math.fsum(values)))


def test_what_is_not_finite_has_no_exact_sum() -> None:
    assert exact_sum(np.asarray([1.0, math.inf])) is None
    assert exact_sum(np.asarray([math.nan])) is None
    assert norm_of([math.inf]) == math.inf
    assert terms_of((1 << 60) << 2200) == [math.inf]
