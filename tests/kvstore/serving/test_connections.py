"""Connections of peers that say nothing: they are bounded in number, and clients come and stay."""

from __future__ import annotations

import errno
import math
import selectors
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from same_host_children import wait_until
from store_cluster import WAIT_S, NamedClient, key_of, store_of
from weft_kvstore.serving.connections import MAX_UNKNOWN, UNKNOWN_S, Connections, Router
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.codec import MAX_PARTS

LINK = LinkSettings(silence_s=WAIT_S, request_timeout_s=WAIT_S, same_host=False)
BEYOND = 150


def closed(sockets: list[socket.socket], count: int) -> int:
    """How many of these were closed by the other end; waits until they are `count`."""
    ended, until = set(), time.monotonic() + WAIT_S
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        while len(ended) < count and time.monotonic() < until:
            for key, _ in selector.select(0.1):
                try:
                    data = key.fileobj.recv(4096)  # type: ignore[union-attr]
                except ConnectionError:
                    data = b""
                if not data:
                    ended.add(key.fileobj)
                    selector.unregister(key.fileobj)
    return len(ended)


def test_connections_without_a_hello_are_bounded_and_clients_come_and_stay() -> None:
    description = store_of([key_of("w", [16], 2)], slots=2, shards=1, hyper={"lr": 0.5})
    with ExitStack() as stack:
        server = stack.enter_context(ShardServer(settings=LinkSettings(silence_s=WAIT_S)))
        server.open(description, 0)
        description = msgspec.structs.replace(description, shards=(server.endpoint,))
        host, port = server.endpoint.removeprefix("tcp://").split(":")
        first = stack.enter_context(NamedClient(description, 0, settings=LINK))
        before = first.pull("w", 0).result(WAIT_S)
        silent = []
        for number in range(MAX_UNKNOWN + BEYOND):
            silent.append(stack.enter_context(socket.create_connection((host, int(port)))))
            if number % 2:  # half a greeting
                silent[-1].send(b"\xff\0\0\0\0\0\0\0\x01\x7f")
        assert closed(silent, BEYOND) >= BEYOND
        second = stack.enter_context(NamedClient(description, 1, settings=LINK))
        for step in range(3):
            for client in (first, second):
                client.push("w", step, np.ones(16, np.float32))
            before = before - np.float32(1)
            values = [client.pull("w", step + 1).result(WAIT_S) for client in (first, second)]
        assert all(np.array_equal(value, before) for value in values)


def test_a_connection_is_closed_in_time_that_was_not_welcomed_or_is_no_clients_any_more() -> None:
    """Both have done ZeroMQ's handshake."""
    now = [0.0]
    with zmq.Context() as context, ExitStack() as stack:
        router = context.socket(zmq.ROUTER)
        connections = Connections(router, clock=lambda: now[0])
        ended_ones: list[bytes] = []
        connections.ended = ended_ones.append
        port = router.bind_to_random_port("tcp://127.0.0.1")
        peers = []
        for _ in range(2):
            peer = stack.enter_context(context.socket(zmq.DEALER))
            peer.setsockopt(zmq.RECONNECT_IVL, -1)
            peer.connect(f"tcp://127.0.0.1:{port}")
            peer.send(b"here")
            peers.append((peer, peer.get_monitor_socket(zmq.EVENT_DISCONNECTED)))
            identity, _ = router.recv_multipart(copy=False)
        connections.welcome(identity.bytes, identity.get(zmq.SRCFD))
        now[0] = UNKNOWN_S + 1
        connections.tick()
        (_, ended), (client, going) = peers
        assert ended.poll(WAIT_S * 1000)
        assert not going.poll(0)
        router.send_multipart([identity.bytes, b"there"])
        assert client.recv() == b"there"
        connections.forget(identity.bytes)  # The shard has replaced it: its descriptor comes back in time.
        connections.tick()
        assert not going.poll(0)
        now[0] += UNKNOWN_S + 1
        connections.tick()
        assert going.poll(WAIT_S * 1000)
        wait_until(lambda: connections.receive() or bool(ended_ones), connections.fileno())
        assert ended_ones == [identity.bytes], "the other one was no client's"
        connections.welcome(identity.bytes, identity.get(zmq.SRCFD))
        assert ended_ones == [identity.bytes] * 2, "it has ended before it was welcomed"
        for peer, monitor in peers:
            peer.disable_monitor()
            monitor.close(0)
            peer.linger = 0
        connections.close()
        router.close(0)


def test_a_connection_that_sends_a_message_without_an_end_is_closed_a_clients_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weft_kvstore.serving.connections.MESSAGE_BYTES", 4 << 20)
    with zmq.Context() as context, ExitStack() as stack:
        router = context.socket(zmq.ROUTER)
        connections = Connections(router)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        stranger, client = (stack.enter_context(shaken(port)) for _ in range(2))
        client.sendall(b"\x00\x05Hello")
        identity, hello = router.recv_multipart(copy=False)
        connections.welcome(identity.bytes, hello.get(zmq.SRCFD))
        assert connections.moving({}) == connections.moving({identity.bytes: 1}) == []
        part = b"\x03" + (1 << 20).to_bytes(8, "big") + bytes(1 << 20)
        for each in (client, stranger):
            each.sendall(part)
        until = time.monotonic() + WAIT_S
        while connections.unknown:
            assert time.monotonic() < until
            connections.tick()
        assert closed([stranger], 1) == 1
        moves = False
        while not moves:
            assert time.monotonic() < until
            moves = bool(connections.moving({identity.bytes: 1}))
        client.sendall(b"\x00\x03end")
        assert bytes(router.recv_multipart()[-1]) == b"end"
        assert connections.moving({identity.bytes: 2}) == [], "it was heard"
        client.sendall(6 * part)
        client.setblocking(False)
        data = b"?"
        while data:
            assert time.monotonic() < until
            connections.moving({identity.bytes: 2})
            try:
                data = client.recv(1)
            except BlockingIOError:
                continue
            except ConnectionError:
                break
        connections.close()
        router.close(0)


def shaken(port: int) -> socket.socket:
    """A connection that has done ZeroMQ's handshake as a DEALER."""
    connection = socket.create_connection(("127.0.0.1", port), WAIT_S)
    connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\0NULL" + bytes(48))
    ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
    connection.sendall(bytes([4, len(ready)]) + ready)
    with connection.makefile("rb", buffering=0) as answers:
        left = 64 + 2
        while left:
            left -= len(last := answers.read(left))
        left = last[-1]
        while left:
            left -= len(answers.read(left))
    return connection


def test_of_a_message_of_very_many_parts_only_those_are_kept_that_show_it() -> None:
    router = Router("tcp://127.0.0.1:*")
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger = 0
        peer.connect(router.endpoint)
        for message in ([b"header", b"payload"], [b"part"] * 1000, [b"next"]):
            peer.send_multipart(message)
        received = []
        for _ in range(3):
            assert router.socket.poll(WAIT_S * 1000)
            received.append(router.receive()[1])
            while router.is_dropping:
                router.drop()
    router.close()
    assert received == [[b"header", b"payload"], [b"part"] * (MAX_PARTS + 1), [b"next"]]


def test_clients_hear_their_shard_while_it_reads_a_message_of_very_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs come behind it."""
    settings = LinkSettings(silence_s=0.6, request_timeout_s=WAIT_S, same_host=False)
    description = store_of([key_of("w", [16], 1)], slots=1, shards=1)
    with ShardServer(settings=settings) as server:
        server.open(description, 0)
        description = msgspec.structs.replace(description, shards=(server.endpoint,))
        with NamedClient(description, 0, settings=settings) as client:
            client.pull("w", 0).result(WAIT_S)
            (link,) = client._core.links
            with monkeypatch.context() as patched:
                patched.setattr(server._router, "drop", lambda: None)
                server._router.is_dropping = True
                begun = link.heard
                wait_until(lambda: link.heard > begun + 3 * settings.silence_s or link.lost is not None)
                assert (link.lost, link.session) == (None, 1)
                server._router.is_dropping = False
            client.pull("w", 0).result(WAIT_S)


def test_a_handshake_that_fails_says_nothing_of_the_descriptor_that_its_error_number_is() -> None:
    """Of such an event ZeroMQ tells an errno, of others the descriptor."""
    with zmq.Context() as context:
        router = context.socket(zmq.ROUTER)
        connections = Connections(router)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        connections.unknown[errno.ECONNRESET] = math.inf
        poller = zmq.Poller()
        poller.register(connections.fileno(), zmq.POLLIN)
        with socket.create_connection(("127.0.0.1", port)):
            while len(connections.unknown) < 2:
                assert poller.poll(WAIT_S * 1000)
                connections.receive()
        while len(connections.unknown) > 1:  # It has ended in the middle of its handshake.
            assert poller.poll(WAIT_S * 1000)
            connections.receive()
        assert connections.unknown.keys() == {errno.ECONNRESET}
        connections.close()
        router.close(0)


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:*", "ipc://{folder}/shard"])
def test_a_number_that_another_file_has_by_now_is_not_shut_down(bind: str, tmp_path: Path) -> None:
    with zmq.Context() as context:
        router = context.socket(zmq.ROUTER)
        connections = Connections(router)
        router.bind(bind.format(folder=tmp_path))
        for one, other in (socket.socketpair(), connected()):
            with one, other:
                connections.unknown[other.fileno()] = -math.inf
                connections.tick()
                other.send(b"still open")
                assert one.recv(16) == b"still open"
        connections.close()
        router.close(0)


def connected() -> tuple[socket.socket, socket.socket]:
    """A connection of some other port: both ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def test_a_silent_connection_of_an_ipc_endpoint_is_closed_too(tmp_path: Path) -> None:
    now = [0.0]
    path = str(tmp_path / "shard")
    with zmq.Context() as context, socket.socket(socket.AF_UNIX) as silent:
        router = context.socket(zmq.ROUTER)
        connections = Connections(router, clock=lambda: now[0])
        router.bind(f"ipc://{path}")
        silent.connect(path)
        poller = zmq.Poller()
        poller.register(connections.fileno(), zmq.POLLIN)
        while not connections.unknown:
            assert poller.poll(WAIT_S * 1000)
            connections.receive()
        now[0] = UNKNOWN_S + 1
        connections.tick()
        assert closed([silent], 1) == 1
        connections.close()
        router.close(0)
