"""What only one cluster may have: a port, a directory."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from weft.agent.private import opener
from weft.command_line import command
from weft.errors import ClusterError

LOCK_FILE = "up.lock"


def check_port_is_free(host: str, port: int) -> None:
    """Raises ClusterError where nobody could listen there. It may be taken by the time that the server listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ClusterError(f"{host!r} is no address of this machine: {error.strerror}") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port may rest after its last use
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ClusterError(
                    f"port {port} of {host} is in use; if by a cluster, `{command('agents')}` shows it. Another "
                    "cluster needs --port and --directory of its own"
                ) from None
            raise ClusterError(f"nobody can listen on port {port} of {host}: {error.strerror}") from None


@contextmanager
def hold_directory(directory: Path) -> Iterator[None]:
    """Locks the directory for this process. Raises ClusterError, naming the process that has it."""
    with open(directory / LOCK_FILE, "a+", opener=opener) as lock:
        if not _locked(lock):
            raise ClusterError(
                f"a cluster runs in {directory} already, started by process {_owner(lock) or 'unknown'}; "
                f"`{command('down')}` ends it. Another cluster needs --port and --directory of its own"
            )
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def holder(directory: Path) -> int | None:
    """The process that holds the directory; None where none does. Raises OSError, ClusterError where it is unknown."""
    try:
        with open(directory / LOCK_FILE) as lock:
            if _locked(lock):
                return None
            owner = _owner(lock)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if owner is None:
        raise ClusterError(f"{directory} is in use, by a process that has not written its number yet; try again")
    return owner


def _locked(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(lock: TextIO) -> int | None:
    lock.seek(0)
    text = lock.read().strip()
    return int(text) if text.isdecimal() else None
