"""A shard of the bare side: `python bare_shard.py PORT CASE MEMORY`; MEMORY is a file that all of the case's processes
map, or "-".

The bare exchange is what the same sockets and arrays allow at most: it takes what comes for granted, and knows no
credit, no priorities, no step but the present one, no error and no second job.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field

import numpy as np
import zmq

from exchange import Array
from store_cases import FLOAT_BYTES, RATE, Case, case_from_json
from weft_kvstore.process import tune_process

BLOCK_ELEMENTS = 1 << 15
"""Updated at once: they stay in the cache between a block's passes."""

PUSH, LAST, PULL, READ = b"push", b"last", b"pull", b"read"
"""What a message about rows is: some that are pushed, the last of a step's, ids whose rows are wanted after the step,
or now."""


class Pieces:
    """The keys as one array of `weights`, updated piece by piece as soon as all workers have pushed it."""

    def __init__(self, socket: zmq.Socket[bytes], workers: int, weights: Array, shared: list[Array]) -> None:
        """`shared`: where each worker's gradients lie; empty where they come with the messages."""
        self._socket, self._workers = socket, workers
        self._weights, self._shared = weights, shared
        self._came: dict[int, list[tuple[bytes, Array]]] = {}
        self._room = np.empty(BLOCK_ELEMENTS, np.float32)

    def take(self, identity: bytes, parts: list[zmq.Frame]) -> None:
        """A message: from which element to before which, the worker, and the gradient where it is not shared."""
        start, stop, slot = np.frombuffer(parts[0].buffer, np.int64).tolist()
        gradient = self._shared[slot][start:stop] if self._shared else np.frombuffer(parts[1].buffer, np.float32)
        came = self._came.setdefault(start, [])
        came.append((identity, gradient))
        if len(came) < self._workers:
            return
        del self._came[start]
        weights = self._weights[start:stop]
        self._update(weights, [one for _, one in came])
        for waiting, _ in came:
            self._socket.send_multipart([waiting, parts[0], *([] if self._shared else [weights])], copy=False)

    def _update(self, weights: Array, gradients: list[Array]) -> None:
        for begin in range(0, len(weights), BLOCK_ELEMENTS):
            some = slice(begin, min(begin + BLOCK_ELEMENTS, len(weights)))
            room = self._room[: some.stop - begin]
            total = gradients[0][some]
            for other in gradients[1:]:
                total = np.add(total, other[some], out=room)
            np.multiply(total, np.float32(RATE), out=room)
            np.subtract(weights[some], room, out=weights[some])


@dataclass
class Table:
    """A shard's rows (rows, width), updated as gradients come. Pulls wait for the last push of every worker."""

    socket: zmq.Socket[bytes]
    workers: int
    rows: Array
    ended: int = 0
    waiting: list[tuple[bytes, Array]] = field(default_factory=list)

    def take(self, identity: bytes, parts: list[zmq.Frame]) -> None:
        """A message: what it is, places on this shard, and the rows' gradients where it is a push."""
        kind, places = parts[0].bytes, np.frombuffer(parts[1].buffer, np.int64)
        if kind == READ:
            self._answer(identity, places)
            return
        if kind == PULL:
            self.waiting.append((identity, places))
            self._answer_all()
            return
        self.ended %= self.workers  # Workers have met since a step ended.
        moved = np.frombuffer(parts[2].buffer, np.float32).reshape(len(places), -1) * np.float32(RATE)
        np.subtract(self.rows.take(places, axis=0), moved, out=moved)
        self.rows[places] = moved
        self.ended += kind == LAST
        self._answer_all()

    def _answer_all(self) -> None:
        """Those who wait, once the step has ended."""
        if self.ended == self.workers:
            for identity, places in self.waiting:
                self._answer(identity, places)
            self.waiting.clear()

    def _answer(self, identity: bytes, places: Array) -> None:
        self.socket.send_multipart([identity, self.rows.take(places, axis=0)], copy=False)


def mapped(path: str, case: Case) -> list[Array]:
    """The arrays of a file that all map: each worker's gradients, and the weights."""
    every = np.memmap(path, np.float32, "r+", shape=(case.workers + 1, case.payload_bytes // FLOAT_BYTES))
    return [np.asarray(one) for one in every]


def serve(socket: zmq.Socket[bytes], shard: Pieces | Table) -> None:
    """Takes what comes, for ever."""
    while True:
        identity, *parts = socket.recv_multipart(copy=False)
        shard.take(identity.bytes, parts)


def end_with_parent() -> None:
    """Ends the process once its standard input does, whatever it is about."""
    while sys.stdin.buffer.read(1 << 10):
        pass
    os._exit(0)


def main(port: str, case_text: str, memory: str) -> None:
    tune_process()
    threading.Thread(target=end_with_parent, daemon=True).start()
    case = case_from_json(case_text)
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.set_hwm(0)
    socket.bind(f"tcp://127.0.0.1:{port}")
    if case.rows:
        rows, width = case.shapes[0]
        serve(socket, Table(socket, case.workers, np.ones((-(-rows // case.servers), width), np.float32)))
    *shared, weights = (
        mapped(memory, case) if memory != "-" else [np.ones(case.payload_bytes // FLOAT_BYTES, np.float32)]
    )
    serve(socket, Pieces(socket, case.workers, weights, shared))


if __name__ == "__main__":
    main(*sys.argv[1:])
