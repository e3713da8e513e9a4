"""How long a client's own thread keeps away from the work, as callers lead it or not. Pure."""

from __future__ import annotations

from typing import Final

GRACE_S: Final = 0.001
"""How long an answer may be left alone before the thread looks for it, where a caller has led lately."""

LOOKS: Final = 20
"""Looks of the thread, `GRACE_S` apart, that find nobody who leads and nothing under way, before it leads again."""

LONGEST_PAUSE_S: Final = 60.0
"""Between two looks at a caller that leads and does not leave."""


class Standby:
    """`leads` counts the times that a caller has led: where it has changed, one has led since the last look.

    `_looks` counts the looks since then that found nobody who leads; from `LOOKS` on the thread leads by itself.
    """

    __slots__ = ("_looks", "_pause_s", "_seen")

    def __init__(self) -> None:
        self._seen = 0
        self._looks = LOOKS
        self._pause_s = GRACE_S

    def pause_s(self, leads: int, *, is_led: bool, is_due: bool) -> float | None:
        """How long the thread has nothing to do; 0 where it is to lead. None where no caller leads or has led since the
        last look: then it is `idle_pause_s`."""
        seen, self._seen = self._seen, leads
        if is_led:
            self._looks = 0
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) if seen == leads else GRACE_S
            return self._pause_s
        self._pause_s = GRACE_S
        if is_due:
            return 0.0
        if seen != leads:
            self._looks = 0
            return GRACE_S
        return None

    def idle_pause_s(self, *, is_open: bool) -> float:
        """The same, where callers do other things; `is_open`: an answer may come that nobody waits for."""
        if self._looks < LOOKS and not is_open:
            self._looks += 1
            return GRACE_S
        return 0.0

    def woken(self, leads: int) -> None:
        """Somebody has left work behind: the thread is to lead."""
        self._looks = LOOKS
        self._seen = leads
