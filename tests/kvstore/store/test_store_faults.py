"""Dead shards, silent workers and broken connections: what waits on them fails by name, and what can go on does."""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from free_ports import free_port
from store_cluster import WAIT_S, Array, clients_of, gradients_of, key_of, served, store_of, table_of
from store_processes import shard_processes
from store_proxies import TcpProxy
from weft_kvstore.client.sockets import LinkSocket
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError, StoreLostError, StoreTimeoutError
from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.codec import decode_request
from weft_kvstore.wire.messages import Push

SILENCE_S = 2.0
SLACK_S = 20.0
"""What a future may take beyond the silence on a machine that is busy; far below the requests' own deadline."""

SETTINGS = LinkSettings(silence_s=SILENCE_S, ping_interval_s=0.2, request_timeout_s=60.0)


PATIENT = LinkSettings(silence_s=WAIT_S)


def spread(slots: int, shards: int, *, job: str = "job") -> StoreDescription:
    """Key `wide` has slices on every shard, and so has table `t` rows; key `narrow` has one on shard 0 alone."""
    keys = [key_of("narrow", (256,), slots), key_of("wide", (256 * 4 * shards,), slots), table_of("t", (40, 4), slots)]
    return store_of(keys, slots=slots, shards=shards, job=job, hyper={"lr": 1.0})


def lost(error: BaseException | None, *names: str) -> None:
    assert isinstance(error, StoreLostError), repr(error)
    for name in names:
        assert name in str(error), f"{name!r} is not in {error}"


def test_a_killed_shard_fails_what_waits_on_it_and_nothing_else(tmp_path: Path) -> None:
    with ExitStack() as stack:
        description, start = stack.enter_context(shard_processes(spread(2, 2), tmp_path))
        processes = [start(shard) for shard in range(2)]
        clients = stack.enter_context(clients_of(description, SETTINGS))
        narrow = clients[0].pull("narrow", 0).result(WAIT_S)
        wide = clients[0].pull("wide", 0).result(WAIT_S)
        gradients = gradients_of(description, 0, 0)
        clients[0].push("wide", 0, gradients["wide"]).result(WAIT_S)
        waiting = {
            "key 'wide', version 1": clients[0].pull("wide", 1),
            "state of key 'wide', version 1": clients[1].pull("wide", 1),
            "pull of rows of key 't', version 1": clients[0].pull_rows("t", np.arange(4), 1),
        }
        processes[1].kill()
        waiting["push of rows of key 't', step 0"] = clients[0].push_rows("t", 0, np.arange(40), np.ones((40, 4), "f4"))
        waiting["key 'wide', step 1"] = clients[0].push("wide", 1, gradients["wide"])
        waiting["barrier of step 1"] = clients[0].barrier(1, [])
        for what, future in waiting.items():
            slot = 1 if "state" in what else 0
            error = future.exception(SILENCE_S + SLACK_S)
            lost(error, f"slot {slot}", "shard 1 ", what.removeprefix("state of "))
        lost(clients[0].pull("wide", 0).exception(WAIT_S), "slot 0", "shard 1 ", "key 'wide', version 0")
        for client in clients:
            client.push("narrow", 0, np.ones(256, np.float32)).result(WAIT_S)
        assert np.array_equal(clients[1].pull("narrow", 1).result(WAIT_S), narrow - np.float32(2))
        assert wide.shape == (2048,)


def test_a_shard_that_comes_back_without_its_values_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """Its client bears a long silence here, so it is what the new process says that fails the pull."""
    with shard_processes(spread(1, 1), tmp_path) as (description, start), clients_of(description, PATIENT) as clients:
        process = start(0)
        client = clients[0]
        client.push("narrow", 0, np.ones(256, np.float32)).result(WAIT_S)
        client.pull("narrow", 1).result(WAIT_S)
        process.kill()
        start(0)
        error = client.pull("narrow", 1).exception(WAIT_S)
        lost(error, "slot 0", "shard 0 ", "key 'narrow', version 1")
        # Whichever it says first: it listens a moment before it has opened its job.
        assert "started anew" in str(error) or "is not open on this shard" in str(error)


def test_clients_may_be_there_before_their_shard(tmp_path: Path) -> None:
    """A shard that is not there yet is waited for as long as silence is borne."""
    with shard_processes(spread(1, 1), tmp_path) as (description, start), clients_of(description, PATIENT) as clients:
        value = clients[0].pull("narrow", 0)
        start(0)
        assert value.result(WAIT_S).shape == (256,)


def test_a_connection_that_cannot_be_made_is_told_at_once() -> None:
    """By the monitor's descriptor, to who waits for nothing else."""
    with zmq.Context() as context:
        link_socket = LinkSocket(context, f"tcp://127.0.0.1:{free_port()}")
        try:
            assert select.select([link_socket.monitor_fd], [], [], WAIT_S)[0]
            assert link_socket.broke()
        finally:
            link_socket.close()


def test_a_shard_that_never_comes_is_lost(tmp_path: Path) -> None:
    with shard_processes(spread(1, 2), tmp_path) as (description, start):
        start(0)
        with clients_of(description, SETTINGS) as clients:
            error = clients[0].pull("wide", 0).exception(SILENCE_S + SLACK_S)
        lost(error, "slot 0", "shard 1 ", description.shards[1], "key 'wide', version 0")


def test_a_slot_that_goes_silent_fails_the_others_by_its_name() -> None:
    """Slot 1's connection stays open and carries nothing more; slot 2's gradient is in."""
    with ExitStack() as stack:
        description, servers = stack.enter_context(served(spread(3, 1), SETTINGS))
        proxy = stack.enter_context(TcpProxy(servers[0].endpoint))
        clients = []
        for slot in range(3):
            endpoints = [proxy.endpoint] if slot == 1 else None
            clients.append(StoreClient(description, slot, settings=SETTINGS, endpoints=endpoints))
            stack.callback(clients[-1].close)
            clients[-1].pull("narrow", 0).result(WAIT_S)
        proxy.hold(proxy.up, proxy.down)
        gradient = np.ones(256, np.float32)
        for slot in (0, 2):
            clients[slot].push("narrow", 0, gradient).result(WAIT_S)
        for slot in (0, 2):
            error = clients[slot].pull("narrow", 1).exception(SILENCE_S + SLACK_S)
            lost(error, f"slot {slot}:", "key 'narrow'", "version 1", "slot 1 has been silent", "waits for slots 1")
        lost(
            clients[1].pull("narrow", 1).exception(SILENCE_S + SLACK_S),
            "slot 1:",
            "shard 0 ",
            "key 'narrow', version 1",
        )
        assert clients[0].pull("narrow", 0).result(WAIT_S).shape == (256,)


def test_a_slot_that_lives_and_does_not_push_is_named_at_the_deadline() -> None:
    impatient = LinkSettings(request_timeout_s=4.0)
    with served(spread(3, 1)) as (description, _), clients_of(description, impatient) as clients:
        for client in clients:
            client.pull("narrow", 0).result(WAIT_S)
        for slot in (0, 2):
            clients[slot].push("narrow", 0, np.ones(256, np.float32)).result(WAIT_S)
        error = clients[0].pull("narrow", 1).exception(WAIT_S)
        assert isinstance(error, StoreTimeoutError)
        for name in ("slot 0:", "key 'narrow', version 1", "shard 0 ", "step 0 waits for slots 1"):
            assert name in str(error)


def trained(
    description: StoreDescription, steps: int, disturb: Callable[[int, TcpProxy, int], None] | None
) -> dict[str, Array]:
    """Values and state after some steps of three slots; slot 1's link to shard 0 is behind a slow proxy.

    `disturb` gets the step, the proxy, and how many messages had come down before the step.
    """
    with ExitStack() as stack:
        there, servers = stack.enter_context(served(description, CUT_SETTINGS))
        proxy = stack.enter_context(TcpProxy(servers[0].endpoint, bytes_per_s=2e6))
        behind = [proxy.endpoint, *(server.endpoint for server in servers[1:])]
        clients = []
        for slot in range(description.slots):
            client = StoreClient(there, slot, settings=CUT_SETTINGS, endpoints=behind if slot == 1 else None)
            stack.callback(client.close)
            clients.append(client)
        for step in range(steps):
            futures = []
            earlier = len(proxy.down.arrived)
            for slot, client in enumerate(clients):
                gradients = gradients_of(description, slot, step)
                futures += [client.push(key, step, gradient) for key, gradient in gradients.items()]
                futures.append(client.barrier(step, []))
            pulls = {key.key: clients[1].pull(key.key, step + 1) for key in description.keys}
            if disturb is not None:
                disturb(step, proxy, earlier)
            for future in futures:
                future.result(WAIT_S)
            values = {key: pull.result(WAIT_S) for key, pull in pulls.items()}
        for key in description.keys:
            state = clients[0].pull_state(key.key, steps).result(WAIT_S)
            values |= {f"{key.key}/{name}": array for name, array in state.items()}
        return values


CUT_SETTINGS = LinkSettings(silence_s=10.0, credit_bytes=16 << 10, frame_bytes=4 << 10)
CUT_STEPS = 4


def test_a_connection_that_is_cut_in_mid_step_changes_no_bit() -> None:
    """Cut while pushes are on their way, or values, or once each; what was under way is lost with the connection."""
    keys = [key_of(name, (8192,), 3) for name in ("a", "b")]
    description = store_of(keys, slots=3, shards=2, rule="adam", slice_bytes=1024)
    cuts: list[int] = []

    def cut(step: int, proxy: TcpProxy, earlier: int) -> None:
        if step % 2:
            proxy.down.wait_until(lambda: len(proxy.down.arrived) > earlier + 4, "values on their way")
        else:
            proxy.up.wait_until(lambda: _pushed(proxy.up.arrived, step) > 0, "pushes on their way")
        connections = proxy.connections
        proxy.cut()
        proxy.restore()
        cuts.append(connections)

    undisturbed = trained(description, CUT_STEPS, None)
    disturbed = trained(description, CUT_STEPS, cut)
    assert cuts == list(range(1, CUT_STEPS + 1)), "every cut hit a connection of its own"
    assert disturbed.keys() == undisturbed.keys() == {"a", "b", "a/mean", "a/variance", "b/mean", "b/variance"}
    for name, array in undisturbed.items():
        assert disturbed[name].tobytes() == array.tobytes(), name


def _pushed(messages: list[list[bytes]], step: int) -> int:
    """Slices of a step in these messages of a client."""
    requests = [decode_request(parts)[0] for parts in messages]
    pushes = [request for request in requests if isinstance(request, Push)]
    return sum(count for push in pushes for _, _, _, one, _, _, count, _ in push.runs if one == step)


def test_a_shard_that_talks_nonsense_fails_the_futures_and_not_the_client() -> None:
    description = msgspec.structs.replace(spread(1, 1), shards=("tcp://127.0.0.1:1",))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as liar:
        port = liar.bind_to_random_port("tcp://127.0.0.1")
        with clients_of(description, SETTINGS, [f"tcp://127.0.0.1:{port}"]) as clients:
            value = clients[0].pull("narrow", 0)
            assert liar.poll(WAIT_S * 1000)
            identity = liar.recv_multipart()[0]
            liar.send_multipart([identity, b"WEFT\x01\x81\xa4type\xa6values", b"nonsense"])
            error = value.exception(SILENCE_S + SLACK_S)
            assert isinstance(error, StoreError)
            for name in ("slot 0", "shard 0 ", "key 'narrow', version 0"):
                assert name in str(error)


def test_closing_a_client_fails_what_is_open() -> None:
    with served(spread(2, 1)) as (description, _), clients_of(description, SETTINGS) as clients:
        clients[0].push("narrow", 0, np.ones(256, np.float32)).result(WAIT_S)
        value = clients[0].pull("narrow", 1)
        clients[0].close()
        error = value.exception(WAIT_S)
        assert isinstance(error, StoreError)
        assert "key 'narrow', version 1" in str(error)
        with pytest.raises(StoreError):
            clients[0].pull("narrow", 0).result(WAIT_S)
