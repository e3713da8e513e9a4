"""What only one cluster may have: a port, a directory."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.agent.held_files import FileLock, lock
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
def hold_directory(directory: Path) -> Iterator[FileLock]:
    """Locks the directory for this process. Raises ClusterError, naming the process that has it."""
    held = FileLock(directory / LOCK_FILE)
    if not held.take():
        raise ClusterError(
            f"a cluster runs in {directory} already, started by process {_owner(held.path) or 'unknown'}; "
            f"`{command('down')}` ends it. Another cluster needs --port and --directory of its own"
        )
    try:
        yield held
    finally:
        held.release()


def holder(directory: Path) -> int | None:
    """The process that holds the directory; None where none does. Raises OSError, ClusterError where it is unknown."""
    try:
        with open(directory / LOCK_FILE) as file:
            if lock(file):
                return None
        owner = _owner(directory / LOCK_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if owner is None:
        raise ClusterError(f"{directory} is in use, by a process that has not written its number yet; try again")
    return owner


def _owner(path: Path) -> int | None:
    text = path.read_text().strip()
    return int(text) if text.isdecimal() else None
