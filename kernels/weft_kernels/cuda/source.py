"""The CUDA C of this room: files in `sources`, each with its entries for every element type that they are made for.

An entry is a kernel's name expression, `im2col<float>`. The prelude stands before every source.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import numpy as np

C_TYPES: Final[Mapping[str, str]] = {
    "bool": "bool",
    "uint8": "byte_t",
    "int8": "small_t",
    "uint16": "ushort_t",
    "int16": "short",
    "uint32": "uint_t",
    "int32": "int",
    "uint64": "word_t",
    "int64": "index_t",
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

_KERNEL: Final = re.compile(r"(?:template <([^>]*)>\s*)?__global__ void (\w+)\(")


@dataclass(frozen=True, slots=True)
class CudaSource:
    """A source ready to be compiled: its text, and the name expressions of every kernel that it is compiled for."""

    name: str
    text: str
    entries: tuple[str, ...]


@cache
def sources() -> Mapping[str, CudaSource]:
    """Every source of this package by its file's name, found by walking the folder."""
    folder = resources.files(__package__).joinpath("sources")
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".cu"))
    return {name: read_source(name, folder.joinpath(name).read_text(encoding="utf-8")) for name in files}


def read_source(name: str, body: str) -> CudaSource:
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
    return CudaSource(name, f"{prelude()}\n{body}", tuple(entries))


@cache
def prelude() -> str:
    """What stands before every source."""
    return resources.files(__package__).joinpath("sources", "prelude.cuh").read_text(encoding="utf-8")


def entry_name(kernel: str, *dtypes: np.dtype[Any] | str) -> str:
    """A kernel's name expression for those element types."""
    arguments = ", ".join(C_TYPES[np.dtype(dtype).name] for dtype in dtypes)
    return f"{kernel}<{arguments}>" if arguments else kernel
