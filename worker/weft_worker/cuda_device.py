"""A GPU: CuPy, streams for kernels, for what comes back and for what goes there, and a thread that waits for copies."""

from __future__ import annotations

import importlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from weft_kernels.cuda.module import import_cupy
from weft_kernels.kernel import Array
from weft_worker.errors import DeviceError
from weft_worker.upload import Upload

TF32_CAPABILITY = 80
"""Of the GPU, at least: 8.0, Ampere."""

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
    What comes from the host is copied on a third one, from pinned memory, and waited for where it is read.
    """

    def __init__(self, number: int) -> None:
        self._cupy = import_cupy()
        self.name = f"cuda:{number}"
        self.xp: Any = self._cupy
        self._device = self._cupy.cuda.Device(number)
        with self._device:
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
            self._copies = self._cupy.cuda.Stream(non_blocking=True)
            self._uploads = self._cupy.cuda.Stream(non_blocking=True)
        self._landing: deque[tuple[Array, Any]] = deque()
        """What the stream of kernels copies, and the event behind that: held, as the pool would give its memory to the
        next upload."""
        self._lock = threading.Lock()
        """Held while what has been copied is taken out of them."""
        self._graph_memory = self._cupy.cuda.MemoryPool()
        """Of arrays that are made in CUDA graphs: nothing else may have their memory between two launches."""
        self._copied_last: Any = None
        """The event behind the last copy to the host."""
        self._copying = threading.Lock()
        """Held while copies to the host are started."""
        self._here = threading.local()
        self._gate = threading.Condition()
        """Held while `_users` and `_is_capturing` change: what other threads start must not become part of a graph."""
        self._users = 0
        self._is_capturing = False
        self._waiting: SimpleQueue[_Copy] = SimpleQueue()
        threading.Thread(target=self._complete, name=f"copies-{self.name}", daemon=True).start()

    @property
    def title(self) -> str:
        properties = self._cupy.cuda.runtime.getDeviceProperties(self._device.id)
        return f"{self.name} {properties['name'].decode()}"

    @contextmanager
    def use(self) -> Iterator[None]:
        depth = getattr(self._here, "depth", 0)
        if not depth:
            with self._gate:
                self._gate.wait_for(lambda: not self._is_capturing)
                self._users += 1
        self._here.depth = depth + 1
        try:
            with self._on(self._stream):
                yield
        finally:
            self._here.depth = depth
            if not depth:
                with self._gate:
                    self._users -= 1

    def to_device(self, array: Array) -> Array:
        with self.use():
            # The copy goes through CuPy's pinned staging memory: the host's array is read before this returns.
            return self.xp.asarray(array)  # type: ignore[no-any-return]  # xp is Any

    def upload(self, array: Array) -> Upload:
        """The value comes to memory of the stream for uploads, and the stream of kernels copies it from there: each
        stream's memory is used in that stream's order, and what is uploaded next waits for no kernel."""
        with self._on(self._uploads):
            with self._lock:
                while self._landing and self._landing[0][1].done:
                    self._landing.popleft()
            staged = self.xp.asarray(array)
            return Upload(staged.shape, staged.dtype, partial(self._land, staged, self._record(self._uploads)))

    def _land(self, staged: Array, arrived: Any, out: Array | None) -> Array:
        with self.use():
            self._stream.wait_event(arrived)
            landed = self.xp.empty(staged.shape, staged.dtype) if out is None else out
            landed[...] = staged
            self._landing.append((staged, self._record(self._stream)))
        return landed

    def to_host(self, array: Array) -> Array:
        with self.use():
            return np.asarray(self.xp.asnumpy(array))

    def bring(self, arrays: Sequence[Array]) -> Future[list[Array]]:
        future: Future[list[Array]] = Future()
        with self.use():
            sources = tuple(array if array.flags.c_contiguous else array.copy("C") for array in arrays)
            computed = self._record(self._stream)
        with self._on(self._copies), self._copying:  # The last event is that behind all copies.
            self._copies.wait_event(computed)
            hosts = [self._copied(source) for source in sources]
            done = self._copied_last = self._record(self._copies)
        self._waiting.put(_Copy(sources, hosts, done, future))
        return future

    def synchronize(self) -> None:
        try:
            with self.use():
                self._stream.synchronize()
                self._copies.synchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise DeviceError(f"device {self.name!r}: {error}") from error

    def allow_tf32(self, allowed: bool) -> bool:
        # CuPy's public way is CUPY_TF32, which it reads before the first product and nobody can take back.
        products = importlib.import_module("cupy._core._routines_linalg")
        can = int(self._device.compute_capability) >= TF32_CAPABILITY
        with self._device:
            products.set_compute_type(
                np.float32, products.COMPUTE_TYPE_TF32 if allowed and can else products.COMPUTE_TYPE_DEFAULT
            )
        return can

    def memory(self) -> int:
        with self._device:
            arrays, graphs = self._cupy.get_default_memory_pool().used_bytes(), self._graph_memory.total_bytes()
        return int(arrays + graphs)

    def capture(self, work: Callable[[], None]) -> Callable[[], None] | None:
        with self._gate:
            if self._users > 1:
                return None
            self._is_capturing = True
        try:
            with self._cupy.cuda.using_allocator(self._graph_memory.malloc):
                graph = self._captured(work)
        finally:
            with self._gate:
                self._is_capturing = False
                self._gate.notify_all()
        return partial(graph.launch, self._stream)

    def _captured(self, work: Callable[[], None]) -> Any:
        self._stream.begin_capture()
        try:
            work()
        except BaseException:
            with suppress(self._cupy.cuda.runtime.CUDARuntimeError):
                self._stream.end_capture()  # It ends with an error of its own where the capture is invalid.
            raise
        return self._stream.end_capture()

    def address(self, array: Array) -> int:
        return int(array.data.ptr)  # type: ignore[attr-defined]  # CuPy's array has it

    def after_copies(self) -> None:
        if self._copied_last is not None:
            self._stream.wait_event(self._copied_last)

    def _record(self, stream: Any) -> Any:
        """An event behind what the stream has: who waits for it on the host sleeps, and nobody reads the time of it."""
        return stream.record(self._cupy.cuda.Event(block=True, disable_timing=True))

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
