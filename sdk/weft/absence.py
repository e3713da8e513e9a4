"""A server that does not answer for a while: how long that is borne."""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import ConnectError, ServerFaultError, UnavailableError, WeftError
from weft.http import Http, Retry

SILENCE_S = 30.0
"""A stream that says nothing for so long, no comment either, is taken for broken; the server sends comments sooner."""

PATIENCE_S = 90.0
"""Without an answer: long enough for a server to be started again, also where its records take a while to open."""

PAUSES = Retry(first_s=0.1, longest_s=2.0)

AWAY = (ConnectError, UnavailableError, ServerFaultError)
"""What says that the server is away, or not ready, rather than that it refuses."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """How a server is waited for: for how long, after what pauses, and after what silence a stream is broken."""

    patience_s: float = PATIENCE_S
    pauses: Retry = PAUSES
    silence_s: float = SILENCE_S


DEFAULT_RESUMPTION = Resumption()


class Absence:
    """Counts a server's failures in a row. `failures` is 0 while it answers."""

    def __init__(self, http: Http, resumption: Resumption = DEFAULT_RESUMPTION) -> None:
        self._clock = http.clock
        self._resumption = resumption
        self._since_s = 0.0
        self.failures = 0
        self.notice = f"no answer from {http.url}; waiting up to {resumption.patience_s:g} s for the server to be back"

    def endure(self, error: WeftError) -> None:
        """Pauses before another try. Raises `error` where the server has been away for too long."""
        now = self._clock.now()
        if not self.failures:
            self._since_s = now
        self.failures += 1
        left_s = self._since_s + self._resumption.patience_s - now
        if left_s <= 0:
            raise error
        self._clock.sleep(min(self._resumption.pauses.pause_s(self.failures), left_s))

    def end(self) -> None:
        """It has answered."""
        self.failures = 0
