"""Threads that wait for work hold nothing of the last piece: neither a GPU's memory nor an open file."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

import numpy as np

from server_running import eventually
from weft_worker.cuda_device import CudaDevice, _Copy
from weft_worker.errors import DeviceError
from weft_worker.ordered_sets import OrderedSets
from worker_jobs import WAIT_S


class Event:
    """A GPU's event, which has come, or failed."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails

    def synchronize(self) -> None:
        if self.fails:
            raise RuntimeError("the copy broke")


def test_a_copy_that_has_come_holds_no_memory_of_the_device() -> None:
    device: Any = CudaDevice.__new__(CudaDevice)
    device.name, device._device, device._waiting = "cuda:0", nullcontext(), SimpleQueue()
    threading.Thread(target=device._complete, daemon=True).start()
    for fails in (False, True):
        source = np.zeros(3)
        held, future = weakref.ref(source), Future[list[Any]]()
        device._waiting.put(_Copy((source,), [], Event(fails=fails), future))
        del source
        error = future.exception(WAIT_S)
        assert isinstance(error, DeviceError) if fails else error is None
        eventually(lambda held=held: held() is None, "the copy's source is free")  # type: ignore[misc]


def test_a_set_that_was_taken_holds_no_file() -> None:
    ordered = OrderedSets(lambda what, into, stop: None)
    ordered.request(1)
    taken: list[Any] = []
    eventually(lambda: bool(taken.extend(ordered.take()) or taken), "the set is brought")
    held = weakref.ref(taken[0].file)
    taken.pop().file.close()
    eventually(lambda: held() is None, "its file is free")
    assert ordered.close() == []
