"""What the kernel tells of a TCP connection, by which a long message on a slow network is known from a silent peer."""

from __future__ import annotations

import os
import socket
import time

import pytest

from weft_kvstore.process import TCP_INFO, received_bytes

pytestmark = pytest.mark.skipif(TCP_INFO is None, reason="only Linux tells it")

WAIT_S = 60.0


def test_what_has_come_on_a_connection_is_counted_also_where_nobody_has_read_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            assert received_bytes(other.fileno()) == 0
            until = time.monotonic() + WAIT_S
            for sent in (1000, 2000):
                one.sendall(bytes(1000))
                while received_bytes(other.fileno()) < sent:
                    assert time.monotonic() < until
            assert len(other.recv(1 << 16)) == received_bytes(other.fileno()) == 2000
            assert received_bytes(one.fileno()) == 0


def test_of_what_is_no_tcp_connection_nothing_is_told_and_nothing_of_it_is_left_open() -> None:
    one, other = socket.socketpair()
    with one, other, open("/dev/null") as file:
        before = os.listdir("/proc/self/fd")
        for fd in (one.fileno(), file.fileno(), -1):
            assert received_bytes(fd) == 0
        assert os.listdir("/proc/self/fd") == before
