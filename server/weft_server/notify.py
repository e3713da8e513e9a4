"""Wakes those that wait for something to change. Belongs to one event loop."""

from __future__ import annotations

import asyncio


class Notifier:
    """Notifications by topic."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}
        """By topic; there is one while somebody waits."""

    def subscribe(self, topic: str) -> asyncio.Event:
        """Set at the next notification. Take it before looking at what may change, so that no change is missed."""
        return self._waiting.setdefault(topic, asyncio.Event())

    def notify(self, topic: str) -> None:
        """Wakes everybody who waits for that topic."""
        event = self._waiting.pop(topic, None)
        if event is not None:
            event.set()

    def notify_all(self) -> None:
        for topic in list(self._waiting):
            self.notify(topic)


async def notified(event: asyncio.Event, timeout_s: float) -> bool:
    """Waits for a notification. Whether it came in time."""
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
