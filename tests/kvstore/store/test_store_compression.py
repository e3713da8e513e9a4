"""Gradients and values that travel compressed through a whole store: to the bit what the codecs make of them, once."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest

from compressed_store import (
    HALF_WEIGHTS,
    KINDS,
    SLOTS,
    TWO_BIT,
    PlainTraining,
    compressed_store,
    gradient_of,
    merged_key,
)
from face_stores import faces
from store_cluster import WAIT_S, ByName, NamedClient, clients_of, constant, key_of, served, store_of, stores_of
from store_raw import column, hello_of, push_of, raw_peer, values_of
from store_simulation import Simulation
from weft_kvstore import Key, describe
from weft_kvstore.client import operation as operation_module
from weft_kvstore.description.records import (
    CommitDescription,
    CompressionDescription,
    Kind,
    LossScaling,
    StoreCompression,
    StoreDescription,
)
from weft_kvstore.errors import StoreLostError, StoreTimeoutError
from weft_kvstore.library.calls import KeyCall, consistent_read
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.snapshot import Captured, MissedError
from weft_kvstore.sharding import codec_of, routing_of
from weft_kvstore.snapshot_files import Snapshot, write_file
from weft_kvstore.wire.codec import decode_reply, decode_request, encode
from weft_kvstore.wire.messages import Pull, RefusalCode, Refused, Values, Welcome

ANY = random.Random(0)
LINK = LinkSettings(request_timeout_s=WAIT_S)


def names_of(description: StoreDescription) -> list[str]:
    return [key.key for key in description.keys]


def push_all(store: ByName, description: StoreDescription, slot: int, step: int, *, at: int | None = None) -> Any:
    gradients = [gradient_of(key, slot, step) for key in description.keys]
    return store.push(names_of(description), step if at is None else at, gradients)


def assert_same(found: Sequence[np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for value, (name, other) in zip(found, wanted.items(), strict=True):
        assert value.dtype == other.dtype
        np.testing.assert_array_equal(value, other, err_msg=name)


def train(description: StoreDescription, seed: int, steps: int, *, cuts: int = 0, link: LinkSettings = LINK) -> None:
    """Trains in a simulation in which everything comes in some order and connections break, beside plain NumPy."""
    simulation, choose = Simulation(description, link), random.Random(seed)
    names = names_of(description)
    first = simulation.stores[0].pull(names, 0)
    simulation.finish(choose, first)
    plain = PlainTraining(description, dict(zip(names, first.result(0), strict=True)))
    for step in range(steps):
        pushes = [
            push_all(simulation.stores[slot], description, slot, step) for slot in choose.sample(range(SLOTS), SLOTS)
        ]
        pulls = [simulation.stores[slot].pull(names, step + 1) for slot in range(SLOTS)]
        whole = simulation.stores[0].pull(names, step + 1, settled=True)
        for _ in range(cuts):
            for _ in range(choose.randrange(30)):
                simulation.step(choose)
            simulation.cut(choose.randrange(SLOTS), choose.randrange(len(description.shards)))
        simulation.finish(choose, *pushes, *pulls, whole)
        plain.step(step)
        assert [push.result(0) for push in pushes] == [None] * SLOTS
        for pull in pulls:
            assert_same(pull.result(0), plain.read)
        assert_same(whole.result(0), plain.values)


@pytest.mark.parametrize("seed", range(4))
def test_two_bit_both_ways_is_what_its_codec_makes_of_each_slice_where_connections_break(seed: int) -> None:
    train(compressed_store(gradients=TWO_BIT, merged=TWO_BIT, weights=HALF_WEIGHTS), seed, 12, cuts=4)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_what_its_codec_makes_of_each_slice(name: str) -> None:
    kind = KINDS[name]
    weights = kind if name == "bf16, none kept" else CompressionDescription(Kind.FP16, residual=False)
    train(compressed_store(gradients=kind, merged=kind, weights=weights), 9, 5, cuts=1)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("frame_bytes", [64, 1 << 20])
def test_no_number_of_shards_and_no_frame_changes_a_bit(shards: int, frame_bytes: int) -> None:
    link = LinkSettings(request_timeout_s=WAIT_S, frame_bytes=frame_bytes, credit_bytes=4 * frame_bytes)
    train(compressed_store(shards=shards, gradients=TWO_BIT, merged=TWO_BIT, weights=HALF_WEIGHTS), 3, 4, link=link)


def test_over_sockets_too_and_its_bytes_are_what_travels() -> None:
    description = compressed_store(gradients=TWO_BIT, merged=TWO_BIT, weights=HALF_WEIGHTS)
    names = names_of(description)
    with served(description) as (description, _), clients_of(description, LINK) as stores:
        plain = PlainTraining(description, dict(zip(names, stores[0].pull(names, 0).result(WAIT_S), strict=True)))
        before = [stores[0].statistics().links[0].payload_bytes_sent, payload_received(stores[0])]
        for step in range(8):
            pushes = [push_all(store, description, slot, step) for slot, store in enumerate(stores)]
            pulls = [store.pull(names, step + 1) for store in stores]
            plain.step(step)
            for push, pull in zip(pushes, pulls, strict=True):
                push.result(WAIT_S)
                assert_same(pull.result(WAIT_S), plain.read)
        sent = sum(link.payload_bytes_sent for link in stores[0].statistics().links) - before[0]
        received = payload_received(stores[0]) - before[1]
    up = down = 0
    for key in description.keys:
        at_once = description.slice_bytes // np.dtype(key.dtype).itemsize
        slices = [min(at_once, key.size - begin) for begin in range(0, key.size, at_once)]
        two_bit = sum(4 * -(-count // 16) for count in slices)
        up += key.nbytes if key.key == "small" else two_bit
        down += {"small": key.nbytes, "merged": two_bit}.get(key.key, 2 * key.size)
    assert (sent, received) == (8 * up, 8 * down)


def payload_received(store: Any) -> int:
    return sum(link.payload_bytes_received for link in store.statistics().links)


def test_the_first_values_state_and_what_is_read_for_itself_travel_as_they_are() -> None:
    description = compressed_store(gradients=TWO_BIT, merged=TWO_BIT, weights=HALF_WEIGHTS)
    description = msgspec.structs.replace(description, rule="adam", hyper={})
    simulation, names = Simulation(description, LINK), names_of(description)
    pushes = [push_all(simulation.stores[slot], description, slot, 0) for slot in range(SLOTS)]
    simulation.finish(ANY, *pushes)
    store = simulation.stores[1]
    reads = {
        "first": lambda: store.pull(names, 0),
        "settled": lambda: store.pull(names, 1, settled=True),
        "exact": lambda: store.pull(names, 1, exact=True),
        "consistent": lambda: consistent_read(KeyCall(store.named, store, "pull", store.key_list(names))),
        "state": lambda: store.pull("w", 1, state=True),
        "small": lambda: store.pull("small", 1),
        "weights": lambda: store.pull("w", 1),
        "weights and versions": lambda: store.pull(["w"], 1, with_versions=True),
    }
    for name, read in reads.items():
        simulation.delivered.clear()
        simulation.finish(ANY, read())
        asked, told = flags(simulation)
        assert asked == {name in {"small", "weights", "weights and versions"}}, name
        assert told == {name in {"weights", "weights and versions"}}, name


def flags(simulation: Simulation) -> tuple[set[int], set[int]]:
    """What pulls asked for, and what values were."""
    asked: set[int] = set()
    told: set[int] = set()
    for way, parts in simulation.delivered:
        message = (decode_request if way == "up" else decode_reply)(parts)[0]
        if isinstance(message, Pull):
            asked |= {compressed for _, _, _, _, compressed, _ in message.asks}
        elif isinstance(message, Values):
            told |= set(column(message, "compressed"))
    return asked, told


def test_a_step_that_nobody_contributes_to_sends_zeros_and_owes_what_it_owed() -> None:
    description = store_of([merged_key("g", (50,), 2)], slots=2, shards=1)
    setting = StoreCompression(gradients=None, merged=TWO_BIT, least_bytes=0)
    description = msgspec.structs.replace(description, compression=setting)
    simulation = Simulation(description, LINK)
    part = np.full(50, 0.2, np.float32)
    found = []
    for step, pushed in enumerate([True, False, True, True]):
        for slot in (0, 1):
            store = simulation.stores[slot]
            simulation.finish(ANY, store.push("g", step, part) if pushed else store.barrier(step, ["g"]))
        value = simulation.stores[0].pull("g", step + 1)
        simulation.finish(ANY, value)
        found.append(float(value.result(0)[7]))
    assert found == [0.0, 0.0, 0.5, 0.5]  # 0.4 owed; nothing; 0.8, of which 0.3 are owed; 0.7


def test_a_value_that_was_set_travels_as_it_is() -> None:
    keys = [merged_key("g", (50,), 1), constant(key_of("w", (50,), 1), 1.0)]
    setting = StoreCompression(merged=TWO_BIT, weights=HALF_WEIGHTS, least_bytes=0)
    description = msgspec.structs.replace(store_of(keys, slots=1, shards=1, hyper={"lr": 1.0}), compression=setting)
    third = np.full(50, 1 / 3, np.float32)
    with stores_of("network", description) as (store,):
        store.set("g", 1, third).result(WAIT_S)
        store.set("w", 1, third).result(WAIT_S)
        store.push(["g", "w"], 0, [third, third]).result(WAIT_S)
        merged, weight = store.pull(["g", "w"], 1).result(WAIT_S)
        np.testing.assert_array_equal(merged, third)
        np.testing.assert_array_equal(weight, np.full(50, 0.333984375, np.float32))  # a weight, of bf16's 8 bits
        store.push(["g", "w"], 1, [third, third]).result(WAIT_S)
        merged, _ = store.pull(["g", "w"], 2).result(WAIT_S)
        np.testing.assert_array_equal(merged, np.full(50, 0.5, np.float32), err_msg="what the first step left is there")


def test_slots_that_go_on_by_themselves() -> None:
    description = compressed_store(mode="async", gradients=TWO_BIT, weights=HALF_WEIGHTS)
    names = names_of(description)
    with stores_of("network", description, LINK) as stores:
        first = stores[0].pull(names, 0).result(WAIT_S)
        plain = PlainTraining(description, dict(zip(names, first, strict=True)))
        for slot, store in enumerate(stores):
            for step in range(4):
                push_all(store, description, slot, step).result(WAIT_S)
            store.pull(names, 4).result(WAIT_S)
        found = stores[0].pull(names, 4, settled=True).result(WAIT_S)
    for step in range(4):
        plain.step(step)
    for value, name in zip(found, names, strict=True):
        np.testing.assert_allclose(value, plain.values[name], rtol=1e-5, atol=1e-5)


def test_the_store_of_one_process_compresses_nothing() -> None:
    description = compressed_store(gradients=TWO_BIT, merged=TWO_BIT, weights=HALF_WEIGHTS)
    keys = tuple(msgspec.structs.replace(key, compression=description.compression) for key in description.keys)
    found = []
    for one in (
        msgspec.structs.replace(description, compression=None),
        msgspec.structs.replace(description, keys=keys),
    ):
        with stores_of("local", one) as stores:
            for slot, store in enumerate(stores):
                push_all(store, one, slot, 0).result(WAIT_S)
            found.append(stores[0].pull(names_of(one), 1).result(WAIT_S))
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_key_has_a_setting_of_its_own() -> None:
    description = compressed_store(gradients=TWO_BIT)
    own = {"w": StoreCompression(), "v": StoreCompression(gradients=KINDS["topk"], least_bytes=0)}
    keys = tuple(msgspec.structs.replace(key, compression=own.get(key.key)) for key in description.keys)
    description = msgspec.structs.replace(description, keys=keys)
    buckets = {
        key.key: bucket
        for bucket in routing_of(description).buckets
        for key in (description.keys[at] for at in bucket.keys)
    }
    told = {name: bucket.pushed.name if bucket.pushed else None for name, bucket in buckets.items()}
    assert told == {"w": None, "v": "topk", "whole": "2bit", "double": "2bit", "small": None, "merged": "2bit"}
    assert (
        len({bucket.number for bucket in buckets.values()}) == 5
    )  # `w` and `small`, which travel as they are, are one


def test_what_keeps_a_residual_is_divided_by_the_loss_scale_before() -> None:
    """The same bits as without a scale, whatever it is; a step that overflows is skipped."""
    scaling = LossScaling(initial=2.0**10, growth_interval=1)
    for one in (TWO_BIT, CompressionDescription(Kind.BF16, residual=False)):
        plain = store_of([constant(key_of("w", (500,), 2), 0.0)], slots=2, shards=2, hyper={"lr": 1.0}, slice_bytes=256)
        plain = msgspec.structs.replace(plain, compression=StoreCompression(gradients=one, least_bytes=0))
        scaled = msgspec.structs.replace(plain, commit=CommitDescription(loss_scaling=scaling))
        key, scale = plain.keys[0], scaling.initial
        with stores_of("network", plain) as honest, stores_of("network", scaled) as stores:
            for step, at in enumerate([0, None, 1, 2, 3]):
                for slot, store in enumerate(stores):
                    gradient = gradient_of(key, slot, step) * np.float32(scale)
                    store.push("w", step, gradient if at is not None else np.full(500, np.inf, np.float32))
                outcomes = [store.barrier(step, []) for store in stores]
                (outcome,) = {repr(each.result(WAIT_S)): each.result(WAIT_S) for each in outcomes}.values()
                assert outcome is not None
                assert (outcome.finite, outcome.loss_scale) == (at is not None, scale)
                scale = scale * 2 if outcome.finite else scale / 2
                if at is None:
                    continue
                for slot, store in enumerate(honest):
                    store.push("w", at, gradient_of(key, slot, step))
                wanted = honest[0].pull("w", at + 1).result(WAIT_S)
                np.testing.assert_array_equal(stores[0].pull("w", step + 1).result(WAIT_S), wanted)


def residuals_of(store: NamedClient) -> dict[str, np.ndarray]:
    """Copies, while nothing is under way."""
    return {key: array.copy() for key, array in store._core.encoders.residuals.items()}


@pytest.mark.parametrize("slots", [SLOTS, 2, 5])
def test_what_is_owed_after_a_step_is_captured_while_pushes_are_under_way_and_other_slots_take_it_over(
    tmp_path: Path, slots: int
) -> None:
    description = compressed_store(gradients=TWO_BIT)
    names = [name for name in names_of(description) if name != "small"]
    with served(description) as (description, _), clients_of(description, LINK) as stores:
        told: list[SimpleQueue[Captured | MissedError]] = [SimpleQueue() for _ in stores]
        owed: list[dict[str, np.ndarray]] = []
        for step in range(2):
            for push in [push_all(store, description, slot, step) for slot, store in enumerate(stores)]:
                push.result(WAIT_S)
        for slot, store in enumerate(stores):
            owed.append(residuals_of(store))
            store.capture(2, told[slot].put)  # A step that is about to begin.
        for step in range(2, 4):
            pushes = [push_all(store, description, slot, step) for slot, store in enumerate(stores)]
        for push in pushes:
            push.result(WAIT_S)
        files = []
        for slot, queue in enumerate(told):
            held = queue.get(timeout=WAIT_S)
            assert isinstance(held, Captured)
            files.append(write_file(str(tmp_path), f"worker-{slot}.safetensors", held.arrays(), {}))
            stores[slot].capture(1, told[slot].put)
            assert "has encoded gradients of step 3 already" in str(told[slot].get(timeout=WAIT_S))
    snapshot = Snapshot(2, str(tmp_path), tuple(files))
    others = compressed_store(gradients=TWO_BIT, slots=slots)
    with served(others) as (others, _), clients_of(others, LINK) as stores:
        found = []
        for store in stores:
            store.resume(snapshot, WAIT_S)
            found.append(residuals_of(store))
    for name in names:
        was = [one[name] for one in owed]
        now = [one[name] for one in found]
        if slots == SLOTS:
            np.testing.assert_array_equal(now, was)
        elif slots < SLOTS:
            np.testing.assert_array_equal(now, [was[0] + was[2], was[1]])
        else:
            np.testing.assert_array_equal(now, [*was, *np.zeros((slots - SLOTS, was[0].size), was[0].dtype)])


def test_what_a_key_owes_that_is_not_pushed_is_captured_at_the_barrier() -> None:
    description = compressed_store(gradients=TWO_BIT)
    names = [name for name in names_of(description) if name != "small"]
    with served(description) as (description, _), clients_of(description, LINK) as stores:
        told: SimpleQueue[Captured | MissedError] = SimpleQueue()
        stores[0].capture(1, told.put)
        stores[0].push("w", 0, gradient_of(description.keys[0], 0, 0))
        stores[0].barrier(0, [name for name in names_of(description) if name != "w"]).result(WAIT_S)
        held = told.get(timeout=WAIT_S)
        assert isinstance(held, Captured)
        assert {one.key for one in held.arrays()} == set(names)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["2bit", "topk", "bf16"])
def test_pushes_that_were_refused_or_failed_halfway_send_the_same_bytes_again(name: str, seed: int) -> None:
    """Slot 0 pushes four steps ahead: of the third and fourth, shards may take some slices, and all of the others when
    they are pushed again. The first fails at its deadline, wherever it is then."""
    description = compressed_store(gradients=KINDS[name])
    simulation = Simulation(description, LinkSettings(request_timeout_s=30, frame_bytes=200))
    choose, names = random.Random(seed), names_of(description)
    store = simulation.stores[0]
    first = store.pull(names, 0)
    simulation.finish(choose, first)
    plain = PlainTraining(description, dict(zip(names, first.result(0), strict=True)))
    pushes = [push_all(store, description, 0, 0)]
    for _ in range(seed * 3):
        simulation.step(choose)
    simulation.clients[0]._end_overdue(simulation.now + 31)
    simulation.clients[0].end_futures()
    assert isinstance(pushes[0].exception(0), StoreTimeoutError)
    pushes = [push_all(store, description, 0, step) for step in range(4)]
    for slot in (1, 2):
        for _ in range(20):
            simulation.step(choose)
        pushes.append(push_all(simulation.stores[slot], description, slot, 0))
    simulation.finish(choose, *pushes)
    refused = [step for step in range(4) if pushes[step].exception(0) is not None]
    for slot in (1, 2):
        for step in range(1, 4):
            push_all(simulation.stores[slot], description, slot, step)
            simulation.settle(choose)
    for step in refused:
        again = push_all(store, description, 0, step)
        simulation.finish(choose, again)
        assert again.result(0) is None
    for step in range(4):
        plain.step(step)
    value = store.pull(names, 4, settled=True)
    simulation.finish(choose, value)
    assert_same(value.result(0), plain.values)


def test_what_has_arrived_does_not_fail_once_it_is_pushed_again_though_nothing_of_it_is_sent() -> None:
    description = compressed_store(gradients=KINDS["2bit"])
    simulation = Simulation(description, LinkSettings(request_timeout_s=30))
    store, client = simulation.stores[0], simulation.clients[0]
    gradients = {key.key: gradient_of(key, 0, 0) for key in description.keys}
    simulation.finish(ANY, store.push("w", 0, gradients["w"]))
    both = store.push(["w", "v"], 0, [gradients["w"], gradients["v"]])
    client._end_overdue(simulation.now + 31)
    client.end_futures()
    assert isinstance(both.exception(0), StoreTimeoutError)
    assert [name for name, steps in store.failed.items() if steps] == ["w", "v"]
    again = store.push("w", 0, gradients["w"])
    simulation.finish(ANY, again)
    assert again.result(0) is None
    assert [name for name, steps in store.failed.items() if steps] == ["v"]


def test_a_step_that_could_not_begin_is_pushed_behind_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it was encoded: what is left out of both is owed all the same."""
    description = one_key(KINDS["2bit"], whole=False)
    simulation, gradient = Simulation(description, LINK), np.full(130, 0.25, np.float32)
    store, other = simulation.stores[0], simulation.stores[1]
    with monkeypatch.context() as patched:
        patched.setattr(operation_module, "bytearray", Mock(side_effect=MemoryError), raising=False)
        begun = store.pushpull(store.key_list("w"), 0, [gradient])
    simulation.finish(ANY, store.push("w", 1, 2 * gradient))
    assert "no memory" in str(begun.exception(0))
    again = store.push("w", 0, gradient)
    simulation.finish(ANY, again)
    assert again.result(0) is None
    simulation.finish(ANY, *[other.push("w", step, 0 * gradient) for step in range(2)], store.pull("w", 2))
    assert (simulation.clients[0].encoders.residuals["w"] == 0.75 - 0.5).all()


TOPK = CompressionDescription(Kind.TOP_K, count=2)


def one_key(one: CompressionDescription, *, whole: bool) -> StoreDescription:
    """A key of two slices, of 100 and 30 elements."""
    key = msgspec.structs.replace(key_of("w", (130,), 2), whole=whole)
    setting = StoreCompression(gradients=one, least_bytes=0)
    return msgspec.structs.replace(store_of([key], slots=2, shards=1, slice_bytes=400), compression=setting)


def encoded(one: CompressionDescription, bounds: Sequence[int]) -> np.ndarray:
    elements = np.random.default_rng(1).standard_normal(bounds[-1]).astype(np.float32)
    codec = codec_of(one, np.dtype(np.float32))
    return codec.encode(elements, np.array(bounds), np.zeros_like(elements))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("one", "damage", "told"),
    [
        (TWO_BIT, lambda sent: sent[:-4], r"Push\.nbytes: 32 for 2 slices from 0 of bucket 0, encoded as 2bit, not 36"),
        (TWO_BIT, lambda sent: np.tile(sent, 2), r"Push\.nbytes: 72 for"),
        (
            TWO_BIT,
            lambda sent: np.full_like(sent, 255),
            "key 'w', slice 0, step 0.*: 2bit: slice 0 of 100 elements has",
        ),
        (TOPK, lambda sent: sent[:-1], r"Push\.nbytes: 23 for 2 slices from 0 of bucket 0, encoded as topk, not 24"),
        (
            TOPK,
            lambda sent: np.r_[sent[:12], [200, 0], sent[14:]].astype(np.uint8),
            "key 'w', slice 1, step 0.*indices",
        ),
        (
            TOPK,
            lambda sent: np.r_[sent[:12], sent[14:16], sent[14:]],
            "key 'w', slice 1, step 0.*: topk: slice 1 of 30 elements has indices",
        ),
        (KINDS["bf16"], lambda sent: np.zeros(520, np.uint8), r"Push\.nbytes: 520 for .* encoded as bf16, not 260"),
    ],
)
def test_bytes_that_no_encoder_writes_are_refused_at_the_listener(
    one: CompressionDescription, damage: Any, told: str, whole: bool
) -> None:
    with served(one_key(one, whole=whole)) as (description, (server,)), raw_peer(server.endpoint) as peer:
        assert isinstance(peer.greet(hello_of(description, 1)), Welcome)
        payload = damage(encoded(one, [0, 100, 130])).tobytes()
        peer.say(push_of(0, [len(payload)], count=2), payload)
        refused = peer.hear(Refused)
        assert refused.code is RefusalCode.MALFORMED
        assert re.search(told, refused.reason), refused.reason
        with clients_of(description, LINK) as (honest, other):
            for store in (honest, other):
                store.push("w", 0, np.ones(130, np.float32)).result(WAIT_S)
            assert np.isfinite(honest.pull("w", 1).result(WAIT_S)).all()


@pytest.mark.parametrize("settled", [False, True])
def test_a_shard_that_encodes_what_it_may_not_is_left(settled: bool) -> None:
    """Weights are not compressed here, or were asked for as they are."""
    description = one_key(KINDS["2bit"], whole=False)
    setting = StoreCompression(weights=HALF_WEIGHTS if settled else None, least_bytes=0)
    simulation = Simulation(msgspec.structs.replace(description, compression=setting), LINK)
    value = simulation.stores[0].pull("w", 1, settled=settled)
    told = "Values.compressed: slices 0 to 1 of bucket 0 travel as they are in pull of key 'w', version 1"
    assert_left(simulation, value, {"compressed": 1}, bytes(260), told)


@pytest.mark.parametrize(
    ("changed", "payload", "told"),
    [
        ({"compressed": 1}, bytes(258), r"Values\.nbytes: 258, slices 0 to 1 of bucket 0, encoded, have 260 in pull"),
        ({"compressed": 1}, bytes(520), r"Values\.nbytes: 520, slices 0 to 1 of bucket 0, encoded, have 260 in pull"),
        ({"compressed": 0}, bytes(260), r"Values\.nbytes: 260, slices 0 to 1 of bucket 0 have 520"),
        (
            {"compressed": 1, "count": 1},
            bytes(260),
            r"Values\.nbytes: 260, slices 0 to 0 of bucket 0, encoded, have 200",
        ),
    ],
)
def test_a_shard_that_encodes_nonsense_is_left(changed: dict[str, Any], payload: bytes, told: str) -> None:
    description = one_key(KINDS["2bit"], whole=False)
    setting = StoreCompression(weights=HALF_WEIGHTS, least_bytes=0)
    simulation = Simulation(msgspec.structs.replace(description, compression=setting), LINK)
    assert_left(simulation, simulation.stores[0].pull("w", 1), changed, payload, told)


def assert_left(simulation: Simulation, value: Any, changed: dict[str, Any], payload: bytes, told: str) -> None:
    simulation.settle(ANY)
    number = next(iter(simulation.clients[0].links[0].requests))
    values = values_of(9, {"request": number, "version": 1, "count": 2, "nbytes": len(payload), **changed})
    simulation.clients[0].receive(0, [bytes(part) for part in encode(values, payload)], simulation.now)
    simulation._pump()
    with pytest.raises(StoreLostError, match=told):
        value.result(0)


def test_arrays_in_memory_shared_with_shards_travel_compressed_too() -> None:
    description = compressed_store(gradients=TWO_BIT, merged=TWO_BIT, weights=HALF_WEIGHTS)
    names = names_of(description)
    with served(description) as (description, _), clients_of(description, LINK) as stores:
        plain = PlainTraining(description, dict(zip(names, stores[0].pull(names, 0).result(WAIT_S), strict=True)))
        for step in range(3):
            pushes = []
            for slot, store in enumerate(stores):
                gradients = [store.own_gradient(name) for name in names]
                for gradient, key in zip(gradients, description.keys, strict=True):
                    gradient[...] = gradient_of(key, slot, step)
                pushes.append(store.push(names, step, gradients))
            outs = [[store.own_value(name) for name in names] for store in stores]
            pulls = [store.pull(names, step + 1, out=out) for store, out in zip(stores, outs, strict=True)]
            plain.step(step)
            for done in [*pushes, *pulls]:
                done.result(WAIT_S)
            for out in outs:
                assert_same(out, plain.read)


ANYWHERE = ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
"""Endpoints that `faces` replaces."""


@pytest.mark.parametrize("call", ["pull", "pushpull"])
def test_the_first_value_that_a_process_pulls_is_encoded_like_those_after_it(call: str) -> None:
    """Else it has what the residual still owes, which comes again with the next steps."""
    setting = {"merged": {"kind": "2bit", "threshold": 1.0}, "least_bytes": 0}
    description = describe({"w": Key((8,), update="gradient")}, shards=ANYWHERE, slots=2, compression=setting)
    with faces("network", description) as stores:
        found: list[list[float]] = [[], []]
        for gradient in (2.5, 0.0, 0.0):
            given = [np.full(8, gradient / 2, np.float32)] * 2
            if call == "pull":
                for store, array in zip(stores, given, strict=True):
                    store.push("w", array)
                pulls = [store.pull("w") for store in stores]
            else:
                pulls = [store.pushpull("w", array) for store, array in zip(stores, given, strict=True)]
            for values, pull in zip(found, pulls, strict=True):
                values.append(float(pull.result(WAIT_S)[0]))
    assert found == [[1.0, 1.0, 0.0]] * 2
