"""The one place that imports CuPy. Everything here imports and runs without it until a GPU is asked for."""

from __future__ import annotations

import importlib
from typing import Any


def import_cupy() -> Any:
    """CuPy. Raises ImportError where it is not installed, or where what it needs is not."""
    return importlib.import_module("cupy")
