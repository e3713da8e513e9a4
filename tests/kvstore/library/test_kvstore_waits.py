"""Who waits for whom: for shards at the start, in a callback or a handler, and in a local store that fails."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import warnings
from concurrent.futures import FIRST_COMPLETED, Future, wait
from queue import SimpleQueue
from types import FrameType
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest

from face_stores import WAIT_S, faces
from free_ports import free_port
from same_host_children import wait_until
from weft_kvstore import (
    Key,
    KVStore,
    StoreClosedError,
    StoreError,
    StoreRefusedError,
    StoreTimeoutError,
    describe,
)
from weft_kvstore.client import sockets as client_sockets
from weft_kvstore.client.sockets import LOOK_UP_S, ClientSockets, Host
from weft_kvstore.library import waits
from weft_kvstore.serving.shard_server import ShardServer


def test_a_second_worker_of_a_slot_is_told_that_it_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    description = describe({"w": (3,)}, slots=2, shards=["tcp://127.0.0.1:0"], rule="sgd")
    with ShardServer() as server:
        here = msgspec.structs.replace(description, shards=(server.endpoint,))
        server.open(here, 0)
        with KVStore.connect(here, 0) as first:
            told = r"slot 0 is taken by another process that is alive, as incarnation 1; use another slot, or a higher"
            with pytest.raises(StoreRefusedError, match=told) as raised:
                KVStore.connect(here, 0, wait_s=0.3)
            assert "python -m" not in str(raised.value)
            with KVStore.connect(here, 0, incarnation=2) as second:
                second.push("w", np.ones(3, np.float32)).result(WAIT_S)
            first.close()
    assert caplog.records == []


def test_a_shard_is_reached_at_an_address_of_ipv6() -> None:
    description = describe({"w": Key((3,), initializer=0.0)}, shards=["tcp://[::1]:0"], rule="sgd", lr=1.0)
    try:
        server = ShardServer("tcp://[::1]:0")
    except StoreError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    with server:
        server.open(description, 0)
        with KVStore.connect(description, 0, endpoints=[server.endpoint]) as store:
            assert store.pushpull("w", np.ones(3, np.float32)).result(WAIT_S).tolist() == [-1.0] * 3


def test_a_client_that_fails_while_it_waits_for_shards_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    monkeypatch.setattr(ClientSockets, "receive", Mock(side_effect=ArithmeticError("no")))
    description = describe({"w": (3,)}, shards=[f"tcp://127.0.0.1:{free_port()}"], rule="sgd")
    with pytest.raises(StoreError, match=r"^slot 0: the store's thread failed: ArithmeticError: no$"):
        KVStore.connect(description, 0, wait_s=WAIT_S)


def test_a_host_that_cannot_be_resolved_is_named_and_its_shard_is_found_once_it_can_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    named = endpoint.replace("127.0.0.1", "shard-0")
    description = describe({"w": (3,)}, shards=[named], rule="sgd")
    monkeypatch.setattr(waits, "WARN_AFTER_S", 0.1)
    look_up = Mock(side_effect=OSError("not known"))
    monkeypatch.setattr(client_sockets.socket, "getaddrinfo", look_up)
    connecting = threading.Thread(target=lambda: KVStore.connect(description, 0, wait_s=WAIT_S).close())
    connecting.start()
    told = f"s: shard 0 at {named}: cannot resolve host 'shard-0': not known; a shard is started by"
    wait_until(lambda: any(told in line for line in caplog.messages))
    with ShardServer(endpoint) as shard:
        shard.open(description, 0)
        look_up.side_effect = [[(socket.AF_INET, 0, 0, "", ("127.0.0.1", 0))]]
        connecting.join(WAIT_S)
        assert not connecting.is_alive()


def test_a_slow_resolver_takes_no_link_away_and_holds_up_no_close(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving = threading.Event()

    def look_up(*_: object) -> None:
        resolving.wait(WAIT_S)
        raise OSError("not known")

    monkeypatch.setattr(client_sockets.socket, "getaddrinfo", look_up)
    here, named = f"tcp://127.0.0.1:{free_port()}", f"tcp://localhost:{free_port()}"
    key = Key((3,), initializer=0.0)
    description = describe({"w": key, "v": key}, shards=[here, named], slice_bytes=12, rule="sgd", lr=1.0)
    with ShardServer(here) as shard:
        shard.open(description, 0)
        store = KVStore.connect(description, 0, wait_s=0)
        calls = [store.pushpull(key, np.ones(3, np.float32)) for key in "wv"]
        (reached,), (waiting,) = wait(calls, WAIT_S, FIRST_COMPLETED)
        assert reached.result(0).tolist() == [-1.0] * 3
        links = store.statistics().links
        assert (links[0].welcomed, links[1].welcomed) == (True, False)
        assert links[1].trouble == f"shard 1 at {named}: the address of its host 'localhost' is looked up"
        store.close()
        assert isinstance(waiting.exception(0), StoreClosedError)
    resolving.set()


def test_a_host_that_is_looked_up_for_long_is_where_it_was() -> None:
    answers: SimpleQueue[object] = SimpleQueue()

    def look_up(*_: object) -> object:
        answer = answers.get(timeout=WAIT_S)
        if isinstance(answer, Exception):
            raise answer
        kinds = [socket.AF_INET6] if ":" in str(answer) else [socket.AF_INET6, socket.AF_INET]
        return [(kind, 0, 0, "", (answer if kind == kinds[-1] else "::2", 0)) for kind in kinds]

    host = Host("tcp://192.0.2.1:0;shard-0:5555")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client_sockets.socket, "getaddrinfo", look_up)
        for number, (answer, told) in enumerate([("192.0.2.7", "7"), ("192.0.2.8", "8"), (OSError("no"), "8")]):
            begun = 10.0 * number
            assert host.endpoint(begun) is None, "it is looked up anew"
            late = host.endpoint(begun + LOOK_UP_S)
            assert late == (None if number == 0 else f"tcp://192.0.2.1:0;192.0.2.{'78'[number - 1]}:5555")
            answers.put(answer)
            host.thread.join(WAIT_S)
            assert host.endpoint(begun + 1) == f"tcp://192.0.2.1:0;192.0.2.{told}:5555"
        assert host.error == "cannot resolve host 'shard-0': no"
        host.endpoint(50.0)
        answers.put("::1")
        host.thread.join(WAIT_S)
        assert host.endpoint(51.0) == "tcp://192.0.2.1:0;[::1]:5555", "a name that has an address of IPv6 alone"
    assert Host("tcp://127.0.0.1:5555").endpoint(0.0) == "tcp://127.0.0.1:5555"
    assert Host("ipc:///tmp/shard").endpoint(0.0) == "ipc:///tmp/shard"


def test_a_wait_for_shards_that_was_announced_is_told_anew_as_they_come_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waits, "WARN_AFTER_S", 0.1)
    endpoints = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    description = describe({"w": (3,)}, shards=endpoints, rule="sgd")
    made: list[KVStore] = []
    connecting = threading.Thread(target=lambda: made.append(KVStore.connect(description, 0, wait_s=WAIT_S)))
    connecting.start()

    def await_lines(count: int) -> list[str]:
        wait_until(lambda: len(caplog.messages) >= count)
        return caplog.messages

    assert f"shards 0 at {endpoints[0]}, 1 at {endpoints[1]} did not answer" in await_lines(1)[0]
    with ShardServer(endpoints[0]) as zero:
        zero.open(description, 0)
        assert f"s: shard 1 at {endpoints[1]} did not answer" in await_lines(2)[1]
        with ShardServer(endpoints[1]) as one:
            one.open(description, 1)
            assert re.fullmatch(r"slot 0 goes on after \d+ s: every shard talks with it", await_lines(3)[2])
            connecting.join(WAIT_S)
            made[0].close()


def a_key() -> dict[Any, Any]:
    return {"w": Key(shape=(2,), initializer=0.0)}


@pytest.mark.parametrize("kind", ["network", "local"])
def test_a_forked_child_is_told_that_a_future_of_before_never_ends(kind: str) -> None:
    with faces(kind, describe(a_key(), rule="sgd", lr=1.0)) as (store,):
        future = store.pull("w", version=9)
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Others warn of a fork among threads, which is what this is about.
            child = os.fork()
        if not child:
            signal.alarm(int(WAIT_S))  # It hung, before it was told.
            try:
                future.result()
            except StoreError as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as found:
            told = found.read()
        os.waitpid(child, 0)
        assert told == (f"this store belongs to process {os.getpid()}, this is process {child}: connect after the fork")


def test_a_signals_handler_may_wait_in_the_middle_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with KVStore.local(describe(a_key(), rule="sgd", lr=1.0)) as store:
        local: Any = store._store
        wakes, waited = local._wakes, []

        def handle(number: int, frame: FrameType | None) -> None:
            waited.append(store.push("w", np.ones(2, np.float32)).result(WAIT_S))

        def interrupted(_: None) -> None:
            monkeypatch.setattr(local, "_wakes", wakes)
            signal.raise_signal(signal.SIGUSR1)
            wakes.put(None)

        monkeypatch.setattr(local, "_wakes", Mock(put=interrupted, get=wakes.get))
        before = signal.signal(signal.SIGUSR1, handle)
        try:
            store.pull("w").result(WAIT_S)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert waited == [None]
        assert store.pull("w").result(WAIT_S).tolist() == [-1.0, -1.0]


def test_a_signals_handler_may_call_barrier_in_the_middle_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Future[None]] = []
    begin = waits.Barriers._begin

    def interrupted(barriers: waits.Barriers, _: None) -> Future[None]:
        monkeypatch.setattr(waits.Barriers, "_begin", begin)
        signal.raise_signal(signal.SIGUSR1)
        return begin(barriers, _)

    with KVStore.local(describe(a_key(), slots=2, rule="sgd", lr=1.0)) as store:
        monkeypatch.setattr(waits.Barriers, "_begin", interrupted)
        before = signal.signal(signal.SIGUSR1, lambda *_: met.append(store.barrier()))
        try:
            met.append(store.barrier())
        finally:
            signal.signal(signal.SIGUSR1, before)
        met.append(store.barrier())
        other = store.at_slot(1)
        for one in (met[1], met[0], met[2]):  # In the order in which they began.
            assert not one.done()
            other.barrier().result(WAIT_S)
            one.result(WAIT_S)


def test_a_slot_of_a_local_store_that_is_asked_for_again_goes_on_with_its_steps() -> None:
    with KVStore.local(describe({"w": zero()}, slots=2, rule="sgd", lr=1.0, mode="async")) as store:
        for _ in range(3):
            with store.at_slot(1) as other:
                other.push("w", np.ones(2, np.float32)).result(WAIT_S)
            store.at_slot(1).at_slot(0).push("w", np.ones(2, np.float32)).result(WAIT_S)
        assert (store.steps("w"), store.at_slot(1).steps("w")) == (3, 3)
        assert store.pull("w", version=0).result(WAIT_S).tolist() == [-6.0] * 2
        assert store.at_slot(1, step=0).steps("w") == 0


def zero() -> Key:
    return Key((2,), initializer=0.0)


def test_a_step_that_is_not_committed_names_the_slot_that_waits() -> None:
    description = describe({"w": zero()}, slots=2, rule="sgd", commit={"clip_norm": 1.0})
    with KVStore.local(description, timeout_s=0.2) as store:
        other = store.at_slot(1)
        other.push("w", np.ones(2, np.float32)).result(WAIT_S)
        with pytest.raises(StoreTimeoutError, match=r"^slot 1: barrier and commit of step 0 took over 0.2 s; shard 0 "):
            other.end_step().result(WAIT_S)


def test_what_is_refused_names_the_slot() -> None:
    with KVStore.local(describe({"w": zero()}, slots=2, rule="sgd")) as store:
        refused = store.at_slot(1).at_slot(0).at_slot(1).set("w", np.ones(2, np.float32), version=0)
        with pytest.raises(StoreRefusedError, match=r"^slot 1: set of key 'w', version 0: "):
            refused.result(WAIT_S)


def test_what_is_open_when_the_store_is_closed_names_its_slot() -> None:
    with KVStore.local(describe({"w": zero()}, slots=2, rule="sgd")) as store:
        other = store.at_slot(1)
        other.push("w", np.ones(2, np.float32)).result(WAIT_S)
        pulled = other.pull("w")
        met = store.barrier()
    with pytest.raises(StoreError, match=r"^slot 1: pull of key 'w', version 1: the store was closed"):
        pulled.result(WAIT_S)
    with pytest.raises(StoreError, match=r"^slot 0: barrier: the store was closed$"):
        met.result(WAIT_S)
