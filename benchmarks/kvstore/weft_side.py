"""A worker of weft's side: `python weft_side.py DESCRIPTION SLOT CASE`.

`python weft_side.py DESCRIPTION SLOT CASE ENDPOINT SETTINGS` hands layers over one by one or in a burst on a slow link,
and tells when each is back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from exchange import Array, Line, Work, arrays_in_one, mark_places, take_marks, take_part
from store_cases import RATE, START_S, Case, case_from_json
from weft_kvstore import KVStore, LinkSettings
from weft_kvstore.description.form import read_description
from weft_kvstore.process import tune_process

TOUCHED_ROWS = 1 << 16
"""Rows of a table that are brought into being at once, before the rounds."""


class WeftExchange:
    """Steps of one slot over `KVStore`, which counts them."""

    def __init__(self, store: KVStore, case: Case, slot: int) -> None:
        self._store, self._case, self._slot = store, case, slot
        keys = self._keys = list(store.keys)
        self._pushes: list[Future[None]] = []
        self._values: list[Array] = []
        self._gradients: list[Array] | None = None
        self._out: list[Array] | None = None
        if case.transport == "inplace":
            self._gradients = [store.gradient_buffer(key) for key in keys]
            self._out = [store.value_buffer(key) for key in keys]
        elif case.rows:
            self._touch()
        else:
            self._out = arrays_in_one(case.shapes)  # As the peer, who pulls into his own.

    def values(self, work: Work) -> list[Array]:
        # Bytes of a comparison are not the exchange's: they are taken off again.
        before = self._bytes()
        found = [array.copy() for array in self._read(work)] if self._out else self._read(work)
        self._compared += self._bytes() - before
        return found

    def prepare(self, work: Work) -> None:
        """Gradients are NumPy arrays already; where the store gives arrays, whoever computes them writes them there."""
        for own, gradient in zip(self._gradients or (), work.gradients, strict=False):
            own[...] = gradient

    def push_and_pull(self, work: Work) -> None:
        store, keys, gradients = self._store, self._keys, self._gradients or list(work.gradients)
        if work.ids is not None:
            self._pushes = []
            self._values = [store.pushpull_rows(keys[0], work.ids, gradients[0]).result()]
            return
        if self._case.call == "pushpull":
            self._pushes = []
            self._values = store.pushpull(keys, gradients, out=self._out).result()
            return
        elif self._case.call == "each":
            self._pushes = [store.push(key, gradient) for key, gradient in zip(keys, gradients, strict=True)]
            outs = self._out or [None] * len(keys)
            pulls = [store.pull(key, out=out) for key, out in zip(keys, outs, strict=True)]
            self._values = [pull.result() for pull in pulls]
            return
        else:
            self._pushes = [store.push(keys, gradients)]
        self._values = self._read(work)

    def pulled(self) -> list[Array]:
        for push in self._pushes:
            push.result()
        return self._values

    def wire_bytes(self) -> int:
        return self._bytes() - self._compared

    def close(self) -> None:
        self._store.close()

    _compared = 0

    def _bytes(self) -> int:
        counts = self._store.statistics()
        return counts.bytes_sent + counts.bytes_received

    def _read(self, work: Work) -> list[Array]:
        if work.ids is not None:
            return [self._store.pull_rows(self._keys[0], work.ids).result()]
        return self._store.pull(self._keys, out=self._out).result()

    def _touch(self) -> None:
        """Slot 0 pushes zeros for every row: the peer's table is there before the rounds too."""
        rows, width = self._case.shapes[0]
        for start in range(0, rows, TOUCHED_ROWS):
            ids = np.arange(start, min(start + TOUCHED_ROWS, rows), dtype=np.int64)
            own = ids if self._slot == 0 else ids[:0]
            self._store.push_rows(self._keys[0], own, np.zeros((len(own), width), np.float32)).result()
            # A row of each shard: no slot gets further ahead than the shards allow.
            self._store.pull_rows(self._keys[0], ids[: self._case.servers]).result()


class WeftLayers:
    """Steps of layers. Those that are handed over together are one push; the new values of the layers up to one that is
    waited for are one pull, asked for with the first of their gradients."""

    def __init__(self, store: KVStore, case: Case) -> None:
        self._store = store
        self._keys = [f"key{place}" for place in range(len(case.shapes))]
        self._portions = portions_of(len(self._keys))
        self._portion_of = [portion for portion in self._portions for _ in portion]
        self._step = -1
        self._gradients: list[Array] = []
        self._pushes: list[Future[Any]] = []
        self._pulls: dict[range, Future[list[Array]]] = {}

    def prepare(self, work: Work) -> None:
        self._step += 1
        self._gradients, self._pushes, self._pulls = work.gradients, [], {}

    def hand_over(self, places: Sequence[int]) -> None:
        keys = [self._keys[place] for place in places]
        self._pushes.append(self._store.push(keys, [self._gradients[place] for place in places]))
        wanted = dict.fromkeys(self._portion_of[place] for place in places)
        for portion in reversed([one for one in wanted if one not in self._pulls]):  # the most urgent first
            self._pulls[portion] = self._store.pull(self._keys[portion.start : portion.stop], version=self._step + 1)

    def ask(self) -> None:
        """All was asked for."""

    def wait(self, place: int) -> None:
        self._pulls[self._portion_of[place]].result()

    def pulled(self) -> list[Array]:
        for push in self._pushes:
            push.result()
        return [value for portion in self._portions for value in self._pulls[portion].result()]

    def expected(self, before: Array, gradient: Array) -> Array:
        return before - np.float32(RATE) * gradient

    def wire_bytes(self) -> int:
        counts = self._store.statistics()
        return counts.bytes_sent + counts.bytes_received

    def close(self) -> None:
        self._store.close()


def portions_of(count: int) -> list[range]:
    """The layers that are asked for together, in order: up to each mark."""
    ends = sorted(set(mark_places(count).values()))
    starts = [0, *(end + 1 for end in ends)]
    return [range(start, end + 1) for start, end in zip(starts, ends, strict=False)]


def main(path: str, slot_text: str, case_text: str, endpoint: str = "", settings: str = "") -> None:
    tune_process()
    line, slot, case = Line(), int(slot_text), case_from_json(case_text)
    description = read_description(Path(path))
    versions = {"numpy": np.__version__, "pyzmq": zmq.__version__, "zeromq": zmq.zmq_version()}
    if endpoint:
        # Shared memory would pass the slow link by.
        link = LinkSettings(**{"silence_s": START_S, **json.loads(settings)}, same_host=False)
        client = KVStore.connect(description, slot, wait_s=START_S, settings=link, endpoints=[endpoint])
        take_marks(line, WeftLayers(client, case), case, versions)
        return
    # What is to be counted passes the socket.
    link = LinkSettings(silence_s=START_S, same_host=case.transport in {"samehost", "inplace"})
    store = KVStore.connect(description, slot, wait_s=START_S, settings=link)
    take_part(line, WeftExchange(store, case, slot), case, slot, versions)


if __name__ == "__main__":
    main(*sys.argv[1:])
