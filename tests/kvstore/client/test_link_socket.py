"""What a link's socket says of messages that it was told of."""

from __future__ import annotations

import errno
import select
import socket
from unittest.mock import Mock

import pytest
import zmq

from free_ports import free_port
from same_host_children import wait_until
from store_cluster import WAIT_S, clients_of, key_of, served, store_of
from weft_kvstore.client import sockets
from weft_kvstore.client.link import LINK_COUNTERS, LinkState
from weft_kvstore.client.sockets import LinkSocket
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.settings import LinkSettings


def connected(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> LinkSocket:
    return LinkSocket(context, endpoint, dict.fromkeys(LINK_COUNTERS, 0), 1)


def test_a_descriptor_that_tells_of_something_else_than_a_message_leaves_nothing_unread() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as shard:
        port = shard.bind_to_random_port("tcp://127.0.0.1")
        link = connected(context, f"tcp://127.0.0.1:{port}")
        try:
            assert link.receive(is_readable=True) is None
            assert not link.is_unread
            link.send([b"hello"])
            identity, _ = shard.recv_multipart()
            shard.send_multipart([identity, b"header", b"payload"])
            wait_until(lambda: bool(int(link.socket.get(zmq.EVENTS)) & zmq.POLLIN))
            parts = link.receive(is_readable=True)
            assert parts is not None
            assert [bytes(part) for part in parts] == [b"header", b"payload"]
            assert link.receive(is_readable=True) is None
        finally:
            link.close()


def test_a_connection_that_cannot_be_made_is_told_at_once() -> None:
    """By the monitor's descriptor, to who waits for nothing else."""
    with zmq.Context() as context:
        link_socket = connected(context, f"tcp://127.0.0.1:{free_port()}")
        try:
            assert select.select([link_socket.monitor_fd], [], [], WAIT_S)[0]
            assert link_socket.broke()
        finally:
            link_socket.close()


def test_no_two_monitors_have_one_name_as_libzmq_forgets_it_after_the_descriptor_is_free() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as shard:
        endpoint = f"tcp://127.0.0.1:{shard.bind_to_random_port('tcp://127.0.0.1')}"
        names = set()
        for _ in range(20):
            link = connected(context, endpoint)
            names.add(link.monitor.get(zmq.LAST_ENDPOINT))
            link.close()
        assert len(names) == 20


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINVAL])
def test_where_a_socket_cannot_be_made_for_now_the_client_tries_again(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fails = iter([True, True])

    class Short(LinkSocket):
        def __init__(self, *given: object) -> None:
            if next(fails, False):
                raise zmq.ZMQError(number)
            super().__init__(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(sockets, "LinkSocket", Short)
    store = store_of([key_of("w", (3,), 1)], slots=1, shards=1)
    with served(store) as (description, _), clients_of(description, LinkSettings()) as (client,):
        pulled = client.pull("w", 0)
        if number == errno.EINVAL:
            with pytest.raises(StoreRefusedError, match="Invalid argument"):
                pulled.result(WAIT_S)
        else:
            assert pulled.result(WAIT_S).shape == (3,)
            assert client.statistics().links[0].connections == 3


@pytest.mark.parametrize("was_welcomed", [False, True])
def test_a_greeting_of_another_kind_is_another_servers_where_the_shard_was_there_before(was_welcomed: bool) -> None:
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\0CURVE" + bytes(47)
    with zmq.Context() as context, socket.create_server(("127.0.0.1", 0)) as server:
        link_socket = connected(context, f"tcp://127.0.0.1:{server.getsockname()[1]}")
        other, _ = server.accept()
        with other:
            other.sendall(greeting)
            while (ended := link_socket.broke(was_welcomed=was_welcomed)) is None:
                assert link_socket.monitor.poll(WAIT_S * 1000)
            assert ended == ("its links are encrypted, and the description has no curve_keys for them", was_welcomed)
        link_socket.close()


@pytest.mark.parametrize(("state", "heard"), [(LinkState.OPEN, 5.0), (LinkState.HANDSHAKE, 0.0)])
def test_what_moves_on_a_connection_is_a_shards_once_it_has_welcomed_the_client(state: LinkState, heard: float) -> None:
    """Before it may be another server's."""
    link = Mock(heard=0.0, state=state, outgoing=[], listener=b"", flush=Mock(return_value=False))
    made = sockets.ClientSockets(Mock(links=[link], tick_at=0.0), Mock(), ["ipc://nowhere"])
    made._sockets[0] = Mock(moves=Mock(return_value=True))
    made.advance(5.0)
    assert link.heard == heard
    made._context.term()
