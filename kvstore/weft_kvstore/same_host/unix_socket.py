"""Unix sockets that keep packets apart, and say who is at the other end."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

from weft_kvstore.same_host.errors import ArenaError
from weft_kvstore.same_host.offer import MAX_PACKET_BYTES

_MAX_DESCRIPTORS: Final = 4
"""Received at most with one packet; one is expected, the kernel closes what is beyond."""

_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred: process, user, group."""


def packet_socket() -> socket.socket:
    """A socket of packets that never waits. Raises ArenaError where the system has none."""
    try:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except (OSError, AttributeError) as error:
        raise ArenaError(f"no Unix sockets: {error}") from error
    one.setblocking(False)
    return one


def check_user(one: socket.socket, user: int) -> None:
    """Raises ArenaError unless the other end is a process of `user`; the kernel says, not the process."""
    raw = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, other, _ = _CREDENTIALS.unpack(raw)
    if other != user:
        raise ArenaError(f"process {process} is of user {other}, only memory of user {user} is shared")


def receive_packet(one: socket.socket) -> tuple[bytes, list[int]]:
    """The next packet and the descriptors that came with it, which are then the caller's; empty at the end.

    Raises BlockingIOError if there is none yet, other OSErrors, and ArenaError for one that is too long.
    """
    packet, fds, flags, _ = socket.recv_fds(one, MAX_PACKET_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(fds)
        raise ArenaError(f"a packet of over {MAX_PACKET_BYTES} bytes, or with over {_MAX_DESCRIPTORS} descriptors")
    return packet, fds


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
