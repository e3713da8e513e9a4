"""A worker of MXNet's side, run by MXNet's Python: `python mxnet_side.py CASE`, with DMLC_... in the environment.

`python mxnet_side.py CASE layers` hands layers over one by one or in a burst, and tells when each is back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import mxnet as mx
import numpy as np

from exchange import Array, Line, Work, take_marks, take_part
from store_cases import RATE, Case, case_from_json

TABLE = 0
"""The table's key. Keys are numbered."""


class MxnetDense:
    """Whole keys over the `dist_sync` store, updated by descent on the servers."""

    def __init__(self, store: mx.kv.KVStore, case: Case) -> None:
        self._store = store
        self._gradients = [mx.nd.zeros(shape) for shape in case.shapes]
        self._values = [mx.nd.zeros(shape) for shape in case.shapes]
        store.init(list(range(len(case.shapes))), [mx.nd.ones(shape) for shape in case.shapes])

    def values(self, work: Work) -> list[Array]:
        found = [mx.nd.zeros(value.shape) for value in self._values]
        for key, value in enumerate(found):
            self._store.pull(key, out=value)
        return [value.asnumpy() for value in found]

    def prepare(self, work: Work) -> None:
        # Any pull writes over the array that was pushed last: gradients are written after it, for each step anew.
        for own, gradient in zip(self._gradients, work.gradients, strict=True):
            own[:] = gradient
        mx.nd.waitall()

    def push_and_pull(self, work: Work) -> None:
        for key, gradient in enumerate(self._gradients):
            self._store.push(key, gradient, priority=-key)
        for key, value in enumerate(self._values):
            self._store.pull(key, out=value, priority=-key)
        for value in self._values:
            value.wait_to_read()

    def pulled(self) -> list[Array]:
        return [value.asnumpy() for value in self._values]

    def wire_bytes(self) -> None:
        """The store does not count them."""

    def close(self) -> None:
        """The store ends with the process."""


class MxnetLayers(MxnetDense):
    """The same keys, layer by layer: push, then pull.

    Handed over one by one, each push is paired with its pull, as Gluon's trainer does; else the pulls are asked for in
    the order of the forward pass once all is pushed.
    """

    def __init__(self, store: mx.kv.KVStore, case: Case) -> None:
        super().__init__(store, case)
        self._paired = bool(case.stagger_s)

    def hand_over(self, places: Sequence[int]) -> None:
        for place in places:
            self._store.push(place, self._gradients[place], priority=-place)
            if self._paired:
                self._store.pull(place, out=self._values[place], priority=-place)

    def ask(self) -> None:
        for place, value in enumerate([] if self._paired else self._values):
            self._store.pull(place, out=value, priority=-place)

    def wait(self, place: int) -> None:
        self._values[place].wait_to_read()

    def expected(self, before: Array, gradient: Array) -> Array:
        return before - np.float32(RATE) * gradient


class P3Layers(MxnetLayers):
    """The same with MXNet's priority-based propagation, which has no rule on the server: sums come back."""

    def hand_over(self, places: Sequence[int]) -> None:
        for place in places:
            self._store.pushpull(place, self._gradients[place], out=self._values[place], priority=-place)

    def ask(self) -> None:
        """All was asked for."""

    def expected(self, before: Array, gradient: Array) -> Array:
        return gradient


class MxnetRows:
    """Rows of a table over the same store."""

    def __init__(self, store: mx.kv.KVStore, case: Case) -> None:
        self._store, self._shape = store, case.shapes[0]
        self._values = mx.nd.sparse.zeros("row_sparse", self._shape)
        self._gradient = self._ids = None
        store.init(TABLE, mx.nd.ones(self._shape).tostype("row_sparse"))

    def values(self, work: Work) -> list[Array]:
        found = mx.nd.sparse.zeros("row_sparse", self._shape)
        self._store.row_sparse_pull(TABLE, out=found, row_ids=mx.nd.array(work.ids, dtype="int64"))
        return [found.data.asnumpy()]

    def prepare(self, work: Work) -> None:
        self._ids = mx.nd.array(work.ids, dtype="int64")
        parts = mx.nd.array(work.gradients[0]), self._ids
        self._gradient = mx.nd.sparse.row_sparse_array(parts, shape=self._shape)
        mx.nd.waitall()

    def push_and_pull(self, work: Work) -> None:
        self._store.push(TABLE, self._gradient)
        self._store.row_sparse_pull(TABLE, out=self._values, row_ids=self._ids)
        self._values.wait_to_read()

    def pulled(self) -> list[Array]:
        return [self._values.data.asnumpy()]

    def wire_bytes(self) -> None:
        """The store does not count them."""

    def close(self) -> None:
        """The store ends with the process."""


def main(case_text: str, part: str = "") -> None:
    line, case = Line(), case_from_json(case_text)
    store = mx.kv.create("dist_sync")
    p3 = os.environ.get("DMLC_PS_VAN_TYPE") == "p3"
    if not p3:
        store.set_optimizer(mx.optimizer.SGD(learning_rate=RATE, momentum=0.0, wd=0.0, lazy_update=True))
    versions = {"mxnet": mx.__version__, "numpy": np.__version__, "omp_threads": os.environ["OMP_NUM_THREADS"]}
    if part == "layers":
        take_marks(line, (P3Layers if p3 else MxnetLayers)(store, case), case, versions)
    else:
        take_part(line, (MxnetRows if case.rows else MxnetDense)(store, case), case, store.rank, versions)


if __name__ == "__main__":
    main(*sys.argv[1:])
