"""What the kernel tells of a TCP connection, by which a long message on a slow network is known from a silent peer."""

from __future__ import annotations

import os
import socket
import time

import pytest

from weft_kvstore.process import MOVES_BYTES, TCP_INFO, Passed

pytestmark = pytest.mark.skipif(TCP_INFO is None, reason="only Linux tells it")

WAIT_S = 60.0


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def fill(one: socket.socket) -> int:
    """Sends until the kernel takes no more."""
    one.setblocking(False)
    sent = 0
    try:
        while True:
            sent += one.send(bytes(1 << 16))
    except BlockingIOError:
        return sent


def test_a_long_message_moves_while_its_reader_reads_and_stands_still_when_that_does() -> None:
    one, other = pair()
    with one, other:
        sent = fill(one)
        until = time.monotonic() + WAIT_S
        here, there = Passed.on(one.fileno()), Passed.on(other.fileno())
        while (now := Passed.on(one.fileno())).moves(here) and time.monotonic() < until:
            here = now
        assert here.unacked > 0
        assert here.sent < sent
        assert not Passed.on(one.fileno()).moves(here), "nobody reads, and more waits"
        there = Passed.on(other.fileno())
        read = 0
        while not Passed.on(one.fileno()).moves(here):
            assert time.monotonic() < until
            read += len(other.recv(1 << 16))
        while not Passed.on(other.fileno()).moves(there):
            assert time.monotonic() < until
        assert read < sent


def test_short_messages_move_nothing_at_their_sender_though_the_kernel_of_their_reader_takes_them() -> None:
    one, other = pair()
    with one, other:
        before = Passed.on(one.fileno())
        for _ in range(4):
            one.sendall(bytes(MOVES_BYTES))
        until = time.monotonic() + WAIT_S
        while Passed.on(one.fileno()).unacked or Passed.on(one.fileno()).sent < 4 * MOVES_BYTES:
            assert time.monotonic() < until
        assert not Passed.on(one.fileno()).moves(before)


def test_of_what_is_no_tcp_connection_nothing_is_told_and_nothing_of_it_is_left_open() -> None:
    one, other = socket.socketpair()
    with one, other, open("/dev/null") as file:
        before = os.listdir("/proc/self/fd")
        for fd in (one.fileno(), file.fileno(), -1):
            assert Passed.on(fd) == Passed()
        assert os.listdir("/proc/self/fd") == before
