"""Pushes and pulls of many keys at once, in a simulation of one slot. Keys hold what the last step pushed."""

from __future__ import annotations

import random
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store_cluster import ByName, constant, key_of, store_of
from store_simulation import Simulation
from weft_graph.program import Update
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.errors import StorePassedError, StoreTimeoutError
from weft_kvstore.library.calls import TRIES, KeyCall, consistent_read
from weft_kvstore.settings import STEPS_AHEAD, LinkSettings
from weft_kvstore.store import Pulled
from weft_kvstore.wire.codec import decode_request
from weft_kvstore.wire.messages import MAX_ENTRIES, NO_REQUEST, PayloadKind, Push, Reading

PATIENT = LinkSettings(silence_s=1e6)


class Cluster(Simulation):
    """One client and its shards."""

    def __init__(self, description: StoreDescription, seed: int = 1, link: LinkSettings = PATIENT) -> None:
        super().__init__(description, link)
        self.choose = random.Random(seed)
        self.core, self.store = self.clients[0], self.stores[0]

    def ended(self, future: Future[Any], *, cuts: float = 0.0) -> Any:
        """What a future ends with; behind each message a connection breaks with that probability."""
        for _ in range(200):
            while self.step(self.choose):
                if self.choose.random() < cuts:
                    self.cut(0, self.choose.randrange(len(self.shards)))
            if future.done():
                return future.result(0)
            self.now += 0.25
        raise AssertionError("the store stands still")


def kept(key: KeyDescription) -> KeyDescription:
    """The key holds 0, then what was pushed in the last step."""
    return msgspec.structs.replace(constant(key, 0.0), update=Update.MEAN)


DTYPES = ["float32", "float64", "int8", "float16"]

key_shapes = st.one_of(
    st.tuples(),
    st.tuples(st.integers(0, 400)),
    st.tuples(st.integers(1, 5), st.integers(0, 60)),
)


@st.composite
def described(draw: st.DrawFn) -> StoreDescription:
    """Keys of several buckets, some cut and some whole, some that move and some that do not, on one to four shards."""
    keys = []
    for number in range(draw(st.integers(1, 12))):
        key = key_of(f"k{number}", draw(key_shapes), 1, priority=draw(st.integers(0, 3)))
        whole = draw(st.integers(0, 5)) == 0
        keys.append(msgspec.structs.replace(kept(key), dtype=draw(st.sampled_from(DTYPES)), whole=whole))
    return store_of(keys, slots=1, shards=draw(st.integers(1, 4)), slice_bytes=draw(st.sampled_from([8, 100, 1024])))


def array_like(key: KeyDescription, generator: np.random.Generator) -> np.ndarray:
    """Small whole numbers, which every dtype has."""
    return generator.integers(-3, 4, key.shape).astype(key.dtype)


@settings(max_examples=50)
@given(described(), st.integers(0, 2**32), st.sampled_from([0.0, 0.02]), st.booleans(), st.data())
def test_any_keys_in_any_order_arrive_as_plain_numpy_says(
    description: StoreDescription, seed: int, cuts: float, narrow: bool, data: st.DataObject
) -> None:
    link = LinkSettings(silence_s=1e6, credit_bytes=700, frame_bytes=300) if narrow else PATIENT
    cluster = Cluster(description, seed, link)
    generator = np.random.Generator(np.random.Philox(seed))
    keys = {key.key: key for key in description.keys}
    plain = {name: np.zeros(key.shape, key.dtype) for name, key in keys.items()}
    steps = dict.fromkeys(keys, 0)
    order = st.permutations(sorted(keys))
    for _ in range(3):
        names = data.draw(order)[: data.draw(st.integers(0, len(keys)))]
        for step in sorted({steps[name] for name in names}):
            some = [name for name in names if steps[name] == step]
            gradients = [array_like(keys[name], generator) for name in some]
            assert cluster.ended(cluster.store.push(some, step, gradients), cuts=cuts) is None
            for name, gradient in zip(some, gradients, strict=True):
                plain[name] = gradient
                steps[name] += 1
        wanted = data.draw(order)[: data.draw(st.integers(0, len(keys)))]
        out = [np.empty(keys[name].shape, keys[name].dtype) for name in wanted] if data.draw(st.booleans()) else None
        found = cluster.ended(cluster.store.pull(wanted, 0, out=out), cuts=cuts)
        assert [value.tobytes() for value in found] == [plain[name].tobytes() for name in wanted]
        assert all(value.shape == plain[name].shape for value, name in zip(found, wanted, strict=True))
        assert out is None or all(one is other for one, other in zip(found, out, strict=True))
        pulled = cluster.ended(cluster.store.pull(wanted, 0, with_versions=True), cuts=cuts)
        versions = [steps[name] if keys[name].size else 0 for name in wanted]
        assert pulled.lowest.tolist() == pulled.highest.tolist() == versions
    assert len(cluster.core.open) == 0
    assert all(link.outbox.queued_bytes == link.outbox.in_flight_bytes == 0 for link in cluster.core.links)


def small(count: int, *, shards: int = 1, slots: int = 1) -> StoreDescription:
    keys = [kept(key_of(f"k{number}", (16,), slots, priority=number % 3)) for number in range(count)]
    return store_of(keys, slots=slots, shards=shards)


def names_of(description: StoreDescription) -> list[str]:
    return [key.key for key in description.keys]


def test_a_whole_bucket_is_one_run_however_many_keys_it_has() -> None:
    description = small(500)
    cluster = Cluster(description)
    keys = names_of(description)
    gradients = [np.full(16, number, np.float32) for number in range(500)]
    cluster.ended(cluster.store.push(keys, 0, gradients))
    pushes = [decode_request(parts)[0] for way, parts in cluster.delivered if way == "up"]
    assert [len(push.segments) for push in pushes if isinstance(push, Push)] == [1]
    values = cluster.ended(cluster.store.pull(keys, 1))
    assert all(np.array_equal(value, gradient) for value, gradient in zip(values, gradients, strict=True))


def test_small_values_share_a_buffer_and_large_ones_do_not() -> None:
    keys = [kept(key_of(f"k{number}", (16,), 1)) for number in range(4)] + [key_of("big", (1 << 16,), 1)]
    description = store_of(keys, slots=1, shards=1)
    cluster = Cluster(description)
    values = cluster.ended(cluster.store.pull(names_of(description), 0))
    assert all(value.base is values[0].base and value.flags.writeable for value in values[:4])
    assert values[4].base is None
    values[0][:] = 1.0
    assert not values[1].any()
    (alone,) = cluster.ended(cluster.store.pull(["k2"], 0))
    assert alone.base is None


def test_a_push_keeps_arrays_as_they_are_until_they_are_sent() -> None:
    """Nothing is copied when it is handed over: what is written before it has left is seen."""
    description = small(2)
    cluster = Cluster(description)
    gradients = [np.zeros(16, np.float32) for _ in range(2)]
    future = cluster.store.push(["k0", "k1"], 0, gradients)
    gradients[1][:] = 5.0
    cluster.ended(future)
    assert cluster.ended(cluster.store.pull("k1", 1)).tolist() == [5.0] * 16


def test_values_are_set_for_many_keys_at_once() -> None:
    description = small(3, shards=2)
    cluster = Cluster(description)
    cluster.ended(cluster.store.set(["k2", "k0"], 1, [np.full(16, 2, np.float32), np.full(16, 1, np.float32)]))
    cluster.ended(cluster.store.push(names_of(description), 0, [9 * ones()] * 3))
    found = cluster.ended(cluster.store.pull(["k0", "k1", "k2"], 1))
    assert [float(value[3]) for value in found] == [1.0, 9.0, 2.0]


def whole(store: ByName, call: str, keys: list[str]) -> KeyCall:
    """A call as the library has it."""
    return KeyCall(store.named, store, call, store.named.key_list(keys, call))


def test_more_keys_than_a_message_has_entries_are_pulled() -> None:
    """Every other key of a bucket is a segment of its own."""
    count = 2 * MAX_ENTRIES + 10
    keys = [kept(key_of(f"k{number}", (1,), 1)) for number in range(count)]
    description = store_of(keys, slots=1, shards=1)
    cluster = Cluster(description)
    names = names_of(description)
    cluster.ended(cluster.store.push(names, 0, [np.full(1, number, np.float32) for number in range(count)]))
    wanted = names[::2]
    found = cluster.ended(whole(cluster.store, "pull", wanted).begin([1] * len(wanted), []))
    assert [float(value[0]) for value in found] == list(range(0, count, 2))
    pull = whole(cluster.store, "pull", names[::-1])
    pulled = cluster.ended(pull.begin([1] * count, [], with_versions=True))
    assert len(pulled.values) == len(pulled.lowest) == count
    assert pulled.values[0][0] == count - 1


def ones() -> np.ndarray:
    return np.ones(16, np.float32)


@pytest.mark.parametrize("call", ["pull", "pushpull"])
def test_at_the_deadline_a_call_of_many_keys_says_which_it_was_and_who_is_missing(call: str) -> None:
    cluster = Cluster(small(9, slots=2))
    names, store = [f"k{number}" for number in range(9)], cluster.store
    future = store.pull(names, 1) if call == "pull" else store.pushpull(store.key_list(names), 0, [ones()] * 9)
    for _ in range(61):
        assert not future.done()
        while cluster.step(cluster.choose):
            pass
        cluster.now += 1.0
    cluster.step(cluster.choose)
    told = (
        rf"{call} of 9 keys \('k0', 'k1', 'k2', 'k3' and 5 more\), .* took over 60 s; shard 0 at .*waits for slots .*1"
    )
    with pytest.raises(StoreTimeoutError, match=told):
        future.result(0)


class TestConsistentReads:
    """Keys that are pushed one after the other are at one version only now and then."""

    def cluster(self) -> Cluster:
        return Cluster(small(3, shards=2), 5)

    def push(self, cluster: Cluster, name: str, step: int) -> None:
        cluster.ended(cluster.store.push(name, step, ones()))

    def test_values_of_one_version_are_read_at_once(self) -> None:
        cluster = self.cluster()
        for name in ("k0", "k1", "k2"):
            self.push(cluster, name, 0)
        version, values = cluster.ended(consistent_read(whole(cluster.store, "pull", ["k2", "k0"])))
        assert (version, [float(value[0]) for value in values]) == (1, [1.0, 1.0])

    def test_keys_that_are_behind_are_waited_for(self) -> None:
        cluster = self.cluster()
        self.push(cluster, "k0", 0)
        read = consistent_read(whole(cluster.store, "pull", ["k0", "k1", "k2"]))
        while cluster.step(cluster.choose):
            pass
        assert not read.done()
        self.push(cluster, "k1", 0)
        self.push(cluster, "k2", 0)
        version, values = cluster.ended(read)
        assert (version, [float(value[0]) for value in values]) == (1, [1.0, 1.0, 1.0])


class Scripted:
    """A pull of three keys, to the second of which nobody contributes, that is answered as it is told: `looks` are the
    lowest and highest version of each look, `pulls` what becomes of each pull at one version."""

    keys = SimpleNamespace(keys=[SimpleNamespace(slots=slots, size=1) for slots in ([0], [], [0])])

    def __init__(self, looks: list[tuple[int, int]], pulls: list[str]) -> None:
        self.looks = looks
        self.pulls = pulls
        self.asked: list[int] = []

    def begin(
        self, numbers: list[int], hosts: list[np.ndarray], *, with_versions: bool, reading: Reading = Reading.OWN
    ) -> Future[Any]:
        assert with_versions
        if reading is Reading.OWN:
            lowest, highest = self.looks.pop(0)
            versions = np.array([lowest, 0, highest])
            return ended(Pulled([np.zeros(1)] * 3, versions, versions))
        (version,) = {*numbers}
        self.asked.append(version)
        word = self.pulls.pop(0)
        if word == "comes":
            return ended(Pulled([np.ones(1)] * 3, np.full(3, version), np.full(3, version)))
        return ended(None, {"passed": StorePassedError, "overdue": StoreTimeoutError}[word](f"{version} is {word}"))


def ended(result: Any, error: Exception | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
    return future


def read(store: Scripted) -> Future[tuple[int, list[np.ndarray]]]:
    return consistent_read(store)  # type: ignore[arg-type]  # it stands in for a call


def test_a_read_of_keys_that_go_on_looks_further_ahead_each_time() -> None:
    store = Scripted([(1, 2), (3, 5), (5, 6)], ["passed", "passed", "comes"])
    version, values = read(store).result(0)
    assert (version, [float(value[0]) for value in values], store.asked) == (8, [1.0] * 3, [2, 6, 8])


def test_a_read_that_looked_beyond_the_last_step_takes_what_is_there_at_the_end() -> None:
    assert read(Scripted([(1, 2), (2, 3), (3, 3)], ["passed", "overdue"])).result(0)[0] == 3
    with pytest.raises(StoreTimeoutError, match="4 is overdue"):
        read(Scripted([(1, 2), (2, 3), (2, 3)], ["passed", "overdue"])).result(0)


def test_a_read_that_is_always_overtaken_ends() -> None:
    store = Scripted([(step, 100 * step) for step in range(1, 99)], ["passed"] * 99)
    with pytest.raises(StorePassedError, match="is passed"):
        read(store).result(0)
    assert len(store.asked) == TRIES


@pytest.mark.parametrize("cuts", [0, 4])
def test_pushes_of_several_calls_are_one_run_and_only_the_wrong_one_of_them_fails(cuts: int) -> None:
    choose = random.Random(0)
    gradients = {name: np.full(4, value, np.float32) for value, name in enumerate("abcd", 1)}
    keys = [msgspec.structs.replace(key_of(name, (4,), 2), update=Update.GRADIENT) for name in gradients]
    simulation = Simulation(store_of(keys, slots=2, shards=1))
    one, other = simulation.stores[0], simulation.stores[1]
    steps = range(STEPS_AHEAD + 1)
    early = [one.push(list(gradients), step, list(gradients.values())) for step in steps]
    simulation.finish(choose, *early, other.push(list("acd"), 0, [gradients[name] for name in "acd"]))
    begun = len(simulation.delivered)
    last = STEPS_AHEAD + 1
    pushed = {name: one.push(name, last, gradients[name]) for name in "abc"}
    pushpull = one.pushpull(one.key_list("d"), last, [gradients["d"]])
    for _ in range(cuts):
        for _ in range(8):
            simulation.step(choose)
        simulation.cut(0, 0)
        simulation.now += 1.0
    simulation.finish(choose, *pushed.values())
    assert [name for name, push in pushed.items() if push.exception() is not None] == ["b"]
    assert f"'b', slice 0, step {last}: more than" in str(pushed["b"].exception())
    heard = [decode_request(parts)[0] for way, parts in simulation.delivered[begun:] if way == "up"]
    segments = [segment for push in heard if isinstance(push, Push) for segment in push.segments]
    assert (PayloadKind.GRADIENT, NO_REQUEST, 0, last, 0, 0, 4, 64) in segments
    assert not pushpull.done()
    rest = [(step, name) for name in "acd" for step in range(1, last + 1)]
    simulation.finish(choose, *[other.push(name, step, 2 * gradients[name]) for step, name in rest], pushpull)
    assert pushpull.result().tolist() == [12.0] * 4
    pulled = one.pull(["a", "c"], last + 1)
    simulation.finish(choose, pulled)
    assert [value.tolist() for value in pulled.result()] == [[3.0] * 4, [9.0] * 4]
