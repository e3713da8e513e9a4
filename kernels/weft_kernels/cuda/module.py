"""Starts this room's CUDA kernels. The one place that imports CuPy; nothing here needs it until a GPU is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Protocol

import numpy as np

from weft_kernels.cuda.source import CudaSource, entry_name, sources
from weft_kernels.kernel import Array

THREADS: Final = 256
"""Threads of a block where a kernel does not ask for its own: enough to hide memory's latency on every GPU."""
MOST_BLOCKS: Final = 1 << 16
"""Blocks of a launch, at most: more than any GPU runs at once, and threads loop over what is left."""

Dim = tuple[int, ...]
Argument = Array | np.generic


class Launcher(Protocol):
    """Runs one kernel on arrays of its module. Arguments are as the kernel has them: arrays are C-contiguous."""

    def __call__(
        self, source: CudaSource, entry: str, grid: Dim, block: Dim, args: Sequence[Argument], *, shared_bytes: int
    ) -> None: ...


def import_cupy() -> Any:
    """CuPy. Raises ImportError where it is not installed, or where what it needs is not."""
    return importlib.import_module("cupy")


@cache
def _function(source: CudaSource, entry: str) -> Any:
    """A compiled kernel; CuPy keeps it for each device, and its binary in a folder of the user's."""
    module = import_cupy().RawModule(code=source.text, options=("--std=c++17",), name_expressions=(entry,))
    return module.get_function(entry)


def _launch_cupy(
    source: CudaSource, entry: str, grid: Dim, block: Dim, args: Sequence[Argument], *, shared_bytes: int
) -> None:
    _function(source, entry)(grid, block, tuple(args), shared_mem=shared_bytes)


LAUNCHERS: Final[dict[str, Launcher]] = {"cupy": _launch_cupy}
"""By the array module's name. One that is not here has no CUDA kernels, and its bodies use the module alone."""


def has_kernels(xp: Any) -> bool:
    """Whether this room's CUDA kernels run on arrays of that module."""
    return xp.__name__ in LAUNCHERS


def launch(
    xp: Any,
    file: str,
    kernel: str,
    count: int,
    *args: Array | int | float | np.generic,
    types: Sequence[Any] = (),
) -> None:
    """Starts a kernel that loops over `count` elements; none is started for no element.

    Python's integers become 64-bit ones, floats doubles. `types` fill the kernel's template parameters, in order.
    """
    if count:
        grid = (min(-(-count // THREADS), MOST_BLOCKS),)
        launch_blocks(xp, file, kernel, grid, (THREADS,), *args, types=types)


def launch_blocks(
    xp: Any,
    file: str,
    kernel: str,
    grid: Dim,
    block: Dim,
    *args: Array | int | float | np.generic,
    types: Sequence[Any] = (),
    shared_bytes: int = 0,
) -> None:
    """As `launch`, for a kernel that asks for its own grid and block."""
    LAUNCHERS[xp.__name__](
        sources()[file],
        entry_name(kernel, *types),
        grid,
        block,
        [_argument(arg) for arg in args],
        shared_bytes=shared_bytes,
    )


def launch_source(xp: Any, source: CudaSource, count: int, args: Sequence[Array | int | float]) -> None:
    """Starts the first kernel of a source that was generated, which loops over `count` elements."""
    if count:
        grid = (min(-(-count // THREADS), MOST_BLOCKS),)
        LAUNCHERS[xp.__name__](
            source, source.entries[0], grid, (THREADS,), [_argument(arg) for arg in args], shared_bytes=0
        )


def _argument(value: Array | int | float | np.generic) -> Argument:
    if isinstance(value, int):
        return np.int64(value)
    return np.float64(value) if isinstance(value, float) else value
