"""A ZeroMQ proxy before one shard: gathers the pushes of all slots, lets them in one by one in a chosen order."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import msgspec
import zmq

from store_raw import column
from weft_kvstore.wire.codec import MAGIC, NUMBER_BYTES, ProtocolError, decode_reply, decode_request, encode
from weft_kvstore.wire.messages import Acknowledge, Hello, PayloadKind, Push, Values

HOLD_S = 3.0
"""How long a round may take to fill; then what is there is let in, so that nothing waits for ever."""

ACKNOWLEDGE_S = 3.0
STOP_S = 60.0
POLL_MS = 20

Pick = Callable[[Sequence[int]], int]
"""Which of these slots, ascending, is next."""

Arrival = tuple[int, int, int, int]
"""(slot, bucket, step, slice of the shard)."""


def forward(slots: Sequence[int]) -> int:
    """The lowest slot first."""
    return slots[0]


def backward(slots: Sequence[int]) -> int:
    """The highest slot first."""
    return slots[-1]


def shuffled(seed: int) -> Pick:
    """Any slot, drawn from a generator of this seed."""
    return random.Random(seed).choice


@dataclass(eq=False)
class _Link:
    """One client: its connection to the shard, and what it has said and the shard has not yet heard, in order."""

    far: zmq.Socket[bytes]
    slot: int = -1
    waiting: deque[list[bytes]] = field(default_factory=deque)
    known: set[int] = field(default_factory=set)
    """Frames that the client knows to be acknowledged: the answer to a repeated one is for nobody."""

    def first_push(self) -> Push | None:
        return _push(self.waiting[0]) if self.waiting else None


class PushGate:
    """Holds every slot's pushes until `round_slices` slices wait, then lets the messages in as `pick` says.

    Each push is let in when the shard has acknowledged the one before it, so `arrivals` is the order in which the shard
    took them in, whatever its sockets do. A slot's own messages keep their order. With `repeat`, each push is delivered
    again at once, and once more after the whole round, as a late packet would be. Everything else passes, and
    messages have no numbers any more: it is the shard's own counting that is looked at.
    """

    def __init__(self, target: str, *, round_slices: int, pick: Pick, repeat: bool = False) -> None:
        self._target = target
        self._round_slices = round_slices
        self._pick = pick
        self._repeat = repeat
        self._context = zmq.Context()
        self._near = self._context.socket(zmq.ROUTER)
        self._near.setsockopt(zmq.LINGER, 0)
        self.endpoint = f"tcp://127.0.0.1:{self._near.bind_to_random_port('tcp://127.0.0.1')}"
        self._links: dict[bytes, _Link] = {}
        self._poller = zmq.Poller()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="push-gate", daemon=True)
        self._held_since: float | None = None
        self.arrivals: list[Arrival] = []
        self.duplicates = 0
        """Deliveries of push messages that had been delivered before."""
        self.failures: list[str] = []
        """Rounds that did not fill and pushes that were not acknowledged: empty in a good run."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(STOP_S)
        assert not self._thread.is_alive(), "the gate's thread did not end"
        self._context.destroy(linger=0)

    def orders(self) -> dict[tuple[int, int, int], list[int]]:
        """(bucket, step, slice) -> the slots in the order in which their gradients reached the shard."""
        found: dict[tuple[int, int, int], list[int]] = {}
        for slot, *of in self.arrivals:
            found.setdefault((of[0], of[1], of[2]), []).append(slot)
        return found

    def _run(self) -> None:
        self._poller.register(self._near, zmq.POLLIN)
        while not self._stop.is_set():
            self._carry(POLL_MS)
            held = sum(_slices(message) for link in self._links.values() for message in link.waiting)
            overdue = self._held_since is not None and time.monotonic() - self._held_since > HOLD_S
            if held >= self._round_slices or (held and overdue):
                if held != self._round_slices:
                    self.failures.append(f"a round has {held} slices, not {self._round_slices}")
                self._let_in()
                self._held_since = None
            elif held and self._held_since is None:
                self._held_since = time.monotonic()

    def _carry(self, wait_ms: int) -> list[tuple[_Link, int]]:
        """Moves what has come, both ways; returns the frames that the shard acknowledged, by link."""
        acknowledged: list[tuple[_Link, int]] = []
        ready = dict(self._poller.poll(wait_ms))
        if self._near in ready:
            while self._near.poll(0):
                identity, *message = self._near.recv_multipart()
                self._heard(identity, message)
        for identity, link in self._links.items():
            while link.far in ready and link.far.poll(0):
                reply = _uncounted(link.far.recv_multipart())
                frames = _acknowledged(reply)
                acknowledged += [(link, frame) for frame in frames]
                new = [frame for frame in frames if frame not in link.known]
                told = _telling(reply, new) if new != frames else reply
                if told:
                    self._near.send_multipart([identity, *told])
                link.known.update(frames)
        return acknowledged

    def _heard(self, identity: bytes, message: list[bytes]) -> None:
        link = self._links.get(identity)
        if link is None:
            far = self._context.socket(zmq.DEALER)
            far.setsockopt(zmq.LINGER, 0)
            far.connect(self._target)
            self._poller.register(far, zmq.POLLIN)
            link = self._links[identity] = _Link(far)
        request = decode_request(message)[0]
        if isinstance(request, Hello):
            if link.slot == request.slot:
                return  # It was said again, as nobody had answered yet.
            link.slot = request.slot
        link.waiting.append(_uncounted(message))
        self._pass(link)

    def _pass(self, link: _Link) -> None:
        """Sends on what waits before the link's first push."""
        while link.waiting and link.first_push() is None:
            link.far.send_multipart(link.waiting.popleft())

    def _let_in(self) -> None:
        seen: list[tuple[_Link, list[bytes]]] = []
        while ready := {link.slot: link for link in self._links.values() if link.waiting}:
            link = ready[self._pick(sorted(ready))]
            message = link.waiting.popleft()
            push = _pushed(message)
            for _, _, bucket, step, _, first, count, _ in push.runs:
                self.arrivals += [(link.slot, bucket, step, first + place) for place in range(count)]
            self._deliver(link, message)
            seen.append((link, message))
            if self._repeat:
                self._deliver_again(link, message)
            self._pass(link)
        for link, message in seen if self._repeat else []:
            self._deliver_again(link, message)

    def _deliver_again(self, link: _Link, message: list[bytes]) -> None:
        """Without what it said on the way of frames that had arrived: that is said once."""
        header = encode(msgspec.structs.replace(_pushed(message), acknowledge=[]))[0]
        self._deliver(link, [bytes(header), *message[1:]])
        self.duplicates += 1

    def _deliver(self, link: _Link, message: list[bytes]) -> None:
        frame = _pushed(message).frame
        link.far.send_multipart(message)
        until = time.monotonic() + ACKNOWLEDGE_S
        while not self._stop.is_set() and time.monotonic() < until:
            if (link, frame) in self._carry(POLL_MS):
                return
        self.failures.append(f"slot {link.slot}: frame {frame} was not acknowledged")


def _uncounted(parts: list[bytes]) -> list[bytes]:
    """The same message without its number on the connection: some come again, and of some nothing is left."""
    begin = len(MAGIC) + 1
    return [parts[0][:begin] + bytes(NUMBER_BYTES) + parts[0][begin + NUMBER_BYTES :], *parts[1:]]


def _pushed(message: list[bytes]) -> Push:
    push = _push(message)
    assert push is not None, "only pushes are held"
    return push


def _push(message: list[bytes]) -> Push | None:
    """The gradients of a message; ids of rows that are asked for go on."""
    request = decode_request(message)[0]
    has = isinstance(request, Push) and PayloadKind.GRADIENT in column(request, "payload_kind")
    return request if has else None  # type: ignore[return-value]  # a Push


def _slices(message: list[bytes]) -> int:
    push = _push(message)
    return 0 if push is None else sum(column(push, "count"))


def _acknowledged(reply: list[bytes]) -> list[int]:
    """The frames of pushes that a shard's message says have arrived."""
    try:
        said, _, _ = decode_reply(reply)
    except ProtocolError:
        return []
    match said:
        case Acknowledge():
            return said.frame
        case Values():
            return said.acknowledge
    return []


def _telling(reply: list[bytes], frames: list[int]) -> list[bytes]:
    """The same message, saying it of these frames alone; nothing where nothing is left of it."""
    said, payload, _ = decode_reply(reply)
    if isinstance(said, Values):
        told = msgspec.structs.replace(said, acknowledge=frames)
        return [bytes(part) for part in encode(told, None if said.at else payload)]
    return [bytes(part) for part in encode(Acknowledge(frames))] if frames else []
