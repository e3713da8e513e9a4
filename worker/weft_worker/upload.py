"""A value on its way to a device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from weft_kernels.kernel import Array


class Upload:
    """A value of that shape and type. `copy` gives it on the device once it has arrived: in `out`, or a new array."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], copy: Callable[[Array | None], Array]) -> None:
        self.shape = shape
        self.dtype = dtype
        self._copy: Callable[[Array | None], Array] | None = copy
        self._landed: Array | None = None
        self._lock = threading.Lock()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def land(self, out: Array | None = None) -> Array:
        """The value on the device, the same array each time; the first call may have it written to `out`. Called within
        the device's `use` by who starts kernels that read it: they wait for it, and those before do not."""
        with self._lock:
            if self._landed is None:
                assert self._copy is not None
                self._landed, self._copy = self._copy(out), None
            return self._landed
