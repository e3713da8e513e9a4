"""Ports for processes that are told where to listen."""

from __future__ import annotations

import atexit
import socket
from contextlib import ExitStack

_held = ExitStack()
atexit.register(_held.close)


def free_port() -> int:
    """A port of the loopback interface that is nobody else's until these tests end.

    A socket stays bound to it and never listens. So the system gives it to nobody who asks for any port, and whoever
    sets SO_REUSEADDR, as servers do, can listen there, end, and listen again.
    """
    probe = _held.enter_context(socket.socket())
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", 0))
    return int(probe.getsockname()[1])
