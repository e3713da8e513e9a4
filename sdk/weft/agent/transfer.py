"""Brings an allocation's parameters to the server and from there, again while the server is away."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final

import httpx

from weft.agent.retry import UnreachableError, Verdict, retried, verdict


@dataclass(frozen=True, slots=True)
class Document:
    """`pieces` begins the document anew each time it is called; the pieces have `size` bytes together."""

    size: int
    pieces: Callable[[], Iterator[bytes]]

    @staticmethod
    def of(whole: bytes) -> Document:
        """One that is there already."""
        return Document(len(whole), lambda: iter((whole,)))


_log = logging.getLogger("weft.transfer")

CONNECT_TIMEOUT_S = 10.0
SILENCE_S = 60.0
"""Between two pieces of a document from the server, or before its answer's first."""
DEADLINE_S = 120.0
"""For a server that is away to come back; a restart takes seconds."""
SLOWEST_BYTES_S = 4 * 1024 * 1024
"""A document may take so much longer: at 2 GiB, eight minutes."""
PIECE_BYTES = 1 << 20

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a disk says that is full."""

Tell = Callable[[str], None]


class UploadError(Exception):
    """The server has not taken the parameters; the message says why."""


class DownloadError(Exception):
    """The server has not given a document; the message says why."""


class _NoRoomError(UnreachableError):
    """The disk here is full. It has room some time."""


class Transfer:
    """Of one allocation. `client` is shared and not closed; `tell` hears once, for people, that the server is away."""

    def __init__(self, client: httpx.Client, path: str, term: int, tell: Tell) -> None:
        self._client = client
        self._path = path
        self._term = term
        self._tell = tell

    def upload(
        self, document: Document, step: int, final: bool, stop: threading.Event, deadline_s: float | None = None
    ) -> None:
        """Brings the parameters at `step`. Raises UploadError: refused, out of time, stopped.

        The final ones are tried until the server takes them or stops the job: they are all that was trained, and a full
        disk has room some time. What making the document raises goes through: it is not tried again.
        """
        once_s = DEADLINE_S + document.size / SLOWEST_BYTES_S if deadline_s is None else deadline_s
        limit_s = None if final and deadline_s is None else once_s
        put = partial(self._put, document, {"term": self._term, "step": step, "final": final}, once_s)
        what = f"the parameters of step {step}"
        try:
            retried(put, stop, _log, f"{self._path}/parameters", deadline_s=limit_s, tell=self._waiting(what))
        except UnreachableError as error:
            until = "before the allocation was given up" if stop.is_set() else f"within {once_s:g} s"
            raise UploadError(f"parameters of step {step} were not taken {until}: {error}") from error

    def download(self, what: str, into: BinaryIO, stop: threading.Event, deadline_s: float = DEADLINE_S) -> None:
        """Writes the document `what` of the allocation (`given`, `sets/3`) to a file. A disk that is full here is
        waited for without a deadline. Raises DownloadError, OSError."""
        get = partial(self._get, what, into, stop)
        while True:
            try:
                return retried(get, stop, _log, f"{self._path}/{what}", deadline_s=deadline_s, tell=self._waiting(what))
            except UnreachableError as error:
                if isinstance(error, _NoRoomError) and not stop.is_set():
                    continue
                until = "before the run was stopped" if stop.is_set() else f"within {deadline_s:g} s"
                raise DownloadError(f"{what}: the server did not give the document {until}: {error}") from error

    def _waiting(self, what: str) -> Tell:
        return lambda error: self._tell(f"{what}: not yet, it is tried again: {error}")

    def _put(self, document: Document, query: Mapping[str, int], limit_s: float) -> None:
        try:
            response = self._client.put(
                f"{self._path}/parameters",
                params=dict(query),
                content=document.pieces(),
                headers={"Content-Type": "application/octet-stream", "Content-Length": str(document.size)},
                timeout=httpx.Timeout(limit_s, connect=min(limit_s, CONNECT_TIMEOUT_S)),
            )
        except httpx.HTTPError as error:
            raise UnreachableError(f"{type(error).__name__}: {error}") from error
        answer = f"{response.status_code} {response.text[:500]}"
        match verdict(response):
            case Verdict.REFUSED | Verdict.UNWANTED:
                raise UploadError(f"parameters of step {query['step']} were refused: {answer}")
            case Verdict.AGAIN:
                raise UnreachableError(f"answered by {answer}")

    def _get(self, what: str, into: BinaryIO, stop: threading.Event) -> None:
        try:
            self._read(what, into, stop)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise _NoRoomError(f"no room for it here: {error}") from error

    def _read(self, what: str, into: BinaryIO, stop: threading.Event) -> None:
        into.seek(0)
        into.truncate()
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_TIMEOUT_S)
        try:
            with self._client.stream(
                "GET", f"{self._path}/{what}", params={"term": self._term}, timeout=timeout
            ) as response:
                if not response.is_success:
                    response.read()
                    answer = f"{response.status_code} {response.text[:500]}"
                    if verdict(response) is Verdict.AGAIN:
                        raise UnreachableError(f"answered by {answer}")
                    raise DownloadError(f"{what}: the server refused the document: {answer}")
                for piece in response.iter_bytes(PIECE_BYTES):
                    into.write(piece)
                    if stop.is_set():
                        raise DownloadError(f"{what}: stopped before the document was whole")
        except httpx.HTTPError as error:
            raise UnreachableError(f"{type(error).__name__}: {error}") from error
        into.flush()
