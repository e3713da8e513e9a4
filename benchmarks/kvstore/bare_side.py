"""A worker of the bare side: `python bare_side.py PORTS SLOT CASE MEMORY`. See `bare_shard`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import zmq

from bare_shard import LAST, PULL, PUSH, READ, mapped
from exchange import Array, Line, Work, take_part
from store_cases import Case, case_from_json
from weft_kvstore.process import tune_process

PIECE_ELEMENTS = 1 << 18
"""Of a message, 1 MiB: larger ones and smaller ones took longer."""
PIECE_ROWS = 1 << 11
"""The same for rows of 64 elements."""

ANSWER_MS = 60_000
"""A shard that is silent for so long has ended, and the process with it that asks."""

Sockets = Sequence[zmq.Socket[bytes]]


class BarePieces:
    """All keys as one array, its pieces dealt to the shards in turn."""

    def __init__(self, sockets: Sockets, case: Case, slot: int, memory: str) -> None:
        self._sockets, self._slot = sockets, slot
        sizes = [int(np.prod(shape)) for shape in case.shapes]
        self._places, self._shapes = list(pairwise(np.cumsum([0, *sizes]).tolist())), case.shapes
        count = sum(sizes)
        starts = range(0, count, PIECE_ELEMENTS)
        self._pieces = [(start, min(start + PIECE_ELEMENTS, count)) for start in starts]
        self._gradients, self._values = np.empty(count, np.float32), np.ones(count, np.float32)
        self._put: Array | None = None
        self._found: Array | None = None
        if memory != "-":
            arrays = mapped(memory, case)
            mine, weights = arrays[slot], arrays[-1]
            if case.transport == "inplace":
                self._gradients, self._values = mine, weights
            else:
                self._put, self._found = mine, weights
        self._in_messages = memory == "-"

    def values(self, work: Work) -> list[Array]:
        return [array.copy() for array in self._keys(self._values)]

    def prepare(self, work: Work) -> None:
        for own, gradient in zip(self._keys(self._gradients), work.gradients, strict=True):
            own[...] = gradient

    def push_and_pull(self, work: Work) -> None:
        for place, (start, stop) in enumerate(self._pieces):
            said = [np.array([start, stop, self._slot])]
            if self._in_messages:
                said.append(self._gradients[start:stop])
            elif self._put is not None:
                self._put[start:stop] = self._gradients[start:stop]
            self._sockets[place % len(self._sockets)].send_multipart(said, copy=False)
        heard(self._sockets, len(self._pieces), self._arrived)

    def _arrived(self, shard: int, parts: list[zmq.Frame]) -> None:
        start, stop, _ = np.frombuffer(parts[0].buffer, np.int64).tolist()
        if self._in_messages:
            self._values[start:stop] = np.frombuffer(parts[1].buffer, np.float32)
        elif self._found is not None:
            self._values[start:stop] = self._found[start:stop]

    def pulled(self) -> list[Array]:
        return self._keys(self._values)

    def _keys(self, flat: Array) -> list[Array]:
        return [flat[low:high].reshape(shape) for (low, high), shape in zip(self._places, self._shapes, strict=True)]

    def wire_bytes(self) -> None:
        """Nobody counts them."""

    def close(self) -> None:
        """It ends with the process."""


class BareRows:
    """Rows of a table, row r on shard r modulo the shards."""

    def __init__(self, sockets: Sockets, case: Case) -> None:
        self._sockets, self._width = sockets, case.shapes[0][1]
        self._values = np.empty(0, np.float32)
        self._asked: list[list[Array]] = []

    def values(self, work: Work) -> list[Array]:
        self._pull(READ, self._dealt(work))
        return [self._values]

    def prepare(self, work: Work) -> None:
        """Rows are dealt against the clock, as the store has to."""

    def push_and_pull(self, work: Work) -> None:
        dealt = self._dealt(work)
        for socket, (picked, places) in zip(self._sockets, dealt, strict=True):
            for some in (pieces := cut(len(places))):
                rows = work.gradients[0][some] if len(dealt) == 1 else work.gradients[0].take(picked[some], axis=0)
                kind = LAST if some is pieces[-1] else PUSH
                socket.send_multipart([kind, places[some], rows], copy=False)
        self._pull(PULL, dealt)

    def pulled(self) -> list[Array]:
        return [self._values]

    def _dealt(self, work: Work) -> list[tuple[Array, Array]]:
        """For each shard the positions of its ids, and their places there."""
        assert work.ids is not None
        count = len(self._sockets)
        if count == 1:
            return [(np.arange(len(work.ids)), work.ids)]
        shards = work.ids % count
        picked = [np.flatnonzero(shards == shard) for shard in range(count)]
        return [(mine, work.ids[mine] // count) for mine in picked]

    def _pull(self, kind: bytes, dealt: list[tuple[Array, Array]]) -> None:
        """Answers come in the order in which they were asked for."""
        self._values = np.empty((sum(len(places) for _, places in dealt), self._width), np.float32)
        self._asked = [[picked[some] for some in cut(len(picked))] for picked, _ in dealt]
        for socket, (_, places) in zip(self._sockets, dealt, strict=True):
            for some in cut(len(places)):
                socket.send_multipart([kind, places[some]], copy=False)
        heard(self._sockets, sum(map(len, self._asked)), self._arrived)

    def _arrived(self, shard: int, parts: list[zmq.Frame]) -> None:
        mine = self._asked[shard].pop(0)
        rows = np.frombuffer(parts[0].buffer, np.float32).reshape(len(mine), self._width)
        if len(self._sockets) == 1:
            self._values[mine[0] : mine[-1] + 1] = rows
        else:
            self._values[mine] = rows

    def wire_bytes(self) -> None:
        """Nobody counts them."""

    def close(self) -> None:
        """It ends with the process."""


def cut(rows: int) -> list[slice]:
    """At least one piece."""
    return [slice(begin, min(begin + PIECE_ROWS, rows)) for begin in range(0, max(rows, 1), PIECE_ROWS)]


def heard(sockets: Sockets, count: int, take: Callable[[int, list[zmq.Frame]], None]) -> None:
    """Takes so many messages, with the number of the shard that each is from."""
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    while count:
        ready = dict(poller.poll(ANSWER_MS))
        if not ready:
            raise SystemExit(f"no shard has answered for {ANSWER_MS / 1000:g} s, {count} answers are missing")
        for shard, socket in enumerate(sockets):
            if socket in ready:
                take(shard, socket.recv_multipart(copy=False))
                count -= 1


def main(ports: str, slot_text: str, case_text: str, memory: str) -> None:
    tune_process()
    line, slot, case, context = Line(), int(slot_text), case_from_json(case_text), zmq.Context()
    sockets = []
    for port in ports.split(","):
        socket = context.socket(zmq.DEALER)
        socket.set_hwm(0)
        socket.connect(f"tcp://127.0.0.1:{port}")
        sockets.append(socket)
    exchange = BareRows(sockets, case) if case.rows else BarePieces(sockets, case, slot, memory)
    take_part(line, exchange, case, slot, {"numpy": np.__version__, "pyzmq": zmq.__version__})


if __name__ == "__main__":
    main(*sys.argv[1:])
