"""A GPU: CuPy, one stream for kernels, one for what comes back, and a thread that waits for the latter."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from weft_kernels.cuda.module import import_cupy
from weft_kernels.kernel import Array
from weft_worker.errors import DeviceError

INSTALL = "CuPy is not installed; pip install 'weft[cuda]'"


def why_not(number: int) -> str | None:
    """Why GPU `number` cannot be used, for people; None where it can."""
    try:
        cupy = import_cupy()
    except ImportError as error:
        return f"{INSTALL} ({error})"
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"there is no GPU ({error})"
    if number >= count:
        return f"this machine has {count} GPU{'' if count == 1 else 's'}, numbered from 0"
    return None


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy under way. `sources` are held: the pool would give their memory to the next kernel before it is read."""

    sources: tuple[Array, ...]
    hosts: list[Array]
    done: Any
    future: Future[list[Array]]


class CudaDevice:
    """GPU `number` of this machine.

    Every kernel runs on one stream, so that whatever is started later may read what was started before; CuPy's pool
    gives memory that was freed back to the same stream, and needs no waiting either. What goes to the host is copied
    on a second stream, behind an event, into pinned memory: neither the compute lane nor the IO lane waits for it.
    """

    def __init__(self, number: int) -> None:
        self._cupy = import_cupy()
        self.name = f"cuda:{number}"
        self.xp: Any = self._cupy
        self._device = self._cupy.cuda.Device(number)
        with self._device:
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
            self._copies = self._cupy.cuda.Stream(non_blocking=True)
        self._waiting: SimpleQueue[_Copy] = SimpleQueue()
        threading.Thread(target=self._complete, name=f"copies-{self.name}", daemon=True).start()

    def use(self) -> AbstractContextManager[Any]:
        return self._on(self._stream)

    def to_device(self, array: Array) -> Array:
        with self.use():
            # The copy goes through CuPy's pinned staging memory: the host's array is read before this returns.
            return self.xp.asarray(array)  # type: ignore[no-any-return]  # xp is Any

    def to_host(self, array: Array) -> Array:
        with self.use():
            return np.asarray(self.xp.asnumpy(array))

    def bring(self, arrays: Sequence[Array]) -> Future[list[Array]]:
        future: Future[list[Array]] = Future()
        with self.use():
            sources = tuple(self.xp.ascontiguousarray(array) for array in arrays)
            computed = self._stream.record()
        with self._on(self._copies):
            self._copies.wait_event(computed)
            hosts = [self._copied(source) for source in sources]
            done = self._copies.record()
        self._waiting.put(_Copy(sources, hosts, done, future))
        return future

    def synchronize(self) -> None:
        try:
            with self._device:
                self._stream.synchronize()
                self._copies.synchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(f"device {self.name!r}: {error}") from error

    def memory(self) -> int:
        with self._device:
            return int(self._cupy.get_default_memory_pool().used_bytes())

    def _copied(self, source: Array) -> Array:
        """Pinned memory that a copy of `source` on the present stream fills."""
        memory = self._cupy.cuda.alloc_pinned_memory(max(source.nbytes, 1))
        host: Array = np.ndarray(source.shape, source.dtype, buffer=memory)
        source.get(out=host, blocking=False)  # type: ignore[attr-defined]  # CuPy's array has it
        return host

    def _complete(self) -> None:
        """Copies end in the order in which they were started: one thread waits for each in turn."""
        while True:
            # In a function of its own: a name here would keep the last copy's memory while there is nothing to do.
            self._end(self._waiting.get())

    def _end(self, copy: _Copy) -> None:
        try:
            with self._device:
                copy.done.synchronize()
        except Exception as error:  # noqa: BLE001  # who waits for the future is told, whatever it is
            copy.future.set_exception(DeviceError(f"device {self.name!r}: {error}"))
        else:
            copy.future.set_result(copy.hosts)

    @contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        with self._device, stream:
            yield
