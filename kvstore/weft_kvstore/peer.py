"""A connection that has said Hello, as its shard sees it. Pure."""

from __future__ import annotations

from typing import Final

from weft_kvstore.job_shard import PullWait
from weft_kvstore.messages import Hello
from weft_kvstore.outbox import Outbox, OutSlice
from weft_kvstore.settings import LinkSettings
from weft_kvstore.slice_state import Held, SliceState

MAX_OPEN_PULLS: Final = 1 << 16
"""Pulls that one connection may have open: two kinds for each of 32,768 keys."""


class Peer:
    """One client's connection. `pulls` are those not answered, `acknowledge` the frames not yet acknowledged."""

    def __init__(self, identity: bytes, hello: Hello, settings: LinkSettings, now: float) -> None:
        self.identity = identity
        self.job = (hello.job, hello.term)
        self.slot = hello.slot
        self.hello = hello
        self.heard = now
        self.outbox = Outbox(settings)
        self.pulls: dict[int, PullWait] = {}
        self.acknowledge: list[int] = []
        self.done: list[int] = []

    def answer(self, wait: PullWait, one: SliceState) -> None:
        """Hands a slice over to the outbox; its bytes are kept as they are until they are acknowledged."""
        if not wait.state:
            self._put(wait, one, 0, one.weight)
        else:
            for number, name in enumerate(one.spec.rule.state):
                if name in one.state:
                    self._put(wait, one, number, one.state[name])
        if not wait.open:
            self.pulls.pop(wait.request, None)

    def _put(self, wait: PullWait, one: SliceState, number: int, held: Held) -> None:
        held.lent += 1
        entry = (wait.request, number, one.version)
        priority = one.spec.priority
        self.outbox.put(OutSlice(entry, one.index, held.base, held.start, held.stop, priority=priority, owner=held))

    def arrived(self, frame: int, now: float) -> None:
        """The client has acknowledged a frame. Raises ProtocolError for one that is not under way."""
        _give_back(self.outbox.acknowledge(frame, now))

    def cancel(self, request: int) -> None:
        """The client waits for this pull no longer: what of it has not left will not."""
        wait = self.pulls.pop(request, None)
        if wait is not None:
            wait.dropped = True
        _give_back(self.outbox.withdraw(lambda one: one.entry[0] == request))

    def close(self) -> None:
        """The connection is gone: nothing waits for it any more."""
        for wait in self.pulls.values():
            wait.dropped = True
        self.pulls.clear()
        _give_back(self.outbox.clear())


def _give_back(slices: tuple[OutSlice, ...] | list[OutSlice]) -> None:
    for one in slices:
        if isinstance(one.owner, Held):
            one.owner.lent -= 1
