"""Compiles CUDA C for a GPU without one: NVRTC through CuPy. The one place that uses private names of CuPy's."""

from __future__ import annotations

from functools import cache
from typing import Any

from weft_kernels.cuda.module import CudaSource

ARCHITECTURES = ("sm_80", "sm_90")


@cache
def why_not() -> str | None:
    """Why nothing can be compiled here; None where it can."""
    try:
        from cupy.cuda import compiler

        program = compiler._NVRTCProgram("__global__ void f() {}", "probe.cu", (), (), method="cubin")
        program.compile(("-arch=sm_80",))
    except (ImportError, RuntimeError) as error:
        return f"NVRTC is not here; weft[cuda-compile] installs it ({error})"
    return None


def compile_for(source: CudaSource, architecture: str) -> tuple[int, dict[str, str]]:
    """(bytes of the machine code, the compiled name of each entry). Raises CuPy's CompileException."""
    from cupy._core import core
    from cupy.cuda import compiler

    program: Any = compiler._NVRTCProgram(
        source.text, source.name, (), (), name_expressions=source.entries, method="cubin"
    )
    # Machine code is made and not run: how good it is does not matter.
    options = (*core.assemble_cupy_compiler_options(()), f"-arch={architecture}", "-Xptxas=-O0")
    binary, names = program.compile(options)
    return len(binary), names
