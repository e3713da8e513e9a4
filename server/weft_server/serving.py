"""Runs the application on a socket, and tells where in `server.json`."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from weft.agent.held_files import FileLock
from weft.agent.private import make_directory
from weft_server.connections import BACKLOG, LOGGER, Listener, Seldom, bounded, most_connections
from weft_server.settings import Settings
from weft_server.storage.database import DatabaseRefusedError, open_database
from weft_server.storage.job_files import JobFiles
from weft_server.storage.records import Records
from weft_server.storage.snapshot_files import MANIFEST

_log = logging.getLogger("weft.server")

GRACE_S = 3
"""What open calls have to come to their end."""
LOOK_TICKS = 10
"""Of a tenth of a second, between two looks at whether the directory was deleted."""
KEEP_ALIVE_S = 30
"""How long a connection without a call is kept: agents call every second."""


class DirectoryInUseError(Exception):
    """Another server works in the directory; two writers would tear the records apart."""


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the daemon, tells where it listens, and ends waiting calls at its end."""

    def __init__(self, app: FastAPI, settings: Settings, stop: threading.Event, lock: FileLock) -> None:
        """`lock` holds the settings' directory."""
        most = most_connections(settings.most_connections)
        if most < settings.most_connections:
            told = (
                "%d connections at the same time, not %d: this process may not open more files; `ulimit -n` raises that"
            )
            _log.warning(told, most, settings.most_connections)
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=GRACE_S,
                timeout_keep_alive=KEEP_ALIVE_S,
                http=bounded(most, settings.head_s),
                ws="none",
                backlog=BACKLOG,
            )
        )
        for name in ("uvicorn.error", LOGGER):
            log = logging.getLogger(name)
            log.filters = [each for each in log.filters if not isinstance(each, Seldom)]
            log.addFilter(Seldom())
        self._app = app
        self._address_file = settings.directory / "server.json"
        self._stop = stop
        self._lock = lock
        self._is_unwritten = False
        """Whether the directory was deleted, and is held again without the files that tell of this server."""
        self._listener: socket.socket | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            self._listener = sockets[0]
            write_address(self._address_file, self._listener)

    async def on_tick(self, counter: int) -> bool:
        if counter % LOOK_TICKS == 0 and (self._is_unwritten or self._lock.is_deleted):
            self._make_again()
        return await super().on_tick(counter) or self._stop.is_set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._address_file.unlink(missing_ok=True)
        self._app.state.context.service.begin_closing()
        await super().shutdown(sockets)

    def _make_again(self) -> None:
        """The directory was deleted: it is held again, and has the address. The service writes what else was in it."""
        directory = self._lock.path.parent
        try:
            make_directory(directory)
            if self._lock.is_deleted and not self._lock.take():
                return  # Another server has it. It is tried again until that has ended.
            self._is_unwritten = True
            if (credentials := self._app.state.context.credentials) is not None:
                credentials.keep()
            if self._listener is not None:
                write_address(self._address_file, self._listener)
        except OSError as error:
            _log.error("%s was deleted, and cannot be made again: %s", directory, error)
            return
        self._is_unwritten = False
        _log.warning("%s was deleted, and is made again", directory)


def serve(app: FastAPI, settings: Settings, stop: threading.Event) -> None:
    """Serves until `stop` is set. Raises OSError when the address is taken, DirectoryInUseError.

    Raises what `check_directory` raises too, also where the database can be read and not written.
    """
    make_directory(settings.directory)
    with locked(settings.directory) as lock, listening(settings.host, settings.port) as listener:
        check_directory(settings.directory)
        try:
            Server(app, settings, stop, lock).run(sockets=[listener])
        except SystemExit:
            if isinstance(refused := getattr(app.state, "refused", None), DatabaseRefusedError):
                raise refused from None
            raise


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to the address; port 0 takes a free one."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with Listener(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        yield listener


def write_address(path: Path, listener: socket.socket) -> None:
    """Writes `{"url", "pid"}`, all at once: who finds the file can connect."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"url": f"http://{shown}:{port}", "pid": os.getpid()}), encoding="utf-8")
    temporary.replace(path)


@contextmanager
def locked(directory: Path) -> Iterator[FileLock]:
    """Holds the directory. Raises DirectoryInUseError where another process does."""
    lock = FileLock(directory / "server.lock")
    if not lock.take():
        raise DirectoryInUseError(f"another server works in {directory}")
    try:
        yield lock
    finally:
        lock.release()


class UnknownJobsError(Exception):
    """There are final parameters or snapshots of jobs that the database does not know: it was emptied, lost or
    replaced."""


def check_directory(directory: Path) -> None:
    """Raises DatabaseRefusedError or UnknownJobsError. Blocks; nothing that is there is changed but the schema."""
    engine = open_database(directory / "weft.db")
    try:
        results = JobFiles(directory).results()
        snapshots = {manifest.parts[-3] for manifest in directory.glob(f"snapshots/*/*/{MANIFEST}")}
        known = Records(engine).states([*results, *snapshots]).keys()
    finally:
        engine.dispose()
    trained = dict.fromkeys(results, ("jobs", "final parameters")) | dict.fromkeys(
        snapshots, ("snapshots", "snapshots")
    )
    unknown = sorted(trained.keys() - known)
    if unknown:
        folder, what = trained[unknown[0]]
        more = f" (and {len(unknown) - 1} more such folders)" if len(unknown) > 1 else ""
        raise UnknownJobsError(
            f"{directory / folder / unknown[0]}{more} holds {what} of a job that {directory / 'weft.db'} "
            "does not know: put the database back that belongs to it, or move the folder away"
        )
