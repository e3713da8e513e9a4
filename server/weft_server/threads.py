"""Threads for what blocks: one that writes, some that query the records, some that read and write files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

_T = TypeVar("_T")

READERS = 8
"""Threads that read from the database at the same time; the engine's pool has room for more."""
LARGE_READERS = 2
"""Threads that read from it what may be large, plans and graphs: queries that are soon done do not wait for them."""
SNAPSHOT_THREADS = 4
"""Threads that look at and delete snapshots at the same time, however slow their place is."""
FILE_THREADS = 8
"""Threads that read and write jobs' files at the same time; more uploads take turns, piece by piece."""


class Threads:
    """One writer, in order: the records, and files that get their place or go. Queries and files do not wait for it."""

    def __init__(self) -> None:
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._readers = CapacityLimiter(READERS)
        self._large = CapacityLimiter(LARGE_READERS)
        self._files = CapacityLimiter(FILE_THREADS)
        self._snapshots = CapacityLimiter(SNAPSHOT_THREADS)

    async def write(self, function: Callable[..., _T], *args: object) -> _T:
        """Runs on the one thread that writes. Shielded: a caller that goes away takes nothing half-done with it."""
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._writer, function, *args))

    async def read(self, query: Callable[..., _T], *args: object) -> _T:
        """Runs a query of the records on one of the threads for that."""
        return await to_thread.run_sync(query, *args, limiter=self._readers)

    async def read_large(self, query: Callable[..., _T], *args: object) -> _T:
        """The same, for what may be large."""
        return await to_thread.run_sync(query, *args, limiter=self._large)

    async def on_files(self, function: Callable[..., _T], *args: object) -> _T:
        """Runs what reads or writes jobs' files on one of the threads for that."""
        return await to_thread.run_sync(function, *args, limiter=self._files)

    async def on_snapshots(self, function: Callable[..., _T], *args: object) -> _T:
        """Runs what looks at or deletes snapshots on one of the threads for that."""
        return await to_thread.run_sync(function, *args, limiter=self._snapshots)

    async def stop(self) -> None:
        """Waits for what is being written."""
        await asyncio.to_thread(self._writer.shutdown)
