"""Copies between a GPU's memory and the host's, of which no caller waits: CuPy, pinned memory, events, one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from weft_kernels.cuda.module import import_cupy
from weft_kvstore.arrays.array import Array
from weft_kvstore.errors import StoreError

DeviceArray = Any
"""CuPy's array."""


@dataclass(frozen=True, slots=True)
class Target:
    """An array of a GPU that is to be written once `free` has passed: until then kernels of before may read it."""

    array: DeviceArray
    free: Any


class DeviceCopies:
    """Loads CuPy when it is made. Arrays may be of any library with the CUDA array interface, and of any GPU.

    Raises StoreError where CuPy is not installed.
    """

    def __init__(self) -> None:
        try:
            self._cupy = import_cupy()
        except ImportError as error:
            told = f"an array of a GPU was given, and CuPy is not there: pip install 'weft[cuda]' ({error})"
            raise StoreError(told) from None
        self._streams: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._work: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="weft-store-copies", daemon=True)
        self._thread.start()

    def to_host(self, arrays: Sequence[DeviceArray]) -> Future[list[Array]]:
        """Copies to pinned memory, behind what the caller's stream has under way. The arrays are held until it ends;
        what is started later may write them only then."""
        started = [self._start(self._cupy.asarray(array)) for array in arrays]

        def finish() -> list[Array]:
            for source, _, done in started:
                with source.device:
                    done.synchronize()
            return [host for _, host, _ in started]

        return self._put(finish)

    def reserve(self, out: DeviceArray) -> Target:
        """Where `to_device` writes later: behind what the caller's stream has under way now."""
        array = self._cupy.asarray(out)
        with array.device:
            return Target(array, self._cupy.cuda.get_current_stream().record())

    def to_device(self, values: Sequence[Array], targets: Sequence[Target]) -> Future[None]:
        """Copies values of the host there. Once it has ended any stream may read them."""

        def finish() -> None:
            for value, target in zip(values, targets, strict=True):
                with target.array.device:
                    stream = self._stream(target.array.device.id)
                    with stream:
                        stream.wait_event(target.free)
                        target.array[...] = self._cupy.asarray(value)
                    stream.synchronize()

        return self._put(finish)

    def close(self) -> None:
        """Ends after the copies that were begun. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._work.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _start(self, array: DeviceArray) -> tuple[DeviceArray, Array, Any]:
        """Begins a copy: what is copied, where to, and the event that ends it."""
        with array.device:
            source = self._cupy.ascontiguousarray(array)
            computed = self._cupy.cuda.get_current_stream().record()
            stream = self._stream(array.device.id)
            with stream:
                stream.wait_event(computed)
                memory = self._cupy.cuda.alloc_pinned_memory(max(source.nbytes, 1))
                host: Array = np.ndarray(source.shape, source.dtype, buffer=memory)
                source.get(out=host, blocking=False)
                return source, host, stream.record()

    def _stream(self, device: int) -> Any:
        """The stream for copies of a GPU, which is the current one."""
        with self._lock:
            if device not in self._streams:
                self._streams[device] = self._cupy.cuda.Stream(non_blocking=True)
            return self._streams[device]

    def _put(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if not self._closed:
                self._work.put((work, future))
                return future
        future.set_exception(StoreError("the store was closed"))
        return future

    def _run(self) -> None:
        """In the order in which they were begun: one thread waits for each in turn."""
        while (item := self._work.get()) is not None:
            _carry_out(*item)
            del item  # else it would hold the last copy's memory while there is nothing to do


def _carry_out(work: Callable[[], Any], future: Future[Any]) -> None:
    try:
        found = work()
    except Exception as error:  # noqa: BLE001  # the thread's outermost frame: who waits for the copy is told
        future.set_exception(StoreError(f"a copy between GPU and host failed: {error}"))
    else:
        future.set_result(found)
