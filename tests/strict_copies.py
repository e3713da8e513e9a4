"""A CuPy that stands in for a GPU where arrays are copied: nothing happens on a stream before somebody waits for it.

So memory that is read too early has `GARBAGE` in it. It has only what copies need; whatever else is asked for is an
AttributeError, and an array that is made NumPy's by the way a TypeError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

GARBAGE = 0xAB

_here = threading.local()
_lock = threading.RLock()


class Event:
    def __init__(self, stream: Stream, place: int) -> None:
        self._stream = stream
        self._place = place

    def synchronize(self) -> None:
        self._stream.run(self._place)


class Stream:
    """Work in order, done when it is waited for."""

    def __init__(self, non_blocking: bool = False) -> None:
        self._work: list[Callable[[], None]] = []
        self._done = 0

    def put(self, work: Callable[[], None]) -> None:
        self._work.append(work)

    def record(self) -> Event:
        return Event(self, len(self._work))

    def wait_event(self, event: Event) -> None:
        self.put(event.synchronize)

    def synchronize(self) -> None:
        self.run(len(self._work))

    def run(self, until: int) -> None:
        with _lock:
            while self._done < until:
                self._done += 1
                self._work[self._done - 1]()

    def __enter__(self) -> Stream:
        _streams().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert _streams().pop() is self


DEFAULT = Stream()


class Device:
    id = 0

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Array:
    """A GPU's array. `held` is its memory; reading it is for tests, after they have waited."""

    __array_ufunc__ = None

    def __init__(self, held: Any) -> None:
        self.held = np.array(held)

    device = Device()
    nbytes = property(lambda self: self.held.nbytes)
    shape = property(lambda self: self.held.shape)
    dtype = property(lambda self: self.held.dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.held.shape, "typestr": self.held.dtype.str, "data": (id(self), False), "version": 3}

    def __array__(self, *_: object, **__: object) -> Any:
        raise TypeError("a GPU's array is made NumPy's by the way")

    def get(self, *, out: Any, blocking: bool) -> None:
        assert not blocking, "nobody may wait here"
        assert out.flags.c_contiguous
        assert self.held.flags.c_contiguous, "CuPy copies what is contiguous"
        current_stream().put(lambda: np.copyto(out, self.held))

    def __setitem__(self, index: object, value: Array) -> None:
        assert isinstance(value, Array), "the host's array is given to the GPU by the way"
        assert index is Ellipsis
        current_stream().put(lambda: np.copyto(self.held, value.held))

    def compute(self, value: float) -> None:
        """A kernel on the current stream that writes all elements, later."""
        current_stream().put(lambda: self.held.fill(value))


class Cuda:
    Stream = Stream
    allocated = 0

    def alloc_pinned_memory(self, nbytes: int) -> Any:
        self.allocated += nbytes
        return bytearray([GARBAGE]) * nbytes

    @staticmethod
    def get_current_stream() -> Stream:
        return current_stream()


class StrictCupy:
    """The module."""

    def __init__(self) -> None:
        self.cuda = Cuda()

    @staticmethod
    def asarray(value: Any) -> Array:
        return value if isinstance(value, Array) else Array(value)

    @staticmethod
    def ascontiguousarray(value: Array) -> Array:
        return value if value.held.flags.c_contiguous else Array(np.ascontiguousarray(value.held))


def current_stream() -> Stream:
    streams = _streams()
    return streams[-1] if streams else DEFAULT


def _streams() -> list[Stream]:
    if not hasattr(_here, "streams"):
        _here.streams = []
    return _here.streams  # type: ignore[no-any-return]
