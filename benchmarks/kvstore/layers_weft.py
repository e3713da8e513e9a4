"""A worker of weft's side on a slow link: `python layers_weft.py DESCRIPTION ENDPOINT SETTINGS CASE`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

from exchange import Array, Line, Work
from layer_marks import mark_places, take_marks
from store_cases import BESIDE, BESIDE_SHAPE, RATE, START_S, Case, case_from_json
from training_pace import take_steps
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.process import tune_process
from weft_kvstore.settings import LinkSettings


class WeftLayers:
    """Steps over `StoreClient`. Layers that are handed over together are one push; the new values of the layers up to
    one that is waited for are one pull, asked for with the first of their gradients."""

    def __init__(self, store: StoreClient, case: Case) -> None:
        self._store, self._case = store, case
        self._keys = [f"key{place}" for place in range(len(case.shapes))]
        self._portions = portions_of(len(self._keys), each=bool(case.compute_s))
        self._portion_of = [portion for portion in self._portions for _ in portion]
        self._step = -1
        self._gradients: list[Array] = []
        self._pushes: list[Future[Any]] = []
        self._pulls: dict[range, Future[list[Array]]] = {}
        self._generator = np.random.Generator(np.random.SFC64(7))

    def prepare(self, work: Work) -> None:
        self._step += 1
        self._gradients, self._pushes, self._pulls = work.gradients, [], {}
        self._rows = self._drawn_rows()

    def hand_over(self, places: Sequence[int]) -> None:
        if self._rows is not None:
            ids, rows = self._rows
            self._rows = None
            self._pushes.append(self._store.push_rows(BESIDE, self._step, ids, rows))
            self._pushes.append(self._store.pull_rows(BESIDE, ids, self._step + 1))
        keys = [self._keys[place] for place in places]
        self._pushes.append(self._store.push_many(keys, self._step, [self._gradients[place] for place in places]))
        wanted = dict.fromkeys(self._portion_of[place] for place in places)
        for portion in reversed([one for one in wanted if one not in self._pulls]):  # the most urgent first
            self._pulls[portion] = self._store.pull_many(self._keys[portion.start : portion.stop], self._step + 1)

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

    def _drawn_rows(self) -> tuple[Array, Array] | None:
        count = self._case.beside_rows
        if not count:
            return None
        ids = np.sort(self._generator.choice(BESIDE_SHAPE[0], count, replace=False, shuffle=False))
        return ids, self._generator.random((count, *BESIDE_SHAPE[1:]), dtype=np.float32)


def portions_of(count: int, *, each: bool) -> list[range]:
    """The layers that are asked for together, in order: up to each mark, or `each` alone where all are waited for."""
    ends = range(count) if each else sorted(set(mark_places(count).values()))
    starts = [0, *(end + 1 for end in ends)]
    return [range(start, end + 1) for start, end in zip(starts, ends, strict=False)]


def main(path: str, endpoint: str, settings: str, case_text: str) -> None:
    tune_process()
    line, case = Line(), case_from_json(case_text)
    # Shared memory would pass the slow link by.
    link = LinkSettings(**{"silence_s": START_S, **json.loads(settings)}, same_host=False)
    store = StoreClient(
        msgspec.json.decode(Path(path).read_bytes(), type=StoreDescription), 0, settings=link, endpoints=[endpoint]
    )
    versions = {"numpy": np.__version__, "pyzmq": zmq.__version__, "zeromq": zmq.zmq_version()}
    take = take_steps if case.compute_s else take_marks
    take(line, WeftLayers(store, case), case, versions)


if __name__ == "__main__":
    main(*sys.argv[1:])
