"""Where a run computes: the array module, and the way of arrays there and back.

A worker process computes on one device. A run asks its device for everything, so that one process may hold several.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from weft_kernels.kernel import Array
from weft_worker.errors import DeviceError
from weft_worker.upload import Upload

_log = logging.getLogger("weft.worker")

CPU: Final = "cpu"
AUTO: Final = "auto"
DEVICE_PATTERN: Final = r"^(cpu|auto|cuda:\d{1,3})$"


class Device(Protocol):
    """A device that runs kernels. Safe between threads.

    Arrays on the device are of `xp`, those on the host are NumPy's. What is started on one device runs there in the
    order in which it was started, so that a value may be used as soon as the work that makes it was started.
    """

    @property
    def name(self) -> str:
        """As in the settings: `cpu`, `cuda:0`."""

    @property
    def title(self) -> str:
        """The name, and of a GPU its model: `cuda:0 NVIDIA H100 80GB HBM3`."""

    @property
    def xp(self) -> Any:
        """The array module of this device's arrays."""

    def use(self) -> AbstractContextManager[Any]:
        """Makes this device and its stream the ones that `xp` works on, on this thread, until it is left."""

    def to_device(self, array: Array) -> Array:
        """The host's array on the device. The host's memory is free to be written once this returns, except on the
        CPU, where it is the array itself."""

    def upload(self, array: Array) -> Array | Upload:
        """As `to_device`, without waiting for kernels that were started before."""

    def to_host(self, array: Array) -> Array:
        """A device's array on the host; waits until it is computed."""

    def bring(self, arrays: Sequence[Array]) -> Future[list[Array]]:
        """The device's arrays on the host, in C order, once they are computed; returns at once.

        The future is done by a thread of the device's own, or before this returns.
        """

    def synchronize(self) -> None:
        """Waits until all that was started is done. Raises DeviceError where some of it failed."""

    def allow_tf32(self, allowed: bool) -> bool:
        """Whether this process's float32 products may be computed in TF32, where it can: says whether it can."""

    def memory(self) -> int:
        """Bytes of the device's memory that arrays use now; 0 on the CPU, where nobody counts them."""


@runtime_checkable
class CapturingDevice(Protocol):
    """A device that starts again as a whole what it was once given piece by piece. Within its `use`."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None] | None:
        """What starts again, on the same arrays, all that `work` starts, which has not run yet; arrays that `work`
        makes are for that alone. None while another thread uses the device. Raises what `work` does, and where it
        starts what cannot be captured."""

    def address(self, array: Array) -> int:
        """Where in the device's memory the array begins."""

    def after_copies(self) -> None:
        """What is started from now on runs once the copies to the host that were begun before have been made."""


class CpuDevice:
    """NumPy, in this process's memory."""

    name = title = CPU
    xp = np

    def use(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def to_device(self, array: Array) -> Array:
        return array

    def upload(self, array: Array) -> Array:
        return array

    def to_host(self, array: Array) -> Array:
        return array

    def bring(self, arrays: Sequence[Array]) -> Future[list[Array]]:
        brought: Future[list[Array]] = Future()
        brought.set_result([np.asarray(array, order="C") for array in arrays])
        return brought

    def synchronize(self) -> None:
        pass

    def allow_tf32(self, allowed: bool) -> bool:
        return False

    def memory(self) -> int:
        return 0


@cache
def open_device(name: str) -> Device:
    """The device of that name, one object a process: `cpu`, `cuda:<number>`, or `auto`, the first GPU if there is one.

    Raises DeviceError for a name that is none of these, a missing CuPy and a GPU that is not there.
    """
    if name == CPU:
        return CpuDevice()
    # Imported here alone: a machine without a GPU never loads what it is made of.
    from weft_worker.cuda_device import CudaDevice, why_not

    if name == AUTO:
        reason = why_not(0)
        if reason is not None:
            _log.warning("computing on the CPU, as no GPU can be used: %s", reason)
        return open_device(CPU if reason is not None else "cuda:0")
    kind, _, number = name.partition(":")
    if kind != "cuda" or not number.isdecimal():
        raise DeviceError(f"device {name!r} is none of cpu, auto, cuda:0, cuda:1, ...")
    reason = why_not(int(number))
    if reason:
        raise DeviceError(f"device {name!r} cannot be used: {reason}")
    return CudaDevice(int(number))
