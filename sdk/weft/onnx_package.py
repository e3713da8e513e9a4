"""The modules that need the `onnx` package, which not everybody has."""

from __future__ import annotations

import importlib
from typing import Any

from weft.errors import MissingPackageError

INSTALL = "pip install 'weft[onnx]'"


def onnx_form(module: str) -> Any:
    """A module of `weft_graph.onnx_form`. Raises MissingPackageError."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] in {"onnx", "google"}:
            raise MissingPackageError(f"reading and writing ONNX files needs the package onnx: {INSTALL}") from None
        raise
