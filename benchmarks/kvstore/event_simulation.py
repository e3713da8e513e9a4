"""A discrete-event simulation: threads that share the cores of a host, and wires. Pure and deterministic.

Nothing is drawn: events of one time keep the order in which they were made.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

Event = Callable[[], None]

LARGEST_RUN: Final = 5_000_000
"""Events of one run, at most: an endless loop is a fault of the model, and is said."""


class SimulationError(Exception):
    """The model does not end, or asks for what cannot be."""


class Simulation:
    """The clock, seconds from 0, and what happens later."""

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._events: list[tuple[float, int, Event]] = []

    def after(self, delay_s: float, event: Event) -> None:
        """Raises SimulationError for a time that has passed, or is none."""
        if not 0 <= delay_s < float("inf"):
            raise SimulationError(f"an event after {delay_s} s")
        self._count += 1
        heapq.heappush(self._events, (self.now + delay_s, self._count, event))

    def run(self) -> None:
        """Until nothing happens any more."""
        for _ in range(LARGEST_RUN):
            if not self._events:
                return
            self.now, _, event = heapq.heappop(self._events)
            event()
        raise SimulationError(f"no end after {LARGEST_RUN} events")


class Host:
    """Cores that all threads share alike: with n of them busy each advances at capacity(n) / n.

    `capacity[n - 1]` is how many lone threads' work n busy threads do together; beyond the last entry it stays the
    last. So cores that share a cache or a memory bus are told from independent ones.
    """

    def __init__(self, simulation: Simulation, capacity: tuple[float, ...]) -> None:
        if not capacity or min(capacity) <= 0:
            raise SimulationError(f"a host's capacity is {capacity}")
        self._simulation = simulation
        self._capacity = capacity
        self._running: list[tuple[float, int, Event]] = []
        self._work = 0.0
        """What a thread that ran all the time has done; a task ends when it comes to the task's mark."""
        self._since = 0.0
        self._count = 0
        self._turn = 0
        self.busy_s = 0.0
        """Seconds of lone threads' work that were done."""

    def execute(self, cost_s: float, done: Event) -> None:
        self._advance()
        self._count += 1
        heapq.heappush(self._running, (self._work + cost_s, self._count, done))
        self._plan()

    def _rate(self) -> float:
        busy = len(self._running)
        return self._capacity[min(busy, len(self._capacity)) - 1] / busy if busy else 0.0

    def _advance(self) -> None:
        passed = (self._simulation.now - self._since) * self._rate()
        self.busy_s += passed * len(self._running)
        self._work += passed
        self._since = self._simulation.now

    def _plan(self) -> None:
        self._turn += 1
        if self._running:
            left = max(self._running[0][0] - self._work, 0.0)
            turn = self._turn
            self._simulation.after(left / self._rate(), lambda: self._end(turn))

    def _end(self, turn: int) -> None:
        if turn != self._turn:
            return  # Another task came or went meanwhile, and the end was planned anew.
        self._advance()
        mark, _, done = heapq.heappop(self._running)
        self._work = max(self._work, mark)
        self._plan()
        done()


@dataclass(slots=True)
class _Task:
    cost_s: float
    done: Event


class Thread:
    """Does one task after the other, in the order given. One that slept starts `wake_s` after it is woken."""

    def __init__(self, simulation: Simulation, host: Host, wake_s: float = 0.0) -> None:
        self._simulation, self._host, self._wake_s = simulation, host, wake_s
        self._tasks: deque[_Task] = deque()
        self._awake = False
        self.busy_s = 0.0

    def do(self, cost_s: float, done: Event) -> None:
        """Queues a task; `done` is called at its end."""
        self.busy_s += cost_s
        self._tasks.append(_Task(cost_s, done))
        if not self._awake:
            self._awake = True
            self._simulation.after(self._wake_s, self._next)

    def _next(self) -> None:
        if not self._tasks:
            self._awake = False
            return
        task = self._tasks.popleft()
        self._host.execute(task.cost_s, lambda: self._ended(task))

    def _ended(self, task: _Task) -> None:
        task.done()
        self._next()


class Wire:
    """One direction of a network card: bytes one after the other at its rate. None: no wire between, as on loopback."""

    def __init__(self, simulation: Simulation, bytes_per_s: float | None) -> None:
        self._simulation, self._rate = simulation, bytes_per_s
        self._free_at = 0.0
        self.busy_s = 0.0

    def carry(self, nbytes: int, done: Event) -> None:
        if self._rate is None:
            done()
            return
        time_s = nbytes / self._rate
        self.busy_s += time_s
        self._free_at = max(self._free_at, self._simulation.now) + time_s
        self._simulation.after(self._free_at - self._simulation.now, done)
