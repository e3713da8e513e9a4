"""What the controller has decided and the records do not have yet: in order, and nothing is dropped until they do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from weft.api.job import Job
from weft_server.control.instructions import Instruction, Save

_log = logging.getLogger("weft.server")

FIRST_RETRY_S = 0.2
LONGEST_RETRY_S = 10.0
"""Between two tries while the records refuse: a disk that has room again is found soon after."""


class Journal:
    """Instructions on their way to the records, oldest first. Belongs to one event loop.

    `write` keeps a batch, all of it or nothing, and does no harm when a batch comes a second time; `kept` is told of
    each batch that the records have. A write that fails is tried again, by the next `carry_out` after a pause.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Instruction]], Awaitable[None]],
        kept: Callable[[Sequence[Instruction]], Awaitable[None]],
    ) -> None:
        self._write = write
        self._kept = kept
        self._waiting: list[Instruction] = []
        self._taken = 0
        """Instructions taken so far."""
        self._one_at_a_time = asyncio.Lock()
        self._failures = 0
        self._again_at = 0.0

    @property
    def is_refused(self) -> bool:
        """Whether the records have refused the last batch: what is told is newer than what they hold."""
        return self._failures > 0

    def newest(self, job: str) -> Job | None:
        """The job as it is to be saved; None where the records have its newest version."""
        saved = (each.job for each in reversed(self._waiting) if isinstance(each, Save))
        return next((each for each in saved if each.id == job), None)

    async def carry_out(self, instructions: Sequence[Instruction]) -> bool:
        """Puts instructions in line and tries to write the line, unless a failure was a moment ago. Never raises.

        When it returns, the records have them and all before them (True) or the journal still holds some. A caller that
        goes away stops nothing.
        """
        self._waiting += instructions
        self._taken += len(instructions)
        mine = self._taken
        await self._shielded(anyway=False)
        return self._taken - len(self._waiting) >= mine

    async def flush(self) -> None:
        """Tries to write all that waits, pause or not. Never raises."""
        await self._shielded(anyway=True)

    async def _shielded(self, *, anyway: bool) -> None:
        await asyncio.shield(asyncio.create_task(self._flush(anyway), name="journal"))

    async def _flush(self, anyway: bool) -> None:
        async with self._one_at_a_time:
            pauses = asyncio.get_running_loop().time() < self._again_at
            batch = list(self._waiting)
            if not batch or (pauses and not anyway):
                return
            try:
                await self._write(batch)
            except Exception:  # noqa: BLE001  # the task's outermost frame: whatever it was, nothing decided is dropped
                self._refused(len(batch))
                return
            del self._waiting[: len(batch)]
            self._failures, self._again_at = 0, 0.0
            try:
                await self._kept(batch)
            except Exception:  # noqa: BLE001  # the same: the records have the batch, and its callers are told so
                _log.exception("what follows from %d instructions was not carried out whole", len(batch))

    def _refused(self, count: int) -> None:
        pause_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures, 16))
        self._failures += 1
        self._again_at = asyncio.get_running_loop().time() + pause_s
        _log.exception("the records refuse %d instructions; they are tried again in %g s", count, pause_s)
