"""What a link's socket says of messages that it was told of."""

from __future__ import annotations

import zmq

from same_host_children import wait_until
from weft_kvstore.client.sockets import LinkSocket


def test_a_descriptor_that_tells_of_something_else_than_a_message_leaves_nothing_unread() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as shard:
        port = shard.bind_to_random_port("tcp://127.0.0.1")
        link = LinkSocket(context, f"tcp://127.0.0.1:{port}")
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
