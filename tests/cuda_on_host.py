"""Runs CUDA C on the CPU: a source is compiled as C++ against `cuda_on_host.h`, and launched thread by thread.

The launcher holds every argument against the kernel's own parameter: array or number, element type, bytes, and whether
an array that the kernel writes may be written. A GPU would take any eight bytes for a pointer.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from weft_kernels.cuda.module import CudaSource

HEADER = Path(__file__).with_name("cuda_on_host.h")
COMPILER = shutil.which("g++")
COMPILED = Path(__file__).parents[1] / ".pytest_cache" / "cuda_on_host"
"""Libraries by what they were compiled of."""
_PROBE = "int main() { _Float16 x = 1; return x == 1 ? 0 : 1; }"


@cache
def why_not() -> str | None:
    """Why sources cannot be run on this machine's CPU; None where they can."""
    if COMPILER is None:
        return "there is no g++"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cc")
        source.write_text(_PROBE)
        made = subprocess.run(
            [COMPILER, "-std=c++20", source, "-o", Path(folder, "probe")], check=False, capture_output=True
        )
    return None if made.returncode == 0 else "this g++ has no _Float16"


def _compiled(name: str, text: str, options: Sequence[str]) -> Path:
    """The library of a source; tests of several files, in processes of their own, have the same sources."""
    parts = (_version(), HEADER.read_text(), text, *options)
    library = COMPILED / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.so"
    if not library.exists():
        COMPILED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=COMPILED) as folder:
            source, made = Path(folder, "source.cc"), Path(folder, "source.so")
            source.write_text(text)
            _run_compiler(name, [*options, "-shared", "-include", _header(options), source, "-o", made])
            made.replace(library)
    return library


@cache
def _header(options: Sequence[str]) -> Path:
    """The header's copy beside its compiled form, which takes half of the time from each source."""
    parts = (_version(), HEADER.read_text(), *options)
    header = COMPILED / hashlib.sha256(repr(parts).encode()).hexdigest() / HEADER.name
    compiled = header.with_name(f"{HEADER.name}.gch")
    if not compiled.exists():
        header.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=COMPILED) as folder:
            made = Path(folder, "header.gch")
            _run_compiler(HEADER.name, [*options, "-x", "c++-header", HEADER, "-o", made])
            shutil.copy(HEADER, header)
            made.replace(compiled)
    return header


def _run_compiler(name: str, arguments: Sequence[str | Path]) -> None:
    done = subprocess.run([str(COMPILER), *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{name}: {done.stderr[:4000]}"


@cache
def _version() -> str:
    assert COMPILER is not None
    return subprocess.run([COMPILER, "--version"], check=True, capture_output=True, text=True).stdout


class HostModule:
    """A source compiled for the CPU. Raises AssertionError, with the compiler's words, where it cannot be."""

    def __init__(self, source: CudaSource) -> None:
        self.source = source
        synchronizes = "true" if "__syncthreads" in source.text else "false"
        entries = "\n".join(
            f"WEFT_ENTRY({number}, {synchronizes}, {entry})" for number, entry in enumerate(source.entries)
        )
        text = f"{source.text}\n{entries}\n"
        # Products and sums are rounded one by one, as NumPy rounds them, so that results can be compared closely.
        optimized = "-O1" if len(source.entries) < 100 else "-O0"
        options = ("-std=c++20", optimized, "-ffp-contract=off", "-fPIC", "-w")
        self._library = ctypes.CDLL(str(_compiled(source.name, text, options)))

    def parameters(self, entry: str) -> list[str]:
        function = self._library[f"parameters_{self.source.entries.index(entry)}"]
        function.restype = ctypes.c_char_p
        text: bytes = function()
        return text.decode().split()

    def launch(
        self,
        entry: str,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        *,
        shared_bytes: int = 0,
        descending: bool = False,
    ) -> None:
        assert entry in self.source.entries, f"{self.source.name} has no entry {entry}: {self.source.entries}"
        assert np.prod(block) <= 1024
        assert min(*grid, *block) >= 1
        parameters = self.parameters(entry)
        assert len(args) == len(parameters), f"{entry}: {len(args)} arguments for {len(parameters)} parameters"
        strided = self.source.strided
        held = [
            _held(entry, place, arg, want, strided)
            for place, (arg, want) in enumerate(zip(args, parameters, strict=True))
        ]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
        number = self.source.entries.index(entry)
        ended = self._library[f"entry_{number}"](pointers, _three(grid), _three(block), shared_bytes, int(descending))
        assert ended, f"{entry}: some threads of a block ended while others waited for them"


def _held(entry: str, place: int, arg: Any, want: str, strided: bool) -> Any:
    """The argument's bytes as a C value, once it fits the parameter: `*cf4` is a pointer to constant floats."""
    shown = f"{entry}, argument {place}: {want} is asked for, and {type(arg).__name__} {arg.dtype} is given"
    kind = f"{arg.dtype.kind}{arg.dtype.itemsize}"
    if want.startswith("*"):
        assert isinstance(arg, np.ndarray), shown
        assert kind == want.lstrip("*c"), shown
        assert strided or arg.flags.c_contiguous, f"{entry}, argument {place} is not contiguous"
        assert want.startswith("*c") or arg.flags.writeable, f"{entry}, argument {place} is written and read-only"
        return ctypes.c_void_p(arg.ctypes.data)
    assert isinstance(arg, np.generic), shown
    assert kind == want, shown
    return (ctypes.c_char * arg.dtype.itemsize).from_buffer_copy(arg.tobytes())


def _three(sides: tuple[int, ...]) -> Any:
    return (ctypes.c_int * 3)(*sides, *(1,) * (3 - len(sides)))


@cache
def host_module(source: CudaSource) -> HostModule:
    """The source compiled once for this process."""
    return HostModule(source)


def launch_on_host(
    source: CudaSource,
    entry: str,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    args: Sequence[Any],
    *,
    shared_bytes: int,
) -> None:
    """A launcher over NumPy arrays. Kernels that synchronize run in both orders of threads, and must not differ."""
    module = host_module(source)
    copies = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    # Fewer blocks than are asked for: each thread has several elements to loop over, as on a small GPU.
    few = tuple(min(side, 3) for side in grid)
    module.launch(entry, few, block, args, shared_bytes=shared_bytes)
    if "__syncthreads" in source.text:
        module.launch(entry, grid, block, copies, shared_bytes=shared_bytes, descending=True)
        for arg, copy in zip(args, copies, strict=True):
            np.testing.assert_array_equal(arg, copy, err_msg=f"{entry} depends on the order of its threads")
