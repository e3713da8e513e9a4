"""Sleeps over a client's sockets, and is woken by whoever has something for it."""

from __future__ import annotations

import math
import select
import time
from typing import Final

from weft_kvstore.client.sockets import ClientSockets, Readable
from weft_kvstore.runtime.wake import Wakeup

LONGEST_SLEEP_S: Final = 60.0


class Sleeper:
    """One thread at a time sleeps by it; any may call `wake`.

    Who is about to sleep says so by `lie_down`, then looks whether there is something to do, and sleeps if not; who has
    something for it first puts it there, then calls `wake`: one of both sees the other. `news` is what the sockets had
    when it woke. `over_sockets`: whether they can wake it; `until` is when it wakes by itself.
    """

    def __init__(self, sockets: ClientSockets) -> None:
        self.is_asleep = False
        self.over_sockets = False
        self.until = 0.0
        self.news: Readable = {}
        self._sockets = sockets
        self._wakeup = Wakeup()
        self._wakeup_fd = self._wakeup.fileno()
        self._alone = select.poll()
        self._alone.register(self._wakeup_fd, select.POLLIN)
        self._poll = self._alone
        self._changes = -1

    @property
    def is_watching(self) -> bool:
        """Whether it sleeps over the sockets, or is about to."""
        return self.is_asleep and self.over_sockets

    def lie_down(self, until: float, *, over_sockets: bool) -> None:
        """Over the sockets only while nobody changes them."""
        if over_sockets and self._changes != self._sockets.changes:
            self._changes = self._sockets.changes
            self._poll = self._sockets.watch(self._wakeup_fd)
        self.news = {}
        self.until = until
        self.over_sockets = over_sockets
        self.is_asleep = True

    def sleep(self, until: float) -> bool:
        """Until there is something, or the time has come, or that of `lie_down`. Whether there was something."""
        left_s = min(max(min(until, self.until) - time.monotonic(), 0.0), LONGEST_SLEEP_S)
        poll = self._poll if self.over_sockets else self._alone
        self.news = dict(poll.poll(math.ceil(left_s * 1000)))
        self.is_asleep = False
        if self._wakeup_fd in self.news:
            self._wakeup.clear()
        return bool(self.news)

    def stay_up(self) -> None:
        """It does not sleep after all."""
        self.is_asleep = False

    def wake(self) -> None:
        """Wakes it, if it sleeps."""
        if self.is_asleep:
            self.is_asleep = False
            self._wakeup.wake()

    def close(self) -> None:
        self._wakeup.close()
