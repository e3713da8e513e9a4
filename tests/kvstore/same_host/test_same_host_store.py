"""Payloads in shared memory: the same bits, once each, whoever dies, and whatever a hostile client says."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest

from same_host_children import Child, arena_maps, arenas_anywhere, wait_until
from store_cluster import (
    WAIT_S,
    NamedClient,
    NamedStore,
    clients_of,
    gradients_of,
    key_of,
    pushpull_rows,
    served,
    store_of,
    table_of,
    wait_until_shared,
)
from store_processes import shard_processes
from store_proxies import TcpProxy
from store_raw import RawPeer, hello_of, pull_of, push_of, raw_peer
from weft_kvstore.description.records import CommitDescription, StoreDescription
from weft_kvstore.errors import StoreLostError, StoreTimeoutError
from weft_kvstore.same_host import client_arrays, handover
from weft_kvstore.same_host import memory as shared_memory
from weft_kvstore.same_host.handover import Handover
from weft_kvstore.same_host.memory import ArenaError, SharedMemory
from weft_kvstore.serving import shard_server
from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.messages import Acknowledge, PushRefused, RefusalCode, Refused, Released, Values, Welcome

STEPS = 3
LINK = LinkSettings(request_timeout_s=WAIT_S)
KEYS = ("cut", "small", "tiny", "odd", "wide")


def shared_files() -> set[str]:
    """The store's, by their names: other programs have theirs there too."""
    return {one for one in os.listdir("/dev/shm") if "weft" in one}


@pytest.fixture(autouse=True)
def everything_is_shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Payloads of any length pass through the arena; and no memory is left that was not there before."""
    monkeypatch.setattr(SharedMemory, "least_bytes", 1)
    gc.collect()  # What an earlier test has left to the collector would be missing afterwards.
    before = arena_maps(), shared_files()
    yield
    gc.collect()  # Shards and clients of a test are in circles.
    gc.collect()
    wait_until(lambda: arena_maps() <= before[0] and shared_files() <= before[1])


SHAPES = {"cut": (40, 33), "small": (7,), "tiny": (), "odd": (129,), "wide": (3, 700)}


def keys_of(slots: int) -> StoreDescription:
    """Keys that are cut over both shards, and ones that are not, of lengths that are no whole cache lines."""
    keys = [key_of(name, shape, slots, priority=at % 3) for at, (name, shape) in enumerate(SHAPES.items())]
    return store_of([*keys, table_of("t", (50, 4), slots)], slots=slots, shards=2, hyper={"lr": 0.5}, slice_bytes=512)


def gradient_list(description: StoreDescription, slot: int, step: int) -> list[np.ndarray]:
    found = gradients_of(description, slot, step)
    return [np.asarray(found[name]) for name in KEYS]


def steps_of(clients: Sequence[NamedClient], description: StoreDescription, *, in_place: bool) -> list[list[bytes]]:
    """What the keys are after each step, as each slot sees it."""
    found = []
    for step in range(STEPS):
        pushes, pulls = [], []
        for slot, client in enumerate(clients):
            gradients = gradient_list(description, slot, step)
            if in_place:
                for name, gradient in zip(KEYS, gradients, strict=True):
                    client.own_gradient(name)[...] = gradient
                gradients = [client.own_gradient(name) for name in KEYS]
            pushes.append(client.push(KEYS, step, gradients))
            out = [client.own_value(name) for name in KEYS] if in_place else None
            pulls.append(client.pull(KEYS, step + 1, out=out))
        values = [pull.result(WAIT_S) for pull in pulls]
        found += [[value.tobytes() for value in of_slot] for of_slot in values]
        for push in pushes:
            push.result(WAIT_S)
    return found


def test_bits_are_those_that_come_through_sockets() -> None:
    found = []
    for same_host, in_place in ((False, False), (True, False), (True, True), (False, True)):
        with (
            served(keys_of(3)) as (description, _),
            clients_of(description, replace(LINK, same_host=same_host)) as clients,
        ):
            if same_host:
                wait_until_shared(clients)
            found.append(steps_of(clients, description, in_place=in_place))
            links = [link for client in clients for link in client.statistics().links]
            for link in links:
                shared = link.payload_bytes_sent if same_host else 0
                assert (link.shared_bytes_sent, link.same_host) == (shared, same_host)
    assert found[1:] == found[:1] * 3


def test_values_are_read_where_the_shard_has_them_and_copied_where_it_shares_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole keys are read there too; rows are copied to the shard's stage."""
    for shares in (True, False):
        if not shares:
            monkeypatch.setattr(shard_server, "shard_memory", Mock(side_effect=ArenaError("no memory")))
        with served(keys_of(2)) as (description, _), clients_of(description, LINK) as clients:
            wait_until_shared(clients)
            found = steps_of(clients, description, in_place=False)
            shared = [link.shared_bytes_received for client in clients for link in client.statistics().links]
            assert all(shared) if shares else not any(shared)
            clients[0].pull("t", 0, np.arange(4)).result(WAIT_S)
        with NamedStore(description) as store:
            assert found == steps_of([store.at_slot(slot) for slot in (0, 1)], description, in_place=False)


def test_a_client_that_cannot_map_what_is_lent_has_its_payloads_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    map_shared = shared_memory.map_shared
    theirs: list[int] = []

    def mapped(fd: int) -> np.ndarray:
        if os.fstat(fd).st_size in theirs:
            raise ArenaError("no address space")
        return map_shared(fd)

    shard_memory = shard_server.shard_memory

    def noted(nbytes: int) -> SharedMemory:
        memory = shard_memory(nbytes)
        theirs.append(memory.nbytes)
        return memory

    monkeypatch.setattr(shard_server, "shard_memory", noted)
    monkeypatch.setattr(handover, "map_shared", mapped)
    with served(keys_of(2)) as (description, _), clients_of(description, LINK) as clients:
        found = steps_of(clients, description, in_place=False)
        for client in clients:  # By now each has met every shard's answer.
            unshared = client._sockets._unshared
            wait_until(lambda unshared=unshared: len(unshared) == 2)  # type: ignore[misc]  # mypy: no such lambda
            client.pull(KEYS, 0 if not found else STEPS).result(WAIT_S)
            assert not any(link.same_host for link in client.statistics().links)
    with NamedStore(description) as store:
        assert found == steps_of([store.at_slot(slot) for slot in (0, 1)], description, in_place=False)


def test_what_one_shard_answers_that_cannot_be_used_is_logged_and_concerns_that_shard_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    map_shared, fails = shared_memory.map_shared, iter([True])

    def mapped(fd: int) -> np.ndarray:
        if threading.current_thread().name != "weft-shard" and next(fails, False):
            raise ArenaError("no address space")
        return map_shared(fd)

    monkeypatch.setattr(handover, "map_shared", mapped)
    with served(keys_of(1)) as (description, _), clients_of(description, LINK) as (client,):
        wait_until(lambda: sorted(link.same_host for link in client.statistics().links) == [False, True])
        wait_until(lambda: all(link.welcomed for link in client.statistics().links))
        client.pull(KEYS, 0).result(WAIT_S)
        assert sorted(link.same_host for link in client.statistics().links) == [False, True]
    (line,) = [record.message for record in caplog.records if "payloads travel as bytes" in record.message]
    assert line.endswith("payloads travel as bytes from now on: no address space")


def test_where_the_stage_is_full_payloads_travel_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that is ahead fills its stage: what it sends is read only when the slot before it has come."""
    monkeypatch.setattr(client_arrays, "MAX_STAGING_BYTES", 2048)
    link = replace(LINK, frame_bytes=1024)
    with served(keys_of(2)) as (description, _), clients_of(description, link) as clients:
        wait_until_shared(clients)
        ahead = clients[1].push(KEYS, 0, gradient_list(description, 1, 0))
        ahead.result(WAIT_S)
        links = clients[1].statistics().links
        assert 0 < sum(one.shared_bytes_sent for one in links) < sum(one.payload_bytes_sent for one in links)
        clients[0].push(KEYS, 0, gradient_list(description, 0, 0))
        values = clients[0].pull(KEYS, 1).result(WAIT_S)
    with NamedStore(description) as store:
        for slot in (0, 1):
            gradients = gradient_list(description, slot, 0)
            store.at_slot(slot).push(KEYS, 0, gradients).result(WAIT_S)
        expected = store.pull(KEYS, 1).result(WAIT_S)
    assert [value.tobytes() for value in values] == [value.tobytes() for value in expected]


@pytest.mark.parametrize("other", [None, "odd", "wide"])
def test_a_push_in_place_ends_when_nobody_reads_it_any_more(other: str | None) -> None:
    """Also one with an array of the caller's own beside the buffer."""
    with served(keys_of(2)) as (description, shards), clients_of(description, LINK) as clients:
        wait_until_shared(clients)
        buffers = [client.own_gradient("cut") for client in clients]
        for slot, buffer in enumerate(buffers):
            buffer[...] = slot + 1
        before = clients[0].pull("cut", 0).result(WAIT_S)
        names, own = ["cut"], list[np.ndarray]()
        if other is not None:
            names, own = ["cut", other], [np.ones(SHAPES[other], np.float32)]
        first = clients[0].push(names, 0, [buffers[0], *own])
        wait_until(lambda: all(shard.statistics()["received_frames"] for shard in shards))
        clients[0].pull("cut", 0).result(WAIT_S)  # Whatever the shards say of the push has come before.
        assert not first.done()
        clients[1].push(names, 0, [buffers[1], *own]).result(WAIT_S)
        first.result(WAIT_S)
        buffers[0][...] = 1e9
        value = clients[0].pull("cut", 1).result(WAIT_S)
        assert np.array_equal(value, before - np.float32(0.5) * 3)


def test_a_push_in_place_of_a_step_that_is_committed_ends_before_that() -> None:
    description = msgspec.structs.replace(keys_of(2), commit=CommitDescription())
    with served(description) as (description, _), clients_of(description, LINK) as clients:
        wait_until_shared(clients)
        buffers = [client.own_gradient("cut") for client in clients]
        for push in [client.push("cut", 0, buffer) for client, buffer in zip(clients, buffers, strict=True)]:
            push.result(WAIT_S)


def test_a_push_in_place_that_is_late_says_that_the_shard_has_it_and_counts() -> None:
    link = replace(LINK, request_timeout_s=0.5)
    with served(keys_of(2)) as (description, _), clients_of(description, link) as clients:
        wait_until_shared(clients)
        buffers = [client.own_gradient("cut") for client in clients]
        before = clients[0].pull("cut", 0).result(WAIT_S)
        for buffer in buffers:
            buffer[...] = 1
        with pytest.raises(StoreTimeoutError, match="shard has it where it lies, and reads it once the other slots"):
            clients[0].push("cut", 0, buffers[0]).result(WAIT_S)
        clients[1].push("cut", 0, buffers[1]).result(WAIT_S)
        value = clients[1].pull("cut", 1).result(WAIT_S)
        assert np.array_equal(value, before - np.float32(0.5) * 2)


def test_values_lie_in_the_buffer_that_was_given_and_nowhere_else() -> None:
    with served(keys_of(1)) as (description, _), clients_of(description, LINK) as (client,):
        wait_until_shared([client])
        buffer = client.own_value("wide")
        assert client.pull("wide", 0, out=buffer).result(WAIT_S) is buffer
        own = client.pull("wide", 0).result(WAIT_S)
        assert np.array_equal(own, buffer)
        own[...] = 0
        assert buffer.any()


def test_rows_whole_keys_and_sets_pass_through_the_arena_too() -> None:
    description = keys_of(1)
    whole = msgspec.structs.replace(key_of("whole", (50, 20), 1), whole=True)
    description = msgspec.structs.replace(description, keys=(*description.keys, whole))
    found = []
    for same_host in (False, True):
        with served(description) as (at, _), clients_of(at, replace(LINK, same_host=same_host)) as (client,):
            if same_host:
                wait_until_shared([client])
            client.push("whole", 0, np.full((50, 20), 2, np.float32)).result(WAIT_S)
            ids = np.arange(0, 50, 2)
            client.push("t", 0, np.full((25, 4), 3, np.float32), ids).result(WAIT_S)
            client.set("cut", 1, np.full((40, 33), 5, np.float32)).result(WAIT_S)
            client.push("cut", 0, np.ones((40, 33), np.float32)).result(WAIT_S)
            values = client.pull("whole", 1), client.pull("t", 1, np.arange(50)), client.pull("cut", 1)
            found.append([value.result(WAIT_S).tobytes() for value in values])
            rows = np.full((25, 4), 7, np.float32)
            both = pushpull_rows(client, 1, rows, ids).result(WAIT_S)
            np.testing.assert_array_equal(both, client.pull("t", 2, ids).result(WAIT_S))
            found[-1].append(both.tobytes())
            if same_host:
                assert all(one.shared_bytes_sent and one.shared_bytes_received for one in client.statistics().links)
    assert found[0] == found[1]


def test_what_was_in_place_when_the_connection_broke_counts_once_and_is_the_users_again() -> None:
    with ExitStack() as stack:
        description, shards = stack.enter_context(served(keys_of(2)))
        proxies = [stack.enter_context(TcpProxy(endpoint)) for endpoint in description.shards]
        endpoints = [proxy.endpoint for proxy in proxies]
        clients = stack.enter_context(clients_of(description, LINK, endpoints))
        wait_until_shared(clients)
        before = clients[0].pull("cut", 0).result(WAIT_S)
        buffer = clients[0].own_gradient("cut")
        buffer[...] = 1
        push = clients[0].push("cut", 0, buffer)
        wait_until(lambda: all(shard.statistics()["received_frames"] for shard in shards))
        for proxy in proxies:
            proxy.cut()
            proxy.restore()
        wait_until(lambda: all(one.connections > 1 for one in clients[0].statistics().links))
        wait_until_shared(clients)
        push.result(WAIT_S)
        buffer[...] = 7  # The shards have copied what was theirs to read.
        clients[1].push("cut", 0, np.full((40, 33), 2, np.float32)).result(WAIT_S)
        assert np.array_equal(clients[0].pull("cut", 1).result(WAIT_S), before - np.float32(1.5))
        assert all(shard.statistics()["arenas"] == 2 for shard in shards)


WORKER = """
import sys
import threading
import msgspec
from store_cluster import NamedClient, wait_until_shared
from weft_kvstore.arrays import Buffer
from weft_kvstore.description.records import CommitDescription, StoreDescription
client = NamedClient(msgspec.json.decode(sys.argv[1], type=StoreDescription), 0)
wait_until_shared([client])
buffer = client.own_gradient("cut")
buffer[...] = 1
client.push("cut", 0, buffer)
client.pull("cut", 0, out=client.own_value("cut")).result()
print("pushed")
sys.stdin.read()
"""


def test_nothing_is_left_of_a_worker_that_is_killed_and_its_gradient_counts() -> None:
    with served(keys_of(2)) as (description, shards):
        mine, before_all = f"{os.getpid()} ", arenas_anywhere()
        with Child(WORKER, msgspec.json.encode(description).decode()) as child:
            assert child.line() == "pushed"
            wait_until(lambda: all(shard.statistics()["arenas"] == 1 for shard in shards))
            child.kill()
        wait_until(lambda: all(shard.statistics()["arenas"] == 0 for shard in shards))
        with NamedClient(description, 1, settings=LINK) as client:
            before = client.pull("cut", 0).result(WAIT_S)
            client.push("cut", 0, np.full((40, 33), 2, np.float32)).result(WAIT_S)
            assert np.array_equal(client.pull("cut", 1).result(WAIT_S), before - np.float32(1.5))
        gc.collect()
        wait_until(lambda: {one for one in arenas_anywhere() if one.startswith(mine)} <= before_all)


def test_a_shard_that_is_killed_takes_nothing_with_it_and_futures_fail(tmp_path: Path) -> None:
    link = replace(LINK, silence_s=1.0)
    with ExitStack() as stack:
        description, start = stack.enter_context(shard_processes(keys_of(2), tmp_path))
        processes = [start(shard) for shard in range(2)]
        client = stack.enter_context(NamedClient(description, 0, settings=link))
        wait_until_shared([client])
        buffer = client.own_gradient("cut")
        buffer[...] = 1
        push = client.push("cut", 0, buffer)
        processes[1].kill()
        with pytest.raises(StoreLostError, match="shard 1"):
            push.result(WAIT_S)
        assert [one.same_host for one in client.statistics().links][1] is False
        assert np.all(buffer == 1)


def test_a_stranger_may_not_speak_of_an_arena_that_it_did_not_bring() -> None:
    with served(keys_of(1)) as (description, shards), raw_peer(shards[0].endpoint) as peer:
        assert isinstance(peer.greet(hello_of(description, 0)), Welcome)
        peer.say(msgspec.structs.replace(push_of(0, [512, 512], first=[0, 1], frame=7), at=[(0, 1024)]))
        assert peer.hear(PushRefused).segment == 0
        assert "not brought" in peer.hear(PushRefused).reason
        assert shards[0].statistics()["arenas"] == 0


@contextmanager
def brought(peer: RawPeer, description: StoreDescription) -> Iterator[tuple[SharedMemory, Handover]]:
    """A peer that has said Hello and brought an arena of a page and its stage."""
    hello = hello_of(description, 0)
    welcome = peer.greet(hello)
    assert isinstance(welcome, Welcome)
    arena = SharedMemory(4000, 4096)
    arena.reserve(0, arena.nbytes)
    given = Handover(welcome.listener, (hello.process, hello.session), arena)
    wait_until(lambda: given.receive() or given.accepted, given.fileno())
    yield arena, given
    given.close()
    arena.close()


@pytest.mark.parametrize(
    ("at", "told"),
    [
        ([(1 << 40, 512)], "Push.at: bytes .* of memory that has 8192"),
        ([(8000, 512)], "Push.at: bytes 8000 to 8512 of memory that has 8192"),
        ([(0, 256), (512, 255)], "payload: 511 bytes came, nbytes of Push.segments adds up to 512"),
    ],
)
def test_what_points_elsewhere_ends_the_connection_and_nothing_else(at: list[tuple[int, int]], told: str) -> None:
    with (
        served(keys_of(1)) as (description, shards),
        raw_peer(shards[0].endpoint) as peer,
        brought(peer, description),
    ):
        peer.say(msgspec.structs.replace(push_of(0, [512]), at=at))
        refused = peer.hear(Refused)
        assert refused.code is RefusalCode.MALFORMED
        assert re.search(told, refused.reason), refused.reason
    assert shards[0].error is None


def test_parts_of_a_frame_may_lie_anywhere_overlap_and_change_while_they_are_read() -> None:
    """It harms their own job alone. A slice whose bytes are in two parts is copied."""
    with (
        served(keys_of(1)) as (description, shards),
        raw_peer(shards[0].endpoint) as peer,
        brought(peer, description) as (arena, _),
    ):
        for frame, (first, at) in enumerate([(0, [(64, 512)]), (1, [(60, 512)]), (2, [(68, 500), (0, 12)])], 1):
            peer.say(msgspec.structs.replace(push_of(0, [512], frame=frame, first=first), at=at))
            arena.array(0, (1024,), np.uint8)[:] = frame
        released: list[int] = []
        while len(released) < 3:
            released += peer.hear(Released).frame
        assert sorted(released) == [1, 2, 3]
        assert shards[0].error is None
        assert shards[0].statistics()["malformed_messages"] == 0


def test_an_arena_that_goes_while_its_bytes_are_awaited_is_refused_and_not_read() -> None:
    with (
        served(keys_of(1)) as (description, shards),
        raw_peer(shards[0].endpoint) as peer,
        brought(peer, description) as (_, given),
    ):
        wait_until(lambda: shards[0].statistics()["arenas"] == 1)  # It answers before it counts.
        given.close()
        wait_until(lambda: shards[0].statistics()["arenas"] == 0)
        peer.say(msgspec.structs.replace(push_of(0, [512]), at=[(0, 512)]))
        assert "not brought" in peer.hear(PushRefused).reason
        assert peer.hear(Acknowledge | Released).frame  # type: ignore[arg-type]


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_a_killed_client_was_reading_is_written_again_once_another_has_its_slot(in_memory: bool) -> None:
    """A client that is killed between a frame of values and its receipt."""
    with served(keys_of(1)) as (description, shards):
        with raw_peer(shards[0].endpoint) as peer, ExitStack() as stack:
            if in_memory:
                _, given = stack.enter_context(brought(peer, description))
            else:
                peer.greet(hello_of(description, 0))
            peer.say(pull_of(1, 0, 0))
            assert bool(peer.hear(Values).at) == in_memory
            bucket = shards[0]._core.job.buckets[0].update.values
            ((*_, block, _, _),) = bucket.sections(0, 1)
            assert block.shared
            assert block.pinned[0] == 1
            if in_memory:
                given.close()
            wait_until(lambda: shards[0].statistics()["arenas"] == 0)
        with NamedClient(msgspec.structs.replace(description), 0, incarnation=2, settings=LINK) as client:
            client.push("cut", 0, np.ones((40, 33), np.float32)).result(WAIT_S)
            client.pull("cut", 1).result(WAIT_S)
            wait_until(lambda: not block.pinned.any())
            client.push("cut", 1, np.ones((40, 33), np.float32)).result(WAIT_S)
            client.pull("cut", 2).result(WAIT_S)
            ((*_, now, _, _),) = bucket.sections(0, 1)
            assert now is block, "the values are where clients may read them"
