"""CUDA sources: put together, compiled, kept."""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np

from weft_kernels.kernel import Array

# ----------------------------------------------------------------------------------------------------------------------
# The CUDA C of this room: files in `sources`, each with its entries for every element type that they are made for.
#
# An entry is a kernel's name expression, `im2col<float>`. The prelude stands before every source.


C_TYPES: Final[Mapping[str, str]] = {
    "bool": "bool",
    "uint8": "byte_t",
    "int8": "small_t",
    "uint16": "ushort_t",
    "int16": "short",
    "uint32": "uint_t",
    "int32": "int",
    "uint64": "word_t",
    "int64": "long_t",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
}
"""What an element type is called in CUDA C: one word each, as a cast needs it; the prelude has those that C has not."""

_MADE_FOR: Final[Mapping[str, tuple[str, ...]]] = {
    "T": ("float16", "float32", "float64"),
    "L": ("int32", "int64"),
}
"""The element types that a template parameter of that name stands for."""

Index: TypeAlias = Literal[32, 64]
"""Bits of `index_t`, in which a kernel counts elements."""

_KERNEL: Final = re.compile(r"(?:template <([^>]*)>\s*)?__global__ void (\w+)\(")


@dataclass(frozen=True, slots=True)
class CudaSource:
    """A source ready to be compiled: its text, and the name expressions of every kernel that it is compiled for.

    The arrays of a `strided` one may lie in any order.
    """

    name: str
    text: str
    entries: tuple[str, ...]
    index: Index = 64
    strided: bool = False


@cache
def sources(index: Index = 32) -> Mapping[str, CudaSource]:
    """Every source of this package by its file's name, found by walking the folder."""
    folder = resources.files(__package__).joinpath("sources")
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".cu"))
    return {name: read_source(name, folder.joinpath(name).read_text(encoding="utf-8"), index) for name in files}


@lru_cache(maxsize=4096)
def generated_source(body: str, index: Index, *, strided: bool) -> CudaSource:
    """The source of a kernel that was written down from nodes."""
    return read_source("generated.cu", body, index, strided=strided)


def read_source(name: str, body: str, index: Index = 64, *, strided: bool = False) -> CudaSource:
    """The source of that body. Raises ValueError for a template parameter that has no list of types, and no kernel."""
    entries: list[str] = []
    for parameters, kernel in _KERNEL.findall(body):
        letters = [parameter.split()[-1] for parameter in parameters.split(",")] if parameters else []
        unknown = [letter for letter in letters if letter not in _MADE_FOR]
        if unknown:
            raise ValueError(f"{name}: {kernel} has a parameter {unknown[0]!r}; there are types for {list(_MADE_FOR)}")
        for types in itertools.product(*(_MADE_FOR[letter] for letter in letters)):
            entries.append(entry_name(kernel, *types))
    if not entries:
        raise ValueError(f"{name} has no kernel")
    narrow = "#define WEFT_INDEX_32\n" if index == 32 else ""
    return CudaSource(name, f"{narrow}{prelude()}\n{body}", tuple(entries), index, strided)


@cache
def prelude() -> str:
    """What stands before every source."""
    return resources.files(__package__).joinpath("sources", "prelude.cuh").read_text(encoding="utf-8")


def entry_name(kernel: str, *dtypes: np.dtype[Any] | str) -> str:
    """A kernel's name expression for those element types."""
    arguments = ", ".join(C_TYPES[np.dtype(dtype).name] for dtype in dtypes)
    return f"{kernel}<{arguments}>" if arguments else kernel


THREADS: Final = 256
"""Threads of a block where a kernel does not ask for its own: enough to hide memory's latency on every GPU."""
MOST_BLOCKS: Final = 1 << 16
"""Blocks of a launch, at most: more than any GPU runs at once, and threads loop over what is left."""

INDEX_32_ELEMENTS: Final = (1 << 31) - THREADS * MOST_BLOCKS
"""Launches whose arrays and numbers are smaller count in 32 bits: also a thread's last step, which goes beyond the last
element by the whole grid, has a number there."""

Dim = tuple[int, ...]
Argument = Array | np.generic


class Launcher(Protocol):
    """Runs one kernel on arrays of its module. Arguments are as the kernel has them; arrays of a source that is not
    strided are C-contiguous."""

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
    reach: int = 0,
) -> None:
    """Starts a kernel that loops over `count` elements; none is started for no element.

    Python's integers become the kernel's `index_t`, of 32 bits where every array, every one of them and `reach` is
    below `INDEX_32_ELEMENTS`; floats become doubles, NumPy's numbers stay. `types` fill the kernel's template
    parameters, in order.
    """
    if count:
        grid = (min(-(-count // THREADS), MOST_BLOCKS),)
        launch_blocks(xp, file, kernel, grid, (THREADS,), *args, types=types, reach=reach)


def launch_blocks(
    xp: Any,
    file: str,
    kernel: str,
    grid: Dim,
    block: Dim,
    *args: Array | int | float | np.generic,
    types: Sequence[Any] = (),
    shared_bytes: int = 0,
    reach: int = 0,
) -> None:
    """As `launch`, for a kernel that asks for its own grid and block."""
    index = index_type(args, reach)
    given = [_argument(arg, index) for arg in args]
    LAUNCHERS[xp.__name__](
        sources(index)[file], entry_name(kernel, *types), grid, block, given, shared_bytes=shared_bytes
    )


def launch_generated(
    xp: Any, body: str, count: int, args: Sequence[Array | int | float], *, strided: bool = False, reach: int = 0
) -> None:
    """Starts a kernel that was written down from nodes, which loops over `count` elements, as `launch` does."""
    if count:
        grid = (min(-(-count // THREADS), MOST_BLOCKS),)
        index = index_type(args, reach)
        source = generated_source(body, index, strided=strided)
        given = [_argument(arg, index) for arg in args]
        LAUNCHERS[xp.__name__](source, source.entries[0], grid, (THREADS,), given, shared_bytes=0)


def index_type(args: Iterable[Array | int | float | np.generic], reach: int = 0) -> Index:
    """What a kernel with these arguments counts elements in; see `launch`."""
    for arg in args:
        size = arg if isinstance(arg, int) else 0 if isinstance(arg, float | np.generic) else arg.size
        reach = max(reach, abs(size))
    return 32 if reach < INDEX_32_ELEMENTS else 64


def _argument(value: Array | int | float | np.generic, index: Index) -> Argument:
    if isinstance(value, int):
        return np.int32(value) if index == 32 else np.int64(value)
    return np.float64(value) if isinstance(value, float) else value
