"""Wakes those that wait for something to change. Belongs to one event loop."""

from __future__ import annotations

import asyncio


class Bells:
    """Bells by name; one exists while somebody listens."""

    def __init__(self) -> None:
        self._bells: dict[str, asyncio.Event] = {}

    def listen(self, name: str) -> asyncio.Event:
        """Set at the next ring. To be taken before what may change is looked at, so that no change is missed."""
        return self._bells.setdefault(name, asyncio.Event())

    def ring(self, name: str) -> None:
        """Wakes everybody who listens to that bell."""
        bell = self._bells.pop(name, None)
        if bell is not None:
            bell.set()

    def ring_all(self) -> None:
        for name in list(self._bells):
            self.ring(name)


async def heard(bell: asyncio.Event, timeout_s: float) -> bool:
    """Waits for the bell. Whether it rang in time."""
    try:
        await asyncio.wait_for(bell.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
