"""Connections of peers that say nothing: they are bounded in number, and clients come and stay."""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import ExitStack

import msgspec
import numpy as np
import zmq

from same_host_children import wait_until
from store_cluster import WAIT_S, key_of, store_of
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.serving import connections
from weft_kvstore.serving.connections import UnknownPeers
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings

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
        first = stack.enter_context(StoreClient(description, 0, settings=LINK))
        before = first.pull("w", 0).result(WAIT_S)
        silent = []
        for number in range(connections.MOST_UNKNOWN + BEYOND):
            silent.append(stack.enter_context(socket.create_connection((host, int(port)))))
            if number % 2:  # half a greeting
                silent[-1].send(b"\xff\0\0\0\0\0\0\0\x01\x7f")
        assert closed(silent, BEYOND) >= BEYOND
        second = stack.enter_context(StoreClient(description, 1, settings=LINK))
        for step in range(3):
            for client in (first, second):
                client.push("w", step, np.ones(16, np.float32))
            before = before - np.float32(1)
            values = [client.pull("w", step + 1).result(WAIT_S) for client in (first, second)]
        assert all(np.array_equal(value, before) for value in values)


def test_a_peer_that_was_not_welcomed_in_time_is_closed_and_one_that_was_stays(monkeypatch) -> None:
    """Both have done ZeroMQ's handshake."""
    monkeypatch.setattr(connections, "_TICK_MS", 10)
    now = [0.0]
    with zmq.Context() as context, ExitStack() as stack:
        router = context.socket(zmq.ROUTER)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        unknown = UnknownPeers(router, clock=lambda: now[0])
        peers = []
        for _ in range(2):
            peer = stack.enter_context(context.socket(zmq.DEALER))
            peer.setsockopt(zmq.RECONNECT_IVL, -1)
            peer.connect(f"tcp://127.0.0.1:{port}")
            peer.send(b"here")
            peers.append((peer, peer.get_monitor_socket(zmq.EVENT_DISCONNECTED)))
            identity, _ = router.recv_multipart(copy=False)
        wait_until(lambda: len(unknown._since) == 2)
        unknown.welcome(identity.get(zmq.SRCFD))
        wait_until(lambda: len(unknown._since) == 1)  # Or its thread would look at both once they are late.
        now[0] = connections.UNKNOWN_S + 1
        (_, ended), (client, going) = peers
        assert ended.poll(WAIT_S * 1000)
        assert not going.poll(0)
        router.send_multipart([identity.bytes, b"there"])
        assert client.recv() == b"there"
        unknown.forget(identity.get(zmq.SRCFD))  # The shard has replaced it: its descriptor comes back in time.
        wait_until(lambda: len(unknown._since) == 1)
        now[0] += connections.UNKNOWN_S + 1
        assert going.poll(WAIT_S * 1000)
        for peer, monitor in peers:
            peer.disable_monitor()
            monitor.close(0)
            peer.linger = 0
        unknown.close()
        router.close(0)
