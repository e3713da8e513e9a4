"""CuPy as far as `weft_worker.cuda_device` uses it, over the arrays of `strict_arrays`: streams, events, pinned memory.

`started` has in order what was started. Kernels run at once, on the first stream that is made; what is started on
another one runs when somebody waits for it, so that memory which is read too early has `GARBAGE` in it, and memory that
is written too early spoils a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import strict_arrays
import weft_worker.cuda_device as cuda_device
from strict_arrays import StrictArray, StrictModule
from weft_worker.cuda_device import CudaDevice

GARBAGE = 0xAB

_here = threading.local()
_lock = threading.RLock()


class CUDARuntimeError(RuntimeError):
    pass


@dataclass(frozen=True, eq=False)
class Entry:
    """Something that was started: `what` on `stream`. A kernel's `made` is the array that it makes, if it is new; an
    event stands with what records it, waits for it on a stream, or on the host."""

    what: str
    stream: Stream | None
    made: Any = None
    event: Event | None = None


@dataclass(eq=False)
class Event:
    block: bool = False
    disable_timing: bool = False
    stream: Any = None
    place: int = 0

    @property
    def done(self) -> bool:
        return self.stream.done >= self.place

    def synchronize(self) -> None:
        assert self.block, "who waits takes no processor's time"
        self.stream.cupy.note("event.synchronize", None, event=self)
        self.stream.run(self.place)


@dataclass(eq=False)
class Stream:
    cupy: StrictCupy
    is_lazy: bool
    work: list[Callable[[], None]] = field(default_factory=list)
    done: int = 0
    captured: list[Callable[[], None]] | None = None
    is_invalid: bool = False

    def put(self, work: Callable[[], None]) -> None:
        if self.is_lazy:
            self.work.append(work)
        else:
            work()

    def record(self, event: Event) -> Event:
        self.invalidate("an event of another stream's")
        assert event.disable_timing, "which takes longer"
        event.stream, event.place = self, len(self.work)
        self.cupy.note("record", self, event=event)
        return event

    def wait_event(self, event: Event) -> None:
        self.invalidate("an event of another stream's")
        self.cupy.note("wait", self, event=event)
        self.put(lambda: event.stream.run(event.place))

    def begin_capture(self) -> None:
        assert self.captured is None
        self.captured, self.is_invalid = [], False

    def end_capture(self) -> Graph:
        assert self.captured is not None
        graph, self.captured = Graph(self.cupy, self.captured), None
        if self.is_invalid:
            raise CUDARuntimeError("cudaErrorStreamCaptureInvalidated")
        self.cupy.note("capture", self)
        return graph

    def invalidate(self, what: str) -> None:
        """Raises where work is being captured: it waits for the GPU, or reads memory of the host once."""
        if self.captured is not None:
            self.is_invalid = True
            raise CUDARuntimeError(f"cudaErrorStreamCaptureUnsupported: {what}")

    def capture(self, work: Callable[[], Any], *, writes: bool) -> Any:
        """Keeps the work for later. What makes new arrays is done for their shapes, and they have garbage in them."""
        assert self.captured is not None
        if writes:
            self.captured.append(work)
            return None
        with np.errstate(all="ignore"):
            made, again = work(), work()
        parts = made if isinstance(made, list | tuple) else [made]
        others = again if isinstance(again, list | tuple) else [again]
        if all(_address(one) == _address(other) for one, other in zip(parts, others, strict=True)):
            return made  # Views.
        kept = [np.array(part) for part in parts]
        for array in kept:
            array.fill(3)

        def replay() -> None:
            found = work()
            for array, part in zip(kept, found if isinstance(found, list | tuple) else [found], strict=True):
                array[...] = part

        self.captured.append(replay)
        return type(made)(kept) if isinstance(made, list | tuple) else kept[0]

    def synchronize(self) -> None:
        self.invalidate("synchronize")
        self.cupy.note("stream.synchronize", self)
        self.run(len(self.work))

    def run(self, until: int) -> None:
        with _lock:
            while self.done < until:
                self.done += 1
                self.work[self.done - 1]()

    def __enter__(self) -> Stream:
        _streams().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert _streams().pop() is self


@dataclass(eq=False)
class Graph:
    """What was captured."""

    cupy: StrictCupy
    work: list[Callable[[], None]]

    def launch(self, stream: Stream) -> None:
        assert stream.captured is None
        assert not stream.is_lazy
        self.cupy.note("graph", stream)
        with np.errstate(all="ignore"):
            for work in self.work:
                work()


class Device(nullcontext[None]):
    compute_capability = "80"
    id = 0


class StrictCupy(StrictModule):
    """The module."""

    def __init__(self) -> None:
        super().__init__(strict_arrays.strict.__name__)
        self.started: list[Entry] = []
        self.streams: list[Stream] = []
        self.cuda = SimpleNamespace(
            Device=lambda number: Device(),
            Stream=self._stream,
            Event=Event,
            alloc_pinned_memory=lambda nbytes: bytearray([GARBAGE]) * nbytes,
            get_default_memory_pool=lambda: SimpleNamespace(used_bytes=lambda: 0),
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError, getDeviceProperties=lambda number: {"name": b"Strict GPU"}
            ),
            MemoryPool=lambda: SimpleNamespace(malloc=None, total_bytes=lambda: 0),
            using_allocator=lambda malloc: nullcontext(),
        )

    def _stream(self, non_blocking: bool) -> Stream:
        assert non_blocking
        self.streams.append(Stream(self, is_lazy=bool(self.streams)))
        return self.streams[-1]

    def note(self, what: str, stream: Stream | None, **more: Any) -> None:
        self.started.append(Entry(what, stream, **more))

    def carry_out(self, name: str, work: Callable[[], Any], *, writes: bool = False) -> Any:
        """See `strict_arrays.carry_out`."""
        stream = current_stream()
        if stream is None:  # A test looks at an array.
            return work()
        if stream.is_lazy:
            assert writes, f"{name} runs on a stream for copies"
            self.note(name, stream)
            stream.put(work)
            return None
        if stream.captured is not None:
            return stream.capture(work, writes=writes)
        made = work()
        self.note(name, stream, made=made)
        return made

    def asnumpy(self, array: Any) -> Any:  # type: ignore[override]  # the other one is static
        stream = current_stream()
        if stream is not None:
            stream.invalidate("asnumpy")
        self.note("asnumpy", stream)
        return StrictModule.asnumpy(array)

    def asarray(self, value: Any, dtype: Any = None) -> StrictArray:  # type: ignore[override]
        stream = current_stream()
        if isinstance(value, StrictArray):
            held = value.held
            return StrictArray(self.carry_out("asarray", lambda: np.asarray(held, dtype=dtype)))
        if stream is not None:
            stream.invalidate("asarray")
        if stream is None or not stream.is_lazy:
            return StrictModule.asarray(value, dtype)
        staged = np.array(value, dtype=dtype)  # CuPy's own pinned memory.
        made = StrictArray(np.frombuffer(bytes([GARBAGE]) * staged.nbytes, staged.dtype).reshape(staged.shape).copy())
        self.note("upload", stream, made=made.held)
        stream.put(lambda: np.copyto(made.held, staged))
        return made

    def array(self, value: Any, dtype: Any = None) -> StrictArray:  # type: ignore[override]
        return self.asarray(value.copy() if isinstance(value, StrictArray) else value, dtype)


def _address(array: Any) -> Any:
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) and array.nbytes else id(array)


def current_stream() -> Stream | None:
    streams = _streams()
    return streams[-1] if streams else None


def _streams() -> list[Stream]:
    if not hasattr(_here, "streams"):
        _here.streams = []
    return _here.streams  # type: ignore[no-any-return]


@contextmanager
def cuda_devices() -> Iterator[Callable[[], tuple[CudaDevice, StrictCupy]]]:
    """While it is entered, makes GPUs that stand on a CuPy of their own."""
    with pytest.MonkeyPatch.context() as patch:

        def made() -> tuple[CudaDevice, StrictCupy]:
            cupy = StrictCupy()
            patch.setattr(cuda_device, "import_cupy", lambda: cupy)
            patch.setattr(strict_arrays, "carry_out", cupy.carry_out)
            return CudaDevice(0), cupy

        yield made
