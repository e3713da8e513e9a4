"""Says that a client's calls wait for long, for whom, and when that is over. Pure: the time is a parameter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from typing import Final

TOLD_AFTER_S: Final = 5.0
"""A call that waits longer is told of. Steps are shorter, but for the first, which is compiled."""

ANSWER_S: Final = 0.5
"""So long shards have to say what it waits for."""

QUIET_S: Final = 60.0
"""Between two calls that are told of: where every step takes long, a line for each would drown the others."""

_log = logging.getLogger("weft.store")


class LongWaits:
    """Looks at the call that has been open longest, one at a time. It is known by its number, so that what has ended is
    not kept alive. `at` is when `look` has something to do at the latest; it may be called at any time."""

    def __init__(self) -> None:
        self.at = float("inf")
        self._number: int | None = None
        self._name = ""
        self._begun = 0.0
        self._quiet_until = float("-inf")

    def is_new(self, number: int, begun: float, now: float) -> bool:
        """Whether a call, which is the one open longest, is to be told of soon: its shards are to be asked why."""
        if self._number is not None or now - begun < TOLD_AFTER_S or now < self._quiet_until:
            return False
        self._number, self._begun, self.at = number, begun, now + ANSWER_S
        return True

    def look(self, still_open: Container[int], told: Callable[[int], tuple[str, str]], now: float) -> None:
        """Says of the call what there is to say; `told` has its name, and what it waits for."""
        number = self._number
        if number is None:
            return
        if number not in still_open:
            if self._name:
                _log.warning("%s is over, after %.0f s", self._name, now - self._begun)
            self._number, self._name, self.at = None, "", float("inf")
        elif now >= self.at:
            self._name, why = told(number)
            _log.warning("%s has waited %.0f s: %s", self._name, now - self._begun, why)
            self._quiet_until, self.at = now + QUIET_S, float("inf")
