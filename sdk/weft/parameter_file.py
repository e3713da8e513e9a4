"""Saved parameters, read back."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from weft.errors import ArgumentError


def load(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The arrays of a safetensors file by name, as `JobHandle.save` and `weft params save` write them.

    Raises ArgumentError where the file is none, OSError where it cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    with open(path, "rb"):  # safetensors' own error does not say which file is missing
        pass
    try:
        return load_file(path)
    except (SafetensorError, KeyError) as error:  # KeyError: an element type that NumPy has not
        raise ArgumentError(f"{os.fspath(path)} is no safetensors file of NumPy's element types: {error}") from None
