"""Notes what this process does in a job's traced steps."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

from weft.api.trace import MOST_SPANS, ProcessTrace, Span, SpanKind, TraceWindow

MOST_KEPT: Final = 16 * MOST_SPANS
"""Spans of one process; what comes then is only counted."""


class TraceRecorder:
    """Spans of the steps in `window`, from any thread. `now` gives nanoseconds since 1970.

    A span costs about a microsecond. Whoever has no recorder, or a step outside its window, does nothing.
    """

    def __init__(
        self,
        window: TraceWindow,
        kind: Literal["worker", "shard"],
        place: int,
        *,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self.first = window.first_step
        self.last = window.first_step + window.steps - 1
        """Steps, from 1."""
        self.now = now
        self._start_us = now() // 1000
        self._kind = kind
        self._place = place
        self._spans: list[tuple[SpanKind, str, int, int, int, int, int]] = []
        self._dropped = 0

    @classmethod
    def of(cls, window: TraceWindow, kind: Literal["worker", "shard"], place: int) -> TraceRecorder | None:
        """None for a window without steps."""
        return cls(window, kind, place) if window.steps else None

    def covers(self, step: int) -> bool:
        """Whether a step, from 1, is traced."""
        return self.first <= step <= self.last

    def add(self, kind: SpanKind, name: str, step: int, begin_ns: int, slot: int = -1) -> None:
        """A span that began then, by `now`, and ends now, on this thread."""
        self.until(kind, name, step, begin_ns, slot)()

    def async_(
        self, kind: SpanKind, name: str, step: int, start: Callable[[Callable[..., None]], None]
    ) -> Callable[[Callable[..., None]], None]:
        """Asynchronous work as it was, whose span ends when its completion is called."""

        def begun(on_complete: Callable[..., None]) -> None:
            ended = self.until(kind, name, step, self.now())

            def completed(*error: Any) -> None:
                ended()
                on_complete(*error)

            start(completed)

        return begun

    def until(self, kind: SpanKind, name: str, step: int, begin_ns: int, slot: int = -1) -> Callable[..., None]:
        """A callback, for any thread, that ends a span of this thread which began then."""
        thread = threading.get_ident()

        def ended(*_: Any) -> None:
            if len(self._spans) < MOST_KEPT:
                self._spans.append((kind, name, thread, step, slot, begin_ns, self.now()))
            else:
                self._dropped += 1

        return ended

    def take(self) -> Iterator[ProcessTrace]:
        """What was noted since the last call, in parts that a report has room for."""
        spans, self._spans = self._spans, []
        called = {thread.ident: thread.name for thread in threading.enumerate()}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        for first in range(0, len(spans), MOST_SPANS):
            names: dict[str, int] = {}
            threads: dict[str, int] = {}
            told = [
                Span(
                    kind,
                    names.setdefault(name[:256], len(names)),
                    threads.setdefault(called.get(thread, str(thread))[:256], len(threads)),
                    step,
                    slot,
                    max(begin_ns - 1000 * self._start_us, 0),
                    max(end_ns - 1000 * self._start_us, 0),
                )
                for kind, name, thread, step, slot, begin_ns, end_ns in spans[first : first + MOST_SPANS]
            ]
            yield ProcessTrace(
                kind=self._kind,
                place=self._place,
                host=socket.gethostname()[:256],
                pid=os.getpid(),
                start_us=self._start_us,
                peak_bytes=peak,
                names=list(names),
                threads=list(threads),
                spans=told,
                dropped=self._dropped,
            )
