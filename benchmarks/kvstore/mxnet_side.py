"""A worker of MXNet's side, run by MXNet's Python: `python mxnet_side.py CASE`, with DMLC_... in the environment."""

from __future__ import annotations

import os
import sys

import mxnet as mx
import numpy as np

from exchange import Array, Line, Work, take_part
from store_cases import RATE, THRESHOLD, Case, case_from_json

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


def main(case_text: str) -> None:
    line, case = Line(), case_from_json(case_text)
    store = mx.kv.create("dist_sync")
    if case.compression.startswith("2bit"):
        store.set_gradient_compression({"type": "2bit", "threshold": THRESHOLD})
    store.set_optimizer(mx.optimizer.SGD(learning_rate=RATE, momentum=0.0, wd=0.0, lazy_update=True))
    exchange = (MxnetRows if case.rows else MxnetDense)(store, case)
    versions = {"mxnet": mx.__version__, "numpy": np.__version__, "omp_threads": os.environ["OMP_NUM_THREADS"]}
    take_part(line, exchange, case, store.rank, versions)


if __name__ == "__main__":
    main(*sys.argv[1:])
