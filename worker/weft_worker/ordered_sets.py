"""Parameters that the server orders to be set: a thread brings the documents, the run takes them at step boundaries."""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Callable
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
        self._ordered: deque[int] = deque()
        self._brought: deque[BroughtSet] = deque()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def request(self, number: int) -> None:
        """Has a document brought. To be called from any thread; returns at once."""
        with self._changed:
            if self._stop.is_set():
                return
            self._ordered.append(number)
            if self._thread is None:
                self._thread = threading.Thread(target=self._bring, name="ordered-sets", daemon=True)
                self._thread.start()
            self._changed.notify()

    def take(self) -> list[BroughtSet]:
        """Those that have come. The caller closes their files."""
        with self._changed:
            taken = list(self._brought)
            self._brought.clear()
        return taken

    def close(self) -> list[int]:
        """Ends the thread, which may be in the midst of a document; returns the numbers that were not taken."""
        self._stop.set()
        with self._changed:
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)
        left = self.take()
        for each in left:
            if each.file is not None:
                each.file.close()
        with self._changed:
            return [each.number for each in left] + list(self._ordered)

    def _bring(self) -> None:
        while (number := self._next()) is not None:
            self._keep(self._one(number))

    def _keep(self, brought: BroughtSet) -> None:
        """In a function of its own: a name in the loop would keep the last file open while nothing is ordered."""
        with self._changed:
            self._ordered.popleft()
            self._brought.append(brought)

    def _next(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._ordered) or self._stop.is_set())
            return None if self._stop.is_set() else self._ordered[0]

    def _one(self, number: int) -> BroughtSet:
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
