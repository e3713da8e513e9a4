"""Parameters that the server orders to be set: a thread brings the documents, the run takes them at step boundaries."""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from weft.agent.transfer import DownloadError

Download = Callable[[str, BinaryIO, threading.Event], None]
"""download(what, into, stop): writes a document of the allocation to a file. Raises DownloadError, OSError."""

CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class BroughtSet:
    """An ordered set whose document is in `file`, a temporary one; or why it is not."""

    number: int
    file: BinaryIO | None
    error: str = ""


class OrderedSets:
    """In the order of the orders. Training goes on while a document is brought."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self._ordered: deque[tuple[int, Future[BroughtSet]]] = deque()
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, "ordered-sets")
        self._lock = threading.Lock()

    def request(self, number: int) -> None:
        """Has a document brought. To be called from any thread; returns at once."""
        with self._lock, suppress(RuntimeError):  # It was closed.
            self._ordered.append((number, self._thread.submit(self._bring, number)))

    def take(self) -> list[BroughtSet]:
        """Those that have come. The caller closes their files."""
        taken = []
        while self._ordered and self._ordered[0][1].done():
            taken.append(self._ordered.popleft()[1].result())
        return taken

    def close(self) -> list[int]:
        """Ends the thread, which may be in the midst of a document; returns the numbers that were not taken."""
        self._stop.set()
        with self._lock:
            self._thread.shutdown(wait=False, cancel_futures=True)
            left, self._ordered = self._ordered, deque()
        wait([brought for _, brought in left], CLOSE_TIMEOUT_S)
        for _, brought in left:
            if brought.done() and not brought.cancelled() and (file := brought.result().file) is not None:
                file.close()
        return [number for number, _ in left]

    def _bring(self, number: int) -> BroughtSet:
        try:
            file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  # closed by who takes it
            try:
                self._download(f"sets/{number}", file, self._stop)
            except BaseException:
                file.close()
                raise
        except (DownloadError, OSError) as error:
            return BroughtSet(number, None, f"{type(error).__name__}: {error}")
        return BroughtSet(number, file)
