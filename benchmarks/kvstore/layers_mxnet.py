"""A worker of MXNet's side on a slow link, run by MXNet's Python: `python layers_mxnet.py CASE`, with DMLC_... set."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import mxnet as mx
import numpy as np

from exchange import Array, Line, Work
from layer_marks import take_marks
from store_cases import RATE, Case, case_from_json


class MxnetLayers:
    """Keys over the `dist_sync` store, updated by descent on the server: push, then pull.

    Handed over one by one, each push is paired with its pull, as Gluon's trainer does; else the pulls are asked for in
    the order of the forward pass once all is pushed.
    """

    def __init__(self, store: mx.kv.KVStore, case: Case) -> None:
        self._store = store
        self._paired = bool(case.stagger_s)
        self._gradients = [mx.nd.zeros(shape) for shape in case.shapes]
        self._values = [mx.nd.zeros(shape) for shape in case.shapes]
        store.init(list(range(len(case.shapes))), [mx.nd.ones(shape) for shape in case.shapes])

    def prepare(self, work: Work) -> None:
        # Any pull writes over the array that was pushed last: gradients are written after it, for each step anew.
        for own, gradient in zip(self._gradients, work.gradients, strict=True):
            own[:] = gradient
        mx.nd.waitall()

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

    def pulled(self) -> list[Array]:
        return [value.asnumpy() for value in self._values]

    def expected(self, before: Array, gradient: Array) -> Array:
        return before - np.float32(RATE) * gradient

    def wire_bytes(self) -> None:
        """The store does not count them."""

    def close(self) -> None:
        """The store ends with the process."""


class P3Layers(MxnetLayers):
    """The same with MXNet's priority-based propagation, which has no rule on the server: sums come back."""

    def hand_over(self, places: Sequence[int]) -> None:
        for place in places:
            self._store.pushpull(place, self._gradients[place], out=self._values[place], priority=-place)

    def ask(self) -> None:
        """All was asked for."""

    def expected(self, before: Array, gradient: Array) -> Array:
        return gradient


def main(case_text: str) -> None:
    line, case = Line(), case_from_json(case_text)
    store = mx.kv.create("dist_sync")
    p3 = os.environ.get("DMLC_PS_VAN_TYPE") == "p3"
    if not p3:
        store.set_optimizer(mx.optimizer.SGD(learning_rate=RATE, momentum=0.0, wd=0.0, lazy_update=True))
    versions = {"mxnet": mx.__version__, "numpy": np.__version__}
    take_marks(line, (P3Layers if p3 else MxnetLayers)(store, case), case, versions)


if __name__ == "__main__":
    main(*sys.argv[1:])
