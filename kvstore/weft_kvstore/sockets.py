"""What client and shard ask of a ZeroMQ socket alike."""

from __future__ import annotations

import zmq


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message can be read without waiting."""
    events = socket.get(zmq.EVENTS)
    assert isinstance(events, int)
    return bool(events & zmq.POLLIN)
